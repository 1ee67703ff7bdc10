# SPDX-License-Identifier: Apache-2.0
"""A folder of checkpoints: their names and order, which are complete, and what is removed."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from gs_train.checkpoint.manifest import MANIFEST
from gs_train.errors import InputError
from gs_train.files.atomic import SUFFIX

_NAME = re.compile(r"step_(\d{1,18})(?:\.(\d{1,18}))?", re.ASCII)
_STALE = re.compile(r"step_\d+(?:\.\d+)?" + re.escape(SUFFIX))


def has_checkpoint_name(path: Path) -> bool:
    """Whether a path is named as checkpoints are, whatever is there."""
    return _NAME.fullmatch(path.name) is not None


def latest_checkpoint(folder: str | Path) -> Path | None:
    """The newest complete checkpoint in a folder of checkpoints; None when there is none.

    Raises:
        InputError: the folder cannot be read.
    """
    found = complete_checkpoints(Path(folder))
    return found[-1] if found else None


def incomplete_checkpoints(folder: str | Path) -> list[Path]:
    """Checkpoints newer than all complete ones whose manifest is gone or may not be read."""
    found = named_checkpoints(Path(folder))
    complete = complete_checkpoints(Path(folder))
    return found[found.index(complete[-1]) + 1 :] if complete else found


def is_newer(path: Path, other: Path) -> bool:
    """Whether one checkpoint was saved after another one of the same folder."""
    return _order(path) > _order(other)


def named_checkpoints(folder: Path) -> list[Path]:
    """What carries the name of a checkpoint, oldest first.

    Raises:
        InputError: the folder cannot be read.
    """
    try:
        found = list(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}") from None
    return sorted((path for path in found if has_checkpoint_name(path)), key=_order)


def is_complete(path: Path) -> bool:
    """Whether a checkpoint has a manifest that may be read."""
    return os.access(path / MANIFEST, os.R_OK)


def free_name(folder: Path, step: int) -> Path:
    """``step_000300``, or its next revision: a saved one is never replaced in place."""
    found = [_order(path)[1] for path in named_checkpoints(folder) if _order(path)[0] == step]
    revision = max(found, default=-1) + 1
    return folder / (f"step_{step:06d}" + (f".{revision}" if revision else ""))


def remove_older(newest: Path, *, keep: int) -> None:
    """Remove the oldest ones until ``keep`` are left, ``newest`` among them."""
    others = [path for path in complete_checkpoints(newest.parent) if path != newest]
    for old in others[: -(keep - 1) or None]:
        _remove(old)


def remove_surplus(folder: Path, *, keep: int) -> None:
    """Remove what a crash left behind a save: half checkpoints, and whole ones beyond the newest
    ``keep``. For the folder's only writer."""
    remove_stale(folder)
    for old in complete_checkpoints(folder)[:-keep]:
        _remove(old)


def remove_all(folder: Path) -> None:
    """Remove a folder of checkpoints, the oldest first: a crash in between leaves whole ones alone.
    For its only writer."""
    for path in complete_checkpoints(folder):
        _remove(path)
    shutil.rmtree(folder)


def remove_stale(folder: Path) -> None:
    """Remove what a crash left of a checkpoint that was written or removed; for its only writer."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if _STALE.fullmatch(path.name):
            if path.is_symlink() or not path.is_dir():
                path.unlink()
            else:
                shutil.rmtree(path, ignore_errors=True)


def _order(path: Path) -> tuple[int, int]:
    """Step and revision."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2] or 0)


def complete_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints in a folder of checkpoints, oldest first.

    Raises:
        InputError: the folder cannot be read.
    """
    return [path for path in named_checkpoints(folder) if is_complete(path)]


def _remove(path: Path) -> None:
    """Hide, then delete: a crash in between leaves no half checkpoint under a good name."""
    hidden = path.with_name(path.name + SUFFIX)
    os.rename(path, hidden)
    shutil.rmtree(hidden, ignore_errors=True)
