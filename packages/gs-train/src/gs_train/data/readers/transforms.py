# SPDX-License-Identifier: Apache-2.0
"""Reads transforms.json, as nerfstudio, instant-ngp, Blender's scenes and MatrixCity spell it.

Poses lead from the camera to the world, with OpenGL's axes. Where ``applied_transform`` says that
the world was turned before the file was written, the turn is undone here, once, in float64: the
scene is trained and exported in the world as it was before, and no row has to be turned back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gs_train.data.colmap_records import Camera, FloatArray, Image, Model, checked_camera
from gs_train.data.files import readable
from gs_train.data.frame import Frame
from gs_train.data.pixels import BrokenPhotographError, read_header
from gs_train.data.point_ply import read_point_ply
from gs_train.data.random_points import N_RANDOM_POINTS, random_points
from gs_train.data.ranges import FARTHEST_POINT, in_reach
from gs_train.data.readers.source import PointsOf, Source
from gs_train.data.readers.transforms_camera import Lens, lens_of, size_of
from gs_train.data.readers.transforms_file import TransformsFile
from gs_train.data.readers.transforms_values import Level, text, texts
from gs_train.data.unused import folder_lines, found_line
from gs_train.errors import InputError
from gs_train.names import printable

ONE = "transforms.json"
TRAIN = "transforms_train.json"
HELD_OUT = ("transforms_test.json", "transforms_val.json")

_ENDINGS = (".png", ".jpg", ".jpeg", ".JPG", ".JPEG", ".PNG", ".webp", ".tif", ".tiff", ".bmp")


class TransformsReader:
    """See :class:`gs_train.data.readers.source.Reader`.

    A folder's ``transforms.json`` holds all images. Without it, ``transforms_train.json`` holds the
    training images, and ``transforms_test.json`` (without it ``transforms_val.json``) the held-out
    ones. A path to any such file stands for that file alone.
    """

    def finds(self, path: Path) -> bool:
        return bool(_files_at(path))

    def read(self, path: Path) -> Source:
        paths = _files_at(path)
        files = [TransformsFile.read(file) for file in paths]
        shots, left_out = _shots(files)
        image_folder, names = _named([shot.written for shot in shots])
        _check_repeats(shots, names)
        cameras = _Cameras([shot.photograph for shot in shots])
        images = [
            Image(i, name, cameras.id_of(shot), shot.file.pose(shot.index))
            for i, (shot, name) in enumerate(zip(shots, names))
        ]
        order = sorted(range(len(images)), key=names.__getitem__)
        points, note = _points(files)
        depths = tuple(shots[i].file.depth(shots[i].index) for i in order)
        used = {one.path.parent.name for one in depths if one is not None}
        return Source(
            paths[0].parent,
            Model(paths[0], cameras.by_id, tuple(images[i] for i in order)),
            image_folder,
            tuple(shots[i].photograph for i in order),
            points,
            held_out=_held_out(shots, names),
            notes=tuple(printable(line) for line in (*note, *left_out, *_notes(files, used))),
            masks=tuple(shots[i].file.mask(shots[i].index) for i in order),
            depths=depths,
        )


@dataclass(frozen=True)
class _Shot:
    """One frame of one file.

    Attributes:
        written: path of the photograph, perhaps without its ending.
        photograph: its file.
        is_held_out: None where the files do not say.
    """

    file: TransformsFile
    index: int
    written: Path
    photograph: Path
    is_held_out: bool | None


class _Cameras:
    """Cameras by id, one for all frames with the same lens and size.

    Args:
        photographs: tell the size where no file does.
    """

    def __init__(self, photographs: Sequence[Path]) -> None:
        self.by_id: dict[int, Camera] = {}
        self._ids: dict[Lens, int] = {}
        self._photographs = photographs
        self._seen: tuple[int, int] | None = None

    def id_of(self, shot: _Shot) -> int:
        where, frame, top = shot.file.where(shot.index), shot.file.frames[shot.index], shot.file.top
        size = size_of(where, frame, top) or self._size_on_disk(shot.photograph)
        lens = lens_of(where, frame, top, size)
        if lens not in self._ids:
            id = len(self._ids) + 1
            self.by_id[id] = checked_camera(where, id, *lens)
            self._ids[lens] = id
        return self._ids[lens]

    def _size_on_disk(self, photograph: Path) -> tuple[int, int]:
        """Of the photograph; of the first one that can be read where it is broken."""
        size = _header_size(photograph)
        if size is None and self._seen is None:
            self._seen = next(filter(None, map(_header_size, self._photographs)), None)
        size = size or self._seen
        if size is None:
            raise InputError(
                f"{photograph} must be an image that can be read, because its transforms file "
                "gives no w and h, and no other photograph can be read either"
            )
        return size


def _header_size(photograph: Path) -> tuple[int, int] | None:
    try:
        return read_header(photograph, may_decode=lambda size: False).size
    except (FileNotFoundError, BrokenPhotographError):
        return None


def _files_at(path: Path) -> list[Path]:
    if path.suffix.lower() == ".json" and path.is_file():
        return [path]
    if (path / ONE).is_file():
        return [path / ONE]
    if not (path / TRAIN).is_file():
        return []
    held_out = [path / name for name in HELD_OUT if (path / name).is_file()]
    return [path / TRAIN, *held_out[:1]]


def _shots(files: Sequence[TransformsFile]) -> tuple[list[_Shot], list[str]]:
    """Frames that are used, and a line where some are not."""
    shots, n_left_out = [], 0
    for place, file in enumerate(files):
        train, test = _lists(file) if len(files) == 1 else (None, None)
        for index in range(len(file.frames)):
            written = file.file_path(index)
            is_held_out: bool | None = place > 0 if len(files) > 1 else None
            if train is not None or test is not None:
                is_held_out = written in (test or ())
                if train is not None and not is_held_out and written not in train:
                    n_left_out += 1
                    continue
            path = file.path.parent / written
            shots.append(_Shot(file, index, path, _on_disk(path), is_held_out))
    if not shots:
        raise InputError(f"{files[0].path} must name its frames in train_filenames, got none")
    listed = "train_filenames and not held out"
    line = f"{n_left_out} frames are left out: they are not in {listed}"
    return shots, [line] if n_left_out else []


def _lists(file: TransformsFile) -> tuple[set[str] | None, set[str] | None]:
    """Names for training and for testing, as the file lists them; None where it has no list."""
    known = {file.file_path(index) for index in range(len(file.frames))}
    lists: dict[str, set[str] | None] = {}
    for key in ("train_filenames", "test_filenames", "val_filenames"):
        names = texts(str(file.path), file.top, key)
        unknown = [name for name in names or () if name not in known]
        if unknown:
            raise InputError(
                f"{file.path}: {key} must list photographs of its frames, got {len(unknown)} "
                f"unknown (first {unknown[0]})"
            )
        lists[key] = None if names is None else set(names)
    train, test, val = lists.values()
    return train, test or val or test


def _on_disk(path: Path) -> Path:
    """The file of a photograph whose name may lack its ending."""
    with readable(path):
        if path.suffix in _ENDINGS or path.is_file():
            return path
        complete = (path.with_name(path.name + ending) for ending in _ENDINGS)
        return next((other for other in complete if other.is_file()), path)


def _named(written: Sequence[Path]) -> tuple[Path, list[str]]:
    """The folder that holds all photographs, and their names in it, as they are written."""
    whole = [os.path.abspath(path) for path in written]
    common = os.path.commonpath([os.path.dirname(path) for path in whole])
    return Path(common), [Path(os.path.relpath(path, common)).as_posix() for path in whole]


def _check_repeats(shots: Sequence[_Shot], names: Sequence[str]) -> None:
    seen = set()
    for shot, name in zip(shots, names):
        photograph = os.path.abspath(shot.photograph)
        if photograph in seen:
            where = shot.file.where(shot.index)
            raise InputError(f"{where} must not repeat a photograph, got {name} twice")
        seen.add(photograph)


def _held_out(shots: Sequence[_Shot], names: Sequence[str]) -> frozenset[str] | None:
    if shots[0].is_held_out is None:
        return None
    return frozenset(name for shot, name in zip(shots, names) if shot.is_held_out)


def _points(files: Sequence[TransformsFile]) -> tuple[PointsOf, list[str]]:
    """What gives the points, and a line where they are made up."""
    for file in files:
        name = text(str(file.path), file.top, "ply_file_path")
        if name is not None:
            return _PointFile(file, file.path.parent / name), []
    key = f"{files[0].path.name} has no ply_file_path"
    return _made_up, [f"{key}: training starts from {N_RANDOM_POINTS:,} random points"]


def _made_up(frame: Frame) -> tuple[FloatArray, NDArray[np.uint8]]:
    points = random_points(frame)
    return points, np.full((len(points), 3), 128, np.uint8)


@dataclass(frozen=True)
class _PointFile:
    """Points of a PLY file, in the same world as the poses of the file that names it."""

    file: TransformsFile
    path: Path

    def __call__(self, frame: Frame) -> tuple[FloatArray, NDArray[np.uint8]]:
        moved = self.file.moved
        cloud = read_point_ply(
            self.path,
            transform=None if moved is None else moved.undone,
            dtype=np.float64,
            all_points=True,
        )
        with np.errstate(over="ignore"):  # which is out of reach
            near = in_reach(frame.points_in(cloud.points))
        if not near.any():
            raise InputError(
                f"{self.path} must hold points to start from, got none that is finite and within "
                f"{FARTHEST_POINT:g} times the cameras; without ply_file_path in "
                f"{self.file.path.name} training starts from random points"
            )
        return cloud.points, cloud.colors


def _notes(files: Sequence[TransformsFile], used: set[str]) -> Iterator[str]:
    """Lines about what the files hold.

    Args:
        used: names of folders beside the files that they name content of.
    """
    folder = files[0].path.parent
    for file in files:
        if file.moved is not None:
            turned = "applied_transform" if "applied_transform" in file.top else "applied_scale"
            yield (
                f"{turned} of {file.path.name} is undone: the scene is trained and exported in the "
                "world before it"
            )
        if any(_is_rolling(level) for level in (file.top, *file.frames)):
            yield (
                f"rolling_shutter of {file.path.name} is not used: all rows of a photograph count "
                "as exposed at once"
            )
    if len(files) > 1:
        yield (
            f"{files[1].path.name} holds out its {len(files[1].frames)} images: --test-every is "
            "not used"
        )
    yield from folder_lines(folder, *used)
    known = [name for name in (ONE, TRAIN, *HELD_OUT) if (folder / name).is_file()]
    others = [name for name in known if folder / name not in [file.path for file in files]]
    if others:
        taken = " and ".join(file.path.name for file in files)
        yield found_line(others, f"frames are those of {taken}")


def _is_rolling(level: Level) -> bool:
    """Whether the rows of photographs were exposed one after the other."""
    shutter = level.get("rolling_shutter")
    return any(shutter) if isinstance(shutter, list) else bool(shutter)
