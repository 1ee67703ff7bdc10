# SPDX-License-Identifier: Apache-2.0
"""The kernels, interpreted on the CPU: needs triton and TRITON_INTERPRET=1.

Triton decides at import whether it interprets, so these run in a process of their own. Triton 3.6
interprets loops with a numpy below 2.4:

    TRITON_INTERPRET=1 python -m pytest packages/gs-order/tests/test_plan_kernels.py
"""

import importlib.util
import os

import numpy as np
import pytest
import torch

from gs_order import plan, reference

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
        reason="needs triton and TRITON_INTERPRET=1",
    ),
    # Triton's interpreter counts loops by arrays of one element.
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0"),
]


def batch(rng, n_rows, n_views, near):
    """Rows seen anywhere, or by views near each other; views of nothing and of everything."""
    if near:
        place = np.sort(rng.random(n_rows)) * n_views
        visible = np.abs(place[:, None] - rng.permutation(n_views)) < 0.1 * n_views
        visible |= rng.random(visible.shape) < 0.05
    else:
        visible = rng.random((n_rows, n_views)) < rng.choice([0.05, 0.3], n_views)
    visible[:, rng.random(n_views) < 0.1] = False
    ids = np.sort(rng.choice(4 * n_rows + 1, n_rows, replace=False))
    return ids.astype(rng.choice([np.int32, np.int64])), visible, rng.permutation(n_views)


def assert_kernels_agree(ids, visible, order, retain, ahead=0):
    from gs_order.plans.cuda.batch import make_lists

    mask = reference.pack(visible)
    wanted = plan(ids, mask, order, retain=retain, ahead=ahead)
    arrays = torch.from_numpy(ids), torch.from_numpy(mask.view(np.int32))
    lists, slots = make_lists(*arrays, order, retain, ahead)
    found = {"ids": lists.ids, "positions": lists.positions, "slots": slots.of if slots else {}}
    for name, arrays in found.items():
        of_host = getattr(wanted, name) or {}
        assert arrays.keys() == of_host.keys()
        for kind, values in arrays.items():
            assert (values.numpy() == of_host[kind].values).all(), (name, kind)
    for kind, offsets in lists.offsets.items():
        counted = wanted.visible if kind == "visible" else wanted.positions[kind]
        assert (offsets == counted.offsets).all()
    assert slots is None or slots.n_slots == wanted.n_slots
    return wanted


def capacities(visible, order, ahead, shares):
    """Between the least that works and what stays when all wait for their last use."""
    seen = visible[:, order]
    n = seen.shape[1]
    least = max(int(seen[:, i : i + ahead + 1].any(axis=1).sum()) for i in range(n))
    most = len(visible)
    ids = np.arange(most)
    peak = plan(ids, reference.pack(visible), order, retain="last_use", ahead=ahead).n_slots
    return [int(least + share * (peak - least)) for share in shares]


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize(("n_views", "n_rows"), [(1, 3), (2, 513), (5, 0), (9, 1100), (33, 200)])
def test_kernels_give_the_plans_of_the_host_at_any_capacity(n_views, n_rows, near, ahead):
    rng = np.random.default_rng(n_views)
    ids, visible, order = batch(rng, n_rows, n_views, near)
    for retain in capacities(visible, order, ahead, (0.0, 0.5, 0.95)):
        assert_kernels_agree(ids, visible, order, retain, ahead)


@pytest.mark.parametrize("retain", ["previous", "last_use"])
def test_kernels_give_the_plans_of_the_host_without_a_capacity(retain):
    rng = np.random.default_rng(0)
    for n_views in (1, 7):
        for n_rows in (0, 1, 600):
            assert_kernels_agree(*batch(rng, n_rows, n_views, False), retain)


@pytest.mark.parametrize("n_rows", [400, 4000])
def test_rows_leave_more_than_once_between_the_same_two_views(monkeypatch, n_rows):
    from gs_order.plans.cuda import belady

    # What leaves lies in one block, or across tiles of four.
    monkeypatch.setattr(belady, "_TILE", 4)
    rng = np.random.default_rng(3)
    n_views = 7
    # Half the rows are seen first and last, a few of them in between, and give way to growing
    # views of the others a few at a time.
    visible = np.zeros((n_rows, n_views), bool)
    waiting = rng.random(n_rows) < 0.5
    visible[:, 0] = visible[:, -1] = waiting
    for i in range(1, n_views - 1):
        visible[:, i] = rng.random(n_rows) < np.where(waiting, 0.05, 0.15 * i)
    retain = int(waiting.sum()) + n_rows // 40
    made = assert_kernels_agree(np.arange(n_rows), visible, np.arange(n_views), retain)
    assert (made.counts["returning"][:4] > 0).all()
    assert made.counts["retain"][-1] > 0


def test_what_does_not_fit_at_all_is_refused():
    from gs_order.plans.cuda.batch import make_lists

    ids, mask = torch.arange(3), torch.tensor([[1], [3], [2]], dtype=torch.int32)
    for retain, ahead in ((1, 0), (-(2**40), 0), (2, 1)):
        with pytest.raises(ValueError, match="retain must be at least"):
            make_lists(ids, mask, np.arange(2), retain, ahead)
