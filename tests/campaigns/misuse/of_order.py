# SPDX-License-Identifier: Apache-2.0
"""gs_order: good calls of everything public."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

import gs_order
from campaigns.misuse.calls import Call, Entry, Room
from campaigns.misuse.of_cull import and_counts_of
from campaigns.misuse.threads import Shared

_MOST = 2000
"""Views, kicks or rows in a search: more take hours, as they should."""


def _mask(room: Room) -> tuple[Any, Any, int]:
    n_rows, n_views = room.pick(1, 7, 64, 500), room.pick(1, 2, 7, 31, 32, 33, 40)
    bits = np.zeros((n_rows, 32 * -(-n_views // 32)), np.uint8)
    bits[:, :n_views] = room.rng.random((n_rows, n_views)) < 0.3
    bits[0, n_views - 1] = 1  # else fewer views are found
    words = np.packbits(bits, axis=1, bitorder="little").view(np.uint32)
    return room.ids(n_rows, 3 * n_rows), room.own(words), n_views


def _counts(function: Any, expect: Any) -> Any:
    def make(room: Room) -> Call:
        _, mask, n_views = _mask(room)
        return Call(function, {"mask": mask, "n_views": n_views}, expect=expect)

    return make


def _xor_counts_of(mask: Any, n_views: int) -> Any:
    shared = and_counts_of(mask, n_views)
    sizes = np.diagonal(shared)
    return sizes[:, None] + sizes[None] - 2 * shared


def _estimate(room: Room) -> Call:
    ids, mask, n_views = _mask(room)
    args = {"ids": ids, "mask": mask, "n_views": n_views, "rate": 0.5}
    return Call(gs_order.estimate_xor_counts, args)


def _order(room: Room) -> Call:
    _, mask, n_views = _mask(room)
    args: dict[str, Any] = {
        "mask": mask,
        "n_views": n_views,
        "method": room.pick("tsp", "tsp", "camera", "count", "random", "given"),
        "objective": room.pick("bytes", "bytes+tail", gs_order.CostModel()),
        "seed": room.below(100),
        "max_iterations": room.pick(None, 50),
        "start": room.pick(None, 0),
        "cameras": room.own(room.rng.standard_normal((n_views, 3))),
    }
    if room.chance(0.3):
        args["distance"] = room.own(_xor_counts_of(mask, n_views))
        args["counts"] = room.own(np.diagonal(and_counts_of(mask, n_views)))
    limits = {"n_views": _MOST, "max_iterations": _MOST}
    return Call(gs_order.order, args, limits=limits)


def _plan(room: Room) -> Call:
    ids, mask, n_views = _mask(room)
    retain = room.pick("previous", "last_use", 2000)
    args = {
        "ids": ids,
        "mask": mask,
        "order": room.own(room.rng.permutation(n_views)),
        "retain": retain,
        "ahead": room.pick(0, 0, 1),
    }
    return Call(gs_order.plan, args, show=_lists)


def _lists(plan: gs_order.Plan) -> Any:
    kinds = {**plan.ids, **{f"position {k}": v for k, v in plan.positions.items()}}
    return [plan.n_slots, {k: [v.values, v.offsets] for k, v in kinds.items()}]


def _planned(room: Room) -> gs_order.Plan:
    call = _plan(room)
    return call.call(**call.args)


def _step_lists(name: str) -> Any:
    def make(room: Room) -> Call:
        step = _planned(room)[0]
        return Call(getattr(step, name), {"kind": room.pick("load", "store", "final")})

    return make


def _item(room: Room) -> Call:
    plan = _planned(room)
    return Call(plan.__getitem__, {"i": room.below(len(plan))}, show=lambda step: step.view)


def _to_host(room: Room) -> Call:
    plan = _planned(room)
    return Call(lambda: plan.to_host().wait(), {}, show=lambda host: host.load.values)


def _cache(room: Room) -> Call:
    sets = [room.ids(room.below(8), 30) for _ in range(room.between(1, 6))]
    args = {
        "sets": sets,
        "capacity": room.between(8, 40),
        "policy": room.pick("belady", "lru"),
        "block_size": room.pick(1, 1, 4),
    }

    def show(plan: gs_order.CachePlan) -> Any:
        return [plan.read.values, plan.hit.values, plan.evict.values, plan.hit_rate]

    return Call(gs_order.CachePlan, args, show=show)


def _upcoming(room: Room) -> Call:
    show = operator.attrgetter("n_items")
    # Many items ask for so much memory.
    return Call(gs_order.Upcoming, {"n_items": room.below(40)}, limits={"n_items": 1e6}, show=show)


def _add(room: Room) -> Call:
    upcoming = gs_order.Upcoming(30)
    lists = [room.ids(room.below(8), 30) for _ in range(room.between(1, 6))]
    return Call(upcoming.add, {"lists": lists}, state=lambda: [upcoming.step, upcoming.n_known])


def _advance(room: Room) -> Call:
    upcoming = gs_order.Upcoming(30)
    upcoming.add([room.ids(room.below(8), 30), []])
    return Call(upcoming.advance, {})


def _sampler(room: Room) -> Call:
    n_views, batch_size = room.between(1, 30), room.between(1, 5)
    order = room.pick("shuffle", "tiles")
    args = {
        "n_views": n_views,
        "batch_size": batch_size,
        "seed": room.below(99),
        "order": order,
        "cameras": room.own(room.rng.standard_normal((n_views, 3))),
        "tile_views": room.pick(None, batch_size + 2) if order == "tiles" else None,
        "first_step": 3,
        "n_steps": room.pick(None, 4),
    }
    limits = {"n_views": _MOST, "batch_size": _MOST}

    def show(sampler: gs_order.ViewSampler) -> Any:
        return [sampler.batch(5), sampler.epoch(2), next(iter(sampler), None)]

    return Call(gs_order.ViewSampler, args, limits=limits, show=show)


def _of_sampler(name: str, argument: str) -> Any:
    def make(room: Room) -> Call:
        sampler = gs_order.ViewSampler(room.between(1, 20), room.between(1, 4))
        return Call(getattr(sampler, name), {argument: room.below(50)})

    return make


def _trajectory(room: Room) -> Call:
    n = room.between(1, 40)
    cameras = room.own(room.rng.standard_normal((n, 3)))
    if room.chance(0.3):
        cameras = room.own(np.stack([np.eye(4)] * n))
    args = {"cameras": cameras, "direction_weight": 0.5, "seed": room.below(9)}
    return Call(gs_order.trajectory, args)


def _model(room: Room) -> Call:
    rates = {"link_bytes_per_s": 1e9, "optimizer_rows_per_s": 1e6, "render_s": 0.01}
    return Call(gs_order.CostModel, {"row_bytes": 192, **rates})


def _cost(room: Room) -> Call:
    n = room.between(1, 6)
    counts = [room.own(room.rng.integers(0, 99, n)) for _ in range(3)]
    args = dict(zip(("loaded", "stored", "finished"), counts, strict=True))
    return Call(gs_order.CostModel().cost, args)


def _simulation(room: Room) -> Call:
    batches = [_mask(room)[:2] for _ in range(room.between(1, 2))]
    args = {
        "visibilities": batches,
        "orders": ["random", "count", "tsp"],
        "retain": ["none", "previous", "last_use"],
        "model": None,
        "cameras": None,
        "n_views": None,
        "seed": 0,
    }
    limits = {"n_views": _MOST}
    return Call(gs_order.simulate, args, limits=limits, show=lambda made: made.to_json())


def _table(name: str) -> Any:
    def make(room: Room) -> Call:
        call = _simulation(room)
        made = call.call(**call.args)
        return Call(getattr(made, name), {}, show=lambda _: None)

    return make


def _info(room: Room) -> Call:
    return Call(gs_order.build_info, {})


ENTRIES = (
    Entry("gs_order.and_counts", _counts(gs_order.and_counts, and_counts_of)),
    Entry("gs_order.xor_counts", _counts(gs_order.xor_counts, _xor_counts_of)),
    Entry("gs_order.estimate_xor_counts", _estimate),
    Entry("gs_order.order", _order),
    Entry("gs_order.plan", _plan),
    Entry("gs_order.Plan", _item),
    Entry("gs_order.Plan.to_host", _to_host),
    Entry("gs_order.HostPlan.wait", _to_host),
    Entry("gs_order.Step.positions", _step_lists("positions")),
    Entry("gs_order.Step.slots_of", _step_lists("slots_of")),
    Entry("gs_order.CachePlan", _cache),
    Entry("gs_order.Upcoming", _upcoming),
    Entry("gs_order.Upcoming.add", _add),
    Entry("gs_order.Upcoming.advance", _advance),
    Entry("gs_order.ViewSampler", _sampler),
    Entry("gs_order.ViewSampler.batch", _of_sampler("batch", "step")),
    Entry("gs_order.ViewSampler.epoch", _of_sampler("epoch", "epoch")),
    Entry("gs_order.ViewSampler.tiles", _of_sampler("tiles", "epoch")),
    Entry("gs_order.trajectory", _trajectory),
    Entry("gs_order.CostModel", _model),
    Entry("gs_order.CostModel.cost", _cost),
    Entry("gs_order.simulate", _simulation),
    Entry("gs_order.Simulation.table", _table("table")),
    Entry("gs_order.Simulation.to_json", _table("to_json")),
    Entry("gs_order.build_info", _info),
)

MADE_BY_OTHERS = (
    "gs_order.CacheStep", "gs_order.Cost", "gs_order.Estimate", "gs_order.HostPlan",
    "gs_order.Outcome", "gs_order.Ragged", "gs_order.Simulation", "gs_order.Step",
    "gs_order.Simulation.figure",
)  # fmt: skip
"""Classes that callers get from functions and do not make; and what needs matplotlib."""


def _together(room: Room) -> dict[str, Any]:
    ids, mask, n_views = _mask(room)
    views = np.arange(n_views)
    return {
        "and_counts": lambda: gs_order.and_counts(mask, n_views=n_views),
        "plan": lambda: gs_order.plan(ids, mask, views, retain="last_use"),
        "to_host": lambda: gs_order.plan(ids, mask, views).to_host().wait(),
    }


SHARED = (Shared("gs_order.plan", _together),)
