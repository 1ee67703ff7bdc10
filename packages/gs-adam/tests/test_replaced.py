# SPDX-License-Identifier: Apache-2.0
"""Tensors and groups that others replace between calls: followed, or told."""

import copy

import pytest
import torch

from gs_adam import DeviceAdam, HostAdam

N = 10


def _stepped(n_rows: int, **options) -> HostAdam:
    host = HostAdam([torch.zeros(n_rows, 3)], **options)
    host.step(torch.arange(4), [torch.ones(4, 3)])
    return host


def _replace(host: HostAdam, param: torch.Tensor) -> None:
    host.param_groups[0]["params"] = [param]


def test_a_state_dict_of_another_number_of_rows_follows_the_parameter():
    theirs = _stepped(20)
    for state_dict in (theirs.state_dict(), _torch_state(20)):
        host = _stepped(N)
        _replace(host, torch.zeros(20, 3))
        host.load_state_dict(copy.deepcopy(state_dict))
        host.step(torch.arange(20), [torch.ones(20, 3)])
        assert host.step_count == 2
        assert host.state[host.param_groups[0]["params"][0]]["exp_avg"].shape == (20, 3)


def _torch_state(n_rows: int) -> dict:
    param = torch.zeros(n_rows, 3, requires_grad=True)
    adam = torch.optim.Adam([param])
    param.grad = torch.ones(n_rows, 3)
    adam.step()
    return adam.state_dict()


def _adopted(n_rows: int) -> dict:
    moments = {key: [torch.zeros(n_rows, 3)] for key in ("exp_avg", "exp_avg_sq")}
    return {**moments, "last_step": torch.zeros(n_rows, dtype=torch.int32)}


@pytest.mark.parametrize("rebinds", [False, True])
def test_adopted_storage_stays_the_storage_of_a_replaced_parameter(rebinds):
    theirs = HostAdam([torch.zeros(N, 3)])
    theirs.step(None, [torch.ones(N, 3)])
    storage = _adopted(N)
    host = HostAdam([torch.zeros(N, 3)], state=storage)
    host.step(None, [torch.ones(N, 3)])
    param = torch.zeros(N, 3)
    if rebinds:
        host.rebind([param])
        assert host.state_dict()["state"][0]["exp_avg"] is storage["exp_avg"][0]
    else:
        _replace(host, param)
    host.load_state_dict(copy.deepcopy(theirs.state_dict()))
    host.step(None, [torch.ones(N, 3)])
    assert storage["exp_avg"][0][0, 0] == pytest.approx(0.19)
    assert list(host.state) == [param]


def test_adopted_storage_of_another_number_of_rows_is_refused_before_anything_is_loaded():
    host = HostAdam([torch.zeros(N, 3)], state=_adopted(N))
    host.step(None, [torch.ones(N, 3)])
    _replace(host, torch.zeros(20, 3))
    with pytest.raises(ValueError, match="params must have 10 rows as the adopted state, got 20"):
        host.load_state_dict(_stepped(20).state_dict())
    assert host.step_count == 1


@pytest.mark.parametrize("semantics", ["dense", "deferred", "sparse"])
def test_a_parameter_replaced_by_others_with_its_state_while_a_step_is_open_is_followed(semantics):
    values = torch.zeros(N, 3)
    host = HostAdam([torch.nn.Parameter(values)], semantics=semantics)
    host.step(None, [torch.ones(N, 3)])
    first = host.begin_step()
    old = host.param_groups[0]["params"][0]
    new = torch.nn.Parameter(values)
    _replace(host, new)
    host.state[new] = host.state.pop(old)
    second = host.begin_step()
    host.update(None, [torch.ones(N, 3)], step=first)
    host.end_step(first)
    host.update(None, [torch.ones(N, 3)], step=second)
    host.end_step(second)
    assert host.step_count == 3
    assert float(host.state[new]["step"]) == 3


def test_parameters_that_change_their_groups_have_the_new_ones_rates():
    for semantics in ("dense", "sparse"):
        a, b, c = (torch.zeros(N, 1) for _ in range(3))
        groups = [{"params": [a], "lr": 1.0}, {"params": [b, c], "lr": 0.001}]
        host = HostAdam(groups, semantics=semantics)
        host.step(None, [torch.ones(N, 1)] * 3)
        host.param_groups[0]["params"], host.param_groups[1]["params"] = [a, b], [c]
        host.step(None, [torch.ones(N, 1)] * 3)
        assert b[0].item() == pytest.approx(-1.001, rel=1e-3)
    host = HostAdam([{"params": [a], "lr": 1.0}, {"params": [b], "lr": 0.001}])
    host.step(torch.arange(3), [torch.ones(3, 1)] * 2)
    host.param_groups.reverse()
    with pytest.raises(ValueError, match=r"params\[0\] must stay in group 1 while rows may sleep"):
        host.flush()


def test_one_missing_gradient_counts_as_zero_as_after_an_opacity_reset():
    a, b = (torch.nn.Parameter(torch.ones(N, 2)) for _ in range(2))
    ours = HostAdam([{"params": [a]}, {"params": [b]}], lr=0.1)
    c, d = (torch.nn.Parameter(torch.ones(N, 2)) for _ in range(2))
    theirs = torch.optim.Adam([{"params": [c]}, {"params": [d]}], lr=0.1, eps=1e-15)
    for adam, (first, second) in ((ours, (a, b)), (theirs, (c, d))):
        first.grad, second.grad = torch.ones(N, 2), torch.ones(N, 2)
        adam.step()
        # As the Inria code replaces a tensor: a new one, its moments zero, without a gradient.
        new = torch.nn.Parameter(torch.full((N, 2), 0.5))
        state = adam.state.pop(second)
        state["exp_avg"] = torch.zeros(N, 2)
        state["exp_avg_sq"] = torch.zeros(N, 2)
        adam.param_groups[1]["params"] = [new]
        adam.state[new] = state
        adam.step()
        assert (new == 0.5).all()
    assert torch.allclose(a, c, rtol=1e-6)


def test_autograd_is_told_that_parameters_have_changed():
    param = torch.nn.Parameter(torch.ones(N, 2))
    host = HostAdam([param])
    loss = (param**2).sum()
    host.step(None, [torch.ones(N, 2)])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_replaced_parameter_that_is_bound_again_leaves_no_state_behind():
    host = HostAdam([torch.zeros(N, 3)], state=_moments(N), semantics="dense")
    host.step(None, [torch.ones(N, 3)])
    _replace(host, torch.zeros(20, 3))
    host.rebind(host.param_groups[0]["params"], state=_moments(20))
    assert len(host.state) == 1
    host.step(torch.arange(20), [torch.ones(20, 3)])
    assert host.state_dict()["state"].keys() == {0}


def _moments(n_rows: int) -> dict:
    return {key: [torch.zeros(n_rows, 3)] for key in ("exp_avg", "exp_avg_sq")}


def test_a_parameter_that_changes_groups_keeps_its_state():
    first, second = torch.zeros(N, 3), torch.zeros(N, 3)
    groups = [{"params": [first]}, {"params": [second]}]
    host = HostAdam(groups, semantics="dense")
    host.step(None, [torch.ones(N, 3), torch.full((N, 3), 2.0)])
    new = torch.zeros(N, 3)
    host.param_groups[0]["params"], host.param_groups[1]["params"] = [new], [first]
    host.end_step(host.begin_step())
    assert not host.state[new]["exp_avg"].any()
    assert torch.allclose(host.state[first]["exp_avg"], torch.full((N, 3), 0.09))


def test_the_end_of_a_dense_step_writes_no_memory_that_has_none_of_the_step():
    param = torch.nn.Parameter(torch.zeros(N, 3))
    host = HostAdam([param], semantics="dense")
    host.step(None, [torch.ones(N, 3)])
    step = host.begin_step()
    param.data = param.data.clone()
    before = param.detach().clone()
    with pytest.raises(RuntimeError, match="must stay where they are while a step is open"):
        host.end_step(step)
    assert torch.equal(param, before)


@pytest.mark.parametrize("missing", ["step", "exp_avg"])
def test_state_that_lacks_something_is_named_before_anything_moves(missing):
    message = rf"state of params\[0\] must hold .*none of {missing}$"
    host = _stepped(N)
    (param,) = host.param_groups[0]["params"]
    del host.state[param][missing]
    _replace(host, param.clone())
    host.state[host.param_groups[0]["params"][0]] = host.state.pop(param)
    before = host.param_groups[0]["params"][0].clone()
    for call in (host.begin_step, lambda: host.step(torch.arange(4), [torch.ones(4, 3)])):
        with pytest.raises(ValueError, match=message):
            call()
    assert torch.equal(host.param_groups[0]["params"][0], before)
    assert host.step_count == 1


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("kind", [HostAdam, DeviceAdam])
def test_a_step_in_inference_mode_may_be_followed_by_others(kind, first):
    adam = kind([torch.zeros(N, 3)])
    for in_inference in [True, False] if first == 0 else [False, True]:
        with torch.inference_mode(in_inference):
            adam.step(None, [torch.ones(N, 3)])
    theirs = torch.optim.Adam([torch.zeros(N, 3, requires_grad=True)])
    state = copy.deepcopy(adam.state_dict())
    theirs.load_state_dict({key: state[key] for key in ("state", "param_groups")})
    theirs.param_groups[0]["params"][0].grad = torch.ones(N, 3)
    if first == 1:  # else moments are tensors of that mode, as the caller wanted it
        theirs.step()
    adam.step(None, [torch.ones(N, 3)])
    assert {int(own["step"]) for own in adam.state_dict()["state"].values()} == {3}
