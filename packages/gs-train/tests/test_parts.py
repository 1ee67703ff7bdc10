# SPDX-License-Identifier: Apache-2.0
"""Points on the drive by the part of the curve that they lie on."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from gs_train.clouds import parts as parts_module
from gs_train.clouds.parts import Parts

WIDTH = 15


def dealt(rng: np.random.Generator, counts: np.ndarray) -> np.ndarray:
    """A piece of random points by part."""
    return rng.integers(0, 256, (int(counts.sum()), WIDTH), np.uint8)


@pytest.mark.parametrize("waiting_bytes", [1, 40 * WIDTH, 1 << 20])
def test_a_part_has_its_points_in_the_order_of_pieces(tmp_path: Path, waiting_bytes: int) -> None:
    rng, n_parts = np.random.default_rng(0), 7
    parts = Parts(tmp_path, n_parts, waiting_bytes)
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
    parts = Parts(tmp_path, 2, 7 * WIDTH)
    for n_written in (0, 0, 9, 9):
        parts.append(dealt(rng, counts), counts)
        sizes = [path.stat().st_size for path in tmp_path.iterdir()]
        assert sum(sizes) == n_written * WIDTH


def test_a_full_drive_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a part of the bytes, and then none."""
    room = [20]

    def write(descriptor: int, data: memoryview) -> int:
        n = min(room[0], len(data))
        room[0] -= n
        if not n:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return n

    monkeypatch.setattr(parts_module.os, "write", write)
    parts, counts = Parts(tmp_path, 1, 1), np.array([2])
    with pytest.raises(OSError, match="No space left"):
        parts.append(np.zeros((2, WIDTH), np.uint8), counts)
