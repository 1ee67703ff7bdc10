# SPDX-License-Identifier: Apache-2.0
"""gs_pinned's store of blocks: good calls of everything public."""

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
_ROWS = 4


class _OwnStore(gs_pinned.BlockStore):
    """A store in a folder that goes with the object."""

    folder: tempfile.TemporaryDirectory[str]


def _store() -> gs_pinned.BlockStore:
    folder = tempfile.TemporaryDirectory()
    store = _OwnStore.create(Path(folder.name) / "store", _PLANES, block_rows=_ROWS, threads=2)
    store.folder = folder
    store.write([0, 2], {"a": np.ones((8, 3), "f4"), "b": np.ones((8, 1), "i4")})
    return store


def _rows(store: gs_pinned.BlockStore) -> Any:
    return [(block, store.read([block])) for block in store.blocks]


def _write(name: str) -> Callable[[Room], Call]:
    def make(room: Room) -> Call:
        store = _store()
        blocks = [int(block) for block in room.rng.permutation(9)[: room.between(1, 5)]]
        counts = [room.below(_ROWS + 1) for _ in blocks]
        args: dict[str, Any] = {
            "blocks": blocks,
            "values": {
                "a": room.normal(sum(counts), 3),
                "b": room.own(room.rng.integers(0, 9, (sum(counts), 1)), np.int32),
            },
            "counts": counts,
            "step": room.below(100),
        }
        if name == "write_async":
            args["at"] = None if room.chance(0.5) else np.cumsum([0, *counts])[:-1].tolist()

        def call(**given: Any) -> Any:
            ticket = getattr(store, name)(**given)
            if ticket is not None:
                ticket.wait()
            return _rows(store)

        # A number far out asks for an index of that many entries.
        return Call(call, args, limits={"blocks": 1e5}, state=lambda: _rows(store))

    return make


def _read(name: str) -> Callable[[Room], Call]:
    def make(room: Room) -> Call:
        store = _store()
        out = {"b": room.own(np.zeros((8, 1), np.int32))}
        args: dict[str, Any] = {"blocks": [2, 0], "planes": ["b"], "out": out}
        if room.chance(0.7):
            args["blocks"] = room.pick([0], [2, 0], [0, 0, 2])
            args |= {"planes": room.pick(None, ["b"]), "out": None}
        elif name == "read_async":
            args["at"] = room.pick(None, [0, 4], [4, 0])

        def show(result: Any) -> Any:
            return result if isinstance(result, dict) else result.wait()

        return Call(
            getattr(store, name), args, writes=("out",), show=show, state=lambda: _rows(store)
        )

    return make


def _of_store(name: str, **args: Any) -> Callable[[Room], Call]:
    def make(_: Room) -> Call:
        store = _store()
        return Call(getattr(store, name), dict(args), state=lambda: _rows(store))

    return make


def _close(_: Room) -> Call:
    store = _store()

    def close_twice() -> str:
        store.close()
        store.close()
        try:
            store.read([0])
        except gs_pinned.ClosedError:
            return "closed"
        return "not refused"

    return Call(close_twice, {}, expect=lambda: "closed")


def _create(room: Room) -> Call:
    folder = tempfile.TemporaryDirectory()
    args = {
        "planes": list(_PLANES),
        "block_rows": room.pick(1, 100),
        "segment_bytes": 1 << 20,
        "threads": 2,
    }

    def call(**given: Any) -> Any:
        path = Path(tempfile.mkdtemp(dir=folder.name)) / "store"
        with gs_pinned.BlockStore.create(path, **given) as store:
            return [store.block_rows, [plane.name for plane in store.planes]]

    return Call(call, args)


def _open(room: Room) -> Call:
    store = _store()
    store.snapshot(b"state")
    args = {"snapshot": room.pick(None, 1), "read_only": True, "threads": 2}

    def call(**given: Any) -> Any:
        with gs_pinned.BlockStore.open(store.path, **given) as opened:
            return [opened.state, _rows(opened)]

    raises = (gs_pinned.StoreCorruptError, gs_pinned.StoreReadOnlyError)
    return Call(call, args, raises=raises)


def _plane(room: Room) -> Call:
    args = {"name": "a", "width": room.between(1, 9), "dtype": "int16", "is_head": False}
    return Call(gs_pinned.Plane, args, show=lambda plane: plane.row_bytes)


def _wait(room: Room) -> Call:
    ticket = _store().read_async([0])
    return Call(ticket.wait, {"timeout_s": 10.0}, raises=(TimeoutError,))


ENTRIES = (
    Entry("gs_pinned.Plane", _plane),
    Entry("gs_pinned.BlockStore", _create),
    Entry("gs_pinned.BlockStore.create", _create),
    Entry("gs_pinned.BlockStore.open", _open),
    Entry("gs_pinned.BlockStore.write", _write("write")),
    Entry("gs_pinned.BlockStore.write_async", _write("write_async")),
    Entry("gs_pinned.BlockStore.read", _read("read")),
    Entry("gs_pinned.BlockStore.read_async", _read("read_async")),
    Entry("gs_pinned.BlockStore.counts", _of_store("counts", blocks=[2, 0])),
    Entry("gs_pinned.BlockStore.snapshot", _of_store("snapshot", state=b"state", keep=2)),
    Entry("gs_pinned.BlockStore.verify", _of_store("verify", report=None)),
    Entry("gs_pinned.BlockStore.forget_state", _of_store("forget_state")),
    Entry("gs_pinned.BlockStore.close", _close),
    Entry("gs_pinned.BlockTicket.wait", _wait),
)


def _together(room: Room) -> dict[str, Callable[[], Any]]:
    store = _store()
    ticket = store.read_async([0])
    values = {"a": room.normal(8, 3), "b": room.own(np.ones((8, 1), np.int32))}
    return {
        "write": lambda: store.write([2, 0], values),
        "write_async": lambda: store.write_async([2, 0], values, [_ROWS, _ROWS]),
        "read": lambda: store.read([0, 2]),
        "read_async": lambda: store.read_async([2], ["a"]),
        "wait": lambda: ticket.wait(10.0),
        "snapshot": lambda: store.snapshot(keep=2),
        "verify": store.verify,
        "state": lambda: store.state,
        "forget_state": store.forget_state,
        "stats": lambda: store.stats,
        "close": lambda: store.close() if room.chance(0.01) else None,
    }


SHARED = (Shared("gs_pinned.BlockStore", _together),)

MADE_BY_OTHERS = ("gs_pinned.BlockTicket", "gs_pinned.StoreCheck", "gs_pinned.StoreStats")
