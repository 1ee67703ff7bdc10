# SPDX-License-Identifier: Apache-2.0
"""The photographs of a run: those of one process, or of the ranks of a host together."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from gs_train.data import Capture, KeptPhotographs, PhotoReader
from gs_train.data.fingerprint import crcs
from gs_train.data.pixel_file import PixelFile, file_bytes
from gs_train.data.shared.board import PixelBoard, board_bytes
from gs_train.data.shared.memory import PixelMemory, new_memory, path_for_others
from gs_train.data.shared.photographs import SharedPhotographs, Store
from gs_train.errors import CommonError
from gs_train.files.agreement import by_each
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

_MOST_DECODERS, _CORES_PER_DECODER = 4, 4

Sizes: TypeAlias = Mapping[int, tuple[int, int]]


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
    sizes = training_sizes(capture)
    fits_all = decoded_bytes(capture) <= cache
    budget = file_bytes(sizes.values()) if fits_all else cache - cache // _AHEAD_SHARE
    in_memory = _first_within(budget, sizes)
    beyond = {index: size for index, size in sizes.items() if index not in in_memory}
    with contextlib.ExitStack() as until_all_have_opened:

        def make() -> dict[str, Any]:
            if world.rank != mates[0]:
                return {}
            try:
                made = _Made(until_all_have_opened)
                places = {"board": made.memory(board_bytes(len(capture.views)))}
                if in_memory:
                    places["memory"] = made.memory(file_bytes(in_memory.values()))
                line = None
                if beyond:
                    n_bytes = file_bytes(beyond.values())
                    file, line = open_shared_scratch(trainer, capture, folder, n_bytes)
                    if file is not None:
                        until_all_have_opened.enter_context(file)
                        places["file"] = path_for_others(file.fileno())
                return {"places": places, "line": line}
            except OSError as error:
                return {"trouble": _words(error)}

        stores: dict[int, Store] = {}
        boards: list[PixelBoard] = []
        made = by_each(world, make)[mates[0]]

        def join() -> str | None:
            if "trouble" in made:
                return str(made["trouble"])
            places = made["places"]
            try:
                boards.append(PixelBoard(places["board"]))
                held.callback(boards[0].close)
                if "memory" in places:
                    memory = PixelMemory(places["memory"], in_memory)
                    stores.update(dict.fromkeys(in_memory, memory))
                if "file" in places:
                    file = held.enter_context(PixelFile.shared(places["file"], beyond))
                    stores.update(dict.fromkeys(beyond, file))
            except OSError as error:
                return _words(error)
            return None

        troubles = by_each(world, join)
    for rank, trouble in enumerate(troubles):
        if trouble is not None:
            why = f"rank {rank}: {trouble}"
            print(f"each rank decodes all photographs for itself ({why})", file=sys.stderr)
            return None
    if made["line"] is not None:
        print(made["line"], file=sys.stderr)
    photographs = held.enter_context(SharedPhotographs(reader, boards[0], stores))
    n_cores = len(os.sched_getaffinity(0))
    photographs.decode_ahead(
        _own_of(order, capture.train, mates.index(world.rank), len(mates)),
        n_threads=max(1, min(_MOST_DECODERS, n_cores // _CORES_PER_DECODER)),
    )
    return Opened(photographs, cache if fits_all else max(1, cache // _AHEAD_SHARE // len(mates)))


class _Made:
    """What the first rank of a host makes for the others, until these have opened it."""

    def __init__(self, until: contextlib.ExitStack) -> None:
        self._until = until

    def memory(self, n_bytes: int) -> str:
        """Where the others find so many bytes."""
        descriptor = new_memory(n_bytes)
        self._until.callback(os.close, descriptor)
        return path_for_others(descriptor)


def _ranks_of_this_host(world: World) -> list[int]:
    digest = hashlib.blake2b(this_process().host.encode(), digest_size=8).digest()
    hosts = world.gather(int.from_bytes(digest) >> 1).tolist()
    return [rank for rank, host in enumerate(hosts) if host == hosts[world.rank]]


def _first_within(budget: int, sizes: Sizes) -> dict[int, tuple[int, int]]:
    """The first photographs that have room together."""
    found: dict[int, tuple[int, int]] = {}
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


def _words(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)
