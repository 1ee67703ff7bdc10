# SPDX-License-Identifier: Apache-2.0
"""Points on the drive by the part of the curve that they lie on."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from gs_train.clouds.part_files import PartFiles, write_bytes

WIDTH = 15


def dealt(rng: np.random.Generator, counts: np.ndarray) -> np.ndarray:
    """A piece of random points by part."""
    return rng.integers(0, 256, (int(counts.sum()), WIDTH), np.uint8)


@pytest.mark.parametrize("waiting_bytes", [1, 40 * WIDTH, 1 << 20])
def test_a_part_has_its_points_in_the_order_of_pieces(tmp_path: Path, waiting_bytes: int) -> None:
    rng, n_parts = np.random.default_rng(0), 7
    parts = PartFiles(tmp_path, n_parts, waiting_bytes)
    expected: list[list[np.ndarray]] = [[] for _ in range(n_parts)]
    for _ in range(20):
        counts = rng.integers(0, 4, n_parts) * (np.arange(n_parts) != 5)
        piece = dealt(rng, counts)
        for part, own in enumerate(np.split(piece, np.cumsum(counts)[:-1])):
            expected[part].append(own)
        parts.append(piece, counts)
    parts.write()
    assert parts.counts.tolist() == [sum(map(len, own)) for own in expected]
    assert len(list(tmp_path.iterdir())) == n_parts - 1  # part 5 has none
    for some in (range(3), range(4, 7), range(3, 4)):
        whole = np.concatenate([piece for part in some for piece in expected[part]])
        assert np.array_equal(parts.take(some), whole)
    assert list(tmp_path.iterdir()) == []


def test_pieces_wait_until_they_fill_their_memory(tmp_path: Path) -> None:
    rng, counts = np.random.default_rng(0), np.array([2, 1])
    parts = PartFiles(tmp_path, 2, 150)
    for n_written in (0, 0, 9, 9):  # a piece has 45 bytes of points and 16 of counts
        parts.append(dealt(rng, counts), counts)
        sizes = [path.stat().st_size for path in tmp_path.iterdir()]
        assert sum(sizes) == n_written * WIDTH


def test_a_piece_without_points_changes_nothing(tmp_path: Path) -> None:
    parts, counts = PartFiles(tmp_path, 2, 1), np.zeros(2, np.int64)
    parts.append(np.empty((0, WIDTH), np.uint8), counts)
    assert list(tmp_path.iterdir()) == []
    assert parts.counts.tolist() == [0, 0]


def test_a_file_that_has_lost_bytes_is_an_error(tmp_path: Path) -> None:
    parts = PartFiles(tmp_path, 1, 1)
    parts.append(np.zeros((4, WIDTH), np.uint8), np.array([4]))
    (path,) = tmp_path.iterdir()
    os.truncate(path, 2 * WIDTH)
    with pytest.raises(OSError, match="must have 60 bytes, got 30"):
        parts.take(range(1))


def test_a_full_drive_is_an_error() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="No space left"):
            write_bytes(descriptor, np.zeros(20, np.uint8))
    finally:
        os.close(descriptor)
