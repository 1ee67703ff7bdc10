# SPDX-License-Identifier: Apache-2.0
"""Steps and states that belong to another schedule, another time or another optimizer."""

import copy

import pytest
import torch

from gs_adam import HostAdam, Schedule, flush_rows, update_rows

N = 40


def _plain(last: int = 0):
    return torch.ones(N, 3), torch.zeros(N, 3), torch.zeros(N, 3), torch.full((N,), last).int()


def test_a_schedule_takes_no_step_before_one_has_begun():
    first = Schedule()
    arrays = _plain()
    with pytest.raises(ValueError, match="must have begun a step"):
        update_rows(*arrays, None, None, first)
    for _ in range(3):
        first.begin(lr=1e-2)
    update_rows(*arrays, torch.arange(5), torch.ones(5, 3), first)
    second = Schedule()
    second.load_state_dict(first.state_dict())
    before = [array.clone() for array in arrays]
    with pytest.raises(ValueError, match="must have begun a step since it was made or restored"):
        update_rows(*arrays, torch.arange(5, 9), torch.ones(4, 3), second)
    assert all(torch.equal(a, b) for a, b in zip(arrays, before, strict=True))
    flush_rows(*arrays, None, second)
    second.begin(lr=1e-2)
    update_rows(*arrays, torch.arange(5, 9), torch.ones(4, 3), second)


@pytest.mark.parametrize("last", [-1, -(10**7), -(2**31)])
def test_steps_before_the_first_reach_no_table(last):
    schedule, arrays = Schedule(), _plain()
    for _ in range(600):  # more than any table of recent steps holds
        schedule.begin(lr=1e-2)
    arrays[3][7] = last
    never = _plain()
    flush_rows(*arrays, None, schedule)
    flush_rows(*never, None, schedule)
    for ours, expected in zip(arrays, never, strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("last", [-1, -(10**7)])
def test_adopted_steps_are_looked_at(last):
    params, exp_avg, exp_avg_sq, last_step = _plain()
    last_step[3] = last
    state = {"exp_avg": [exp_avg], "exp_avg_sq": [exp_avg_sq], "last_step": last_step}
    with pytest.raises(ValueError, match=f"last_step must be at least 0, got {last} to 0"):
        HostAdam([params], state=state)


@pytest.mark.parametrize("last", [-1, 3])
def test_loaded_steps_are_looked_at(last):
    opt = HostAdam([torch.zeros(N, 3)])
    for _ in range(2):
        opt.step(torch.arange(4), [torch.ones(4, 3)])
    saved = opt.state_dict()
    saved["gs_adam"]["last_step"] = saved["gs_adam"]["last_step"].clone()
    saved["gs_adam"]["last_step"][9] = last
    with pytest.raises(ValueError, match="last_step must be at least 0 and at most 2"):
        HostAdam([torch.zeros(N, 3)]).load_state_dict(saved)


def test_a_state_that_does_not_fit_changes_nothing():
    opt = HostAdam([torch.zeros(N, 3)])
    for _ in range(3):
        opt.step(torch.arange(4), [torch.ones(4, 3)])
    saved = opt.state_dict()
    own = saved["gs_adam"]
    short = [{**group, "missed": group["missed"][:-1]} for group in own["schedule"]]
    other = HostAdam([torch.zeros(N, 3)])
    other.step(torch.arange(9), [torch.full((9, 3), 2.0)])
    before = other.state_dict()
    moments = {key: before["state"][0][key].clone() for key in ("exp_avg", "exp_avg_sq")}
    for broken, message in (
        ({**own, "schedule": short}, "rates of the 3 steps .* got 2"),
        ({"schedule": own["schedule"]}, "must hold last_step"),
        ({"last_step": own["last_step"]}, "must hold schedule"),
    ):
        with pytest.raises(ValueError, match=message):
            other.load_state_dict({**saved, "gs_adam": broken})
        after = other.state_dict()
        assert other.step_count == 1
        for key, value in moments.items():
            assert torch.equal(after["state"][0][key], value)
    other.load_state_dict(saved)
    assert other.step_count == 3


def test_rows_do_not_sleep_since_before_rates_are_known():
    # The state of torch.optim.Adam says how many steps there were, not which.
    schedule = Schedule()
    schedule.load_state_dict({"step": 5, "groups": []})
    w, m, v, last = _plain(5)
    flush_rows(w, m, v, last, None, schedule)
    last[7] = 3
    for _ in range(2):
        with pytest.raises(ValueError, match=r"last_step must be at least 5, .* got 3 of row 7"):
            flush_rows(w, m, v, last, None, schedule)
        schedule.begin(0.1)
    with pytest.raises(ValueError, match=r"last_step must be at least 5, .* got 3 of row 7"):
        update_rows(w, m, v, last, torch.tensor([6, 7]), torch.ones(2, 3), schedule)
    assert (w == 1).all()
    assert int(last[6]) == 5
    update_rows(w, m, v, last, torch.tensor([6, 8]), torch.ones(2, 3), schedule)
    again = Schedule()
    again.load_state_dict(schedule.state_dict())
    with pytest.raises(ValueError, match=r"last_step must be at least 5, .* got 3 of row 7"):
        flush_rows(w, m, v, last, None, again)
    last[7] = 5
    flush_rows(w, m, v, last, None, again)


def test_storage_and_states_do_not_sleep_since_before_rates_are_known():
    host = HostAdam([torch.ones(N, 3)])
    adam = torch.optim.Adam([torch.nn.Parameter(torch.ones(N, 3))], eps=1e-15)
    adam.param_groups[0]["params"][0].grad = torch.ones(N, 3)
    for _ in range(5):
        adam.step()
    host.load_state_dict(copy.deepcopy(adam.state_dict()))
    host.step(torch.arange(3), [torch.ones(3, 3)])
    saved = copy.deepcopy(host.state_dict())
    HostAdam([torch.ones(N, 3)]).load_state_dict(copy.deepcopy(saved))
    saved["gs_adam"]["last_step"][3] = 2
    with pytest.raises(ValueError, match="last_step must be at least 5 and at most 6, got 2 to 6"):
        HostAdam([torch.ones(N, 3)]).load_state_dict(saved)
    state = {key: [torch.zeros(N, 3)] for key in ("exp_avg", "exp_avg_sq")}
    with pytest.raises(ValueError, match="last_step must be at least 5 and at most 6, got 0 to 0"):
        host.rebind([torch.ones(N, 3)], state={**state, "last_step": torch.zeros(N).int()})


@pytest.mark.parametrize("semantics", ["dense", "deferred", "sparse"])
def test_a_state_just_taken_from_torch_can_be_saved_again(semantics):
    param = torch.nn.Parameter(torch.ones(N, 3))
    adam = torch.optim.Adam([param], eps=1e-15)
    param.grad = torch.ones(N, 3)
    for _ in range(5):
        adam.step()
    host = HostAdam([param.detach().clone()])
    host.load_state_dict(copy.deepcopy(adam.state_dict()))
    saved = copy.deepcopy(host.state_dict())
    again = HostAdam([param.detach().clone()], semantics=semantics)
    again.load_state_dict(copy.deepcopy(saved))
    rows, grads = torch.arange(N), [torch.ones(N, 3)]
    for one in (host, again):
        one.step(rows, grads)
    assert again.step_count == 6
    assert torch.equal(host.param_groups[0]["params"][0], again.param_groups[0]["params"][0])
    saved["gs_adam"]["last_step"][3] = 2
    with pytest.raises(ValueError, match="must hold"):
        HostAdam([param.detach().clone()]).load_state_dict(saved)


def test_a_schedule_has_no_step_below_zero():
    with pytest.raises(ValueError, match="step of at least 0, got -5"):
        Schedule().load_state_dict({"step": -5, "groups": []})


def test_betas_stay_where_storage_with_rows_that_sleep_was_bound():
    tensors = [torch.zeros(N, 3) for _ in range(3)]
    last_step = torch.zeros(N, dtype=torch.int32)
    state = {"exp_avg": [tensors[1]], "exp_avg_sq": [tensors[2]], "last_step": last_step}
    host = HostAdam([tensors[0]], state=state)
    host.step(torch.arange(3), [torch.ones(3, 3)])
    host.step(torch.arange(1), [torch.ones(1, 3)])
    param, average, square = (tensor.clone() for tensor in tensors)
    slept = last_step.clone()
    host.flush()  # here none sleeps any more, but in the copies some do
    state = {"exp_avg": [average], "exp_avg_sq": [square], "last_step": slept}
    host.rebind([param], state=state)
    host.param_groups[0]["betas"] = (0.5, 0.9)
    with pytest.raises(ValueError, match="betas must stay"):
        host.step(torch.arange(1), [torch.ones(1, 3)])
    host.flush()
    host.step(torch.arange(1), [torch.ones(1, 3)])


def test_a_state_dict_that_has_moved_on_says_so():
    host = HostAdam([torch.zeros(N, 3)])
    host.step(torch.arange(4), [torch.ones(4, 3)])
    kept = host.state_dict()
    host.step(torch.arange(4), [torch.ones(4, 3)])
    with pytest.raises(ValueError, match=r"stepped since; load a copy\.deepcopy\(\)"):
        host.load_state_dict(kept)
