# SPDX-License-Identifier: Apache-2.0
import sys
import warnings

import numpy as np
import pytest
import torch

from gs_order import and_counts, estimate_xor_counts, order, plan, reference, xor_counts

from .held_stream import held

pytestmark = [
    pytest.mark.gpu,
    # torch says once that counting synchronisations is a prototype.
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]


@pytest.fixture(scope="module")
def batch():
    """A flight over 300,000 rows in 40 views, one of them repeated, one that sees nothing."""
    rng = np.random.default_rng(0)
    ids = np.sort(rng.choice(2_000_000, 300_000, replace=False)).astype(np.int32)
    place = np.arange(len(ids)) / len(ids) * 40
    visible = np.abs(place[:, None] - rng.permutation(40)) < 2.5
    visible |= rng.random(visible.shape) < 0.01
    visible[:, 7] = visible[:, 3]
    visible[:, 39] = False
    return ids, reference.pack(visible)


def on_device(ids, mask):
    return torch.from_numpy(ids).cuda(), torch.from_numpy(mask.view(np.int32)).cuda()


def synchronisations(call):
    """How often a call waits for the device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [w for w in caught if "synchroniz" in str(w.message)]
    return result, len(waits)


def assert_equal(found, wanted):
    assert found.n_slots == wanted.n_slots
    assert (found.slots is None) == (wanted.slots is None)
    for name in ("ids", "positions", "slots"):
        for kind, one in (getattr(wanted, name) or {}).items():
            two = getattr(found, name)[kind]
            assert two.values.is_cuda
            assert (one.offsets == two.offsets).all()
            assert str(one.values.dtype) == str(two.values.dtype).removeprefix("torch.")
            assert (one.values == two.values.cpu().numpy()).all(), (name, kind)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("retain", ["previous", "last_use", 100_000, 300_000])
def test_a_device_plan_equals_the_host_plan_and_waits_once(batch, retain, ahead):
    views = np.random.default_rng(1).permutation(40)
    wanted = plan(*batch, views, retain=retain, ahead=ahead)
    arrays = on_device(*batch)
    plan(*arrays, views, retain=retain, ahead=ahead)  # compiles
    found, waits = synchronisations(lambda: plan(*arrays, views, retain=retain, ahead=ahead))
    assert waits <= 1
    assert_equal(found, wanted)
    (_, waits) = synchronisations(
        lambda: [(found[i].load, found[i].final, found[i].slots) for i in range(40)]
    )
    assert waits == 0


@pytest.mark.parametrize("retain", ["previous", "last_use", 100_000])
def test_without_triton_a_device_plan_is_made_on_the_host(batch, monkeypatch, retain):
    monkeypatch.setitem(sys.modules, "triton", None)  # as if it were not installed
    views = np.random.default_rng(1).permutation(40)
    wanted = plan(*batch, views, retain=retain)
    arrays = on_device(*batch)
    assert_equal(plan(*arrays, views, retain=retain), wanted)
    with pytest.raises(ValueError, match="ids must be sorted and unique"):
        plan(arrays[0].flip(0), arrays[1], views, retain=retain)


@pytest.mark.parametrize("n_rows", [0, 1, 63, 511, 512, 513, 5000])
@pytest.mark.parametrize("n_views", [1, 2, 31, 32, 33, 64, 65, 130])
def test_kernels_agree_with_the_host_for_any_size(n_rows, n_views):
    rng = np.random.default_rng(n_rows + n_views)
    visible = rng.random((n_rows, n_views)) < rng.choice([0.0, 0.02, 0.3], n_views)
    visible[: n_rows // 2, : n_views // 2] = False
    ids = np.sort(rng.choice(10 * n_rows + 1, n_rows, replace=False))
    mask, views = reference.pack(visible), rng.permutation(n_views)
    most = int(visible.sum(axis=0).max(initial=0))
    for retain in ("previous", "last_use", most + n_rows // 50):
        wanted = plan(ids, mask, views, retain=retain)
        assert_equal(plan(*on_device(ids, mask), views, retain=retain), wanted)


@pytest.mark.asynchrony
def test_ids_travel_to_the_host_while_the_caller_goes_on(batch):
    views = np.arange(40)
    wanted = plan(*batch, views).to_host()
    made = plan(*on_device(*batch), views)
    made.to_host().wait()  # page-locked memory is taken, and kept for the next time
    with held():
        host, waits = synchronisations_behind_work(made)
        assert waits == 0
        assert not host.is_done
    host.wait()
    assert host.is_done
    for i in range(40):
        for kind in ("load", "store", "final", "returning"):
            assert (getattr(host, kind)[i] == getattr(wanted, kind)[i]).all()


def synchronisations_behind_work(made):
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            host = made.to_host()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return host, sum("synchroniz" in str(w.message) for w in caught)


def test_counts_and_orders_equal_those_of_the_host_and_wait_once(batch):
    ids, mask = batch
    device_ids, device_mask = on_device(ids, mask)
    counts, waits = synchronisations(lambda: and_counts(device_mask, n_views=40))
    assert waits <= 1
    assert (counts == and_counts(mask, n_views=40)).all()
    for objective in ("bytes", "bytes+tail"):
        found, waits = synchronisations(
            lambda objective=objective: order(device_mask, n_views=40, objective=objective)
        )
        assert waits <= 1
        assert found.tolist() == order(mask, n_views=40, objective=objective).tolist()
    one = estimate_xor_counts(ids, mask, n_views=40)
    two = estimate_xor_counts(device_ids, device_mask, n_views=40)
    assert (one.counts == two.counts).all()
    assert (xor_counts(device_mask, n_views=40) == xor_counts(mask, n_views=40)).all()


def test_bad_batches_are_named_from_the_device_too(batch):
    ids, mask = on_device(*batch)
    with pytest.raises(ValueError, match="ids must be sorted and unique"):
        plan(ids.flip(0), mask, np.arange(40))
    with pytest.raises(ValueError, match="mask must have no bits beyond its 35 views"):
        plan(ids, mask, np.arange(35))
    with pytest.raises(ValueError, match="retain must be at least"):
        plan(ids, mask, np.arange(40), retain=10)
    with pytest.raises(TypeError, match="ids and mask must be on one device"):
        plan(ids.cpu(), mask, np.arange(40))
