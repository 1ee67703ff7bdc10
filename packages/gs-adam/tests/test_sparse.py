# SPDX-License-Identifier: Apache-2.0
"""Sparse semantics: rows that are not given stand still."""

import pytest
import torch

from gs_adam import HostAdam

EPS = 1e-15


def steps(n_steps, n_rows=60, width=5):
    generator = torch.Generator().manual_seed(0)
    for _ in range(n_steps):
        seen = torch.rand(n_rows, generator=generator) < 0.3
        yield seen, torch.randn(n_rows, width, generator=generator)


@pytest.mark.parametrize("bias_correction", ["off", "global"])
def test_it_is_selective_adam(bias_correction):
    """The formula of gsplat's SelectiveAdam kernel (no correction), and the corrected one."""
    p = torch.nn.Parameter(torch.ones(60, 5))
    host = HostAdam([p], lr=0.1, eps=EPS, semantics="sparse", bias_correction=bias_correction)
    w, m, v = torch.ones(60, 5), torch.zeros(60, 5), torch.zeros(60, 5)
    for step, (seen, grad) in enumerate(steps(50), start=1):
        p.grad = grad
        host.step(seen)
        correction1, correction2 = 1.0, 1.0
        if bias_correction == "global":
            correction1, correction2 = 1 - 0.9**step, 1 - 0.999**step
        mask = seen[:, None]
        m = torch.where(mask, 0.9 * m + (1.0 - 0.9) * grad, m)
        v = torch.where(mask, 0.999 * v + (1.0 - 0.999) * grad * grad, v)
        moved = -0.1 / correction1 * m / ((v / correction2).sqrt() + EPS)
        w = torch.where(mask, w + moved, w)
    # Fifty steps of 0.1 in float32, each rounded once more or less than here.
    torch.testing.assert_close(p.detach(), w, rtol=2e-5, atol=2e-5)


def test_selective_adams_own_rounding_of_betas_is_all_that_differs():
    """gsplat forms 1 - beta in float32: of 0.999 that is 0.00099998713."""
    betas = torch.tensor([0.9, 0.999])
    beta1, beta2 = betas
    weight1, weight2 = 1 - betas
    p = torch.nn.Parameter(torch.ones(60, 5))
    host = HostAdam([p], lr=0.1, eps=EPS, semantics="sparse", bias_correction="off")
    w, m, v = torch.ones(60, 5), torch.zeros(60, 5), torch.zeros(60, 5)
    path = torch.zeros(60, 5)
    for seen, grad in steps(50):
        host.step(seen, [grad])
        mask = seen[:, None]
        m = torch.where(mask, beta1 * m + weight1 * grad, m)
        v = torch.where(mask, beta2 * v + weight2 * grad * grad, v)
        moved = torch.where(mask, -0.1 * m / (v.sqrt() + EPS), 0.0)
        w, path = w + moved, path + moved.abs()
    apart = (p.detach() - w).abs()
    # Half of 1.29e-5 by the root, 2.4e-7 by the first moment, and float32's rounding.
    assert (apart <= 6.7e-6 * path + 1e-6 * (1 + path)).all()
    assert (apart > 4e-6 * path).any(), "the betas' rounding must show"


def test_unseen_rows_and_their_moments_keep_their_bits():
    p = torch.nn.Parameter(torch.randn(20, 3))
    host = HostAdam([p], semantics="sparse")
    host.step(grads=[torch.randn(20, 3)])
    before = [
        x.detach().clone() for x in (p, host.state[p]["exp_avg"], host.state[p]["exp_avg_sq"])
    ]
    rows = torch.tensor([2, 17])
    host.step(rows, [torch.randn(2, 3)])
    after = (p, host.state[p]["exp_avg"], host.state[p]["exp_avg_sq"])
    changed = [(a != b).any(1).nonzero().flatten().tolist() for a, b in zip(after, before)]
    assert changed == [[2, 17]] * 3


def test_lookahead_is_what_the_step_writes():
    p = torch.nn.Parameter(torch.randn(20, 3))
    host = HostAdam([p], semantics="sparse")
    step = host.begin_step()
    rows, grads = torch.tensor([1, 4, 9]), [torch.randn(3, 3)]
    ahead = host.lookahead(torch.arange(12), step=step, pending=(rows, grads))[0]
    host.update(rows, grads, step=step)
    host.end_step(step)
    assert torch.equal(ahead, p[:12])
