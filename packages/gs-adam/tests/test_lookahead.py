# SPDX-License-Identifier: Apache-2.0
"""What will be written, computed elsewhere before."""

import numpy as np
import pytest
import torch

from gs_adam import HostAdam, Worker


def rows_between(low, high, chance, generator):
    ids = torch.arange(low, high)
    return ids[torch.rand(high - low, generator=generator) < chance].int()


@pytest.fixture
def host():
    generator = torch.Generator().manual_seed(1)
    params = [torch.nn.Parameter(torch.randn(200, *s, generator=generator)) for s in ((3,), (2, 3))]
    host = HostAdam([{"params": [p], "lr": 0.01} for p in params])
    for _ in range(60):
        rows = rows_between(0, 200, 0.05, generator)
        host.step(rows, [torch.randn(len(rows), *p.shape[1:], generator=generator) for p in params])
    return host


def test_it_gives_the_bits_that_update_and_flush_write(host):
    params = [group["params"][0] for group in host.param_groups]
    before = [p.detach().clone() for p in params]
    pending = torch.tensor([3, 4, 50, 51, 199], dtype=torch.int32)
    grads = [torch.randn(5, *p.shape[1:]) for p in params]
    asked = torch.tensor([0, 3, 4, 49, 51, 120, 199])
    step = host.begin_step()
    out = [torch.full((7, *p.shape[1:]), -1.0) for p in params]
    assert host.lookahead(asked, step=step, pending=(pending, grads), out=out) is out
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))
    host.update(pending, grads, step=step)
    again = host.lookahead(asked, step=step)
    host.end_step(step)
    host.flush()
    for p, a, b in zip(params, out, again, strict=True):
        assert torch.equal(p[asked], a)
        assert torch.equal(p[asked], b)


def written(host):
    params = [group["params"][0] for group in host.param_groups]
    moments = [host.state[p][key] for p in params for key in ("exp_avg", "exp_avg_sq")]
    own = host.state_dict().get("gs_adam")
    tensors = [*params, *moments, *([own["last_step"]] if own else [])]
    return [tensor.detach().clone() for tensor in tensors]


def test_without_a_step_it_is_what_flush_writes(host):
    before = written(host)
    ahead = host.lookahead(None)
    assert all(torch.equal(a, b) for a, b in zip(written(host), before, strict=True))
    host.flush(torch.arange(100))
    host.flush(torch.arange(200) >= 100)
    for group, a in zip(host.param_groups, ahead, strict=True):
        assert torch.equal(group["params"][0], a)


@pytest.mark.parametrize("semantics", ["dense", "deferred", "sparse"])
@pytest.mark.parametrize("order", [(0, 3), (3, 0), (0, 0)])
def test_tensors_without_columns_change_nothing(semantics, order):
    # As the spherical harmonics of degree 0: (N, 0, 3), at no address.
    hosts = []
    for widths in (order, [w for w in order if w] or [0]):
        params = [torch.zeros(6, w) for w in widths]
        host = HostAdam([{"params": [p]} for p in params], lr=0.1, semantics=semantics)
        host.step(None, [torch.ones(6, w) for w in widths])
        for _ in range(5):
            host.step(torch.tensor([0]), [torch.ones(1, w) for w in widths])
        before = written(host)
        host.lookahead(torch.tensor([4, 5]))
        assert all(torch.equal(a, b) for a, b in zip(written(host), before, strict=True))
        step, rows = host.begin_step(), torch.tensor([1, 4])
        ahead = host.lookahead(rows, step=step, pending=(rows, [torch.ones(2, w) for w in widths]))
        host.update(rows, [torch.ones(2, w) for w in widths], step=step)
        assert all(torch.equal(a, p[rows]) for a, p in zip(ahead, params, strict=True))
        host.end_step(step)
        host.flush()
        hosts.append(written(host))
    with_columns = [[t for t in tensors if t.numel()] for tensors in hosts]
    assert all(torch.equal(a, b) for a, b in zip(*with_columns, strict=True))


def test_flush_twice_changes_nothing_more(host):
    host.flush()
    once = [g["params"][0].detach().clone() for g in host.param_groups]
    host.flush()
    assert all(torch.equal(g["params"][0], p) for g, p in zip(host.param_groups, once, strict=True))


def test_rows_can_be_looked_up_as_of_an_earlier_step(host):
    asked = np.array([0, 7, 120], np.int32)
    params = [group["params"][0] for group in host.param_groups]
    expected = host.lookahead(asked)
    with Worker(host) as worker:
        earlier = host.now()
        host.end_step(host.begin_step())
        out = [torch.zeros(3, *p.shape[1:]) for p in params]
        worker.wait(worker.lookahead(asked, out=out, as_of=earlier))
        later = host.lookahead(asked)
        with pytest.raises(ValueError, match="as_of"):
            worker.lookahead(asked, out=out, step=host.begin_step(), as_of=earlier)
        with pytest.raises(ValueError, match=r"as_of must be what now\(\) of the same"):
            worker.lookahead(asked, out=out, as_of=HostAdam([torch.zeros(200, 3)]).now())
    for a, b, c in zip(out, expected, later, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_in_dense_semantics_unseen_rows_get_the_step_of_a_zero_gradient():
    p = torch.nn.Parameter(torch.randn(30, 4))
    host = HostAdam([p], lr=0.1, semantics="dense")
    for _ in range(3):
        host.step(grads=[torch.randn(30, 4)])
    step = host.begin_step()
    pending, grads = torch.tensor([5, 6, 20]), [torch.randn(3, 4)]
    ahead = host.lookahead(None, step=step, pending=(pending, grads))[0]
    host.update(pending[1:], [grads[0][1:]], step=step)
    halfway = host.lookahead(None, step=step, pending=(pending[:1], [grads[0][:1]]))[0]
    host.update(pending[:1], [grads[0][:1]], step=step)
    host.end_step(step)
    assert torch.equal(ahead, p)
    assert torch.equal(halfway, p)


def test_pending_gradients_need_a_step(host):
    with pytest.raises(ValueError, match=r"step must be given with pending gradients, got None"):
        host.lookahead(None, pending=(torch.tensor([1]), []))
    with pytest.raises(ValueError, match=r"step must be an open step \(open: \[\]\), got 3"):
        host.lookahead(None, step=3)


def test_outputs_of_another_shape_are_refused(host):
    rows = torch.tensor([1, 2])
    with pytest.raises(ValueError, match=r"out\[1\] must have 6 values a row, got shape \(2, 5\)"):
        host.lookahead(rows, out=[torch.empty(2, 3), torch.empty(2, 5)])
    with pytest.raises(ValueError, match=r"out\[0\] must have 2 rows, got shape \(3, 3\)"):
        host.lookahead(rows, out=[torch.empty(3, 3), torch.empty(2, 2, 3)])
