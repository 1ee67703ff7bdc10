# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_order import CostModel, order, reference, xor_counts


def flight(seed, n_views, n_points=3000):
    """Cameras over a plane of points: (U, B) bool without empty rows, and the centres (B, 3)."""
    rng = np.random.default_rng(seed)
    points = rng.random((n_points, 2))
    centres = rng.random((n_views, 2))
    visible = np.abs(points[:, None] - centres[None]).max(-1) < 0.2
    return visible[visible.any(axis=1)], np.c_[centres, np.full(n_views, 0.1)]


def is_permutation(views, n):
    return sorted(np.asarray(views).tolist()) == list(range(n))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 8), fixed=st.booleans())
def test_the_shortest_path_equals_brute_force(seed, n, fixed):
    distance = xor_counts(reference.pack(flight(seed, n)[0]), n_views=n)
    start = seed % n if fixed else None
    views = order(distance=distance, start=start)
    assert reference.path_length(distance, views) == reference.shortest_path_length(distance, start)
    assert not fixed or views[0] == start


def test_the_shortest_path_of_nine_views_equals_brute_force():
    distance = xor_counts(reference.pack(flight(1, 9)[0]), n_views=9)
    wanted = reference.shortest_path_length(distance)
    assert reference.path_length(distance, order(distance=distance)) == wanted


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 100),
    method=st.sampled_from(["tsp", "camera", "count", "random", "given"]),
    objective=st.sampled_from(["bytes", "bytes+tail"]),
    fixed=st.booleans(),
)
def test_every_method_gives_a_permutation_and_the_same_one_again(seed, n, method, objective, fixed):
    visible, cameras = flight(seed, n, 400)
    start = seed % n if fixed and method != "given" else None
    options = {
        "mask": reference.pack(visible),
        "n_views": n,
        "cameras": cameras,
        "method": method,
        "objective": objective,
        "start": start,
        "max_iterations": 40,
        "seed": seed,
    }
    views = order(**options)
    assert views.dtype == np.int64
    assert is_permutation(views, n)
    assert start is None or views[0] == start
    assert (views == order(**options)).all()


def test_the_path_is_never_worse_than_the_given_order_nor_than_without_kicks():
    for seed in range(5):
        distance = xor_counts(reference.pack(flight(seed, 60)[0]), n_views=60)
        lengths = [
            reference.path_length(distance, order(distance=distance, max_iterations=kicks))
            for kicks in (0, 10, 100, 1000)
        ]
        assert max(lengths) == lengths[0] <= reference.path_length(distance, np.arange(60))


def test_a_seed_gives_the_same_path_on_any_machine():
    # Integer distances make all sums exact, and the random numbers are our own.
    k = np.arange(40)
    distance = (k[:, None] * k[None, :] * 7919) % 101
    assert order(distance=distance + distance.T, seed=5)[:6].tolist() == [32, 0, 8, 33, 38, 19]


def test_visible_counts_come_in_descending_order():
    assert order(counts=[3, 9, 9, 1], method="count").tolist() == [1, 2, 0, 3]
    mask = np.array([[0b100], [0b110], [0b110], [0b100]], np.uint32)
    assert order(mask, method="count").tolist() == [2, 1, 0]
    assert order(counts=[3, 9, 9, 1], method="count", start=3).tolist() == [3, 1, 2, 0]


def test_cameras_run_along_their_principal_axis():
    along = np.array([4.0, 1, 3, 0, 2])
    centres = np.outer(along, [0.6, -0.8, 0]) + np.full(3, 5.0)
    views = order(cameras=centres, method="camera").tolist()
    assert views in ([3, 1, 4, 2, 0], [0, 2, 4, 1, 3])
    assert order(cameras=centres, method="camera", start=1).tolist() == [1, 3, 4, 2, 0]
    turned = np.tile(np.eye(4), (5, 1, 1))
    rotation = np.linalg.qr(np.random.default_rng(0).random((3, 3)))[0]
    turned[:, :3, :3] = rotation
    turned[:, :3, 3] = -centres @ rotation.T
    assert order(cameras=turned, method="camera").tolist() == views


def test_seeds_shuffle_and_given_does_not():
    assert order(n_views=6, method="given").tolist() == [0, 1, 2, 3, 4, 5]
    shuffles = {tuple(order(n_views=6, method="random", seed=s)) for s in range(20)}
    assert len(shuffles) > 15


def test_torch_in_gives_torch_out_with_the_same_views():
    visible, _ = flight(2, 50)
    mask = reference.pack(visible)
    views = order(torch.from_numpy(mask.view(np.int32)))
    assert views.dtype == torch.int64
    assert views.device.type == "cpu"
    assert views.tolist() == order(mask).tolist()
    distance = torch.from_numpy(xor_counts(mask))
    assert order(distance=distance).tolist() == views.tolist()


def test_a_time_limit_ends_the_search():
    distance = xor_counts(reference.pack(flight(3, 300)[0]), n_views=300)
    order(distance=distance, max_iterations=1)
    # Without the limit this takes hours.
    views = order(distance=distance, max_iterations=10**9, time_limit_s=0.05)
    assert is_permutation(views, 300)
    assert is_permutation(order(distance=distance, max_iterations=0, time_limit_s=1.0), 300)


def cost_by_definition(visible, views, model):
    """Time of an order, from sets: the model's definition once more, without its tricks."""
    sets = [set(np.flatnonzero(visible[:, v])) for v in views]
    rows = 0
    left = 0.0
    for i, here in enumerate(sets):
        before = sets[i - 1] if i else set()
        after = sets[i + 1] if i + 1 < len(sets) else set()
        rows += len(here - before) + len(here - after)
        left = max(0.0, left - (model.render_s if i else 0.0))
        left += len(here - set().union(*sets[i + 1 :])) / model.optimizer_rows_per_s
    return rows * model.row_bytes / model.link_bytes_per_s + left


MODELS = [
    CostModel(),
    CostModel(optimizer_rows_per_s=1e7, render_s=0.0),
    CostModel(optimizer_rows_per_s=1e7, render_s=1e-5),
    CostModel(optimizer_rows_per_s=1e15),
    CostModel(link_bytes_per_s=1e20),
    CostModel(link_bytes_per_s=np.inf),
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("n", [2, 7, 30])
def test_bytes_and_tail_cost_no_more_than_either_order_that_looks_at_one(model, n):
    for seed in range(4):
        visible, _ = flight(seed, n, 900)  # at most 1024 rows: the search sees them all
        mask = reference.pack(visible)
        both, path, count = (
            cost_by_definition(visible, order(mask, n_views=n, **options), model)
            for options in ({"objective": model}, {"objective": "bytes"}, {"method": "count"})
        )
        assert both <= min(path, count) * (1 + 1e-9)


def test_bytes_and_tail_beat_both_where_both_matter():
    model = CostModel(optimizer_rows_per_s=1e7, render_s=1e-5)
    gains = []
    for seed in range(5):
        visible, _ = flight(seed, 24, 1000)
        mask = reference.pack(visible)
        both, path, count = (
            cost_by_definition(visible, order(mask, n_views=24, **options), model)
            for options in ({"objective": model}, {"objective": "bytes"}, {"method": "count"})
        )
        gains.append(min(path, count) / both)
    assert min(gains) >= 1
    assert np.mean(gains) > 1.02


def test_extreme_rates_give_the_two_known_orders():
    visible, _ = flight(8, 20, 900)
    mask = reference.pack(visible)
    sizes = visible.sum(axis=0)
    link_only = CostModel(link_bytes_per_s=1e20)
    assert sizes[order(mask, objective=link_only)[-1]] == sizes.min()
    from_sizes = order(distance=xor_counts(mask), counts=sizes, objective=link_only)
    assert sizes[from_sizes[-1]] == sizes.min()
    assert order(mask, objective="bytes+tail", start=7)[0] == 7


SQUARE = np.ones((4, 4)) - np.eye(4)
NAN = SQUARE.copy()
NAN[1, 2] = NAN[2, 1] = np.nan
SKEW = SQUARE.copy()
SKEW[1, 2] = 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "n_views must be given without mask, distance, counts or cameras"),
        ({"n_views": 0, "method": "given"}, "n_views must be at least 1, got 0"),
        ({"distance": np.zeros((0, 0))}, "n_views must be at least 1, got 0"),
        ({"counts": [], "method": "count"}, "n_views must be at least 1, got 0"),
        ({"mask": np.zeros((3, 1), np.uint32)}, "mask must have a set bit when n_views is None"),
        ({"mask": np.ones((3, 2), np.uint32), "n_views": 5}, "mask must have 1 words for 5 views"),
        ({"mask": np.full((3, 1), 64, np.uint32), "n_views": 5}, "no bits beyond its 5 views"),
        ({"distance": SQUARE[:3]}, r"distance must be square, got shape \(3, 4\)"),
        ({"distance": -SQUARE}, "distance must be at least 0, got -1.0 from view 0 to view 1"),
        ({"distance": NAN}, "distance must be finite, got nan from view 1 to view 2"),
        ({"distance": SKEW}, "distance must be symmetric, got 3.0 from view 1 to view 2"),
        ({"distance": SQUARE, "n_views": 5}, "distance must be of 5 views, got 4"),
        ({"distance": SQUARE, "counts": [1, 2]}, "distance must be of 2 views, got 4"),
        ({"counts": [1, -2], "method": "count"}, "counts must be finite and at least 0"),
        ({"counts": [[1, 2]], "method": "count"}, r"counts must be \(B,\), got shape \(1, 2\)"),
        ({"cameras": np.zeros((4, 2)), "method": "camera"}, "cameras must be .* got shape"),
        ({"cameras": [[0, 0, np.inf]], "method": "camera"}, "cameras must be finite.* in camera 0"),
        ({"counts": [1, 2]}, "mask or distance must be given for 'tsp', got None"),
        ({"distance": SQUARE, "method": "camera"}, "cameras must be given for 'camera', got None"),
        ({"distance": SQUARE, "method": "count"}, "counts or mask must be given for 'count'"),
        ({"distance": SQUARE, "objective": "bytes+tail"}, "counts or mask must be given for"),
        ({"distance": SQUARE, "method": "shortest"}, "method must be one of tsp, .*got 'shortest'"),
        ({"distance": SQUARE, "objective": "tail"}, "objective must be one of bytes, .*got 'tail'"),
        ({"distance": SQUARE, "start": 4}, r"start must be a view in \[0, 4\), got 4"),
        ({"distance": SQUARE, "start": -1}, r"start must be a view in \[0, 4\), got -1"),
        ({"distance": SQUARE, "max_iterations": -1}, "max_iterations must be at least 0, got -1"),
        ({"distance": SQUARE, "time_limit_s": 0}, "time_limit_s must be above 0, got 0"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        order(**arguments)


def test_one_view_and_views_that_see_nothing_are_no_errors():
    assert order(distance=[[0]]).tolist() == [0]
    assert order(np.zeros((0, 1), np.uint32), n_views=1).tolist() == [0]
    assert is_permutation(order(np.zeros((0, 1), np.uint32), n_views=20), 20)
    assert is_permutation(order(np.ones((5, 1), np.uint32), n_views=20, objective="bytes+tail"), 20)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"row_bytes": 0}, "row_bytes must be above 0, got 0"),
        ({"link_bytes_per_s": -1.0}, "link_bytes_per_s must be above 0, got -1.0"),
        ({"optimizer_rows_per_s": float("nan")}, "optimizer_rows_per_s must be above 0, got nan"),
        ({"render_s": float("inf")}, "render_s must be finite and at least 0, got inf"),
    ],
)
def test_bad_rates_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        CostModel(**options)
