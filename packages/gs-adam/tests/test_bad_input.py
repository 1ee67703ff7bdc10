# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments: one clear error that names the argument, and nothing modified."""

import numpy as np
import pytest
import torch

from gs_adam import HostAdam


@pytest.fixture(params=["dense", "deferred", "sparse"])
def host(request):
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(10, *s, generator=generator)) for s in ((3,), (2, 2))]
    host = HostAdam([{"params": [p]} for p in params], semantics=request.param)
    host.step(grads=[torch.randn_like(p) for p in params])
    return host


def everything(host):
    tensors = [p for group in host.param_groups for p in group["params"]]
    tensors += [host.state[p][key] for p in tensors for key in ("step", "exp_avg", "exp_avg_sq")]
    if host._storage.last_step is not None:
        tensors.append(host._storage.last_step)
    return [t.detach().clone() for t in tensors]


def grads(n_rows):
    return [torch.ones(n_rows, 3), torch.ones(n_rows, 2, 2)]


CASES = {
    "unsorted": (
        torch.tensor([1, 5, 4]),
        grads(3),
        ValueError,
        r"rows must be sorted and unique, got 4 after 5 at position 2",
    ),
    "repeated": (
        torch.tensor([1, 5, 5]),
        grads(3),
        ValueError,
        r"rows must be sorted and unique, got 5 after 5",
    ),
    "negative": (torch.tensor([-1, 5]), grads(2), IndexError, r"rows must be in \[0, 10\), got -1"),
    "beyond": (
        torch.tensor([1, 10], dtype=torch.int32),
        grads(2),
        IndexError,
        r"rows must be in \[0, 10\), got 10",
    ),
    "float ids": (
        torch.tensor([1.0]),
        grads(1),
        TypeError,
        r"rows must be int32 or int64, got float32",
    ),
    "ids of two dimensions": (
        torch.zeros(2, 1, dtype=torch.int64),
        grads(2),
        ValueError,
        r"rows must have shape \(any\), got \(2, 1\)",
    ),
    "a list": ([1, 2], grads(2), TypeError, r"rows must be a numpy or torch array, got list"),
    "a closure": (
        lambda: torch.zeros(()),
        grads(1),
        TypeError,
        r"rows must be .*, got (a closure|function)",
    ),
    "a short mask": (
        torch.ones(9, dtype=torch.bool),
        grads(9),
        ValueError,
        r"rows must be a mask of \(10,\), got shape \(9,\)",
    ),
    "width": (
        torch.tensor([1]),
        [torch.ones(1, 3), torch.ones(1, 5)],
        ValueError,
        r"grads\[1\] must have 4 values a row, got shape \(1, 5\)",
    ),
    "row count": (
        torch.tensor([1, 2]),
        grads(3),
        ValueError,
        r"grads\[0\] must have 2 rows \(or 10\), got shape \(3, 3\)",
    ),
    "mixed row counts": (
        torch.tensor([1]),
        [torch.ones(1, 3), torch.ones(10, 2, 2)],
        ValueError,
        r"grads must have the same number of rows each",
    ),
    "too few": (
        torch.tensor([1]),
        [torch.ones(1, 3)],
        ValueError,
        r"grads must have one entry a parameter \(2\), got 1",
    ),
    "a tensor": (
        torch.tensor([1]),
        torch.ones(1, 3),
        TypeError,
        r"grads must be a list of arrays, got Tensor",
    ),
    "double": (
        torch.tensor([1]),
        [g.double() for g in grads(1)],
        TypeError,
        r"grads\[0\] must be float32, got float64",
    ),
    "stride": (
        torch.tensor([1, 2]),
        [torch.ones(3, 2).T, torch.ones(2, 2, 2)],
        ValueError,
        r"grads\[0\] must have contiguous rows",
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("how", ["step", "update"])
def test_arguments_of_a_step_are_checked_before_anything_changes(host, case, how):
    rows, gradients, error, message = CASES[case]
    options = {"step": host.begin_step()} if how == "update" else {}
    before, count = everything(host), host.step_count
    with pytest.raises(error, match=message):
        getattr(host, how)(rows, gradients, **options)
    assert host.step_count == count
    assert all(torch.equal(a, b) for a, b in zip(everything(host), before, strict=True))


def test_steps_that_are_not_open_are_refused(host):
    for number in (0, 1, 2):
        with pytest.raises(ValueError, match=rf"step must be an open .* \[\]\), got {number}"):
            host.update(torch.tensor([1]), grads(1), step=number)
        with pytest.raises(ValueError, match=r"step must be an open step"):
            host.end_step(number)
    one, two = host.begin_step(), host.begin_step()
    with pytest.raises(ValueError, match=rf"step must end after step {one}, got {two}"):
        host.end_step(two)
    with pytest.raises(RuntimeError, match=r"step\(\) needs steps \[2, 3\] to end first"):
        host.step(grads=grads(10))
    with pytest.raises(RuntimeError, match=r"state_dict\(\) needs steps \[2, 3\] to end first"):
        host.state_dict()


def test_rows_are_updated_once_a_step():
    p = torch.nn.Parameter(torch.zeros(10, 3))
    for semantics in ("dense", "deferred"):
        host = HostAdam([p], semantics=semantics)
        step = host.begin_step()
        host.update(torch.tensor([1, 2]), [torch.ones(2, 3)], step=step)
        before = p.detach().clone()
        with pytest.raises(ValueError, match=r"rows must be updated once .* row 2 in step 1"):
            host.update(torch.tensor([2, 3]), [torch.ones(2, 3)], step=step)
        assert torch.equal(p, before)


def test_a_step_without_any_gradient_is_none(host):
    before = [param.clone() for group in host.param_groups for param in group["params"]]
    count = host.step_count
    host.step()
    assert host.step(lambda: "loss") == "loss"  # it made none
    host.step(torch.zeros(10**6, dtype=torch.bool))  # of rows that are no more
    assert host.step_count == count
    after = [param for group in host.param_groups for param in group["params"]]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ([torch.zeros(3, 2, dtype=torch.float64)], TypeError, r"params\[0\] must be float32"),
        ([torch.zeros(())], ValueError, r"params\[0\] must have rows, got a scalar"),
        (
            [torch.zeros(3), torch.zeros(4)],
            ValueError,
            r"params\[1\] must have 3 rows as params\[0\]",
        ),
        ([torch.zeros(3, device="meta")], ValueError, r"params\[0\] must be on the CPU, got meta"),
    ],
)
def test_tensors_are_checked_at_construction(params, error, message):
    with pytest.raises(error, match=message):
        HostAdam(params)


def test_strides_are_checked_at_construction():
    with pytest.raises(ValueError, match=r"params\[0\] must have contiguous rows"):
        HostAdam([torch.zeros(3, 4).T])
    with pytest.raises(ValueError, match=r"params\[0\] must have rows that do not overlap"):
        HostAdam([torch.zeros(1, 4).expand(3, 4)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"semantics": "lazy"}, r"semantics must be one of dense, deferred, sparse, got 'lazy'"),
        ({"bias_correction": "row"}, r"bias_correction must be global or off, got 'row'"),
        ({"bias_correction": "off"}, r"bias_correction must be global with deferred, got 'off'"),
        ({"threads": 0}, r"threads must be at least 1, got 0"),
        ({"lr": -1.0}, r"lr must be at least 0 and finite, got -1.0"),
        ({"betas": (1.0, 0.9)}, r"betas must be in \[0, 1\), got \(1.0, 0.9\)"),
        ({"eps": float("nan")}, r"eps must be at least 0 and finite, got nan"),
        ({"weight_decay": -0.1}, r"weight_decay must be at least 0 and finite, got -0.1"),
        ({"state": {"exp_avg": []}}, r"state must hold \['exp_avg', 'exp_avg_sq', 'last_step'\]"),
    ],
)
def test_options_are_checked_at_construction(options, message):
    with pytest.raises(ValueError, match=message):
        HostAdam([torch.zeros(3, 2)], **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eps": 0.0}, r"eps must be at least 1e-20 where rows sleep, got 0"),
        ({"betas": (0.999, 0.9)}, r"betas must satisfy beta1 <= beta2"),
        ({"lr": 2.0, "weight_decay": 0.5}, r"lr \* weight_decay must be below 1 where rows sleep"),
        ({"amsgrad": True}, r"amsgrad must be False, got True"),
        ({"maximize": True}, r"maximize must be False, got True"),
        ({"weight_decay": 0.1, "decoupled_weight_decay": False}, r"weight_decay must be decoupled"),
    ],
)
def test_options_that_rows_cannot_sleep_through_are_refused_when_a_step_begins(change, message):
    host = HostAdam([torch.zeros(3, 2)])
    host.param_groups[0].update(change)
    with pytest.raises(ValueError, match=message):
        host.begin_step()
    assert host.step_count == 0


def test_state_of_other_shapes_is_refused_and_nothing_changed(host):
    other = HostAdam([{"params": [torch.zeros(11, *s)]} for s in ((3,), (2, 2))])
    other.step(grads=grads(11))
    before = everything(host)
    message = r"state_dict must hold exp_avg of params\[0\] with shape \(10, 3\), got \(11, 3\)"
    with pytest.raises(ValueError, match=message):
        host.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match=r"state_dict must have groups of \[1, 1\] param"):
        host.load_state_dict(torch.optim.Adam([torch.zeros(10, 3)]).state_dict())
    assert all(torch.equal(a, b) for a, b in zip(everything(host), before, strict=True))


def test_it_says_how_to_save_it(host):
    import pickle

    with pytest.raises(TypeError, match=r"HostAdam must be saved with state_dict\(\)"):
        pickle.dumps(host)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_rows_with_nonfinite_gradients_are_counted_and_can_be_skipped(bad):
    values = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    poisoned = values.clone()
    poisoned[2, 4] = poisoned[4, 0] = bad
    for semantics in ("dense", "deferred", "sparse"):
        p, q = (torch.nn.Parameter(torch.ones(6, 5)) for _ in range(2))
        host = HostAdam([p], semantics=semantics, skip_nonfinite=True)
        clean = HostAdam([q], semantics=semantics)
        rows = torch.tensor([0, 1, 3, 5])
        for number in range(3):
            host.step(grads=[poisoned if number else values])
            clean.step(rows if number else None, [values[rows] if number else values])
        for h in (host, clean):
            h.flush()
        assert host.nonfinite_rows == 4
        assert torch.equal(p, q)
        plain = HostAdam([torch.zeros(6, 5)], semantics=semantics)
        plain.step(grads=[poisoned])
        assert plain.nonfinite_rows == 2
        changed = plain.param_groups[0]["params"][0]
        assert bool(torch.isfinite(changed[[0, 1, 3, 5]]).all())
        assert not torch.isfinite(changed[2, 4])


def test_numpy_rows_and_gradients_are_taken():
    p, q = (torch.zeros(6, 2) for _ in range(2))
    a, b = HostAdam([p]), HostAdam([q])
    a.step(np.array([1, 4]), [np.ones((2, 2), np.float32)])
    b.step(np.arange(6) % 3 == 1, [torch.ones(2, 2)])
    assert torch.equal(p, q)
    assert p[1, 0] != 0
