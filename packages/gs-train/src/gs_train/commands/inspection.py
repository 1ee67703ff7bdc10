# SPDX-License-Identifier: Apache-2.0
"""``gs-train inspect``: what a checkpoint holds, without the run that it belongs to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from gs_pinned import BlockStore
from gs_train.checkpoint import (
    MANIFEST,
    SavedCheckpoint,
    has_checkpoint_name,
    is_newer,
    open_checkpoint,
    open_latest,
)
from gs_train.errors import InputError
from gs_train.files.whole import whole
from gs_train.machine.interrupt import StopRequest
from gs_train.machine.progress import task_progress
from gs_train.names import printable
from gs_train.rows.attributes import SH_DEGREES
from gs_train.runs.folder import RunFolder
from gs_train.sizes import format_bytes
from gs_train.tide.store_folder import SavedStore
from gs_train.tide.store_use import told
from gs_train.tide.trouble import store_trouble

_KEYS, _STRANDS, _SH = "model/keys", "model/strands", "model/shN"
_NOT_SAID = "not said"


@dataclass(frozen=True)
class InspectConfig:
    """Say what a checkpoint holds: step, Gaussians, tensors and files. Trains and changes nothing.

    Attributes:
        checkpoint: folder of a checkpoint, or output folder of gs-train fit, whose newest one is
            taken.
        verify: read all files, and the store of Gaussians that are not in these, and check every
            checksum first.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    verify: bool = False


def inspect(config: InspectConfig) -> None:
    """Print what a checkpoint holds on standard output.

    Beside a running ``fit`` that removes a checkpoint while it is read, the next one is taken.

    Raises:
        InputError: no checkpoint there, or a damaged one.
        Interrupted: Ctrl-C or SIGTERM while files are verified.
    """
    saved = _open(config.checkpoint)
    while True:
        try:
            store = _store_of(saved)
            if config.verify:
                _verify(saved)
                if store is not None:
                    _verify_store(saved, store)
            keys = _range_of_keys(saved)
            break
        except InputError:
            newer = None if saved.path.exists() else _open(config.checkpoint)
            if newer is None or not is_newer(newer.path, saved.path):
                raise
            saved = newer
    for line in _lines(saved, keys, store, is_verified=config.verify):
        print(printable(line))


def _open(path: Path) -> SavedCheckpoint:
    """The checkpoint at a path, or the newest one of the run there.

    Raises:
        InputError: there is none, or it is damaged or incomplete.
    """
    if not path.is_dir():
        what = "is no folder" if path.exists() else "does not exist"
        raise InputError(f"{path} must be a checkpoint or the output folder of a run, and {what}")
    if has_checkpoint_name(path.absolute()) or (path / MANIFEST).exists():
        return open_checkpoint(path)
    folder = RunFolder(path)
    newest = open_latest(folder.checkpoints)
    if newest is None:
        raise InputError(
            f"{path} must be a checkpoint or hold one as a run does: {folder.no_checkpoint()}"
        )
    return newest


def _verify(saved: SavedCheckpoint) -> None:
    done = 0
    with (
        StopRequest() as stop,
        task_progress("verified bytes", sum(file.n_bytes for file in saved.files)) as progress,
    ):

        def report(n_bytes: int) -> None:
            nonlocal done
            stop.check("the verification; nothing was changed")
            done += n_bytes
            progress.update(done)

        saved.verify(report)


def _store_of(saved: SavedCheckpoint) -> SavedStore | None:
    """The store that the rows are in; None: they are in the checkpoint.

    Raises:
        InputError: what the checkpoint says of it is damaged.
    """
    plain = saved.state.get("store")
    try:
        return None if plain is None else SavedStore.from_plain(plain)
    except (LookupError, TypeError, ValueError):
        raise saved.damaged() from None


def _folder_of(saved: SavedCheckpoint, store: SavedStore) -> Path:
    root = saved.path.absolute().parent.parent
    return store.folder(root, RunFolder(root).named_store)


def _verify_store(saved: SavedCheckpoint, store: SavedStore) -> None:
    """Read every record of the snapshot.

    Raises:
        InputError: the store is damaged, gone or another one.
        Interrupted: a stop was asked for.
    """
    folder = _folder_of(saved, store)
    store.require_in(folder)
    with (
        StopRequest() as stop,
        task_progress("verified blocks") as progress,
        told(folder),
        store_trouble(folder),
        BlockStore.open(folder, snapshot=store.snapshot, read_only=True) as opened,
    ):

        def report(done: int, total: int) -> None:
            stop.check("the verification; nothing was changed")
            progress.update(done, total)

        found = opened.verify(report)
    if not found.is_intact:
        raise InputError(
            f"the store {folder} is damaged: {len(found.problems):,} of {found.blocks:,} blocks, "
            f"the first: {found.problems[0]}"
        )


def _range_of_keys(saved: SavedCheckpoint) -> tuple[int, int] | None:
    """The lowest and the highest key; None without any."""
    if _KEYS not in saved.shapes or not saved.n_rows:
        return None
    if saved.is_of_old_format:
        return 0, saved.n_rows - 1
    keys = saved.read([_KEYS])[_KEYS]
    return int(keys.min()), int(keys.max())


def _lines(
    saved: SavedCheckpoint,
    keys: tuple[int, int] | None,
    store: SavedStore | None,
    *,
    is_verified: bool,
) -> Iterator[str]:
    yield str(saved.path)
    for name, value in _facts(saved, keys, store):
        yield f"  {name:<12}{value}"
    sizes = {
        name: math.prod(shape) * saved.dtypes[name].itemsize for name, shape in saved.shapes.items()
    }
    if not saved.is_of_old_format:
        n_bytes = sum(sizes.values())
        yield f"  {'tensors':<12}{len(sizes)}, {_bytes(n_bytes)}"
    else:  # its keys are in no file
        yield f"  {'tensors':<12}{len(sizes) - (_KEYS in sizes)}, and {len(saved.dropped)} not read"
    groups: dict[str, list[str]] = {}
    for name in saved.shapes:
        groups.setdefault(name.rpartition("/")[0], []).append(name)
    for group, names in groups.items():
        yield f"  {group or 'other':.80}: {_bytes(sum(sizes[name] for name in names))}"
        for name in names:
            yield _of_tensor(saved, name, sizes[name])
    yield f"  {'files':<12}{len(saved.files)}, {_bytes(sum(f.n_bytes for f in saved.files))}"
    for file in saved.files:
        yield f"    {file.name:<36} {'':<24} {file.n_bytes:>16,} bytes"
    if is_verified:
        yield f"  {'verified':<12}every checksum is right"


def _facts(
    saved: SavedCheckpoint, keys: tuple[int, int] | None, store: SavedStore | None
) -> Iterator[tuple[str, str]]:
    """Names and values, one line each."""
    earlier = ", of an earlier version" if saved.is_of_old_format else ""
    yield "format", f"{saved.version}{earlier}"
    yield "step", f"{saved.step:,}"
    yield "images", _word(saved.state, "spent", "images")
    yield "strategy", _strategy(saved.state)
    yield "placement", _word(saved.state, "placing", "preset")
    yield "run", _word(saved.state, "run_id")
    if store is not None:
        yield "Gaussians", f"{store.n_rows:,}, SH degree {store.sh_degree}"
        yield "store", f"{_folder_of(saved, store)}, snapshot {store.snapshot}"
        return
    n_rows = "none" if saved.n_rows is None else f"{saved.n_rows:,}"
    yield "Gaussians", f"{n_rows}{_degree(saved)}"
    by_index = ", the index of each Gaussian" if saved.is_of_old_format else ""
    yield "keys", "none" if keys is None else f"{keys[0]:,} to {keys[1]:,}{by_index}"
    yield "strands", "one for each Gaussian" if _STRANDS in saved.shapes else "none"


def _strategy(state: dict[str, Any]) -> str:
    given = _word(state, "given", "strategy")
    return _word(state, "recipe", "strategy") if given == _NOT_SAID else f"{given}, from Python"


def _degree(saved: SavedCheckpoint) -> str:
    shape = saved.shapes.get(_SH, ())
    degree = SH_DEGREES.get(shape[1]) if len(shape) == 3 else None
    return "" if degree is None else f", SH degree {degree}"


def _of_tensor(saved: SavedCheckpoint, name: str, n_bytes: int) -> str:
    shape, dtype = saved.shapes[name], str(saved.dtypes[name]).removeprefix("torch.")
    by_row = "by row" if name in saved.by_row else ""
    short = name.rpartition("/")[2]
    what = f"{dtype} {list(shape)}"
    return f"    {short:<36.80} {what:<24} {n_bytes:>16,} bytes  {by_row}".rstrip()


def _word(state: dict[str, Any], *names: str) -> str:
    """A word or a number in the trainer's state, whatever is in its place."""
    value: Any = state
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, str):
        return f"{value:.80}"
    try:
        return f"{whole(value):,}"
    except ValueError:
        return _NOT_SAID


def _bytes(n: int) -> str:
    return f"{format_bytes(n)} ({n:,} bytes)"
