# SPDX-License-Identifier: Apache-2.0
import json
from types import SimpleNamespace

import numpy as np
import pytest

from gs_order import CostModel, order, reference, simulate


def batches(n_batches=3, n_views=12):
    made, cameras = [], []
    for seed in range(n_batches):
        rng = np.random.default_rng(seed)
        points, centres = rng.random((2000, 2)), rng.random((n_views, 2))
        visible = np.abs(points[:, None] - centres[None]).max(-1) < 0.2
        ids = np.flatnonzero(visible.any(axis=1)).astype(np.int32)
        made.append((ids, reference.pack(visible[ids])))
        cameras.append(np.c_[centres, np.ones(n_views)])
    return made, cameras


def test_outcomes_equal_what_sets_say():
    made, cameras = batches()
    names = ("given", "random", "camera", "count", "tsp", "tsp+tail")
    result = simulate(made, names, cameras=cameras, model=CostModel(row_bytes=100))
    by_name = {(o.order, o.retain): o for o in result.outcomes}
    assert len(by_name) == 6 * 3
    for name in ("count", "tsp"):
        loads, unions, lasts = [], [], []
        for seed, (ids, mask) in enumerate(made):
            views = order(mask, method=name, seed=seed)
            steps = reference.plan(ids, reference.unpack(mask, 12), views, "previous")
            loads.append(sum(len(step["load"]) for step in steps))
            unions.append(len(ids))
            lasts.append(len(steps[-1]["final"]))
        outcome = by_name[name, "previous"]
        assert outcome.load_bytes == pytest.approx(100 * np.mean(loads))
        assert outcome.last_rows == pytest.approx(np.mean(lasts))
        assert by_name[name, "last_use"].store_bytes == pytest.approx(100 * np.mean(unions))
        seen = np.mean([reference.unpack(mask, 12).sum() for _, mask in made])
        assert by_name[name, "none"].load_bytes == pytest.approx(100 * seen)
        assert result.union_rows == pytest.approx(np.mean(unions))
    moved = {name: by_name[name, "previous"].load_bytes for name in names[:5]}
    assert moved["tsp"] == min(moved.values())
    assert by_name["tsp+tail", "previous"].total_s <= by_name["tsp", "previous"].total_s
    assert by_name["tsp+tail", "previous"].total_s <= by_name["count", "previous"].total_s


def test_tables_figures_and_json_show_every_outcome():
    made, _ = batches(2)
    result = simulate(made, ("random", "tsp"), retain=("previous", 1500))
    lines = result.table().splitlines()
    assert len(lines) == 5
    assert lines[0].split()[:4] == ["order", "retain", "load", "MB"]
    assert lines[4].split()[:2] == ["tsp", "1500"]
    assert float(lines[4].split()[2]) == pytest.approx(
        result.outcomes[3].load_bytes / 1e6, abs=1e-3
    )
    assert json.loads(json.dumps(result.to_json()))["outcomes"][1]["retain"] == "1500"
    moved, tails = result.figure().axes
    assert [t.get_text() for t in moved.get_xticklabels()] == ["random", "tsp"]
    heights = sorted(bar.get_height() for bar in tails.patches)
    assert heights == pytest.approx(sorted(1e3 * o.tail_s for o in result.outcomes))


def test_orders_of_ones_own_and_visibility_objects_are_taken():
    made, _ = batches(2)
    objects = [SimpleNamespace(ids=ids, mask=mask) for ids, mask in made]
    mine = simulate(objects, {"mine": [np.arange(12)] * 2}, retain=("previous",))
    given = simulate(made, ("given",), retain=("previous",), n_views=12)
    assert mine.outcomes[0].load_bytes == given.outcomes[0].load_bytes
    assert mine.outcomes[0].order == "mine"


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([],), {}, "visibilities must hold at least one batch, got none"),
        ((batches(1)[0], ("best",)), {}, "orders must be of tsp, .*, tsp.tail, got 'best'"),
        ((batches(1)[0], {"a": []}), {}, r"orders\['a'\] must have one order for each of 1"),
        ((batches(1)[0], ("camera",)), {"cameras": []}, "cameras must be one array for each of 1"),
        ((batches(1)[0], ("camera",)), {}, "cameras must be given for 'camera'"),
    ],
)
def test_bad_arguments_are_named(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        simulate(*arguments, **options)
