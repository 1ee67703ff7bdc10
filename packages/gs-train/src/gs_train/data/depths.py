# SPDX-License-Identifier: Apache-2.0
"""Depth maps of photographs, 16 bits of grey: where they are found, and what their values mean.

As 3D Gaussian Splatting's own trainer has them, of a network mostly:

    depths/NAME.png, depths/STEM.png      the map of a photograph
    depth_params.json                     scale and offset of each image, in the model's units
    value / 65536 * scale + offset        inverse depth: one over the distance along the axis

As nerfstudio and instant-ngp have them, of a sensor mostly:

    depth_file_path, depth_path           of a frame in transforms.json: the map
    value * unit                          depth: the distance along the axis; 0 is unknown

A map whose scale is 0 or less, or far from that of the others, did not fit the reconstruction and
is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gs_train.data.pixels import decode_grey_16
from gs_train.data.readers.source import Source
from gs_train.data.unused import found_line
from gs_train.errors import InputError
from gs_train.files.small_files import read_small
from gs_train.renderers.protocol import DepthMeaning, InverseDepth, MetricDepth

FOLDER = "depths"
"""Of a capture, which holds the maps."""

PARAMS = "depth_params.json"
"""Beside the model, or in the capture's folder."""

LEAST, MOST = 0.2, 5.0
"""Of the median scale: a map with a scale beyond is left out."""

_TRANSFORMS = "transforms.json"
_MOST_BYTES = 1 << 28
_SHOWN = 3
_NOT_ASKED = "--depth-weight START:END trains on depth maps"


@dataclass(frozen=True)
class DepthMap:
    """The file that the depth map of a view is in.

    Attributes:
        path: of the file that is read.
        source: the file that ``path`` was made from; else the same.
        of: what its values mean, in units of the capture.
    """

    path: Path
    source: Path
    of: DepthMeaning

    def values(self, size: tuple[int, int]) -> NDArray[np.uint16]:
        """(height, width) of the file.

        Args:
            size: width and height, which the file must have.

        Raises:
            BrokenPhotographError: the file is gone, cannot be decoded, has another size, or has no
                16 bits of grey.
        """
        return decode_grey_16(self.path, size=size)


@dataclass(frozen=True)
class GivenDepth:
    """The depth map of a view, from a caller in Python.

    Attributes:
        read: gives (height, width) uint16, always the same, from any thread.
        of: what its values mean, in units of the capture.
    """

    read: Callable[[], Any]
    of: DepthMeaning

    def values(self, size: tuple[int, int]) -> NDArray[np.uint16]:
        """As :meth:`DepthMap.values`.

        Raises:
            InputError: ``read`` gave something else than such an array.
        """
        given = np.asarray(self.read())
        if given.dtype != np.uint16 or given.shape != (size[1], size[0]):
            raise InputError(
                f"depths must be uint16 of shape {(size[1], size[0])}, got {given.dtype} of "
                f"{given.shape}"
            )
        return given


def find_depths(
    source: Source, train: Collection[int], *, wanted: bool
) -> tuple[list[DepthMap | None], list[str]]:
    """The depth map of each photograph of a capture, and a line about them.

    A photograph's map is the one that its frame names. Where no frame names any, it is that of
    ``depths/``.

    Args:
        train: indices of the photographs that are trained on; others need no map.
        wanted: whether maps are used; else a line says that they are there.

    Returns:
        One for each of the model's images, None without one; and lines. No map has been opened.

    Raises:
        InputError: maps are wanted, and there is none to use, or nothing says what they mean.
    """
    names = [image.name for image in source.model.images]
    maps: list[DepthMap | None] = [None] * len(names)
    if any(source.depths):
        return _named(source, train, wanted=wanted)
    folder = source.folder / FOLDER
    if not wanted:
        is_there = folder != source.image_folder and folder.is_dir()
        return maps, [not_used(f"{FOLDER}/")] if is_there else []
    if not folder.is_dir():
        beside = source.folder / _TRANSFORMS
        is_other = beside.is_file() and beside != source.model.folder
        hint = f"; where {beside} names maps, train on that file" if is_other else ""
        raise InputError(
            f"--depth-weight needs depth maps in {folder}, or a depth_file_path of each frame of a "
            f"{_TRANSFORMS}, got neither{hint}"
        )
    params = _Params.read(source)
    left_out = _LeftOut()
    for index in sorted(train):
        path = _map_in(folder, names[index])
        if path is None:
            left_out.without_map.append(names[index])
            continue
        of, why = params.of(names[index])
        if of is not None:
            maps[index] = DepthMap(path, path, of)
        elif why is None:
            left_out.without_scale.append(names[index])
        else:
            left_out.implausible.append(f"{names[index]}: {why}")
    n = sum(one is not None for one in maps)
    line = (
        f"{FOLDER}/: depth maps of {n} of {len(train)} training photographs{left_out.told(params)}"
    )
    if not n:
        raise InputError(f"--depth-weight needs depth maps that can be used, got {line}")
    return maps, [f"{line} (--depth-weight)"]


def _named(
    source: Source, train: Collection[int], *, wanted: bool
) -> tuple[list[DepthMap | None], list[str]]:
    """`find_depths` of a capture whose frames name maps."""
    maps: list[DepthMap | None] = [None] * len(source.depths)
    keys = sorted({one.key for one in source.depths if one is not None})
    n_frames = sum(one is not None for one in source.depths)
    if not wanted:
        return maps, [not_used(f"{' and '.join(keys)} of {n_frames} frames")]
    left_out, units = [], set()
    for index in sorted(train):
        named = source.depths[index]
        if named is None:
            left_out.append(source.model.images[index].name)
        elif named.unit is None:
            raise InputError(
                f"--depth-weight needs the unit of {named.path}: its transforms file must have a "
                "depth_unit_scale_factor or integer_depth_scale above 0, got none that is"
            )
        else:
            units.add(named.unit)
            maps[index] = DepthMap(named.path, named.path, MetricDepth(named.unit))
    n = sum(one is not None for one in maps)
    more = f"; left out: {len(left_out)} without a map (first {left_out[0]})" if left_out else ""
    unit = ", ".join(f"{unit:g}" for unit in sorted(units)) or "n/a"
    line = (
        f"{' and '.join(keys)}: depth maps of {n} of {len(train)} training photographs, in units "
        f"of {unit}{more}"
    )
    if not n:
        raise InputError(f"--depth-weight needs depth maps that can be used, got {line}")
    return maps, [f"{line} (--depth-weight)"]


def not_used(what: str) -> str:
    """The line about depth maps that nobody asked for."""
    return found_line([what], _NOT_ASKED)


class _LeftOut:
    """Names of photographs without a map to use, by what is missing."""

    def __init__(self) -> None:
        self.without_map: list[str] = []
        self.without_scale: list[str] = []
        self.implausible: list[str] = []

    def told(self, params: _Params) -> str:
        kinds = (
            (self.without_map, "without a map"),
            (self.without_scale, f"without a scale in {params.path}"),
            (self.implausible, "of an implausible scale"),
        )
        parts = [f"{len(of)} {what} (first {of[0]})" for of, what in kinds if of]
        return f"; left out: {', '.join(parts)}" if parts else ""


@dataclass(frozen=True)
class _Params:
    """What ``depth_params.json`` holds.

    Attributes:
        path: of the file.
        entries: by the name of an image.
        median: of the scales above 0; 0 where there is none.
    """

    path: Path
    entries: Mapping[str, Any]
    median: float

    @classmethod
    def read(cls, source: Source) -> _Params:
        places = [folder / PARAMS for folder in (source.model.folder, source.folder)]
        path = next((place for place in places if os.path.lexists(place)), None)
        if path is None:
            raise InputError(
                f"--depth-weight needs {places[0]}, with a scale and an offset for each image, got "
                "no such file"
            )
        try:
            entries = json.loads(read_small(path, most_bytes=_MOST_BYTES))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} is not valid JSON: {' '.join(str(error).split())}") from None
        if not isinstance(entries, dict):
            raise InputError(f"{path} must hold an object, got {type(entries).__name__}")
        scales = [cls._number(path, name, entry, "scale") for name, entry in entries.items()]
        positive = [scale for scale in scales if scale > 0]
        return cls(path, entries, float(np.median(positive)) if positive else 0.0)

    def of(self, name: str) -> tuple[InverseDepth | None, str | None]:
        """What the map of an image means; or None, and why it is left out: None where the file does
        not name the image."""
        stem = str(PurePosixPath(name).with_suffix("")) if PurePosixPath(name).name else name
        key = next((key for key in (stem, name) if key in self.entries), None)
        if key is None:
            return None, None
        entry = self.entries[key]
        scale, offset = (self._number(self.path, key, entry, of) for of in ("scale", "offset"))
        median = self.median
        if "med_scale" in entry:
            median = self._number(self.path, key, entry, "med_scale")
        if scale <= 0 or not LEAST * median <= scale <= MOST * median:
            return None, f"{scale:.3g}, median {median:.3g}"
        return InverseDepth(scale, offset), None

    @staticmethod
    def _number(path: Path, name: str, entry: Any, key: str) -> float:
        value = entry.get(key) if isinstance(entry, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30:
            return float(value)
        raise InputError(
            f"{path} must hold a finite {key} for {name}, got {json.dumps(entry)[:80]}"
        )


def _map_in(folder: Path, name: str) -> Path | None:
    whole = PurePosixPath(name)
    if not whole.name:
        return None
    others = (whole.with_name(f"{whole.name}.png"), whole.with_suffix(".png"))
    return next((folder / other for other in others if os.path.isfile(folder / other)), None)
