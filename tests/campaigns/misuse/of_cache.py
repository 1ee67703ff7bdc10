# SPDX-License-Identifier: Apache-2.0
"""gs_pinned's cache of blocks: good calls of everything public."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gs_pinned
from campaigns.misuse.calls import Call, Entry, Room
from campaigns.misuse.threads import Shared

_PLANES = (gs_pinned.Plane("a", 3, is_head=True), gs_pinned.Plane("b", 1, "int32"))
_ROWS, _BLOCKS = 4, 7


class _OwnStore(gs_pinned.BlockStore):
    """A store in a folder that goes with the object."""

    folder: tempfile.TemporaryDirectory[str]


def _store() -> gs_pinned.BlockStore:
    folder = tempfile.TemporaryDirectory()
    store = _OwnStore.create(Path(folder.name) / "store", _PLANES, block_rows=_ROWS, threads=2)
    store.folder = folder
    numbers = np.arange(_BLOCKS * _ROWS)[:, None]
    store.write(
        range(_BLOCKS), {"a": np.repeat(numbers, 3, 1).astype("f4"), "b": numbers.astype("i4")}
    )
    return store


def _arrays() -> dict[str, Any]:
    return {p.name: np.zeros((3 * _ROWS, p.width), p.dtype) for p in _PLANES}


def _cache() -> gs_pinned.BlockCache:
    """Blocks 0 and 1 are in use."""
    cache = gs_pinned.BlockCache(_store(), _arrays(), host_blocks=2)
    cache.bring([0, 1])
    return cache


def _make(room: Room) -> Call:
    store = _store()
    args = {
        "arrays": {name: room.own(array) for name, array in _arrays().items()},
        "host_blocks": room.between(2, 5),
        "stream": None,
        "pinned": room.pick("auto", False),
    }

    def call(**given: Any) -> Any:
        with gs_pinned.BlockCache(store, **given) as cache:
            return cache.n_slots

    # Places far out ask for so much memory.
    return Call(call, args, limits={"host_blocks": 1e5})


def _of_cache(name: str, **args: Any) -> Callable[[Room], Call]:
    def make(_: Room) -> Call:
        cache = _cache()
        raises = (MemoryError,) if name == "bring" else ()
        return Call(getattr(cache, name), dict(args), raises=raises)

    return make


def _snapshot(name: str) -> Callable[[Room], Call]:
    def make(room: Room) -> Call:
        cache = _cache()
        cache.release([0, 1], changed=room.chance(0.5))

        def show(result: Any) -> int:
            return result if isinstance(result, int) else result.wait()

        return Call(getattr(cache, name), {"state": b"state", "keep": 2}, show=show)

    return make


def _wait(room: Room) -> Call:
    cache = _cache()
    cache.release([0, 1], changed=room.chance(0.5))
    return Call(cache.snapshot_async().wait, {}, expect=lambda: 1)


def _close(_: Room) -> Call:
    cache = _cache()

    def close_twice() -> str:
        cache.close()
        cache.close()
        try:
            cache.bring([0])
        except gs_pinned.ClosedError:
            return "closed"
        return "not refused"

    return Call(close_twice, {}, expect=lambda: "closed")


ENTRIES = (
    Entry("gs_pinned.BlockCache", _make),
    Entry("gs_pinned.BlockCache.bring", _of_cache("bring", blocks=[2])),
    Entry("gs_pinned.BlockCache.expect", _of_cache("expect", blocks=[2, 0])),
    Entry("gs_pinned.BlockCache.fetch", _of_cache("fetch", blocks=[3])),
    Entry("gs_pinned.BlockCache.hint", _of_cache("hint", blocks=[3, 1], next_use=[4, 9])),
    Entry("gs_pinned.BlockCache.counts", _of_cache("counts", blocks=[2, 0])),
    Entry(
        "gs_pinned.BlockCache.release",
        _of_cache("release", blocks=[0, 1], changed=[True, False], step=3),
    ),
    Entry("gs_pinned.BlockCache.snapshot", _snapshot("snapshot")),
    Entry("gs_pinned.BlockCache.snapshot_async", _snapshot("snapshot_async")),
    Entry("gs_pinned.SnapshotTicket.wait", _wait),
    Entry("gs_pinned.BlockCache.close", _close),
)


def _together(room: Room) -> dict[str, Callable[[], Any]]:
    cache = gs_pinned.BlockCache(_store(), _arrays(), host_blocks=2)

    def use(block: int) -> None:
        cache.bring([block])
        cache.release([block])

    return {
        "use": lambda: use(room.below(3)),
        "use others": lambda: use(3 + room.below(3)),
        "expect": lambda: cache.expect([2]),
        "fetch": lambda: cache.fetch([4]),
        "hint": lambda: cache.hint([4], [room.below(9)]),
        "stats": lambda: cache.stats,
        "close": lambda: cache.close() if room.chance(0.01) else None,
    }


SHARED = (Shared("gs_pinned.BlockCache", _together),)

MADE_BY_OTHERS = ("gs_pinned.CacheStats", "gs_pinned.SnapshotTicket")
