# SPDX-License-Identifier: Apache-2.0
"""Bytes and optimizer work of each order and retention, for the batches of any scene."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gs_order.arrays import Array
from gs_order.checks import integer, sequence, shown
from gs_order.cost import CostModel
from gs_order.order import METHODS, order
from gs_order.plans.plan import plan

NAMES = (*METHODS, "tsp+tail")
"""Orders by name: the methods of `order`, and ``"tsp"`` with the objective ``"bytes+tail"``."""

_COLUMNS = (
    *("order", "retain", "load MB", "store MB"),
    *("link ms", "tail ms", "total ms", "last krows", "peak krows"),
)


@dataclass(frozen=True)
class Outcome:
    """Means over batches of one way of ordering and retaining.

    Attributes:
        order, retain: names of the order and the retention.
        load_bytes, store_bytes: per batch.
        link_s, tail_s, total_s: per batch, of `CostModel`.
        last_rows: rows that finish with the last microbatch.
        peak_rows: most rows on the device while a microbatch renders, over all batches.
    """

    order: str
    retain: str
    load_bytes: float
    store_bytes: float
    link_s: float
    tail_s: float
    total_s: float
    last_rows: float
    peak_rows: int


@dataclass(frozen=True)
class Simulation:
    """Outcomes, a row for each order and each way to retain.

    Attributes:
        outcomes: in the order asked for.
        n_batches: that the means are over.
        union_rows: rows of a batch that any view sees, mean.
    """

    outcomes: tuple[Outcome, ...]
    n_batches: int
    union_rows: float

    def table(self) -> str:
        """The outcomes as aligned text: megabytes (10^6), milliseconds, thousands of rows."""
        rows: list[tuple[str, ...]] = [_COLUMNS]
        for o in self.outcomes:
            numbers = [o.load_bytes / 1e6, o.store_bytes / 1e6]
            numbers += [1e3 * o.link_s, 1e3 * o.tail_s, 1e3 * o.total_s]
            numbers += [o.last_rows / 1e3, o.peak_rows / 1e3]
            rows.append((o.order, o.retain, *(f"{x:.3f}" for x in numbers)))
        widths = [max(len(row[k]) for row in rows) for k in range(len(_COLUMNS))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if k < 2 else cell.rjust(width)
                for k, (cell, width) in enumerate(zip(row, widths))
            ).rstrip()
            for row in rows
        )

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain numbers and words."""
        return {
            "n_batches": self.n_batches,
            "union_rows": self.union_rows,
            "outcomes": [asdict(outcome) for outcome in self.outcomes],
        }

    def figure(self) -> Any:
        """Draw bars of bytes moved and of tails, grouped by order, coloured by retention.

        Returns:
            a matplotlib Figure (``pip install gs-order[plot]``); no window is opened.
        """
        from matplotlib.figure import Figure

        orders = list(dict.fromkeys(o.order for o in self.outcomes))
        retains = list(dict.fromkeys(o.retain for o in self.outcomes))
        figure = Figure(figsize=(3 + 1.6 * len(orders), 4), layout="constrained")
        moved, tails = figure.subplots(1, 2)
        width = 0.8 / len(retains)
        for k, retain in enumerate(retains):
            chosen = {o.order: o for o in self.outcomes if o.retain == retain}
            at = np.arange(len(orders)) + (k - (len(retains) - 1) / 2) * width
            load = np.array([chosen[name].load_bytes for name in orders]) / 1e6
            store = np.array([chosen[name].store_bytes for name in orders]) / 1e6
            tail = np.array([chosen[name].tail_s for name in orders]) * 1e3
            bars = moved.bar(at, load, width, label=f"retain {retain}")
            colour = bars.patches[0].get_facecolor()
            moved.bar(at, store, width, bottom=load, color=colour, alpha=0.5)
            tails.bar(at, tail, width, color=colour)
        for axes, label in ((moved, "MB per batch (load; store lighter)"), (tails, "tail, ms")):
            axes.set_xticks(range(len(orders)), orders)
            axes.set_ylabel(label)
        moved.legend()
        return figure


def simulate(
    visibilities: Sequence[Any],
    orders: Sequence[str] | Mapping[str, Sequence[Array]] = ("random", "count", "tsp", "tsp+tail"),
    *,
    retain: Sequence[str | int] = ("none", "previous", "last_use"),
    model: CostModel | None = None,
    cameras: Sequence[Array] | None = None,
    n_views: int | None = None,
    seed: int = 0,
) -> Simulation:
    """Simulate every combination of order and retention.

    Args:
        visibilities: batches: pairs (ids, mask), or objects with ``ids`` and ``mask``, as for
            `plan`; numpy or torch.
        orders: names: ``"given"``, ``"random"``, ``"camera"``, ``"count"``, ``"tsp"``,
            ``"tsp+tail"``; or a mapping from names of one's own to a permutation for each batch.
        retain: ``"none"`` (every microbatch loads and stores all its rows), and values for `plan`.
        model: rates; the defaults of `CostModel` when None.
        cameras: ``cameras`` of `order` for each batch; needed by ``"camera"``.
        n_views: views of every batch; for each batch the highest set bit + 1 when None.
        seed: seed of searches and shuffles.

    Returns:
        means over batches.

    Raises:
        ValueError: no batch, an unknown name, a mapping or cameras of another length than the
            batches, and the errors of `order` and `plan`.
    """
    if len(sequence("visibilities", visibilities)) == 0:
        raise ValueError("visibilities must hold at least one batch, got none")
    if not isinstance(model, CostModel | None):
        raise TypeError(f"model must be a CostModel or None, got {shown(model)}")
    for name, value in (("orders", orders), ("retain", retain)):
        if not isinstance(value, Sequence | Mapping):
            raise TypeError(f"{name} must be a sequence, got {shown(value)}")
    seed = integer("seed", seed)
    model = CostModel() if model is None else model
    batches = [_ids_and_mask(v) for v in visibilities]
    permutations = _permutations(batches, orders, model, cameras, n_views, seed)
    outcomes = []
    union_rows = 0.0
    for name, chosen in permutations.items():
        for kind in retain:
            costs, last_rows, peak_rows = [], [], 0
            for (ids, mask), views in zip(batches, chosen):
                base = "last_use" if kind == "none" else kind
                made = plan(ids, mask, views, retain=base)
                counts = made.counts
                union_rows += float(counts["final"].sum())
                load, store = counts["load"], counts["store"]
                if kind == "none":
                    load = store = counts["visible"]
                costs.append(model.cost(load, store, counts["final"]))
                last_rows.append(int(counts["final"][-1]))
                alone = kind in ("none", "previous")
                peak_rows = max(peak_rows, int(counts["visible"].max()) if alone else made.n_slots)
            outcomes.append(
                Outcome(
                    order=name,
                    retain=str(kind),
                    load_bytes=float(np.mean([c.load_bytes for c in costs])),
                    store_bytes=float(np.mean([c.store_bytes for c in costs])),
                    link_s=float(np.mean([c.link_s for c in costs])),
                    tail_s=float(np.mean([c.tail_s for c in costs])),
                    total_s=float(np.mean([c.total_s for c in costs])),
                    last_rows=float(np.mean(last_rows)),
                    peak_rows=peak_rows,
                )
            )
    n_runs = len(batches) * max(1, len(outcomes))
    return Simulation(tuple(outcomes), len(batches), union_rows / n_runs)


def _ids_and_mask(visibility: Any) -> tuple[Array, Array]:
    if hasattr(visibility, "ids"):
        return visibility.ids, visibility.mask
    if not isinstance(visibility, tuple | list) or len(visibility) != 2:
        raise TypeError(f"visibilities must be pairs (ids, mask), got {shown(visibility)}")
    ids, mask = visibility
    return ids, mask


def _permutations(
    batches: list[tuple[Array, Array]],
    orders: Sequence[str] | Mapping[str, Sequence[Array]],
    model: CostModel,
    cameras: Sequence[Array] | None,
    n_views: int | None,
    seed: int,
) -> dict[str, list[Array]]:
    if isinstance(orders, Mapping):
        for name, chosen in orders.items():
            if len(sequence(f"orders[{name!r}]", chosen)) != len(batches):
                raise ValueError(
                    f"orders[{name!r}] must have one order for each of {len(batches)} batches, "
                    f"got {len(chosen)}"
                )
        return {name: list(chosen) for name, chosen in orders.items()}
    for name in orders:
        if name not in NAMES:
            raise ValueError(f"orders must be of {', '.join(NAMES)}, got {name!r}")
    if cameras is not None and len(sequence("cameras", cameras)) != len(batches):
        raise ValueError(
            f"cameras must be one array for each of {len(batches)} batches, got {len(cameras)}"
        )
    return {
        name: [
            order(
                mask,
                n_views=n_views,
                cameras=None if cameras is None else cameras[b],
                method=name.removesuffix("+tail"),
                objective=model if name == "tsp+tail" else "bytes",
                seed=seed + b,
            )
            for b, (_, mask) in enumerate(batches)
        ]
        for name in orders
    }
