# SPDX-License-Identifier: Apache-2.0
"""Rows, steps and options of other kinds or ranges, and what the messages say of them."""

import numpy as np
import pytest
import torch

from gs_adam import DeviceAdam, HostAdam, Schedule, Worker

N = 40


@pytest.mark.parametrize(
    ("ids", "error"), [([3, 1], ValueError), ([1, 1], ValueError), ([1, N], IndexError)]
)
def test_ids_are_looked_at_where_penalties_are_added_on_the_cpu(ids, error):
    param = torch.zeros(N, 3)
    opt = DeviceAdam([param])
    with pytest.raises(error, match="ids must be"):
        opt.step(torch.tensor(ids), [torch.ones(2, 3)], penalties=[("exp", 0.1)])
    assert not param.any()


@pytest.mark.parametrize("semantics", ["dense", "deferred", "sparse"])
@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (torch.tensor([5, 3]), ValueError),
        (torch.tensor([N]), IndexError),
        (torch.tensor([-4]), IndexError),
        (torch.tensor([1.5]), TypeError),
        ([1, 2], TypeError),
    ],
)
def test_rows_to_flush_are_looked_at_whether_any_sleep_or_not(semantics, rows, error):
    host = HostAdam([torch.zeros(N, 3)], semantics=semantics)
    host.step(torch.tensor([1]), [torch.ones(1, 3)])
    with pytest.raises(error, match="rows"):
        host.flush(rows)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda host: host.lookahead(None, step=1, pending=torch.ones(3)), r"pending must be \("),
        (lambda host: host.append_rows(2.5), "count must be a whole number, got 2.5"),
        (lambda host: host.keep_rows([3, 1]), "rows must be sorted and unique, got 3 and 1 at 0"),
        (lambda host: host.permute_rows([0] * N), "got 40 ids, 1 of them distinct"),
        (lambda host: HostAdam([torch.ones(3, 1)], betas=(0.9,)), "betas must be two numbers"),
        (lambda host: HostAdam([{"params": []}]), "params must hold at least one tensor"),
        (lambda host: DeviceAdam([{"params": []}]), "params must hold at least one tensor"),
        (lambda host: Worker(torch.optim.Adam([torch.ones(3)])), "must be a HostAdam, got Adam"),
        (lambda host: Worker(host).flush(None, priority=1.5), "priority must be a whole number"),
        (lambda host: Worker(host).flush(None, priority=2**40), "priority must be at most"),
        (lambda host: Worker(host).wait(-1), "ticket must be at least 1, got -1"),
        (lambda host: Schedule(1.5), "n_groups must be a whole number, got 1.5"),
        (lambda host: host.load_state_dict(_without_step(host)), "must hold step of params"),
    ],
)
def test_errors_name_what_was_wrong(call, message):
    host = HostAdam([torch.zeros(N, 3)])
    host.step(torch.arange(4), [torch.ones(4, 3)])
    with pytest.raises((TypeError, ValueError), match=message):
        call(host)


def _without_step(host: HostAdam) -> dict:
    state = host.state_dict()
    moments = {key: value for key, value in state["state"][0].items() if key != "step"}
    return {**state, "state": {0: moments}}


@pytest.mark.parametrize("semantics", ["dense", "deferred"])
def test_a_step_ends_by_any_whole_number_and_by_nothing_else(semantics):
    adam = HostAdam([torch.zeros(N, 3)], semantics=semantics)
    for kind in (np.int64, np.array, torch.tensor):
        adam.end_step(kind(adam.begin_step()))
        assert not adam.open_steps
    adam.begin_step()
    with pytest.raises(ValueError, match=r"step must be an open step \(open: \[4\]\), got 4.0"):
        adam.end_step(4.0)
    adam.end_step(4)


@pytest.mark.parametrize("name", ["keep_rows", "permute_rows", "zero_rows"])
def test_sparse_ids_are_refused(name):
    adam = HostAdam([torch.zeros(N, 3)])
    with pytest.raises(TypeError, match=r"must be a dense tensor, got layout torch.sparse_coo"):
        getattr(adam, name)(torch.arange(N).to_sparse())
