# SPDX-License-Identifier: Apache-2.0
"""What ``gs-train check`` finds in a capture, whether or not ``fit`` would take it."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gs_train.data.colmap import missing_parts, read_point_table
from gs_train.data.colmap_records import FloatArray, PointTable
from gs_train.data.depths import find_depths
from gs_train.data.examine import split_of
from gs_train.data.frame import Frame
from gs_train.data.masks import alpha_line, find_masks, unused_alpha_line, uses_alpha
from gs_train.data.photographs import Found, look_at_photographs
from gs_train.data.pixels import Header
from gs_train.data.ranges import FARTHEST_POINT, in_reach
from gs_train.data.readers.source import Source
from gs_train.data.resized import has_shape_of
from gs_train.data.tracks.survey import TrackSurvey, survey_tracks
from gs_train.errors import InputError
from gs_train.names import printable
from gs_train.options.config import FitConfig

FAR = 100
"""Points further from the cameras' focus than so many times their median distance are far off."""

_SHOWN = 5
_LOOKED_FOR = 20_000  # points that are projected into every view where there are no tracks


class CaptureFacts:
    """Looks at the parts of a capture, each once.

    Args:
        source: as its reader read it.
        run: the options of the run that would be started.
    """

    def __init__(self, source: Source, run: FitConfig) -> None:
        self.source = source
        self.run = run

    def found(self) -> dict[str, Any]:
        """What ``check --json`` prints of the capture: a part that cannot be read is None."""
        model = self.source.model
        result: dict[str, Any] = {
            "cameras": self._cameras(),
            "n_images": len(model.images),
            "photographs": None,
            "points": None,
            "tracks": None,
            "notes": list(self.source.notes),
        }
        with contextlib.suppress(InputError):
            result["photographs"] = self._photographs()
        with contextlib.suppress(InputError):
            result["notes"] += self._masks()
        with contextlib.suppress(InputError):
            result["notes"] += self._depths()
        try:
            points, _ = self.points_of(self._frame)
        except InputError:
            return result
        result["points"] = self._points(points)
        survey = None
        if not missing_parts(model.folder):
            try:
                survey = survey_tracks(model, self._table)
            except InputError as error:  # which training never reads
                result["notes"].append(printable(f"{error}: training does not need it"))
                return result
        if survey is None or not survey.n_observations:
            sees = self._sees(points)
        else:
            result["tracks"] = self._tracks(survey)
            sees = survey.observed > 0
        result["points"]["cameras_without"] = self._named(np.flatnonzero(~sees))
        return result

    @functools.cached_property
    def looks(self) -> list[Found]:
        """What a look at each photograph gave.

        Raises:
            InputError: there is no folder of photographs.
        """
        source = self.source
        return look_at_photographs(
            source.image_folder,
            source.model,
            source.photographs,
            max_pixels=self.run.max_pixels,
        )

    @functools.cached_property
    def _table(self) -> PointTable:
        return read_point_table(self.source.model.folder)

    @functools.cached_property
    def _frame(self) -> Frame:
        poses = np.stack([image.world_to_camera for image in self.source.model.images])
        return Frame.from_cameras(poses)

    def points_of(self, frame: Frame) -> tuple[FloatArray, NDArray[np.uint8]]:
        """The points, as :attr:`gs_train.data.readers.source.Source.points` gives them."""
        if missing_parts(self.source.model.folder):
            return self._given_points
        return self._table.points, self._table.colors

    @functools.cached_property
    def _given_points(self) -> tuple[FloatArray, NDArray[np.uint8]]:
        return self.source.points(self._frame)

    def _cameras(self) -> list[dict[str, Any]]:
        """Models and sizes, with the number of images of each, the most first."""
        model = self.source.model
        kinds = Counter(
            (camera.model, camera.width, camera.height)
            for camera in (model.cameras[image.camera_id] for image in model.images)
        )
        used = {image.camera_id for image in model.images}
        cameras = Counter(
            (camera.model, camera.width, camera.height)
            for camera in (model.cameras[id] for id in used)
        )
        return [
            {
                "model": kind[0],
                "width": kind[1],
                "height": kind[2],
                "n_cameras": cameras[kind],
                "n_images": n,
            }
            for kind, n in kinds.most_common()
        ]

    def _masks(self) -> list[str]:
        """Lines about masks and alpha channels."""
        masks, lines = find_masks(self.source, self.run.mask)
        n_alpha = sum(
            mask is None and isinstance(found, Header) and found.has_alpha
            for mask, found in zip(masks, self.looks)
        )
        if n_alpha and uses_alpha(self.run.mask):
            lines.append(alpha_line(n_alpha, len(masks), self.run.mask))
        elif n_alpha:
            lines.append(unused_alpha_line(n_alpha, self.run.background))
        return [printable(line) for line in lines]

    def _depths(self) -> list[str]:
        """Lines about depth maps."""
        source, run = self.source, self.run
        names = [image.name for image in source.model.images]
        train, _ = split_of(names, run.test_every, run.test_list, source.held_out)
        _, lines = find_depths(source, train, wanted=run.depth_weight is not None)
        return [printable(line) for line in lines]

    def _photographs(self) -> dict[str, Any]:
        model = self.source.model
        missing, unreadable, reshaped, resized = [], [], [], []
        n_alpha = 0
        for index, (image, found) in enumerate(zip(model.images, self.looks)):
            camera = model.cameras[image.camera_id]
            if isinstance(found, FileNotFoundError):
                missing.append(index)
            elif not isinstance(found, Header):
                unreadable.append(index)
            else:
                n_alpha += found.has_alpha
                if not has_shape_of(found.size, camera):
                    reshaped.append(index)
                elif found.size != (camera.width, camera.height):
                    resized.append(index)
        return {
            "missing": self._named(missing),
            "unreadable": self._named(unreadable),
            "other_shape": self._named(reshaped),
            "other_size": self._named(resized),
            "with_alpha": n_alpha,
        }

    def _points(self, points: FloatArray) -> dict[str, Any]:
        with np.errstate(all="ignore"):  # what overflows is out of reach
            placed = self._frame.points_in(points)
            is_near = in_reach(placed)
            far = np.linalg.norm(placed[is_near], axis=1) > FAR
        return {
            "n": len(points),
            "n_out_of_reach": int((~is_near).sum()),
            "out_of_reach": FARTHEST_POINT,
            "n_far": int(far.sum()),
            "far": FAR,
        }

    def _tracks(self, survey: TrackSurvey) -> dict[str, Any]:
        overlap = survey.overlap
        errors = np.nan_to_num(survey.camera_px, nan=-1.0)
        worst = [int(i) for i in np.argsort(-errors, kind="stable")[:_SHOWN] if errors[i] >= 0]
        sees = np.flatnonzero(survey.observed)
        shared = overlap.most_shared[sees]
        least = sees[np.argsort(shared, kind="stable")[:_SHOWN]]
        groups = [np.flatnonzero(overlap.components == k) for k in range(_n_groups(survey))]
        return {
            "n_observations": survey.n_observations,
            "mean_length": survey.n_observations / max(1, len(self._table.ids)),
            "n_seen_by_fewer_than_3": survey.n_short,
            "n_unknown": survey.n_unknown,
            "n_behind": survey.n_behind,
            "median_px": survey.median_px,
            "most_px": survey.most_px,
            "worst": [{"name": self._name(i), "median_px": float(errors[i])} for i in worst],
            "observed_median": float(np.median(survey.observed)),
            "observed_least": int(survey.observed.min()),
            "overlap": {
                "every": overlap.every,
                "shared_median": float(np.median(shared)) if len(shared) else 0.0,
                "least": [
                    {
                        "name": self._name(i),
                        "shared": int(overlap.most_shared[i]),
                        "neighbour": self._name(overlap.neighbour[i])
                        if overlap.neighbour[i] >= 0
                        else None,
                    }
                    for i in least.tolist()
                ],
                "components": [
                    {"n_images": len(group), "first": self._name(group[0])}
                    for group in groups[:_SHOWN]
                ],
                "n_components": len(groups),
            },
        }

    def _sees(self, points: FloatArray) -> NDArray[np.bool_]:
        """(V,) whether each image has some of the points in front of it, and inside a pinhole image
        of its size; a panorama has them all. Of more than 20,000 points every so many-th is
        looked at."""
        some = points[:: max(1, -(-len(points) // _LOOKED_FOR))]
        model = self.source.model
        sees = np.zeros(len(model.images), bool)
        with np.errstate(all="ignore"):
            for index, image in enumerate(model.images):
                camera = model.cameras[image.camera_id]
                if camera.model == "EQUIRECTANGULAR":  # all around
                    sees[index] = len(some) > 0
                    continue
                pose, K = image.world_to_camera, camera.K
                inside = some @ pose[:3, :3].T + pose[:3, 3]
                u, v = (inside[:, :2] / inside[:, 2:] * (K[0, 0], K[1, 1]) + K[:2, 2]).T
                is_seen = (u >= 0) & (u <= camera.width) & (v >= 0) & (v <= camera.height)
                sees[index] = bool((is_seen & (inside[:, 2] > 0)).any())
        return sees

    def _named(self, indices: Any) -> dict[str, Any]:
        """How many images, and their names."""
        return {"n": len(indices), "names": [self._name(i) for i in indices]}

    def _name(self, index: int) -> str:
        return printable(self.source.model.images[int(index)].name)


def _n_groups(survey: TrackSurvey) -> int:
    return int(survey.overlap.components.max(initial=-1)) + 1
