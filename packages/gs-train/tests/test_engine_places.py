# SPDX-License-Identifier: Apache-2.0
"""Which of a batch's rows a microbatch draws, against the bits themselves."""

from __future__ import annotations

import pytest
import torch

from gs_train.engine.microbatches import Microbatch, Seen
from gs_train.engine.places import Places
from gs_train.losses.loss import Crop
from gs_train.renderers import View
from gs_train.renderers.culling import cameras_of

VIEW = View("v", torch.eye(4), torch.eye(3), 8, 8)


def _seen(bits: torch.Tensor, device: str) -> Seen:
    n_rows, n_views = bits.shape
    words = torch.zeros((n_rows, -(-n_views // 32)), dtype=torch.int64)
    for view in range(n_views):
        words[:, view // 32] |= bits[:, view].long() << (view % 32)
    mask = torch.where(words >= 2**31, words - 2**32, words).int()
    ids = (3 * torch.arange(n_rows) + 1).int()
    microbatches = tuple(Microbatch(i, Crop(VIEW, VIEW.rect)) for i in range(n_views))
    counts = tuple(int(n) for n in bits.sum(0))
    cameras = cameras_of([VIEW] * n_views)
    return Seen(microbatches, ids.to(device), mask.to(device), counts, cameras)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("n_rows", [1, 1023, 1024, 5000])
@pytest.mark.parametrize("n_views", [1, 2, 32, 33, 64])
def test_each_microbatch_draws_the_rows_whose_bit_is_set(device, n_rows, n_views):
    g = torch.Generator().manual_seed(n_rows + n_views)
    bits = torch.rand((n_rows, n_views), generator=g) < torch.rand(n_views, generator=g)
    bits[:, 0] = True  # sees all
    bits[:, -1] &= n_views == 1  # sees nothing
    seen = _seen(bits, device)
    slots = torch.randperm(n_rows, generator=g).int().to(device)
    order = torch.randperm(n_views, generator=g).tolist()
    places = Places(seen, slots, order)
    for i in [*order, order[0]]:  # the first one again, as where a batch is drawn anew
        expected = bits[:, i].nonzero().flatten().to(device)
        drawn = places.of(i)
        assert torch.equal(drawn.ids, seen.ids[expected])
        assert torch.equal(drawn.slots, slots[expected])
        if drawn.place is None:
            assert len(expected) == n_rows
        else:
            assert torch.equal(drawn.place.long(), expected)
