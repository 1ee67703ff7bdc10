# SPDX-License-Identifier: Apache-2.0
"""``gs-train store``: what a store of blocks holds, and whether it is whole."""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from gs_pinned import (
    BlockStore,
    BufferedWarning,
    SnapshotWarning,
    StoreCorruptError,
    StoreVersionError,
)
from gs_train.blocks.stored_state import from_bytes
from gs_train.errors import InputError
from gs_train.machine.interrupt import StopRequest
from gs_train.machine.progress import task_progress
from gs_train.names import printable
from gs_train.runs.folder import RunFolder
from gs_train.runs.named_snapshots import named_snapshots
from gs_train.sizes import format_bytes
from gs_train.tide.store_folder import INSIDE
from gs_train.tide.trouble import of_another_version

_PRINTED = 20
"""Damaged blocks that are named on lines of their own."""


@dataclass(frozen=True)
class StoreConfig:
    """Say what a store of blocks holds (info), or read all of it and verify every checksum (check).
    Changes nothing.

    Attributes:
        action: info or check.
        store: folder of a store, or output folder of gs-train fit with a store in it.
        snapshot: number of the snapshot to look at; the newest when not given.
    """

    action: Annotated[Literal["info", "check"], tyro.conf.Positional]
    store: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="STORE")]
    snapshot: int | None = None


def store(config: StoreConfig) -> None:
    """Print what a store holds on standard output, or check it.

    A run may write the store meanwhile. A snapshot that it replaces while it is checked is left for
    the newest one.

    Raises:
        InputError: there is no store or no such snapshot, or something in it is damaged.
        Interrupted: Ctrl-C or SIGTERM while records are read.
    """
    if config.snapshot is not None and not 1 <= config.snapshot < 2**32:
        raise InputError(f"--snapshot must be 1 to {2**32 - 1}, got {config.snapshot}")
    path = _folder_of(config.store)
    if config.action == "info":
        with _opened(path, config.snapshot) as (opened, problems):
            for line in _lines(opened, config.snapshot):
                print(printable(line))
        if problems and config.snapshot is None:
            raise InputError(f"{path} is damaged: {'; '.join(problems)}")
        return
    checkpoints = RunFolder(config.store).checkpoints
    while not _check(path, config.snapshot, checkpoints):
        pass


def _folder_of(path: Path) -> Path:
    """The store at a path, or the one of the run there."""
    if not path.is_dir():
        what = "is no folder" if path.exists() else "does not exist"
        raise InputError(f"{path} must be a store or a run with one, and {what}")
    named = RunFolder(path).named_store
    for folder in (path, named or path / INSIDE):
        if (folder / "STORE").exists():
            return folder
    raise InputError(
        f"{path} must be a store or a run with one, and holds neither STORE nor {INSIDE}/STORE"
        if named is None
        else f"{path} must be a run with its store, which is not in {named}: name the folder of "
        "the store itself"
    )


@contextlib.contextmanager
def _opened(path: Path, snapshot: int | None) -> Iterator[tuple[BlockStore, list[str]]]:
    """A store at a snapshot, and a line for each newer snapshot that is damaged.

    Raises:
        InputError: it cannot be opened.
    """
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            opened = BlockStore.open(path, snapshot=snapshot, read_only=True)
        except StoreVersionError as error:
            raise InputError(of_another_version(path, error)) from None
        except StoreCorruptError as error:
            raise InputError(f"{path} cannot be opened: {error}") from None
    damaged = [str(w.message) for w in found if issubclass(w.category, SnapshotWarning)]
    for warning in found:
        if not issubclass(warning.category, SnapshotWarning | BufferedWarning):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    with opened:
        yield opened, damaged


def _check(path: Path, snapshot: int | None, checkpoints: Path) -> bool:
    """Check a store; False where its writer took the snapshot away meanwhile.

    Args:
        checkpoints: of the run with the store; where there are none, nothing is asked of them.

    Raises:
        InputError: it is damaged, or has not the snapshots that checkpoints refer to.
        Interrupted: a stop was asked for.
    """
    named = named_snapshots(checkpoints)
    with _opened(path, snapshot) as (opened, problems):
        missing = named.difference(opened.snapshots)
        before = opened.snapshots
        with StopRequest() as stop, task_progress("blocks verified") as progress:

            def report(done: int, total: int) -> None:
                stop.check("the check; nothing was changed")
                progress.update(done, total)

            found = opened.verify(report)
        if found.problems and snapshot is None and _newest(path) > max(before, default=0):
            return False
        problems = [*found.problems, *(problems if snapshot is None else [])]
        for line in problems[:_PRINTED]:
            print(printable(line))
        if len(problems) > _PRINTED:
            print(f"and {len(problems) - _PRINTED:,} more")
        if problems:
            raise InputError(
                f"{path} is damaged: {len(found.problems):,} of {found.blocks:,} blocks and "
                f"{len(problems) - len(found.problems):,} newer snapshots; first: {problems[0]}"
            )
        if lost := sorted(
            missing & named_snapshots(checkpoints)
        ):  # of no checkpoint given up since
            raise InputError(
                f"{path} must have snapshot {lost[-1]}, which a checkpoint in {checkpoints} refers "
                f"to, and has {', '.join(map(str, opened.snapshots))}"
            )
        what = f"{found.blocks:,} blocks with {found.rows:,} rows"
        print(printable(f"{path}: {what} verified, all whole"))
    return True


def _newest(path: Path) -> int:
    """Number of the newest snapshot; 0 without any that can be opened."""
    try:
        with _opened(path, None) as (opened, _):
            return max(opened.snapshots, default=0)
    except InputError:
        return 0


def _lines(opened: BlockStore, snapshot: int | None) -> Iterator[str]:
    path, stats = opened.path, opened.stats
    row_bytes = sum(plane.row_bytes for plane in opened.planes)
    facts = {
        "rows": f"{stats.rows:,} of {row_bytes} bytes",
        "blocks": f"{stats.blocks:,} of at most {opened.block_rows:,} rows",
        "rows take": f"{_bytes(stats.live_bytes)}, {_share(stats.live_bytes, stats.rows)} a row",
        "snapshots": f"take {_bytes(stats.dead_bytes)} beside",
        "free within": _bytes(stats.free_bytes),
        "files": _bytes(stats.disk_bytes),
        "free beside": f"{_bytes(shutil.disk_usage(path).free)} on the drive",
    }
    yield str(path)
    yield f"  {'format':<12}{_version(path)}"
    for number in opened.snapshots:
        mark = ", this one" if number == (snapshot or max(opened.snapshots)) else ""
        yield f"  {'snapshot':<12}{number}, {_step_of(path, number)}{mark}"
    for name, value in facts.items():
        yield f"  {name:<12}{value}"
    for plane in opened.planes:
        what = f"{plane.dtype} [{plane.width}]"
        yield f"    {plane.name:<36} {what:<16} {plane.row_bytes:>6} bytes a row"


def _version(path: Path) -> int:
    return int.from_bytes((path / "STORE").read_bytes()[8:12], "little")


def _step_of(path: Path, number: int) -> str:
    """The step of a scene's snapshot, in words."""
    try:
        with _opened(path, number) as (opened, _):
            state = opened.state
        return f"step {len(from_bytes(state)['reach/means/rates']):,}"
    except (InputError, KeyError):
        return "of no scene, or damaged"


def _share(n_bytes: int, rows: int) -> str:
    return f"{n_bytes / rows:.0f} bytes" if rows else "none"


def _bytes(n: int) -> str:
    return f"{format_bytes(n)} ({n:,} bytes)"
