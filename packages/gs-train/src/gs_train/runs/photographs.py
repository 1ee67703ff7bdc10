# SPDX-License-Identifier: Apache-2.0
"""The photographs of a run: those of one process, or of the ranks of a host together."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from gs_train.data import Capture, KeptPhotographs, PhotoReader
from gs_train.data.fingerprint import crcs
from gs_train.data.pixel_file import PixelFile, PixelSize, file_bytes
from gs_train.data.shared.board import PixelBoard, board_bytes
from gs_train.data.shared.memory import PixelMemory, new_memory, path_for_others
from gs_train.data.shared.photographs import SharedPhotographs, Store
from gs_train.errors import CommonError
from gs_train.files.agreement import by_each
from gs_train.machine.usable_cores import usable_cores
from gs_train.runs.disk import open_scratch, open_shared_scratch
from gs_train.runs.folder import RunFolder
from gs_train.runs.trainer import Trainer
from gs_train.sizes import parse_bytes
from gs_train.sizing.photographs import decoded_bytes, training_sizes
from gs_train.world import World
from gs_train.world.processes import this_process

_AHEAD_SHARE = 4
"""Where a file keeps what memory cannot, one part in so many of the memory is for photographs that
have been read ahead; photographs that stay in memory for the whole run have the rest."""

_TROUBLE = "trouble"

_MOST_DECODERS, _CORES_PER_DECODER = 4, 4

Sizes: TypeAlias = Mapping[int, PixelSize]


class Opened(NamedTuple):
    """Photographs to train on.

    Attributes:
        cache_bytes: bound on those that this process keeps, or looks at, ahead of need.
    """

    photographs: KeptPhotographs | SharedPhotographs
    cache_bytes: int


def require_same_photographs(capture: Capture, reader: PhotoReader, world: World) -> None:
    """Check that all ranks train on the same bytes. A collective.

    Raises:
        CommonError: on all ranks: they do not.

    Cost: none beyond a gather where all ranks see files of the same times. Where times differ, as
        in copies on several hosts, each rank reads all photographs.
    """
    if world.size == 1:
        return
    saved = reader.fingerprint()
    stamps = [None if one is None else one[:2] for one in saved["photographs"]]
    sizes = [None if one is None else one[0] for one in stamps]
    world.agree("points and sizes of photographs", _digest([saved["points"], sizes]))
    times = by_each(world, lambda: _digest(stamps))
    if len(set(times)) == 1:
        return
    found = by_each(world, lambda: _digest(crcs(capture)))
    for rank, digest in enumerate(found):
        if digest != found[0]:
            raise CommonError(
                f"photographs must be the same on all ranks, got other bytes on rank {rank} than "
                "on rank 0: start all ranks on one capture"
            )


@contextlib.contextmanager
def opened(
    trainer: Trainer,
    capture: Capture,
    folder: RunFolder,
    reader: PhotoReader,
    order: Iterable[int],
    world: World,
) -> Iterator[Opened]:
    """The photographs until the block ends; those of several ranks are decoded once a host. A
    collective.

    Args:
        reader: decodes.
        order: of need.
    """
    with contextlib.ExitStack() as held:
        if world.size > 1:
            shared = _shared(trainer, capture, folder, reader, order, world, held)
            if shared is not None:
                yield shared
                return
        file, line = open_scratch(trainer, capture, folder)
        if line is not None:
            print(line, file=sys.stderr)
        if file is not None:
            held.enter_context(file)
        cache = parse_bytes(trainer.config.image_cache, option="--image-cache")
        yield Opened(KeptPhotographs(reader, file), cache // world.size)


class _Parts(NamedTuple):
    """Sizes by index of photographs."""

    in_memory: Sizes
    beyond: Sizes


def _shared(
    trainer: Trainer,
    capture: Capture,
    folder: RunFolder,
    reader: PhotoReader,
    order: Iterable[int],
    world: World,
    held: contextlib.ExitStack,
) -> Opened | None:
    """Those that the ranks of this host have together; None, on all ranks: some cannot."""
    mates = _ranks_of_this_host(world)
    cache = parse_bytes(trainer.config.image_cache, option="--image-cache")
    fits_all = decoded_bytes(capture) <= cache
    sizes = training_sizes(capture)
    in_memory = sizes if fits_all else _first_within(cache - cache // _AHEAD_SHARE, sizes)
    parts = _Parts(in_memory, {i: size for i, size in sizes.items() if i not in in_memory})
    joined: list[SharedPhotographs] = []
    with contextlib.ExitStack() as until_all_have_joined:

        def make() -> dict[str, Any]:
            if world.rank != mates[0]:
                return {}
            return _made(trainer, capture, folder, parts, until_all_have_joined)

        made = by_each(world, lambda: _tried(make))[mates[0]]

        def join() -> dict[str, Any]:
            joined.append(_joined(made["places"], parts, reader, held))
            return {}

        outcomes = by_each(world, lambda: made if _TROUBLE in made else _tried(join))
    for rank, outcome in enumerate(outcomes):
        if _TROUBLE in outcome:
            why = f"rank {rank}: {outcome[_TROUBLE]}"
            print(f"each rank decodes all photographs for itself ({why})", file=sys.stderr)
            return None
    if made["line"] is not None:
        print(made["line"], file=sys.stderr)
    joined[0].decode_ahead(
        _own_of(order, capture.train, mates.index(world.rank), len(mates)),
        n_threads=max(1, min(_MOST_DECODERS, usable_cores() // _CORES_PER_DECODER)),
    )
    return Opened(joined[0], cache if fits_all else max(1, cache // _AHEAD_SHARE // len(mates)))


def _made(
    trainer: Trainer,
    capture: Capture,
    folder: RunFolder,
    parts: _Parts,
    until: contextlib.ExitStack,
) -> dict[str, Any]:
    """What the first rank of a host makes for all: ``places`` by name, and a ``line`` to print.

    Args:
        until: closes what the others must open before.
    """
    memory = _Memory(until)
    places, line = {"board": memory.of(board_bytes(len(capture.views)))}, None
    if parts.in_memory:
        places["memory"] = memory.of(file_bytes(parts.in_memory.values()))
    if parts.beyond:
        n_bytes = file_bytes(parts.beyond.values())
        file, line = open_shared_scratch(trainer, capture, folder, n_bytes)
        if file is not None:
            places["file"] = path_for_others(until.enter_context(file).fileno())
    return {"places": places, "line": line}


def _joined(
    places: Mapping[str, str], parts: _Parts, reader: PhotoReader, held: contextlib.ExitStack
) -> SharedPhotographs:
    """What a rank opens of that, until ``held`` is closed."""
    board = PixelBoard(places["board"])
    held.callback(board.close)
    stores: dict[int, Store] = {}
    if "memory" in places:
        memory = PixelMemory(places["memory"], parts.in_memory)
        stores.update(dict.fromkeys(parts.in_memory, memory))
    if "file" in places:
        file = held.enter_context(PixelFile.shared(places["file"], parts.beyond))
        stores.update(dict.fromkeys(parts.beyond, file))
    return held.enter_context(SharedPhotographs(reader, board, stores))


def _tried(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What the work gives, or the trouble that it meets with the system."""
    try:
        return work()
    except OSError as error:
        return {_TROUBLE: f"{error.filename}: {error.strerror}" if error.filename else str(error)}


class _Memory:
    """Memory that the first rank of a host makes for the others, until these have opened it."""

    def __init__(self, until: contextlib.ExitStack) -> None:
        self._until = until

    def of(self, n_bytes: int) -> str:
        """Where the others find so many bytes."""
        descriptor = new_memory(n_bytes)
        self._until.callback(os.close, descriptor)
        return path_for_others(descriptor)


def _ranks_of_this_host(world: World) -> list[int]:
    digest = hashlib.blake2b(this_process().host.encode(), digest_size=8).digest()
    hosts = world.gather(int.from_bytes(digest) >> 1).tolist()
    return [rank for rank, host in enumerate(hosts) if host == hosts[world.rank]]


def _first_within(budget: int, sizes: Sizes) -> dict[int, PixelSize]:
    """The first photographs that have room together."""
    found: dict[int, PixelSize] = {}
    for index, size in sizes.items():
        budget -= file_bytes([size])
        if budget < 0:
            break
        found[index] = size
    return found


def _own_of(order: Iterable[int], train: Iterable[int], rank: int, n_ranks: int) -> Iterator[int]:
    """The photographs that a rank decodes for all, each when it is first needed."""
    missing = {index for k, index in enumerate(train) if k % n_ranks == rank}
    for index in order if missing else ():
        if index in missing:
            missing.remove(index)
            yield index
            if not missing:
                return


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]
