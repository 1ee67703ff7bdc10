# SPDX-License-Identifier: Apache-2.0
"""Tensors that share an element: one's update would be another's."""

import copy

import numpy as np
import pytest
import torch

from gs_adam import DeviceAdam, HostAdam, Schedule, Worker, update_rows

N = 12


@pytest.fixture
def host():
    host = HostAdam([torch.ones(N, 3), torch.ones(N, 2)])
    for _ in range(3):
        host.step(torch.arange(4), [torch.ones(4, 3), torch.ones(4, 2)])
    return host


def _values(host):
    params = [param for group in host.param_groups for param in group["params"]]
    tensors = [*params, *(host.state[p][key] for p in params for key in ("exp_avg", "exp_avg_sq"))]
    return [tensor.clone() for tensor in (*tensors, host.state_dict()["gs_adam"]["last_step"])]


def _unchanged(host, before):
    return all(torch.equal(a, b) for a, b in zip(_values(host), before, strict=True))


def test_rows_are_looked_ahead_at_into_other_memory(host):
    first, second = host.param_groups[0]["params"]
    table = torch.zeros(N, 4)
    wrong = {
        r"out\[0\] must have memory of its own, got some of params\[0\]": [first, torch.ones(N, 2)],
        r"out\[1\] .* of exp_avg\[1\]": [torch.ones(N, 3), host.state[second]["exp_avg"]],
        r"out\[1\] .* of out\[0\]": [table[:, :3], table[:, 2:]],
    }
    before = _values(host)
    with Worker(host) as worker:
        for message, out in wrong.items():
            for ahead in (host.lookahead, worker.lookahead):
                with pytest.raises(ValueError, match=message):
                    ahead(None, out=out)
    assert _unchanged(host, before)
    beside = torch.zeros(N, 5)
    host.lookahead(None, out=[beside[:, :3], beside[:, 3:]])
    host.flush()
    assert torch.equal(beside, torch.cat([first, second], dim=1))


@pytest.mark.parametrize("shift", [0, 5])
def test_plain_arrays_have_memory_of_their_own(shift):
    table = np.zeros(200, np.float32)
    columns = [table[first : first + N * 3].reshape(N, 3) for first in (0, 40, 80, 120, 160)]
    shared = table[80 + shift : 80 + shift + N * 3].reshape(N, 3)
    schedule = Schedule()
    schedule.begin(0.1)
    last_step = np.zeros(N, np.int32)
    ids, grads = np.arange(2), [np.ones((2, 3), np.float32)] * 2
    with pytest.raises(ValueError, match=r"exp_avg\[1\] must have memory of its own, got some of"):
        update_rows(
            columns[:2], [columns[2], shared], columns[3:5], last_step, ids, grads, schedule
        )
    assert not table.any()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_parameters_of_a_device_have_memory_of_their_own(device):
    values = torch.zeros(40, device=device)
    shared = DeviceAdam([values[:30].view(10, 3), values[20:].view(10, 2)])
    with pytest.raises(ValueError, match=r"params\[1\] must have memory of its own, got some of"):
        shared.step(None, [torch.ones(10, 3, device=device), torch.ones(10, 2, device=device)])
    assert not values.any()
    apart = DeviceAdam([values[:20].view(10, 2), values[20:].view(10, 2)])
    apart.step(None, [torch.ones(10, 2, device=device)] * 2)
    assert values.all()


def _with_moment(host, moment):
    state_dict = copy.deepcopy(host.state_dict())
    state_dict["state"][0]["exp_avg"] = moment(state_dict["state"][0])
    return state_dict


@pytest.mark.parametrize(
    ("moment", "message"),
    [
        (lambda _: torch.zeros(3, N).T, r"exp_avg of params\[0\] must have contiguous rows"),
        (
            lambda _: torch.zeros(1, 3).expand(N, 3),
            r"exp_avg of params\[0\] must have rows that do not overlap",
        ),
        (lambda state: state["exp_avg_sq"], r"exp_avg_sq of params\[0\] must have memory of its"),
    ],
)
def test_a_state_dict_that_no_step_could_use_is_refused(host, moment, message):
    before = _values(host)
    with pytest.raises(ValueError, match="state_dict's " + message):
        host.load_state_dict(_with_moment(host, moment))
    assert _unchanged(host, before)
    host.load_state_dict(_with_moment(host, lambda state: state["exp_avg"].double()))
    host.step(torch.arange(4), [torch.ones(4, 3), torch.ones(4, 2)])


def test_a_state_that_is_copied_may_lie_as_it_likes(host):
    state = {
        "exp_avg": [torch.zeros(N, 3), torch.zeros(N, 2)],
        "exp_avg_sq": [torch.zeros(N, 3), torch.zeros(N, 2)],
        "last_step": torch.zeros(N, dtype=torch.int32),
    }
    other = HostAdam([torch.ones(N, 3), torch.ones(N, 2)], state=state)
    expected = host.state_dict()["state"][0]["exp_avg"].clone()
    other.load_state_dict(_with_moment(host, lambda moments: moments["exp_avg"].T.contiguous().T))
    assert torch.equal(state["exp_avg"][0], expected)


def test_storage_that_moves_stays_apart(host):
    before = _values(host)
    table = torch.ones(N, 4)
    with pytest.raises(ValueError, match=r"params\[1\] must have memory of its own"):
        host.rebind([table[:, :3], table[:, 2:]])
    assert _unchanged(host, before)
    table = torch.ones(N, 5)
    host.rebind([table[:, :3], table[:, 3:]])
    host.step(torch.arange(4), [torch.ones(4, 3), torch.ones(4, 2)])
