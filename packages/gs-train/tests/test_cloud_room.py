# SPDX-License-Identifier: Apache-2.0
"""How many points of a cloud are worked on at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gs_train.clouds.room import CloudRoom

GB = 1_000_000_000


@pytest.mark.parametrize("n_points", [1_000_000, 100_000_000, 1_000_000_000])
@pytest.mark.parametrize("memory", [2 * GB, 16 * GB, 1000 * GB])
def test_all_threads_have_regions_to_the_end_and_these_fit_together(
    monkeypatch: pytest.MonkeyPatch, n_points: int, memory: int
) -> None:
    monkeypatch.setattr("gs_train.clouds.room.usable_cores", lambda: 16)
    room = CloudRoom(memory)
    parts = room.parts(n_points, Path("points.ply"))
    assert room.region_rows() * 16 * 192 + n_points // 2 <= memory
    assert n_points / room.region_rows() >= min(8 * 16 - 1, n_points >> 16)
    assert n_points / parts <= room.region_rows() / 4 + 1
    assert room.threads == 16
    assert 2 * room.waiting_bytes + 2 * 16 * room.piece_rows * 256 <= memory
    bytes_of_part = min(5000, 15 * n_points // parts)  # opening a file takes as long as these
    assert room.waiting_bytes >= bytes_of_part * parts
