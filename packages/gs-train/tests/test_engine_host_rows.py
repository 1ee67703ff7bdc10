# SPDX-License-Identifier: Apache-2.0
import sys
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_train.rows.attributes import APPEARANCE
from gs_train.rows.host_rows import HostRows

sys.path.insert(0, str(Path(__file__).parent))
from appearance_models import (
    EDITS,
    OPTIONS,
    RATES,
    Plain64,
    assert_close,
    assert_same,
    copied,
    edit,
    make_dense,
    make_host,
    make_rows,
    restored_host,
    some_ids,
    step_dense,
    step_host,
    train,
    without_keys,
)


def play(host, reference, operations):
    """Train and edit both alike; returns the host's rows, which may be another object then."""
    for operation, seed in operations:
        if operation == "train":
            train([host, reference], 1 + seed % 30, seed, share=0.2)
        elif operation == "read":
            ids = some_ids(host.n_rows, seed, dtype=torch.int64).flip(0).repeat(2)
            for name in APPEARANCE:
                got, expected = host.read(name, ids), reference.read(name, ids)
                assert got.shape == expected.shape
                assert torch.equal(got, host.snapshot()[name][ids])
        elif operation == "restore":
            saved = host.tensors()
            twin = restored_host(saved, host.adam.semantics)
            assert_same(twin.tensors(), saved)
            twin.set_rates(RATES, **OPTIONS)
            host.close()
            host = twin
        else:
            edit(host, operation, seed)
            edit(reference, operation, seed)
        assert host.n_rows == reference.n_rows
    train([host, reference], 3, 7)
    return host


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from([*EDITS, "train", "train", "train", "read", "restore"]),
        st.integers(0, 2**20),
    ),
    min_size=1,
    max_size=8,
)


@given(n=st.integers(0, 20), k=st.sampled_from([0, 3]), operations=OPERATIONS)
@settings(deadline=None, max_examples=60)
def test_dense_rows_do_bit_for_bit_what_dense_adam_does_in_ordinary_tensors(n, k, operations):
    reference = make_dense(n, k)
    host = play(make_host(n, "dense", k=k), reference, operations)
    assert_same(host.tensors(), without_keys(reference.tensors()))
    assert_same(host.snapshot(), {name: reference.read(name) for name in APPEARANCE})
    host.close()


@given(n=st.integers(0, 20), k=st.sampled_from([0, 3]), operations=OPERATIONS)
@settings(deadline=None, max_examples=60)
def test_deferred_rows_do_what_dense_adam_does_whatever_is_edited_while_they_sleep(
    n, k, operations
):
    reference = Plain64(make_rows(n, k=k))
    host = play(make_host(n, "deferred", k=k), reference, operations)
    whole = host.snapshot()
    assert_close(whole, reference)
    assert_same({name: host.read(name) for name in APPEARANCE}, whole)
    host.close()


def test_rows_that_sleep_for_long_through_edits_stay_within_the_bound_of_dense_adam():
    n = 400
    host, reference = make_host(n), Plain64(make_rows(n))
    slept, n_rows = [], n
    for i in range(300):
        # Rare rows are seen once in 200 steps, others often: a view sees a part of a scene.
        share = torch.full((n_rows,), 0.05)
        share[: n_rows // 4] = 0.005
        chosen = torch.rand(n_rows, generator=torch.Generator().manual_seed(i)) < share
        ids = chosen.nonzero().flatten()
        gradients = make_rows(len(ids), i)
        if host.adam.step_count:
            slept += (i - host.tensors()["appearance.last_step"][ids]).tolist()
        step_host(host, ids, gradients)
        reference.step(ids, gradients)
        if i % 40 == 39:
            for operation in ("replace", "overwrite", "zero_moments"):
                # Not "permute": most rare rows shall stay where they are.
                _edit_few(host, operation, i)
                _edit_few(reference, operation, i)
            n_rows = host.n_rows
    slept = torch.tensor(slept, dtype=torch.float32)
    assert slept.median() >= 10
    assert slept.max() > 60
    assert (host.tensors()["appearance.last_step"] < 240).any()
    assert_close(host.snapshot(), reference)


def _edit_few(rows, operation, seed):
    ids = some_ids(rows.n_rows, seed, 0.05)
    if operation == "replace":
        rows.replace(some_ids(rows.n_rows, seed, 0.03), make_rows(15, seed))
    elif operation == "overwrite":
        rows.overwrite(ids, make_rows(len(ids), seed))
    else:
        rows.zero_moments(ids)


def test_only_rows_that_are_edited_are_brought_up_to_date():
    host = make_host(10)
    ids = torch.tensor([1, 4])
    for i in range(20):
        step_host(host, ids, make_rows(2, i))
    asleep = host.tensors()["appearance.last_step"]
    assert asleep.tolist() == [0, 20, 0, 0, 20, 0, 0, 0, 0, 0]
    host.replace(torch.tensor([3]), make_rows(3, 5))
    host.permute(torch.arange(11, -1, -1))
    assert host.tensors()["appearance.last_step"].tolist() == [20, 20, *[0] * 5, 20, 20, 0, 20, 0]
    host.replace(torch.tensor([0, 1]))
    last_step = host.tensors()["appearance.last_step"]
    # The new rows were awake and two of them went; the last two rows moved as they were.
    assert last_step.tolist() == [20, *[0] * 6, 20, 20, 0]
    host.read("sh0", torch.tensor([3, 0, 3]))
    host.read_rows(torch.tensor([2]))
    assert last_step.tolist() == [20, *[0] * 6, 20, 20, 0]
    host.overwrite(torch.tensor([1]), {"sh0": torch.zeros(1, 1, 3)})
    host.zero_moments(torch.tensor([5]), names=["shN"])
    assert last_step.tolist() == [20, 20, 0, 0, 0, 20, 0, 20, 20, 0]
    host.read("shN")
    assert last_step.tolist() == [20] * 10


def test_new_rows_have_zero_moments_where_others_were_before():
    host = make_host(12)
    train([host], 5, 0, share=1.0)
    host.replace(torch.arange(4, 12))
    host.replace(torch.empty(0, dtype=torch.int64), make_rows(8, 3))
    tensors = host.tensors()
    for name in APPEARANCE:
        assert tensors[f"{name}.exp_avg"][:4].all()
        assert not tensors[f"{name}.exp_avg"][4:].any()
        assert not tensors[f"{name}.exp_avg_sq"][4:].any()
        assert torch.equal(tensors[name][4:], make_rows(8, 3)[name])
    assert tensors["appearance.last_step"].tolist() == [5] * 12


def test_growth_leaves_rows_where_they_are():
    host = make_host(1000, capacity=5000)
    before = host.table.torch().data_ptr()
    host.replace(torch.arange(0), make_rows(3000))
    assert (host.table.torch().data_ptr(), host.table.capacity) == (before, 5000)
    assert (host.width, host.k, len(host), host.n_rows) == (12, 3, 4000, 4000)
    assert repr(host).startswith("HostRows(4000 rows, K=3, deferred, Table(rows=4000, width=12")


@pytest.mark.parametrize("semantics", ["dense", "deferred", "sparse"])
def test_a_restored_model_trains_on_to_the_same_bits(semantics):
    host = make_host(50, semantics)
    train([host], 40, 0, share=0.1)
    host.permute(torch.arange(49, -1, -1))
    saved = copied(host.tensors())
    twin = restored_host(saved, semantics)
    twin.set_rates(RATES, **OPTIONS)
    assert_same(twin.tensors(), saved)
    for each in (host, twin):
        train([each], 30, 100, share=0.1)
        each.replace(torch.tensor([2, 7]), make_rows(5, 1))
        train([each], 10, 200, share=0.1)
    assert_same(twin.tensors(), host.tensors())
    if semantics == "deferred":
        assert (saved["appearance.last_step"] < 40).any()


def test_snapshots_change_nothing():
    host = make_host(30)
    train([host], 25, 0, share=0.1)
    before = copied(host.tensors())
    whole = host.snapshot()
    part = host.snapshot(slice(10, 17))
    chosen = host.read_rows(torch.tensor([0, 12, 29], dtype=torch.int32))
    assert host.snapshot(slice(5, 2))["shN"].shape == (0, 3, 3)
    assert_same(copied(host.tensors()), before)
    for name in APPEARANCE:
        assert torch.equal(part[name], whole[name][10:17])
        assert torch.equal(chosen[name], whole[name][[0, 12, 29]])
        assert torch.equal(host.read(name), whole[name])
    assert not torch.equal(before["sh0"], whole["sh0"])


def test_row_operations_wait_for_the_worker_and_end_open_steps(monkeypatch):
    host, reference = make_host(6, "dense"), make_dense(6)
    ids, gradients = torch.tensor([0, 3]), make_rows(2, 1)
    # The task can run only once somebody waits for it.
    waited, wait = threading.Event(), host.worker.wait

    def noted(*args, **kwargs):
        waited.set()
        return wait(*args, **kwargs)

    monkeypatch.setattr(host.worker, "wait", noted)
    step = host.begin()
    host.worker.submit(
        ids, [gradients[n] for n in APPEARANCE], step=step, ready=lambda: waited.is_set()
    )
    step_dense(reference, ids, gradients)
    assert torch.equal(host.read("sh0"), reference.read("sh0"))
    assert_same(host.tensors(), without_keys(reference.tensors()))
    with pytest.raises(ValueError, match="step must be an open step"):
        host.end(step)
    host.replace(torch.tensor([4]), make_rows(1))
    assert host.begin() == step + 1


def test_states_of_a_model_in_ordinary_tensors_are_taken_over():
    dense, reference = make_dense(8), Plain64(make_rows(8))
    train([dense, reference], 6, 0)
    hosts = [
        restored_host(without_keys(dense.tensors()), semantics)
        for semantics in ("dense", "deferred")
    ]
    for host in hosts:
        host.set_rates(RATES, **OPTIONS)
    train([*hosts, dense, reference], 10, 90)
    assert_same(hosts[0].tensors(), without_keys(dense.tensors()))
    assert_close(hosts[1].snapshot(), reference)


def test_tensors_before_the_first_step_are_the_attributes_alone():
    host = make_host(3)
    assert set(host.tensors()) == set(APPEARANCE)
    twin = restored_host(host.tensors(), "dense")
    assert_same(twin.tensors(), host.tensors())


def test_strided_rows_are_taken_as_they_are():
    wide = torch.randn(7, 12)
    rows = {"sh0": wide[:, :3].unflatten(1, (1, 3)), "shN": wide[:, 3:].unflatten(1, (3, 3))}
    host = HostRows(rows, semantics="dense", device="cpu")
    host.replace(torch.arange(0), rows)
    host.overwrite(torch.tensor([2]), {"shN": rows["shN"][5:6]})
    expected = wide.repeat(2, 1)
    expected[2, 3:] = wide[5, 3:]
    assert torch.equal(host.table.torch(), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("semantics", ["dense", "deferred"])
@pytest.mark.parametrize("k", [0, 3])
def test_cuda_row_operations_equal_those_on_the_cpu(semantics, k):
    results = []
    for device in ("cpu", "cuda"):
        rows = {name: values.to(device) for name, values in make_rows(3000, k=k).items()}
        host = HostRows(rows, semantics=semantics, device=device)
        host.set_rates(RATES, **OPTIONS)
        assert host.table.is_pinned == (device == "cuda")
        train([host], 20, 0, share=0.05)
        ids = some_ids(3000, 1, 0.2).to(device)
        host.replace(
            ids[::3].contiguous(),
            {n: v.to(device) for n, v in make_rows(500 + len(ids[::3]), 2, k).items()},
        )
        host.replace(ids[:0], make_rows(100, 3, k))
        host.overwrite(ids, {n: v.to(device) for n, v in make_rows(len(ids), 4, k).items()})
        host.zero_moments(ids[::2].contiguous(), names=["shN"])
        train([host], 10, 50, share=0.05)
        order = torch.randperm(3600, generator=torch.Generator().manual_seed(5))
        host.permute(order.to(device))
        host.replace(torch.arange(0, 3600, 7, device=device))
        host.replace(torch.arange(0, 100, 7, device=device), make_rows(9, 3, k))
        host.overwrite(None, {"shN": host.read("shN") * 0.5})
        read = [host.read(name, ids.flip(0)) for name in APPEARANCE]
        read += [host.read(name) for name in APPEARANCE]
        assert all(values.device.type == device for values in read)
        results.append([*(v.cpu() for v in read), *copied(host.tensors()).values()])
    assert len(results[0]) == len(results[1])
    for got, expected in zip(results[1], results[0], strict=True):
        assert torch.equal(got, expected)
