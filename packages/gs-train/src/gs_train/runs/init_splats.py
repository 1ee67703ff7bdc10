# SPDX-License-Identifier: Apache-2.0
"""What ``--init`` names: points, or Gaussians of a file, a run, a checkpoint or a store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from gs_train.checkpoint import MANIFEST, SavedCheckpoint, open_checkpoint, open_latest
from gs_train.data.files import open_file, readable
from gs_train.data.frame import Frame
from gs_train.errors import InputError
from gs_train.files.ply_header import read_header
from gs_train.names import printable
from gs_train.options.config import FitConfig
from gs_train.rows.saved_rows import CheckpointRows, PlyRows, SavedRows
from gs_train.runs.folder import RunFolder
from gs_train.runs.run_state import frame_of
from gs_train.scene.export_frame import TRANSFORM, read_transform
from gs_train.scene.first_splats import FirstSplats
from gs_train.tide.saved_store_rows import SavedStoreRows
from gs_train.tide.store_folder import SavedStore, identity_of

_OF_SPLATS = {"f_dc_0", "scale_0", "rot_0"}
"""Properties that a cloud of points does not have."""


class _Found(NamedTuple):
    """Gaussians, and their frame: ``captured = saved / scale - shift``.

    Attributes:
        folders: that they are in.
    """

    rows: SavedRows
    shift: tuple[float, float, float]
    scale: float
    folders: tuple[Path, ...]


def first_splats(config: FitConfig, frame: Frame, folder: RunFolder) -> FirstSplats | None:
    """The Gaussians of ``--init``; None where a run begins with points.

    A checkpoint, the folder of a run (its newest checkpoint) and a store are taken from a run of
    any preset; a store that lies in no run is taken as of a run with the same cameras, and a line
    says so.

    Args:
        config: of the run that begins.
        frame: of that run.
        folder: of that run.

    Raises:
        InputError: there is nothing of the kind, it is damaged, ``--overwrite`` would remove it, or
            the options do not suit the Gaussians.

    Cost: reads headers.
    """
    path = config.init
    if path is None:
        return None
    if path.is_dir():
        found = _in_folder(path, frame)
    elif _holds_splats(path):
        found = _in_file(path)
    else:
        return None
    _check_kept(config, folder, found.folders)
    bases = (config.sh_degree + 1) ** 2 - 1
    splats = FirstSplats(path, found.rows, frame, found.shift, found.scale, bases)
    splats.check(config)
    return splats


def _holds_splats(path: Path) -> bool:
    with readable(path), open_file(path) as file:
        header = read_header(file, path, takes_text=True)
    return bool(_OF_SPLATS & set(header.dtype.names or ()))


def _in_file(path: Path) -> _Found:
    transform = read_transform(path)
    if transform is None:
        return _Found(PlyRows(path), (0.0, 0.0, 0.0), 1.0, (path,))
    print(f"{path}: Gaussians are moved as {TRANSFORM} beside it says", file=sys.stderr)
    (x, y, z), scale = transform[0].tolist(), transform[1]
    return _Found(PlyRows(path), (x, y, z), scale, (path,))


def _in_folder(path: Path, frame: Frame) -> _Found:
    if (path / MANIFEST).exists():
        return _of_checkpoint(open_checkpoint(path))
    checkpoints = RunFolder(path).checkpoints
    if checkpoints.is_dir():
        saved = open_latest(checkpoints)
        if saved is None:
            raise InputError(f"--init {path} must have a checkpoint, and has none")
        return _of_checkpoint(saved)
    identity = identity_of(path)
    if identity is None:
        raise InputError(
            f"--init {path} must be a PLY file, the folder of a run, a checkpoint or a store, got "
            "another folder"
        )
    saved = open_latest(RunFolder(path.absolute().parent).checkpoints)
    store = None if saved is None else _store_of(saved)
    if saved is not None and store is not None and store.identity == identity:
        return _of_checkpoint(saved)
    line = "a store that is in no run: taken as of a run with the same cameras"
    print(printable(f"{path}: {line}"), file=sys.stderr)
    return _Found(SavedStoreRows(path), frame.shift, frame.scale, (path,))


def _of_checkpoint(saved: SavedCheckpoint) -> _Found:
    """Of a checkpoint in its run, or elsewhere where it holds the rows itself."""
    try:
        frame = frame_of(saved.state["frame"])
    except (LookupError, TypeError, ValueError):
        raise saved.damaged() from None
    store = _store_of(saved)
    if store is None:
        return _Found(CheckpointRows(saved), frame.shift, frame.scale, (saved.path,))
    place = store.folder(saved.path.absolute().parents[1])
    store.require_in(place)
    rows = SavedStoreRows(place, store.snapshot)
    return _Found(rows, frame.shift, frame.scale, (saved.path, place))


def _store_of(saved: SavedCheckpoint) -> SavedStore | None:
    plain = saved.state.get("store")
    try:
        return None if plain is None else SavedStore.from_plain(plain)
    except (LookupError, TypeError, ValueError):
        raise saved.damaged() from None


def _check_kept(config: FitConfig, folder: RunFolder, places: tuple[Path, ...]) -> None:
    """Raise InputError where the run that begins would remove what it begins with."""
    if not config.overwrite:
        return
    removed = [folder.root, folder.store_of(config), *folder.own_stores()]
    for place in places:
        if any(place.resolve().is_relative_to(one.resolve()) for one in removed):
            raise InputError(
                f"--overwrite would remove --init {config.init} before the run begins with it: "
                "choose another --out, or move it"
            )
