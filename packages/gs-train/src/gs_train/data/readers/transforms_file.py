# SPDX-License-Identifier: Apache-2.0
"""One transforms file: its frames, and what was done to the world before it was written."""

from __future__ import annotations

import json
from collections import ChainMap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gs_train.data.colmap_records import FloatArray
from gs_train.data.files import open_file, readable
from gs_train.data.ranges import FARTHEST_COORDINATE
from gs_train.data.readers.similarity import (
    LEAST_SCALE,
    MOST_SCALE,
    MOST_SKEW,
    Similarity,
    world_to_camera,
)
from gs_train.data.readers.source import NamedDepth
from gs_train.data.readers.transforms_values import Level, matrix, number, text
from gs_train.errors import InputError

_MOST_BYTES = 1 << 30
_OTHER_AXES = ("from_na", "from_mitsuba")
_DEPTHS = ("depth_file_path", "depth_path")
MILLIMETRE = 1e-3
"""Unit of maps that ``depth_file_path`` names, where the file gives none: worlds are in metres."""

_POSES = ("transform_matrix", "rot_mat")


@dataclass(frozen=True)
class TransformsFile:
    """What a transforms file holds, checked as far as all frames share it.

    Attributes:
        path: of the file.
        top: the keys beside the frames.
        frames: the keys of each frame; not empty.
        moved: what ``applied_transform``, then ``applied_scale`` did to the world; None: nothing.
    """

    path: Path
    top: Level
    frames: tuple[Level, ...]
    moved: Similarity | None

    @classmethod
    def read(cls, path: Path) -> TransformsFile:
        """Read the file.

        Raises:
            InputError: the file cannot be read, is no JSON of frames, or was written with axes that
                are not known here.
        """
        top = _parsed(path)
        frames = top.get("frames")
        if not isinstance(frames, list) or not frames:
            raise InputError(f"{path} must hold a list of frames, got {frames!r:.80}")
        for index, frame in enumerate(frames):
            if not isinstance(frame, dict):
                raise InputError(f"{path}: frame {index} must have keys, got {frame!r:.80}")
        for key in _OTHER_AXES:
            if top.get(key):
                raise InputError(f"{path} must have poses with OpenGL's axes, got {key}")
        return cls(path, top, tuple(frames), _moved(str(path), top))

    def where(self, index: int) -> str:
        """The place of a frame, for messages."""
        return f"{self.path}: frame {index}"

    def file_path(self, index: int) -> str:
        """The photograph of a frame, relative to the file's folder; perhaps without its ending.

        A frame of MatrixCity has a number in place of a name: the photograph is ``rgb/0012.png``,
        or ``0012.png``, in the folder of the frame's ``path``.

        Raises:
            InputError: the frame names none.
        """
        where, frame = self.where(index), self.frames[index]
        name = text(where, frame, "file_path")
        if name is not None:
            return name
        numbered = number(where, frame, "frame_index")
        if numbered is None or numbered != int(numbered) or numbered < 0:
            raise InputError(f"{where} must name its photograph with file_path, got none")
        inside = Path(text(where, frame, "path") or ".")
        with readable(self.path):
            inside = inside / "rgb" if (self.path.parent / inside / "rgb").is_dir() else inside
        return (inside / f"{int(numbered):04d}.png").as_posix()

    def mask(self, index: int) -> Path | None:
        """The image of a mask that a frame names.

        Raises:
            InputError: the name is no text.
        """
        name = text(self.where(index), self.frames[index], "mask_path")
        return None if name is None else self.path.parent / name

    def depth(self, index: int) -> NamedDepth | None:
        """The depth map that a frame names, as nerfstudio or instant-ngp does.

        nerfstudio's unit is one of the world before ``applied_scale``, instant-ngp's one of the
        poses as they are written.

        Raises:
            InputError: the name is no text, or the unit no number.
        """
        where, frame = self.where(index), self.frames[index]
        named = ((key, text(where, frame, key)) for key in _DEPTHS)
        key, name = next(((key, name) for key, name in named if name is not None), (None, None))
        if key is None or name is None:
            return None
        level = ChainMap(dict(frame), dict(self.top))
        unit = number(where, level, "depth_unit_scale_factor")
        if unit is None:
            unit = number(where, level, "integer_depth_scale")
            if unit is not None and self.moved is not None:
                unit /= self.moved.scale
        if unit is None and key == _DEPTHS[0]:
            unit = MILLIMETRE
        is_length = unit is not None and LEAST_SCALE <= unit <= MOST_SCALE
        return NamedDepth(self.path.parent / name, key, unit if is_length else None)

    def pose(self, index: int) -> FloatArray:
        """(4, 4) float64 world to camera of a frame, in the world before it was moved.

        Raises:
            InputError: there is no matrix, or it is not that of a camera.
        """
        where, frame = self.where(index), self.frames[index]
        key = next((key for key in _POSES if key in frame), _POSES[0])
        rows = matrix(where, frame, key)
        if rows is None:
            raise InputError(f"{where} must have a transform_matrix, got none")
        opengl = Similarity.of(rows)
        if opengl is None:
            raise InputError(
                f"{where}: {key} must begin with a rotation, not mirrored and even to "
                f"{MOST_SKEW:g}, got {rows[:, :3].tolist()}"
            )
        pose = world_to_camera(opengl, self.moved)
        if not np.abs(pose[:3, 3]).max() <= FARTHEST_COORDINATE:
            raise InputError(
                f"{where}: {key} must have a translation of at most {FARTHEST_COORDINATE:g}, "
                f"got {rows[:, 3].tolist()}"
            )
        return pose


def _parsed(path: Path) -> dict[str, Any]:
    with readable(path), open_file(path) as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise InputError(f"{path} must have at most {_MOST_BYTES:,} bytes, got more")
    try:
        parsed = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} must be JSON in UTF-8, got: {error}") from None
    if not isinstance(parsed, dict):
        raise InputError(f"{path} must hold a list of frames, got {parsed!r:.80}")
    return parsed


def _moved(where: str, top: Level) -> Similarity | None:
    rows, scale = matrix(where, top, "applied_transform"), number(where, top, "applied_scale")
    if rows is None and scale is None:
        return None
    moved = Similarity.of(np.eye(4)[:3] if rows is None else rows)
    if moved is None:
        raise InputError(
            f"{where}: applied_transform must be a rotation, not mirrored, with a scale and a "
            f"shift, got {top['applied_transform']!r:.160}"
        )
    if scale is not None:
        if not LEAST_SCALE <= scale <= MOST_SCALE:
            raise InputError(
                f"{where}: applied_scale must be {LEAST_SCALE:g} to {MOST_SCALE:g}, got {scale:g}"
            )
        moved = moved.scaled(scale)
    return None if moved.is_identity else moved
