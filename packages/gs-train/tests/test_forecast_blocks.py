# SPDX-License-Identifier: Apache-2.0
"""Bytes and seconds that are forecast for rows in blocks, beside those of a real store."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made_up import RATES, WORK, alike
from street import street_rows, street_views

from gs_train.blocks.stored_rows import StoredRows
from gs_train.errors import InputError
from gs_train.options.presets import PRESETS
from gs_train.renderers import RenderOptions, make_renderer
from gs_train.sizing.drive_rates import DriveRates
from gs_train.sizing.forecasts.block_bytes import (
    PAGE,
    BlockMemory,
    block_need,
    drive_bytes,
    looseness,
    n_blocks,
    record_bytes,
    row_bytes,
)
from gs_train.sizing.forecasts.block_speed import block_speed, block_traffic
from gs_train.sizing.workload import BatchRows, Workload

GIB, PRESET = 2**30, PRESETS["none"]
DRIVE = DriveRates(4.0e9, 2.1e9)
N_ROWS = 600
EVERYTHING = {
    "means": 0.03, "scales": 0.02, "quats": 0.01, "opacities": 0.05, "sh0": 0.02, "shN": 0.001,
}  # fmt: skip


def stored_street(path: Path, degree: int, block_rows: int) -> None:
    StoredRows.create(
        path, street_rows(N_ROWS, sh_degree=degree), torch.arange(N_ROWS, dtype=torch.int32),
        block_rows=block_rows, betas=(0.9, 0.999), eps=1e-15, ceilings=EVERYTHING,
    )  # fmt: skip


@pytest.mark.parametrize(("degree", "block_rows"), [(0, 100), (1, 60), (3, 200)])
def test_bytes_of_blocks_are_those_of_a_store(tmp_path: Path, degree: int, block_rows: int) -> None:
    stored_street(tmp_path / "s", degree, block_rows)
    work = replace(WORK, n_rows=N_ROWS, sh_degree=degree)
    with StoredRows.open(tmp_path / "s", slots=4, host_blocks=2) as rows:
        memory = BlockMemory(4, 2, block_rows)
        need = block_need(PRESET, work, memory)
        assert rows.row_bytes == row_bytes(work)
        assert need.device["slots"] == min(4, n_blocks(work, block_rows)) * block_rows * row_bytes(
            work
        )
        arrays = rows.boxes.state().values()
        assert sum(array.nbytes for array in arrays) == 48 * len(rows.boxes)
        assert len(rows.boxes) == n_blocks(work, block_rows)
        # All rows take a step, so that no plane is left out.
        renderer = make_renderer("cpu", RenderOptions())
        for view in street_views():
            look = rows.look([view], renderer)
            ones = {name: torch.rand_like(values) for name, values in look.rows.items()}
            rows.update(look, ones, EVERYTHING)
        rows.snapshot()
    sizes = set()
    for segment in (tmp_path / "s").glob("seg-*"):
        data = segment.read_bytes()
        for start in range(PAGE, len(data), PAGE):
            if data[start : start + 8] == b"GSRECORD":
                n_rows, _, pages = struct.unpack_from("<III", data, start + 44)
                sizes.add((n_rows, pages * PAGE))
    assert max(size for n_rows, size in sizes if n_rows == block_rows) == record_bytes(
        work, block_rows
    )
    assert all(size <= record_bytes(work, block_rows) for _, size in sizes)


def test_rows_of_a_batch_take_what_a_look_takes(tmp_path: Path) -> None:
    stored_street(tmp_path / "s", 3, 50)
    renderer, views = make_renderer("cpu", RenderOptions()), street_views(focal=0.5)[:4]
    with StoredRows.open(tmp_path / "s", slots=12, host_blocks=2) as rows:
        look = rows.look_within(views, renderer, None, most_listed=1 << 30)
        assert look is not None
        assert look.marks is not None
        tensors = [*look.rows.values(), look.keys, look.mask, look.marks, look.parts[0].places]
        each = sum(tensor.nbytes for tensor in tensors) / len(look.keys)
        rows.leave(look)
    small = BatchRows(visible=100.0, union=100.0, largest=100.0)
    work = alike(replace(WORK, n_rows=N_ROWS), small)
    need = block_need(PRESET, work, BlockMemory(12, 2, 50))
    listed = min(N_ROWS, 100 * looseness(100.0, 50))
    assert each <= need.device["rows of batches"] / listed <= each + 16


def test_device_memory_does_not_grow_with_the_scene_and_host_memory_little() -> None:
    memory = BlockMemory(10_000, 20_000, 1024)
    few, many = (block_need(PRESET, replace(WORK, n_rows=n), memory) for n in (10**8, 2 * 10**9))
    assert few.device == many.device
    assert few.pinned == many.pinned
    more = many.host_bytes - few.host_bytes
    # As `tests/test_measured_forecasts.py` holds against a measurement.
    assert more == pytest.approx(0.273 * (2 * 10**9 - 10**8), rel=0.01)


def test_a_saturated_billion_is_as_large_as_its_records() -> None:
    billion = replace(WORK, n_rows=10**9)
    assert 720e9 <= drive_bytes(billion, 1024) <= 735e9


def test_blocks_that_have_room_do_not_move() -> None:
    n = n_blocks(WORK, 1024)
    assert block_speed(WORK, RATES, BlockMemory(n, 2, 1024), None) is not None
    assert block_speed(WORK, RATES, BlockMemory(900, 2, 1024), None) is None
    everything = block_traffic(WORK, BlockMemory(n, 2, 1024))
    assert everything.used > WORK.mean.union / 1024
    assert (everything.loaded, everything.read) == (0, 0)
    in_host = block_traffic(WORK, BlockMemory(n // 2, n, 1024))
    # Half of the blocks would be missing if they were not those that are used last.
    assert everything.used / 6 < in_host.loaded < everything.used / 4
    assert in_host.read == 0
    speed = block_speed(WORK, RATES, BlockMemory(n, 2, 1024), DRIVE)
    assert (speed.bound, speed.link_s, speed.drive_s) == ("device", 0, 0)


@pytest.mark.parametrize("tiles", [False, True])
def test_more_memory_is_never_slower(tiles: bool) -> None:
    work = replace(WORK, n_rows=10**8)
    if tiles:
        work = replace(work, tile_rows=3e6, tile_batches=64)
    rates = [
        block_speed(work, RATES, BlockMemory(slots, places, 1024), DRIVE).images_per_second
        for slots, places in ((500, 2), (2000, 2), (2000, 10_000), (9000, 60_000), (97_657, 2))
    ]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


def test_views_that_see_nothing_move_nothing() -> None:
    blind = block_traffic(alike(WORK, BatchRows()), BlockMemory(10, 10, 1024))
    assert (blind.used, blind.loaded, blind.read, blind.written) == (0, 0, 0, 0)
    assert blind.distinct(1000) == 0


def test_blocks_that_have_no_room_together_move_twice_and_change_once() -> None:
    few = block_traffic(WORK, BlockMemory(100, 50, 1024))
    assert few.used > 150
    assert few.loaded == pytest.approx(2 * few.used - 100)
    assert few.read == pytest.approx(2 * few.used - (150 - 6))  # an eighth of the places stays free
    assert few.written == few.used


def test_many_steps_use_all_blocks_that_are_seen_and_no_other() -> None:
    work = replace(WORK, epoch_rows=5e6, epoch_batches=100.0)
    traffic = block_traffic(work, BlockMemory(100, 5000, 1024))
    assert traffic.used < traffic.seen < n_blocks(work, 1024)
    assert traffic.distinct(1) == pytest.approx(traffic.used)
    assert traffic.distinct(10) < 10 * traffic.used
    assert traffic.distinct(10_000) == pytest.approx(traffic.seen)
    # Beside 256 places that stay free.
    assert block_traffic(work, BlockMemory(100, int(traffic.seen) + 157, 1024)).read == 0
    assert block_traffic(work, BlockMemory(100, int(traffic.seen) + 150, 1024)).read > 0


def test_tiles_move_less_than_shuffled_views() -> None:
    """And a billion rows are bound by the drive, to some tens of images a second and to a few."""
    row = BatchRows(visible=1.92e6, union=1.6e6, two=3e6, largest=5e5, intersections=4e6)
    shuffled: Workload = alike(replace(WORK, n_rows=10**9), row)
    tiles = replace(shuffled, tile_rows=8e6, tile_batches=64)
    memory = BlockMemory(28_000, 75_000, 1024)
    slow, fast = (block_speed(work, RATES, memory, DRIVE) for work in (shuffled, tiles))
    assert (slow.bound, fast.bound) == ("drive", "drive")
    assert 2 < slow.images_per_second < 8
    assert 20 < fast.images_per_second < 80
    twice = block_speed(tiles, RATES, memory, DriveRates(8.0e9, 4.2e9))
    assert twice.drive_s == pytest.approx(fast.drive_s / 2)


def test_rates_of_a_drive_are_read_from_an_option() -> None:
    assert DriveRates.parsed("4GB:2.1GB", option="--drive-rates") == DriveRates(4e9, 2.1e9)
    for text, error in {
        "4GB": "must be READ:WRITE in bytes a second, such as 4GB:2.1GB, got '4GB'",
        "1:2:3": "must be READ:WRITE",
        "fast:1GB": "--drive-rates must be a size such as",
        "0:1GB": "must be two rates above 0, got '0:1GB'",
    }.items():
        with pytest.raises(InputError, match=error):
            DriveRates.parsed(text, option="--drive-rates")
    with pytest.raises(ValueError, match="write must be above 0, got 0"):
        DriveRates(1, 0)


@pytest.mark.parametrize(
    ("memory", "message"),
    [((0, 2, 8), "slots must be at least 1"), ((1, 1, 8), "places must be at least 2")],
)
def test_memory_for_too_few_blocks_is_refused(memory: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BlockMemory(*memory)
