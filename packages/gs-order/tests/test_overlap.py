# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_order import and_counts, estimate_xor_counts, reference, xor_counts
from gs_order.bits import CHUNK_ROWS
from gs_order.overlap import hash_ids


def random_visible(seed, n_rows, n_views):
    rng = np.random.default_rng(seed)
    return rng.random((n_rows, n_views)) < rng.random()


def as_torch(mask):
    return torch.from_numpy(mask.view(np.int32))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n_rows=st.one_of(st.integers(0, 200), st.sampled_from([63, 64, 65, 4096, 4097])),
    n_views=st.one_of(st.integers(1, 70), st.sampled_from([31, 32, 33, 64, 65, 96, 300])),
    kind=st.sampled_from(["uint32", "int32", "torch"]),
)
def test_counts_equal_their_definition(seed, n_rows, n_views, kind):
    visible = random_visible(seed, n_rows, n_views)
    mask = reference.pack(visible)
    mask = {"uint32": mask, "int32": mask.view(np.int32), "torch": as_torch(mask)}[kind]
    counts = visible.astype(np.int64)
    assert (and_counts(mask, n_views=n_views) == counts.T @ counts).all()
    assert (xor_counts(mask, n_views=n_views) == reference.xor_counts(visible)).all()


@pytest.mark.parametrize("n_threads", ["1", "3"])
def test_counts_do_not_depend_on_chunks_or_threads(monkeypatch, n_threads):
    monkeypatch.setenv("GS_NUM_THREADS", n_threads)
    visible = random_visible(1, 2 * CHUNK_ROWS + 77, 40)
    counts = visible.astype(np.float64)  # exact: counts are far below 2^53
    assert (and_counts(reference.pack(visible)) == counts.T @ counts).all()


def test_a_mask_that_is_a_view_of_another_array_is_read_right():
    visible = random_visible(3, 500, 40)
    mask = reference.pack(visible)
    wide = np.zeros((1000, 5), np.uint32)
    wide[::2, 1:3] = mask
    wanted = xor_counts(mask, n_views=40)
    assert (xor_counts(wide[::2, 1:3], n_views=40) == wanted).all()
    strided = torch.from_numpy(wide.view(np.int32))[::2, 1:3]
    assert (xor_counts(strided, n_views=40) == wanted).all()


def test_the_number_of_views_is_the_highest_bit_when_not_given():
    mask = np.zeros((3, 2), np.uint32)
    mask[1, 1] = 1 << 7
    assert xor_counts(mask).shape == (40, 40)
    assert xor_counts(as_torch(mask)).shape == (40, 40)


def test_numpy_and_torch_hash_ids_alike_and_evenly():
    ids = np.arange(100_000, dtype=np.int32)
    hashed = hash_ids(ids)
    assert (hash_ids(torch.from_numpy(ids)).numpy() == hashed).all()
    assert 0 <= hashed.min() <= hashed.max() < 2**31
    share = np.histogram(hashed, bins=16, range=(0, 2**31))[0] / len(ids)
    assert np.abs(share - 1 / 16).max() < 0.005  # six deviations of a binomial with p = 1/16


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_stated_error_of_an_estimate_is_its_real_error(kind):
    visible = random_visible(5, 200_000, 20)
    visible[:, 1] = visible[:, 0]
    mask = reference.pack(visible)
    exact = xor_counts(mask, n_views=20)
    deviations = []
    for block in range(8):  # other ids are another sample
        ids = np.arange(200_000, dtype=np.int32) + block * 200_000
        if kind == "torch":
            found = estimate_xor_counts(
                torch.from_numpy(ids), as_torch(mask), n_views=20, rate=0.02
            )
        else:
            found = estimate_xor_counts(ids, mask, n_views=20, rate=0.02)
        assert 3000 < found.n_sampled < 5000
        assert found.counts[0, 1] == 0
        off = ~np.eye(20, dtype=bool)
        off[0, 1] = off[1, 0] = False
        deviations.append(((found.counts - exact)[off] / found.standard_error[off]).ravel())
    spread = np.concatenate(deviations).std()
    # One if the error is right. The samples of different pairs are correlated, hence the slack.
    assert 0.7 < spread < 1.4


def test_the_whole_as_sample_is_exact():
    visible = random_visible(6, 999, 10)
    found = estimate_xor_counts(
        np.arange(999), reference.pack(visible), n_views=10, rate=np.float16(1)
    )
    assert (found.counts == reference.xor_counts(visible)).all()
    assert (found.standard_error == 0).all()


GOOD = np.ones((4, 2), np.uint32)


@pytest.mark.parametrize(
    ("mask", "n_views", "error", "message"),
    [
        (GOOD, 32, ValueError, "mask must have 1 words for 32 views .*, got 2"),
        (GOOD, 65, ValueError, "mask must have 3 words for 65 views .*, got 2"),
        (
            GOOD << 3,
            35,
            ValueError,
            "mask must have no bits beyond its 35 views, got one for view 35",
        ),
        (as_torch(GOOD << 3), 35, ValueError, "got one for view 35"),
        (GOOD, 0, ValueError, "n_views must be at least 1, got 0"),
        (GOOD * 0, None, ValueError, "mask must have a set bit when n_views is None"),
        (GOOD[0], None, ValueError, r"mask must be \(U, W\) .* got shape \(2,\)"),
        (GOOD[:, :0], None, ValueError, r"W >= 1, got shape \(4, 0\)"),
        (GOOD.astype(np.int64), None, TypeError, "mask must be uint32 .* got int64"),
        (torch.ones(4, 2), None, TypeError, "mask must be .* got float32"),
        ([[1]], None, TypeError, "mask must be a numpy array or a torch tensor, got list"),
    ],
)
def test_bad_masks_are_named(mask, n_views, error, message):
    with pytest.raises(error, match=message):
        xor_counts(mask, n_views=n_views)


def test_bad_samples_are_named():
    with pytest.raises(ValueError, match=r"rate must be in \(0, 1\], got 0"):
        estimate_xor_counts(np.arange(4), GOOD, rate=0)
    with pytest.raises(
        ValueError, match=r"ids must have one entry a row of mask, \(4,\), got \(5,\)"
    ):
        estimate_xor_counts(np.arange(5), GOOD)
