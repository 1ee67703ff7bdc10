# SPDX-License-Identifier: Apache-2.0
"""gs_pinned: good calls of everything public."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import gs_pinned
from campaigns.misuse.calls import Call, Entry, Room
from campaigns.misuse.threads import Shared

_DTYPES = ("float32", "float16", "uint8", "int32", "int64")
_FIELDS: dict[str, int | tuple[int, ...]] = {"a": 1, "b": (2, 2)}


def _table(room: Room, dtype: str | None = None) -> gs_pinned.Table:
    rows, width = room.pick(1, 5, 40), 5
    table = gs_pinned.Table(rows, width, dtype or room.pick(*_DTYPES), fields=_FIELDS)
    table.numpy()[...] = room.rng.integers(0, 100, (rows, width))
    return table


def _like(room: Room, table: gs_pinned.Table, n: int) -> Any:
    return room.own(room.rng.integers(0, 100, (n, table.width)), table.dtype)


def _ids(room: Room, n: int, n_rows: int, *, repeats: bool) -> np.ndarray:
    if repeats:
        return room.rng.integers(0, n_rows, n)
    return room.rng.permutation(n_rows)[:n]


def _options(room: Room) -> dict[str, Any]:
    return {"stream": None, "max_blocks": 4} if room.chance() else {}


def _source(room: Room) -> Any:
    """A table, or an array in its place."""
    table = _table(room)
    return table if room.chance(0.6) else room.own(table.numpy().copy())


def _rows_of(source: Any) -> np.ndarray:
    return np.asarray(source)


def _gather(room: Room) -> Call:
    table = _source(room)
    n_rows, width = _rows_of(table).shape
    n = room.below(12)
    dtype = _rows_of(table).dtype
    kind = room.pick(np.int32, np.int64)
    args: dict[str, Any] = {
        "table": table,
        "ids": room.own(_ids(room, n, n_rows, repeats=True), kind),
        "out": room.own(np.zeros((n, width)), dtype),
    }
    if room.chance(0.3):
        args["out"] = room.own(np.zeros((n + 3, width)), dtype)
        args["slots"] = room.own(_ids(room, n, n + 3, repeats=False), kind)
    elif isinstance(table, gs_pinned.Table) and room.chance(0.3):
        args["out"] = {
            "b": room.own(np.zeros((n, 2, 2)), dtype),
            "a": room.own(np.zeros((n, 1)), dtype),
        }
    return Call(gs_pinned.gather, {**args, **_options(room)}, writes=("out",), raises=(KeyError,))


def _writing(function: Any, *, slots: bool) -> Callable[[Room], Call]:
    def make(room: Room) -> Call:
        table = _source(room)
        rows = _rows_of(table)
        n = room.below(len(rows) + 1)
        kind = room.pick(np.int32, np.int64)
        args: dict[str, Any] = {
            "values": room.own(room.rng.integers(0, 100, (n, rows.shape[1])), rows.dtype),
            "ids": room.own(_ids(room, n, len(rows), repeats=False), kind),
            "table": table,
        }
        if slots and room.chance(0.3):
            args["slots"] = room.own(_ids(room, n, max(n, 1), repeats=True), kind)
        return Call(
            lambda **given: (function(**given), _rows_of(given["table"]))[1],
            {**args, **_options(room)},
            writes=("table",),
            state=lambda: _rows_of(table),
            raises=(KeyError,),
        )

    return make


def _gather_retained(room: Room) -> Call:
    table = _table(room)
    kind = room.pick(np.int32, np.int64)
    n_load, n_keep = room.below(6), room.below(6)
    slots = room.rng.permutation(20)
    args = {
        "table": table,
        "load_ids": room.own(_ids(room, n_load, table.rows, repeats=True), kind),
        "load_slots": room.own(slots[:n_load], kind),
        "source": _like(room, table, 9),
        "source_slots": room.own(_ids(room, n_keep, 9, repeats=True), kind),
        "out_slots": room.own(slots[n_load : n_load + n_keep], kind),
        "out": _like(room, table, 20),
    }
    return Call(gs_pinned.gather_retained, {**args, **_options(room)}, writes=("out",))


def _exchange(room: Room) -> Call:
    n_rows, dtype = 30, room.pick(*_DTYPES)
    tables = [gs_pinned.Table(n_rows, width, dtype) for width in (3, 4)]
    for table in tables:
        table.numpy()[...] = room.rng.integers(0, 100, table.shape)
    arrays = [_like(room, table, 10) for table in tables]
    rows = room.rng.permutation(n_rows)
    n_loaded = room.between(1, 8)
    n_stored = room.between(0, n_loaded)
    kind = room.pick(np.int32, np.int64)
    args = {
        "tables": tables,
        "arrays": arrays,
        "stored": room.own(rows[:n_stored], kind),
        "loaded": room.own(rows[10 : 10 + n_loaded], kind),
        "slots": room.own(room.rng.permutation(10)[:n_loaded], kind),
    }

    def exchange(**given: Any) -> Any:
        gs_pinned.exchange(**given)
        return [table.numpy() for table in tables]

    return Call(
        exchange,
        {**args, **_options(room)},
        writes=("arrays",),
        state=lambda: [t.numpy() for t in tables],
    )


def _store_compact(room: Room) -> Call:
    n = room.between(1, 9)
    dtype = room.pick(*_DTYPES)
    values = room.own(room.rng.integers(0, 100, (20, 4)), dtype)
    if room.chance(0.3):
        values = {"x": values, "y": room.own(room.rng.integers(0, 9, (20, 2, 2)), dtype)}
    args = {
        "values": values,
        "positions": room.own(_ids(room, n, 20, repeats=True), np.int32),
        "ring": gs_pinned.Ring(8192),
        "max_blocks": None,
        "timeout_s": 1.0,
    }

    def show(slot: gs_pinned.RingSlot) -> Any:
        with slot:
            return slot.numpy().copy()

    return Call(gs_pinned.store_compact, args, show=show)


def _slot(room: Room) -> gs_pinned.RingSlot:
    call = _store_compact(room)
    return call.call(**call.args)


def _of_slot(name: str, **args: Any) -> Callable[[Room], Call]:
    def make(room: Room) -> Call:
        slot = _slot(room)
        method = getattr(slot, name)
        return Call(method, dict(args), show=lambda _: None, raises=(KeyError,))

    return make


def _new_table(room: Room) -> Call:
    args = {
        "rows": room.below(20),
        "width": 5,
        "dtype": room.pick(*_DTYPES, torch.float32, np.float16),
        "capacity": room.pick(None, 50),
        "pinned": room.pick("auto", False),
        "fields": room.pick(None, _FIELDS),
    }
    show = lambda table: [table.shape, table.numpy()]  # noqa: E731
    return Call(gs_pinned.Table, args, show=show)


def _of_table(name: str, args_of: Any, *, show: Any = None) -> Callable[[Room], Call]:
    """A method of a table, and what is in the table then."""

    def make(room: Room) -> Call:
        table = _table(room)
        method = getattr(table, name)

        def call(**given: Any) -> Any:
            result = method(**given)
            return [result if show is None else show(result), table.shape, table.numpy()]

        state = lambda: [table.shape, table.numpy()]  # noqa: E731
        return Call(call, args_of(room, table), state=state, raises=(KeyError,))

    return make


def _append(room: Room, table: gs_pinned.Table) -> dict[str, Any]:
    n = room.below(20)
    if room.chance(0.6):
        return {"values": _like(room, table, n)}
    dtype = table.dtype
    return {"values": {"a": room.own(np.ones(n), dtype), "b": room.own(np.ones((n, 2, 2)), dtype)}}


def _keep(room: Room, table: gs_pinned.Table) -> dict[str, Any]:
    if room.chance():
        return {"mask_or_ids": room.own(room.rng.random(table.rows) < 0.5)}
    return {"mask_or_ids": room.ids(room.below(table.rows + 1), table.rows)}


def _truncate(room: Room, table: gs_pinned.Table) -> dict[str, Any]:
    return {"rows": room.below(table.rows + 1)}


def _permute(room: Room, table: gs_pinned.Table) -> dict[str, Any]:
    return {"perm": room.own(room.rng.permutation(table.rows), room.pick(np.int32, np.int64))}


def _overwrite(room: Room, table: gs_pinned.Table) -> dict[str, Any]:
    n = room.below(table.rows + 1)
    return {"ids": room.ids(n, table.rows), "values": _like(room, table, n)}


def _field(room: Room, table: gs_pinned.Table) -> dict[str, Any]:
    return {"field": room.pick(None, "a", "b")}


def _no_arguments(room: Room, table: gs_pinned.Table) -> dict[str, Any]:
    return {}


def _closed(room: Room) -> Call:
    """Every method of a closed table."""
    table = _table(room)
    table.close()
    values = room.own(np.ones((1, 5), np.float32))
    calls = [
        lambda: table.numpy(), lambda: table.torch(), lambda: table.append(values),
        lambda: table.keep(np.array([0])), lambda: table.permute(np.arange(table.rows)),
        lambda: table.truncate(0),
        lambda: table.wait(), lambda: gs_pinned.gather(table, np.array([0]), values),
        lambda: table.stats, lambda: table["a"], lambda: table.is_pinned,
    ]  # fmt: skip
    call = room.pick(*calls)

    def refused() -> str:
        try:
            call()
        except gs_pinned.ClosedError:
            return "closed"
        return "not refused"

    return Call(refused, {}, expect=lambda: "closed")


def _close(room: Room) -> Call:
    table = _table(room)

    def close_twice() -> bool:
        table.close()
        table.close()
        return table.is_closed

    return Call(close_twice, {})


def _ring(room: Room) -> Call:
    return Call(gs_pinned.Ring, {"bytes": room.pick(64, 4096)}, show=lambda ring: ring.stats)


def _take(room: Room) -> Call:
    layout = _table(room).layout
    ring = gs_pinned.Ring(4096)
    args = {"rows": room.below(9), "layout": layout, "timeout_s": 0.5}
    return Call(ring.take, args, show=lambda slot: slot.shape)


def _ring_close(room: Room) -> Call:
    ring = gs_pinned.Ring(4096)

    def take_after_close() -> str:
        ring.close()
        ring.close()
        try:
            ring.take(1, _table(room).layout)
        except gs_pinned.ClosedError:
            return "closed"
        return "not refused"

    return Call(take_after_close, {}, expect=lambda: "closed")


def _of_signal(name: str, args: dict[str, Any]) -> Callable[[Room], Call]:
    def make(room: Room) -> Call:
        signal = gs_pinned.Signal()
        signal.set(5)

        def call(**given: Any) -> Any:
            result = getattr(signal, name)(**given)
            return [None if name == "completing" else result, signal.value]

        # Without a limit of time a value that is never set is waited for.
        fixed = ("timeout_s",)
        return Call(call, dict(args), fixed=fixed, state=lambda: signal.value)

    return make


def _nothing(function: Any) -> Callable[[Room], Call]:
    return lambda room: Call(function, {}, show=lambda _: None)


ENTRIES = (
    Entry("gs_pinned.gather", _gather),
    Entry("gs_pinned.scatter", _writing(gs_pinned.scatter, slots=True)),
    Entry("gs_pinned.scatter_add", _writing(gs_pinned.scatter_add, slots=False)),
    Entry("gs_pinned.gather_retained", _gather_retained),
    Entry("gs_pinned.exchange", _exchange),
    Entry("gs_pinned.store_compact", _store_compact),
    Entry("gs_pinned.raise_faults", _nothing(gs_pinned.raise_faults)),
    Entry("gs_pinned.Table", _new_table),
    Entry("gs_pinned.Table.append", _of_table("append", _append)),
    Entry("gs_pinned.Table.keep", _of_table("keep", _keep)),
    Entry("gs_pinned.Table.truncate", _of_table("truncate", _truncate)),
    Entry("gs_pinned.Table.permute", _of_table("permute", _permute)),
    Entry("gs_pinned.Table.overwrite", _of_table("overwrite", _overwrite)),
    Entry("gs_pinned.Table.numpy", _of_table("numpy", _field)),
    Entry("gs_pinned.Table.torch", _of_table("torch", _field)),
    Entry("gs_pinned.Table.wait", _of_table("wait", _no_arguments)),
    Entry("gs_pinned.Table.native_rows", _of_table("native_rows", _no_arguments)),
    Entry("gs_pinned.Table.close", _close),
    Entry("gs_pinned.Table.closed", _closed),
    Entry("gs_pinned.Ring", _ring),
    Entry("gs_pinned.Ring.take", _take),
    Entry("gs_pinned.Ring.close", _ring_close),
    Entry("gs_pinned.RingSlot.wait", _of_slot("wait", timeout_s=1.0, spin_s=0.0)),
    Entry("gs_pinned.RingSlot.numpy", _of_slot("numpy", field=None)),
    Entry("gs_pinned.RingSlot.torch", _of_slot("torch", field=None)),
    Entry("gs_pinned.RingSlot.release", _of_slot("release")),
    Entry("gs_pinned.Signal", _nothing(gs_pinned.Signal)),
    Entry("gs_pinned.Signal.set", _of_signal("set", {"value": 7})),
    Entry("gs_pinned.Signal.set_on", _of_signal("set_on", {"stream": None, "value": 7})),
    Entry("gs_pinned.Signal.wait", _of_signal("wait", {"value": 5, "timeout_s": 0.0})),
    Entry("gs_pinned.Signal.poison", _of_signal("poison", {"reason": "a failure"})),
    Entry("gs_pinned.Signal.completing", _of_signal("completing", {"value": 8})),
    Entry("gs_pinned.available_bytes", _nothing(gs_pinned.available_bytes)),
    Entry("gs_pinned.build_info", _nothing(gs_pinned.build_info)),
)

MADE_BY_OTHERS = (
    "gs_pinned.RingSlot", "gs_pinned.RingStats", "gs_pinned.TableStats",
    "gs_pinned.Signal.wait_on",  # without a limit of time: it waits for good
)  # fmt: skip


def _table_together(room: Room) -> dict[str, Any]:
    table = gs_pinned.Table(200, 5, "float32", capacity=100_000)
    values = room.own(np.ones((3, 5), np.float32))
    outs = {name: np.empty((50, 5), np.float32) for name in ("one", "other")}
    ids = np.arange(50)
    return {
        "append": lambda: table.append(values),
        "keep": lambda: table.keep(np.arange(200)),
        "permute": lambda: table.permute(np.arange(table.rows)[::-1].copy()),
        "gather": lambda: gs_pinned.gather(table, ids, outs["one"]),
        "scatter": lambda: gs_pinned.scatter(outs["other"], ids, table),
        "numpy": lambda: table.numpy().sum(),
        "stats": lambda: table.stats,
        "close": lambda: table.close() if room.chance(0.01) else None,
    }


def _ring_together(room: Room) -> dict[str, Any]:
    ring, values = gs_pinned.Ring(4096), np.ones((6, 8), np.float32)

    def store() -> None:
        with gs_pinned.store_compact(values, None, ring, timeout_s=1.0) as slot:
            slot.numpy().sum()

    return {
        "store": store,
        "take": lambda: ring.take(1, gs_pinned.Table(1, 4).layout, 1.0).release(),
        "stats": lambda: ring.stats,
        "close": lambda: ring.close() if room.chance(0.01) else None,
    }


SHARED = (
    Shared("gs_pinned.Table", _table_together),
    Shared("gs_pinned.Ring", _ring_together),
)
