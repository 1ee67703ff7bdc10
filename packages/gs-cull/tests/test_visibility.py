# SPDX-License-Identifier: Apache-2.0
"""Set arithmetic on masks, and the plain forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gs_cull

from .oracle import random_scene, seen_by


def visibility_of(seen: np.ndarray) -> gs_cull.Visibility:
    """A Visibility made from (B, N) booleans."""
    ids = np.flatnonzero(seen.any(0)).astype(np.int32)
    n_views = len(seen)
    words = -(-n_views // 32)
    bits = np.zeros((len(ids), 32 * words), bool)
    bits[:, :n_views] = seen[:, ids].T
    mask = np.packbits(bits, axis=1, bitorder="little").view(np.uint32).reshape(len(ids), words)
    return gs_cull.Visibility(ids, mask, seen.sum(1).astype(np.int32), 0)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    n_views=st.integers(0, 70),
    n=st.sampled_from([0, 1, 63, 64, 65, 4095, 4096, 4097, 9000]),
    share=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    as_torch=st.booleans(),
)
def test_pair_counts_equal_those_of_booleans(
    seed: int, n_views: int, n: int, share: float, as_torch: bool
) -> None:
    seen = np.random.default_rng(seed).random((n_views, n)) < share
    visibility = visibility_of(seen)
    if as_torch:
        visibility = gs_cull.Visibility(
            torch.from_numpy(visibility.ids),
            torch.from_numpy(visibility.mask.view(np.int32)),
            torch.from_numpy(visibility.counts),
            0,
        )
    as_int = seen.astype(np.int64)
    both, either = visibility.and_counts(), visibility.xor_counts()
    assert isinstance(both, torch.Tensor) == as_torch
    assert both.tolist() == (as_int @ as_int.T).tolist()
    assert either.tolist() == (as_int @ (1 - as_int).T + (1 - as_int) @ as_int.T).tolist()


def test_view_raises_for_views_that_are_not_there() -> None:
    scene = random_scene(1, 100, 2)
    visibility = gs_cull.cull(*scene.arguments)
    assert visibility.view(-2).tolist() == visibility.view(0).tolist()
    for i in (2, -3):
        with pytest.raises(IndexError, match=f"view must be from -2 to 1, got {i}"):
            visibility.view(i)


def test_repr_names_sizes_and_kind() -> None:
    scene = random_scene(1, 100, 2)
    visibility = gs_cull.cull(*scene.arguments)
    assert repr(visibility) == f"Visibility(2 views see {len(visibility.ids)} rows; numpy)"
    blocks = gs_cull.Blocks.build(*scene.arguments[:3], block_size=32).to("cpu")
    assert repr(blocks) == "Blocks(4 of 32: 100 rows permuted; torch, cpu)"


@pytest.mark.parametrize("as_torch", [True, False])
def test_plain_forms_of_one_view(as_torch: bool) -> None:
    scene = random_scene(2, 1_000, 1)
    expected = seen_by(gs_cull.cull(*scene.arguments, opacities=scene.opacities), 1_000)[0]
    arrays = [scene.means, scene.scales, scene.quats, scene.viewmats[0], scene.Ks[0]]
    opacities = scene.opacities
    if as_torch:
        arrays = [torch.from_numpy(a) for a in arrays]
        opacities = torch.from_numpy(opacities)
    size = (scene.width, scene.height)
    mask = gs_cull.visible_mask(*arrays, *size, opacities=opacities)
    ids = gs_cull.visible_ids(*arrays, *size, opacities=opacities)
    assert isinstance(mask, torch.Tensor) == as_torch
    assert mask.tolist() == expected.tolist()
    assert ids.tolist() == np.flatnonzero(expected).tolist()


@pytest.mark.parametrize(("n_views", "bit"), [(2, 2), (2, 31), (33, 33), (63, 63)])
@pytest.mark.parametrize("as_torch", [True, False])
def test_bits_of_views_that_are_not_there_are_refused(
    n_views: int, bit: int, as_torch: bool
) -> None:
    ids, words = np.arange(5_000, dtype=np.int32), -(-n_views // 32)
    mask = np.ones((5_000, words), np.uint32)
    mask[4_999, -1] |= np.uint32(1 << bit % 32)
    arrays = (ids, mask)
    if as_torch:
        arrays = (torch.from_numpy(ids), torch.from_numpy(mask.view(np.int32)))
    message = f"mask must have no bits beyond its {n_views} views, got one for view {bit} in row 4"
    with pytest.raises(ValueError, match=message):
        gs_cull.Visibility.of_mask(*arrays, n_views, 0)
    counts = gs_cull.Visibility.of_mask(*arrays, bit + 1, 0).counts.tolist()
    assert counts[bit] == 1
    assert counts[0] == 5_000
