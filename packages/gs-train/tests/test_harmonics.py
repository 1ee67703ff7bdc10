# SPDX-License-Identifier: Apache-2.0
"""Harmonics are joined without a copy where they lie side by side, to the same values anyway."""

import pytest
import torch

from gs_train.engine.columns import columns
from gs_train.renderers.harmonics import harmonics


def _parts(k: int, *, n: int = 7, start: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    table = torch.randn(start + n, 3 + 3 * k, generator=torch.Generator().manual_seed(k))
    parts = columns(table[start:])
    return parts["sh0"].requires_grad_(), parts["shN"].requires_grad_()


@pytest.mark.parametrize("k", [0, 3, 8, 15])
@pytest.mark.parametrize("n", [0, 1, 7])
def test_columns_of_a_table_and_copies_of_them_give_the_same(k: int, n: int) -> None:
    beside = _parts(k, n=n)
    apart = [part.detach().clone().requires_grad_() for part in beside]
    weight = torch.randn(n, 1 + k, 3, generator=torch.Generator().manual_seed(1))
    for sh0, sh_n in (beside, apart):
        ((harmonics(sh0, sh_n) ** 2) * weight).sum().backward()
    for one, other in zip(beside, apart):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_columns_of_a_table_are_not_copied() -> None:
    sh0, sh_n = _parts(15)
    joined = harmonics(sh0, sh_n)
    assert joined.data_ptr() == sh0.data_ptr()
    assert torch.equal(joined, torch.cat([sh0, sh_n], 1))
    assert joined.is_contiguous()


@pytest.mark.parametrize("swap", [False, True])
def test_parts_of_one_table_that_are_no_neighbours_are_copied(swap: bool) -> None:
    table = torch.arange(120.0).view(4, 30)
    sh0, sh_n = table[:, :3].unflatten(1, (1, 3)), table[:, 6:15].unflatten(1, (3, 3))
    if swap:  # in front of it, and in another row
        sh0, sh_n = table[1:, 9:12].unflatten(1, (1, 3)), table[:-1, :9].unflatten(1, (3, 3))
    assert torch.equal(harmonics(sh0, sh_n), torch.cat([sh0, sh_n], 1))
