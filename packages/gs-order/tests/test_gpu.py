# SPDX-License-Identifier: Apache-2.0
import warnings

import numpy as np
import pytest
import torch

from gs_order import and_counts, estimate_xor_counts, order, plan, reference, xor_counts

pytestmark = [
    pytest.mark.gpu,
    # torch says once that counting synchronisations is a prototype.
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]

KINDS = ("load", "retain", "store", "carry", "returning", "final")


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


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("retain", ["previous", "last_use", 100_000])
@pytest.mark.parametrize("known", [True, False])
def test_a_device_plan_equals_the_host_plan_and_waits_once(
    batch, monkeypatch, retain, ahead, known
):
    # Thirteen microbatches at a time, as with five million rows.
    monkeypatch.setattr("gs_order.plan_torch._GROUP_ELEMENTS", 13 * len(batch[0]))
    if not known:
        monkeypatch.setattr("gs_order.plan_torch._has_nonzero_static", lambda device_type: False)
    views = np.random.default_rng(1).permutation(40)
    wanted = plan(*batch, views, retain=retain, ahead=ahead)
    arrays = on_device(*batch)
    plan(*arrays, views, retain=retain, ahead=ahead)  # finds out what this torch has
    found, waits = synchronisations(lambda: plan(*arrays, views, retain=retain, ahead=ahead))
    assert waits <= 1
    assert found.visible.values.is_cuda
    assert (found.visible.values.cpu().numpy() == wanted.visible.values).all()
    assert found.n_slots == wanted.n_slots
    for kind in KINDS:
        one, two = wanted.positions[kind], found.positions[kind]
        assert (one.offsets == two.offsets).all()
        assert (one.values == two.values.cpu().numpy()).all()
    if wanted.slots is not None:
        assert (wanted.slots.values == found.slots.values.cpu().numpy()).all()
    (_, waits) = synchronisations(lambda: [found[i].load for i in range(40)])
    assert waits == 0


def test_ids_travel_to_the_host_while_the_caller_goes_on(batch):
    views = np.arange(40)
    wanted = plan(*batch, views).to_host()
    made = plan(*on_device(*batch), views)
    made.to_host().wait()  # page-locked memory is taken, and kept for the next time
    torch.cuda._sleep(2_000_000_000)  # about a second of the device's time
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
