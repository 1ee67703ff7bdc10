# SPDX-License-Identifier: Apache-2.0
import sys
import time
from pathlib import Path

import pytest
import torch

import gs_pinned
from gs_train.rows.attributes import APPEARANCE
from gs_train.rows.host_rows import HostRows

sys.path.insert(0, str(Path(__file__).parent))
from appearance_models import (
    Plain64,
    assert_close,
    assert_same,
    copied,
    make_host,
    make_rows,
    restored_host,
    train,
)


def test_an_exception_in_the_worker_surfaces_at_the_next_operation():
    host = make_host(6)

    def broken():
        raise OSError("the link is down")

    step = host.begin()
    gradients = make_rows(1)
    host.worker.submit(
        torch.tensor([0]), [gradients[n] for n in APPEARANCE], step=step, ready=broken
    )
    with pytest.raises(OSError, match="the link is down"):
        host.read("sh0")
    host.close()


def test_what_a_task_raised_is_told_by_closing_which_gives_the_memory_back():
    host = make_host(6)

    def broken():
        raise OSError("the link is down")

    step = host.begin()
    gradients = [make_rows(1)[name] for name in APPEARANCE]
    host.worker.submit(torch.tensor([0]), gradients, step=step, ready=broken)
    while not host.worker.is_idle:
        time.sleep(0)
    with pytest.raises(OSError, match="the link is down"):
        host.close()
    with pytest.raises(gs_pinned.ClosedError):
        host.table.torch()


def test_memory_that_runs_out_while_growing_changes_nothing(monkeypatch):
    host, reference = make_host(6, capacity=9), Plain64(make_rows(6))
    train([host, reference], 5, 0)
    before = copied(host.tensors())
    with pytest.raises(MemoryError, match="host memory is there for 9 rows, not 10"):
        host.replace(torch.tensor([1]), make_rows(5))

    def refused(values, **_):
        raise MemoryError("cannot commit memory")

    with monkeypatch.context() as patch:
        patch.setattr(host.table, "append", refused)
        with pytest.raises(MemoryError, match="cannot commit memory"):
            host.replace(torch.tensor([1]), make_rows(3))
    assert_same(copied(host.tensors()), before)
    for each in (host, reference):
        each.replace(torch.tensor([1]), make_rows(4, 4))
    train([host, reference], 5, 50)
    assert_close(host.snapshot(), reference)


def test_bad_states_are_refused():
    host = make_host(4)
    train([host], 3, 0)
    good = host.tensors()

    def load(changed, semantics="deferred"):
        return restored_host({**good, **changed}, semantics)

    def without(*names):
        left = {name: value for name, value in good.items() if not name.startswith(names)}
        return restored_host(left, "deferred")

    with pytest.raises(ValueError, match=r"tensors must belong to means, .*, got colors.exp_avg"):
        load({"colors.exp_avg": torch.zeros(4, 3)})
    with pytest.raises(
        ValueError, match=r"rows must have the keys means, .*, got .*, opacities, shN"
    ):
        without("sh0")
    with pytest.raises(ValueError, match=r"sh0.exp_avg must be \(4, 1, 3\), got \(3, 1, 3\)"):
        load({"sh0.exp_avg": torch.zeros(3, 1, 3)})
    with pytest.raises(TypeError, match=r"shN.exp_avg must be float32, got torch.float64"):
        load({"shN.exp_avg": torch.zeros(4, 3, 3).double()})
    with pytest.raises(ValueError, match=r"must hold step and moments of shN, got \['step', 'exp_"):
        without("shN.exp_avg_sq")
    with pytest.raises(ValueError, match=r"must hold appearance.schedule.shN.\* where they hold"):
        without("appearance.schedule.shN")
    with pytest.raises(ValueError, match=r"last_step of \(4,\) int32, got \(3,\)"):
        load({"appearance.last_step": torch.zeros(3, dtype=torch.int32)})
    with pytest.raises(ValueError, match="hold one step for all parameters, got"):
        load({"sh0.step": torch.tensor(2.0)})
    with pytest.raises(ValueError, match="no sleeping rows unless semantics is deferred"):
        load({}, "dense")


BAD_IDS = [
    (torch.tensor([0.0]), TypeError, "ids must be int32 or int64, got torch.float32"),
    (torch.tensor([[0]]), ValueError, r"ids must be one-dimensional, got \(1, 1\)"),
    (torch.tensor([0, 5]), IndexError, "ids must be at least 0 and below 5, got 5"),
    (torch.tensor([-1, 2]), IndexError, "ids must be at least 0 and below 5, got -1"),
    (torch.tensor([1, 3, 2]), ValueError, "ids must be sorted and unique, got 2 after 3"),
    (torch.tensor([1, 1]), ValueError, "ids must be sorted and unique, got 1 after 1"),
]


@pytest.mark.parametrize(("ids", "error", "message"), BAD_IDS)
def test_bad_ids_are_refused_and_change_nothing(ids, error, message):
    host = make_host(5)
    train([host], 3, 0)
    before = copied(host.tensors())
    for call in (
        lambda: host.replace(ids, make_rows(len(ids))),
        lambda: host.overwrite(ids, make_rows(len(ids))),
        lambda: host.zero_moments(ids),
    ):
        with pytest.raises(error, match=message):
            call()
    assert_same(copied(host.tensors()), before)


def test_bad_arguments_are_refused_and_change_nothing():
    host = make_host(5)
    train([host], 3, 0)
    before = copied(host.tensors())
    with pytest.raises(ValueError, match="rows must have the keys sh0, shN, got sh0"):
        HostRows({"sh0": torch.zeros(2, 1, 3)}, semantics="dense", device="cpu")
    with pytest.raises(KeyError, match="name must be one of sh0, shN, got means"):
        host.read("means")
    with pytest.raises(KeyError, match="name must be one of sh0, shN, got means"):
        host.zero_moments(names=["sh0", "means"])
    with pytest.raises(IndexError, match="ids must be at least 0 and below 5, got 5"):
        host.read("sh0", torch.tensor([5, 0]))
    with pytest.raises(ValueError, match="ids must be a slice of step 1, got step 2"):
        host.snapshot(slice(0, 4, 2))
    with pytest.raises(ValueError, match=r"shN must be \(R, 3, 3\), got \(2, 8, 3\)"):
        host.replace(torch.tensor([0, 1]), make_rows(2, k=8))
    with pytest.raises(TypeError, match=r"sh0 must be float32, got torch.float64"):
        host.replace(
            torch.tensor([0]), {name: values.double() for name, values in make_rows(2).items()}
        )
    with pytest.raises(ValueError, match=r"sh0 must be \(2, 1, 3\), got \(3, 1, 3\)"):
        host.overwrite(torch.tensor([0, 1]), make_rows(3))
    with pytest.raises(ValueError, match="rows must have keys among sh0, shN, got means"):
        host.overwrite(None, {"means": torch.zeros(5, 3)})
    with pytest.raises(ValueError, match="order must be a permutation of 5 rows, got 4 ids"):
        host.permute(torch.arange(4))
    with pytest.raises(ValueError, match="order must be a permutation of 5 rows, got repeated"):
        host.permute(torch.tensor([0, 1, 2, 3, 3]))
    assert_same(copied(host.tensors()), before)
