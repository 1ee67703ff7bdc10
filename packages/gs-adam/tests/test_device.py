# SPDX-License-Identifier: Apache-2.0
"""DeviceAdam on CPU tensors: the same rule by the host kernel."""

import copy
import pickle

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from gs_adam import DeviceAdam

SHAPES = ((3,), (3,), (4,), ())


def make(optimizer, **options):
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(70, *s, generator=generator)) for s in SHAPES]
    groups = [{"params": [p], "lr": 0.01 * (k + 1)} for k, p in enumerate(params)]
    return params, optimizer(groups, eps=1e-15, **options)


def walk(optimizer, params, numbers):
    for number in numbers:
        generator = torch.Generator().manual_seed(number)
        ids = (torch.rand(70, generator=generator) < 0.3).nonzero().flatten().int()
        compact = [torch.randn(len(ids), *p.shape[1:], generator=generator) for p in params]
        if isinstance(optimizer, DeviceAdam):
            optimizer.step(ids, compact)
            continue
        for p, g in zip(params, compact, strict=True):
            p.grad = torch.zeros_like(p).index_copy_(0, ids.long(), g)
        optimizer.step()


def test_compact_gradients_give_torchs_dense_adam():
    ours, device = make(DeviceAdam, weight_decay=0.01)
    theirs, torch_adam = make(torch.optim.AdamW, weight_decay=0.01)
    walk(device, ours, range(60))
    walk(torch_adam, theirs, range(60))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-7)


def test_state_dicts_go_round_through_torch():
    ours, device = make(DeviceAdam)
    theirs, torch_adam = make(torch.optim.Adam)
    straight, uninterrupted = make(torch.optim.Adam)
    walk(uninterrupted, straight, range(30))
    walk(device, ours, range(10))
    for a, b in zip(theirs, ours, strict=True):
        a.data.copy_(b)
    torch_adam.load_state_dict(copy.deepcopy(device.state_dict()))
    walk(torch_adam, theirs, range(10, 20))
    for a, b in zip(ours, theirs, strict=True):
        a.data.copy_(b)
    device.load_state_dict(copy.deepcopy(torch_adam.state_dict()))
    walk(device, ours, range(20, 30))
    for a, b in zip(ours, straight, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-7)


def test_own_gradients_are_taken_when_none_are_given():
    ours, device = make(DeviceAdam)
    theirs, torch_adam = make(torch.optim.Adam)
    for p, q in zip(ours, theirs, strict=True):
        p.grad = q.grad = torch.randn_like(p)
    device.step()
    torch_adam.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-7)


PENALTIES = [("exp", 0.3), None, ("sigmoid", 0.2), ("sigmoid", 0.5)]


def test_penalties_are_losses_on_all_rows():
    ours, device = make(DeviceAdam)
    theirs, torch_adam = make(torch.optim.Adam)
    losses = {"exp": torch.exp, "sigmoid": torch.sigmoid}
    for number in range(20):
        generator = torch.Generator().manual_seed(number)
        ids = (torch.rand(70, generator=generator) < 0.3).nonzero().flatten().int()
        compact = [torch.randn(len(ids), *p.shape[1:], generator=generator) for p in ours]
        device.step(ids, compact, penalties=PENALTIES)
        for p, g, penalty in zip(theirs, compact, PENALTIES, strict=True):
            p.grad = torch.zeros_like(p).index_copy_(0, ids.long(), g)
            if penalty is not None:
                (penalty[1] * losses[penalty[0]](p).sum()).backward()
        torch_adam.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=5e-6, atol=1e-6)


@pytest.mark.parametrize(
    "penalties", [[None], [("tanh", 1.0), None, None, None], [("exp", float("nan"))] + [None] * 3]
)
def test_bad_penalties_are_refused(penalties):
    params, device = make(DeviceAdam)
    before = [p.detach().clone() for p in params]
    with pytest.raises(ValueError, match="penalties must be"):
        device.step(None, [torch.ones_like(p) for p in params], penalties=penalties)
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))


def test_bad_arguments_change_nothing():
    params, device = make(DeviceAdam)
    walk(device, params, range(3))
    before = [p.detach().clone() for p in params]
    good = [torch.ones(2, *s) for s in SHAPES]
    with pytest.raises(ValueError, match="ids must be sorted and unique"):
        device.step(torch.tensor([3, 2]), good)
    with pytest.raises(IndexError, match=r"ids must be in \[0, \d+\), got 3 to 10000000"):
        device.step(torch.tensor([3, 10_000_000]), good)
    with pytest.raises(TypeError, match=r"ids must be \(U,\) int32 or int64, got torch.float32"):
        device.step(torch.tensor([2.0, 3.0]), good)
    with pytest.raises(TypeError, match=r"ids must be .* of shape \(1, 2\)"):
        device.step(torch.tensor([[2, 3]]), good)
    with pytest.raises(ValueError, match=r"ids must be a mask of \("):
        device.step(torch.tensor([True, False]), good)
    with pytest.raises(ValueError, match=r"grads must be given with ids, got None"):
        device.step(torch.tensor([3]))
    with pytest.raises(ValueError, match=r"grads\[0\] must have 3 rows"):
        device.step(torch.tensor([1, 2, 3]), good)
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))
    assert float(device.state[params[0]]["step"]) == 3
    walk(device, params, range(3, 4))
    assert float(device.state[params[0]]["step"]) == 4
    with pytest.raises(ValueError, match=r"params\[0\] must have rows and be contiguous"):
        DeviceAdam([torch.zeros(3, 4).T])
    with pytest.raises(TypeError, match=r"params\[0\] must be float32, got torch.float64"):
        DeviceAdam([torch.zeros(3, dtype=torch.float64)])
    with pytest.raises(ValueError, match=r"params\[1\] must be on one CPU or CUDA device"):
        DeviceAdam([torch.zeros(3), torch.zeros(3, device="meta")])


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_go_on_from_where_they_are(make_copy):
    params, device = make(DeviceAdam)
    walk(device, params, range(3))
    other = make_copy(device)
    copies = [param for group in other.param_groups for param in group["params"]]
    walk(device, params, range(3, 6))
    walk(other, copies, range(3, 6))
    for a, b in zip(params, copies, strict=True):
        assert torch.equal(a, b)


def test_a_step_may_be_a_number():
    params, device = make(DeviceAdam)
    walk(device, params, range(2))
    for state in device.state.values():
        state["step"] = int(state["step"])
    walk(device, params, range(2, 3))
    assert [float(state["step"]) for state in device.state.values()] == [3.0] * 4


def test_a_first_step_that_fails_leaves_nothing():
    params, device = make(DeviceAdam)
    grads = [torch.ones(2, *p.shape[1:]) for p in params]
    with pytest.raises(TypeError, match="ids must be"):
        device.step(torch.tensor([1.5, 2.5]), grads)
    with pytest.raises(ValueError, match="ids must be sorted and unique, got 5 and 3 at 0 and 1"):
        device.step(torch.tensor([5, 3]), grads)
    assert not device.state
    device.step([3, 5], grads)


def test_groups_come_with_the_constructor():
    _, device = make(DeviceAdam)
    with pytest.raises(RuntimeError, match="groups must be given at construction"):
        device.add_param_group({"params": [torch.ones(70, 2)]})


@pytest.mark.parametrize(
    ("grad", "message"),
    [
        (torch.ones(3, 3), r"grads\[0\] must be \(2, 3\) on cpu, got \(3, 3\)"),
        (torch.ones(2, 4), r"grads\[0\] must be \(2, 3\) on cpu, got \(2, 4\)"),
        (torch.ones(2, 3).double(), r"grads\[0\] must be a float32 tensor, got torch.float64"),
        (None, r"grads\[0\] must be a float32 tensor, got NoneType"),
    ],
)
def test_gradients_are_looked_at_where_penalties_are_added(grad, message):
    params, device = make(DeviceAdam)
    grads = [grad, *(torch.ones(2, *p.shape[1:]) for p in params[1:])]
    with pytest.raises((TypeError, ValueError), match=message):
        device.step(torch.tensor([3, 5]), grads, penalties=[("exp", 0.1), None, None, None])


def test_a_sparse_gradient_is_refused_where_penalties_are_added():
    params, device = make(DeviceAdam)
    grads = [grad.to_sparse() for grad in grads_of(params)]
    with pytest.raises(TypeError, match=r"grads\[0\] must be a dense tensor, got layout"):
        device.step(torch.tensor([3, 5]), grads, penalties=[("exp", 0.1), None, None, None])


def grads_of(params):
    return [torch.ones(2, *param.shape[1:]) for param in params]


def test_hooks_of_torch_are_called_once_a_step():
    params, device = make(DeviceAdam)
    ids, called = torch.tensor([3, 5]), []

    def other_rows(optimizer, args, kwargs):
        called.append("before")
        return (optimizer, torch.tensor([7, 9]), *args[2:]), kwargs

    before = device.register_step_pre_hook(other_rows)
    after = device.register_step_post_hook(lambda *_: called.append("after"))
    device.step(ids, grads_of(params))
    assert called == ["before", "after"]
    moments = device.state[params[0]]["exp_avg"].abs().sum(1)
    assert moments.nonzero().flatten().tolist() == [7, 9]
    before.remove()
    after.remove()
    device.step(ids, grads_of(params))
    assert called == ["before", "after"]
    every = register_optimizer_step_post_hook(lambda *_: called.append("all"))
    device.step(ids, grads_of(params))
    every.remove()
    device.step(ids, grads_of(params))
    assert called == ["before", "after", "all"]


def test_hooks_are_called_once_for_a_step_that_calls_this_one():
    class Told(DeviceAdam):
        def step(self, *args, **kwargs):
            return super().step(*args, **kwargs)

    params, told = make(Told)
    called = []
    told.register_step_pre_hook(lambda *_: called.append("before"))
    told.register_step_post_hook(lambda *_: called.append("after"))
    told.step(torch.tensor([3, 5]), grads_of(params))
    assert called == ["before", "after"]


def test_a_step_is_in_torchs_profile_and_schedulers_count_it():
    params, device = make(DeviceAdam)
    scheduler = torch.optim.lr_scheduler.StepLR(device, 1, gamma=0.5)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        device.step(torch.tensor([3, 5]), grads_of(params))
    names = [event.key for event in profile.key_averages()]
    assert names.count("Optimizer.step#DeviceAdam.step") == 1
    scheduler.step()  # warns where no step was counted before
    assert device.param_groups[0]["lr"] == 0.005


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_steps_are_read_where_the_states_have_them(dtype):
    params, device = make(DeviceAdam)
    walk(device, params, range(2))
    kept = [state["step"] for state in device.state.values()]
    walk(device, params, range(2, 3))
    assert [float(step) for step in kept] == [3.0] * 4
    for step in kept:
        step.fill_(7)  # where it is
    walk(device, params, range(3, 4))
    assert [float(step) for step in kept] == [8.0] * 4
    for state in device.state.values():
        state["step"] = torch.tensor(20, dtype=dtype)  # elsewhere
    walk(device, params, range(4, 5))
    assert [float(state["step"]) for state in device.state.values()] == [21.0] * 4
    assert [float(step) for step in kept] == [8.0] * 4
    device.state[params[1]]["step"].fill_(3)
    with pytest.raises(ValueError, match=r"step must be the same in every state, got \[3, 21\]"):
        walk(device, params, range(5, 6))


@pytest.mark.parametrize("how", ["data", "set_", "shared"])
def test_steps_are_read_where_the_states_have_them_now(how):
    """The tensor is the same, and its memory another: that of before is free."""
    params, device = make(DeviceAdam)
    walk(device, params, range(3))
    for state in device.state.values():
        if how == "data":
            state["step"].data = torch.tensor(20.0)
        elif how == "set_":
            state["step"].set_(torch.tensor(20.0))
        else:
            state["step"].share_memory_().fill_(20)
    walk(device, params, range(3, 4))
    assert [float(state["step"]) for state in device.state.values()] == [21.0] * 4


def test_parameters_that_have_become_others_are_refused():
    params, device = make(DeviceAdam)
    walk(device, params, range(2))
    kept = params[0].data
    for data, error, message in (
        (torch.tensor(1.0), ValueError, r"params\[0\] must have rows and be contiguous"),
        (kept.double(), TypeError, r"params\[0\] must be float32, got torch.float64"),
        (kept[:5], ValueError, "params"),
    ):
        params[0].data = data
        with pytest.raises(error, match=message):
            device.step(torch.tensor([3, 5]), grads_of(params[1:]))
    params[0].data = kept
    walk(device, params, range(2, 3))
