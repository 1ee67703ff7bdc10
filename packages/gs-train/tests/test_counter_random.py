# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gs_train.rows import counter_random
from gs_train.rows.counter_random import Purpose

# Known answers published with the Random123 library (tests/kat_vectors, philox4x32, 10 rounds):
# counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def philox_by_definition(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 in Python's integers, straight from the paper's definition."""
    c, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 1 << 32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) % (1 << 32), (k[1] + 0xBB67AE85) % (1 << 32)]
    return c


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_known_answers(counter, key, expected):
    got = counter_random.philox(
        tuple(torch.tensor([word]) for word in words(counter)), tuple(words(key))
    )
    assert [int(word) for word in got] == words(expected)
    assert philox_by_definition(words(counter), words(key)) == words(expected)


@given(
    seed=st.integers(0, 2**64 - 1),
    purpose=st.sampled_from(list(Purpose)),
    step=st.integers(0, 2**32 - 1),
    ids=st.lists(st.integers(0, 2**32 - 1), min_size=0, max_size=5),
    columns=st.integers(0, 9),
)
@settings(deadline=None, max_examples=60)
def test_bits_are_philox_of_row_block_step_and_purpose_under_the_seed(
    seed, purpose, step, ids, columns
):
    got = counter_random.bits(seed, purpose, step, torch.tensor(ids, dtype=torch.int64), columns)
    key = [seed & 0xFFFFFFFF, seed >> 32]
    expected = [
        [
            philox_by_definition([row, c // 4, step, int(purpose)], key)[c % 4]
            for c in range(columns)
        ]
        for row in ids
    ]
    assert got.shape == (len(ids), columns)
    assert got.dtype == torch.int64
    assert got.tolist() == expected


def test_a_count_of_rows_means_the_first_ids():
    by_count = counter_random.bits(3, Purpose.NOISE, 7, 70_000, 2)
    ids = torch.arange(70_000, dtype=torch.int32)
    assert torch.equal(by_count, counter_random.bits(3, Purpose.NOISE, 7, ids, 2))


@pytest.mark.parametrize("function", ["bits", "uniform", "normal"])
def test_a_row_has_the_same_numbers_alone_in_parts_and_in_any_order(function):
    # 70,000 rows are three chunks of the computation; parts have other vector remainders.
    draw = getattr(counter_random, function)
    whole = draw(11, Purpose.NOISE, 2, 70_000, 3)
    ids = torch.randperm(70_000, generator=torch.Generator().manual_seed(0))[:4321]
    assert torch.equal(draw(11, Purpose.NOISE, 2, ids, 3), whole[ids])
    for row in (0, 32_767, 32_768, 69_999):
        assert torch.equal(draw(11, Purpose.NOISE, 2, torch.tensor([row]), 3)[0], whole[row])


@pytest.mark.parametrize("function", ["bits", "uniform", "normal"])
@pytest.mark.parametrize("columns", [1, 2, 3, 5, 6, 8])
def test_a_column_does_not_depend_on_how_many_are_drawn(function, columns):
    draw = getattr(counter_random, function)
    wide = draw(5, Purpose.SPLIT, 1, 100, 12)
    assert torch.equal(draw(5, Purpose.SPLIT, 1, 100, columns), wide[:, :columns])


def test_seed_purpose_and_step_each_change_every_row():
    base = counter_random.bits(1, Purpose.NOISE, 1, 1000, 1)
    others = [
        counter_random.bits(2, Purpose.NOISE, 1, 1000, 1),
        counter_random.bits(1 + 2**32, Purpose.NOISE, 1, 1000, 1),
        counter_random.bits(1, Purpose.SPLIT, 1, 1000, 1),
        counter_random.bits(1, Purpose.NOISE, 2, 1000, 1),
    ]
    for other in others:
        assert (other != base).all()


def test_purposes_keep_their_numbers():
    assert {purpose.name: int(purpose) for purpose in Purpose} == {
        "INITIAL_POINTS": 1,
        "INITIAL_QUATS": 2,
        "SPLIT": 3,
        "RELOCATE": 4,
        "ADD": 5,
        "NOISE": 6,
        "BACKGROUND": 7,
    }


def test_uniform_is_the_high_bits_of_the_words():
    words = counter_random.bits(9, Purpose.ADD, 4, 1000, 4).numpy()
    single = counter_random.uniform(9, Purpose.ADD, 4, 1000, 4)
    assert single.dtype == torch.float32
    np.testing.assert_array_equal(single.numpy(), (words >> 8).astype(np.float64) / 2**24)
    double = counter_random.uniform(9, Purpose.ADD, 4, 1000, 2, dtype=torch.float64)
    expected = ((words[:, 0::2] >> 0) * 2**21 + (words[:, 1::2] >> 11)).astype(np.float64) / 2**53
    np.testing.assert_array_equal(double.numpy(), expected)


def test_uniform_numbers_are_uniform_and_rows_are_independent():
    # Fixed seed: a deterministic test, chosen to hold for a correct generator at p > 1e-3.
    u = counter_random.uniform(1234, Purpose.NOISE, 0, 100_000, 2).double().numpy()
    assert u.min() >= 0
    assert u.max() < 1
    for column in u.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-3
        assert abs(np.corrcoef(column[:-1], column[1:])[0, 1]) < 4 / np.sqrt(len(column))
    assert abs(np.corrcoef(u.T)[0, 1]) < 4 / np.sqrt(len(u))


def test_normal_is_box_muller_of_the_words():
    words = counter_random.bits(8, Purpose.NOISE, 3, 2000, 4).numpy().astype(np.float64)
    radius = np.sqrt(-2 * np.log((words[:, 0::2] + 1) / 2**32))
    angle = 2 * np.pi * words[:, 1::2] / 2**32
    expected = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1).reshape(-1, 4)
    got = counter_random.normal(8, Purpose.NOISE, 3, 2000, 4)
    assert got.dtype == torch.float32
    # Half an ulp of float32 from the rounding; the float64 parts differ by far less.
    np.testing.assert_allclose(got.double().numpy(), expected, rtol=6e-8, atol=1e-12)


def test_normal_numbers_are_normal():
    z = counter_random.normal(1234, Purpose.NOISE, 0, 100_000, 4).double().numpy()
    assert np.isfinite(z).all()
    for column in z.T:
        assert stats.kstest(column, "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(z.T) - np.eye(4)).max() < 4 / np.sqrt(len(z))


def test_the_smallest_and_largest_words_give_finite_normals(monkeypatch):
    extremes = torch.tensor([[0, 0, 2**32 - 1, 2**32 - 1]])
    monkeypatch.setattr(counter_random, "_words", lambda *counters: extremes)
    z = counter_random.normal(0, Purpose.NOISE, 0, 1, 4)[0]
    # sqrt(2 ln 2^32) = 6.66; ln 1 = 0.
    torch.testing.assert_close(z, torch.tensor([6.6604, 0.0, 0.0, 0.0]), rtol=1e-4, atol=1e-4)


def test_permutation_is_one_and_depends_on_the_step():
    orders = [counter_random.permutation(3, Purpose.INITIAL_POINTS, step, 100) for step in range(2)]
    for order in orders:
        assert order.dtype == torch.int64
        assert order.sort().values.tolist() == list(range(100))
    assert orders[0].tolist() != orders[1].tolist()
    assert counter_random.permutation(3, Purpose.INITIAL_POINTS, 0, 0).tolist() == []
    assert counter_random.permutation(3, Purpose.INITIAL_POINTS, 0, 1).tolist() == [0]


def test_all_permutations_are_equally_likely():
    # Deterministic: chi-squared over the 24 orders of 4 in 2400 draws, accepted at p > 1e-3.
    counts: dict[tuple[int, ...], int] = {}
    for step in range(2400):
        order = tuple(counter_random.permutation(7, Purpose.INITIAL_POINTS, step, 4).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_no_rows_and_no_columns_give_empty_results():
    assert counter_random.uniform(0, Purpose.NOISE, 0, 0, 3).shape == (0, 3)
    assert counter_random.normal(0, Purpose.NOISE, 0, 5, 0).shape == (5, 0)


def test_arguments_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"seed must be at least 0 and below 2\*\*64, got -1"):
        counter_random.bits(-1, Purpose.NOISE, 0, 1, 1)
    with pytest.raises(ValueError, match=r"step must be at least 0 and below 2\*\*32, got -1"):
        counter_random.bits(0, Purpose.NOISE, -1, 1, 1)
    with pytest.raises(ValueError, match="columns must be at least 0, got -1"):
        counter_random.bits(0, Purpose.NOISE, 0, 1, -1)
    with pytest.raises(ValueError, match=r"rows must be at least 0 and at most 2\*\*32, got -1"):
        counter_random.bits(0, Purpose.NOISE, 0, -1, 1)
    with pytest.raises(TypeError, match=r"rows must be a count or .*, got 1-D torch.float32"):
        counter_random.bits(0, Purpose.NOISE, 0, torch.zeros(2), 1)
    with pytest.raises(TypeError, match=r"dtype must be float32 or float64, got torch.float16"):
        counter_random.uniform(0, Purpose.NOISE, 0, 1, 1, dtype=torch.float16)


@pytest.mark.gpu
def test_cuda_gives_the_same_bits_uniforms_and_permutations():
    arguments = (2**40 + 5, Purpose.SPLIT, 12345)
    for function in (counter_random.bits, counter_random.uniform):
        on_cpu = function(*arguments, 100_003, 5)
        on_gpu = function(*arguments, 100_003, 5, device="cuda")
        assert on_gpu.is_cuda
        assert torch.equal(on_gpu.cpu(), on_cpu)
    double = counter_random.uniform(*arguments, 1003, 3, device="cuda", dtype=torch.float64)
    assert torch.equal(
        double.cpu(), counter_random.uniform(*arguments, 1003, 3, dtype=torch.float64)
    )
    order = counter_random.permutation(*arguments, 5000, device="cuda")
    assert torch.equal(order.cpu(), counter_random.permutation(*arguments, 5000))


@pytest.mark.gpu
def test_cuda_gives_the_same_normals_but_for_rare_roundings():
    arguments = (5, Purpose.NOISE, 3, 1 << 20, 3)
    on_cpu = counter_random.normal(*arguments)
    on_gpu = counter_random.normal(*arguments, device="cuda").cpu()
    # Three million numbers at about 1e-8 each: none is expected, ten would be a defect.
    assert (on_cpu != on_gpu).sum() < 10
    torch.testing.assert_close(on_cpu, on_gpu, rtol=2e-7, atol=1e-12)
