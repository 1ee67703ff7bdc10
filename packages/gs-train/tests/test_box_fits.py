# SPDX-License-Identifier: Apache-2.0
"""Boxes fitted to rows in slots are those fitted to copies of the rows, by kernels as well.

``TRITON_INTERPRET=1`` runs the kernels on the CPU, where Triton is installed.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sleep_trajectories import values_of_all_sizes
from torch import Tensor

from gs_train.blocks.block_planes import MOMENTS
from gs_train.blocks.box_fits import BOXED, SleepingValues, ends_of, least_by_block
from gs_train.blocks.boxes import BlockBoxes
from gs_train.blocks.reach_tables import ReachTables
from gs_train.blocks.sleep_reach import SleepReach
from gs_train.blocks.slot_rows import ListedRows, SlotRows
from gs_train.rows.attributes import GEOMETRY_WIDTH

BLOCK_ROWS, N_SLOTS = 100, 9
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
is_interpreted = bool(os.environ.get("TRITON_INTERPRET")) and bool(
    importlib.util.find_spec("triton")
)


def tables_of(seed: int, last: int) -> dict[str, Tensor]:
    """Rows whose values and moments are of all sizes, some of them not finite."""
    draw = np.random.default_rng(seed)
    n = N_SLOTS * BLOCK_ROWS
    parts = values_of_all_sizes(n * GEOMETRY_WIDTH, draw)
    tables = {
        f"geometry{moment}": torch.from_numpy(part).view(n, GEOMETRY_WIDTH).clone()
        for moment, part in zip(MOMENTS, parts, strict=True)
    }
    usual = torch.from_numpy(draw.random(n) < 0.7)
    for name, table in tables.items():
        table[usual] = torch.from_numpy(draw.uniform(-3, 3, (n, GEOMETRY_WIDTH))).float()[usual]
        if name.endswith("_sq"):
            table.abs_()
    values = tables["geometry"]
    for row, value in enumerate((np.nan, np.inf, -np.inf)):
        values[7 + row, row] = value
        values[11 + row, 3 + row] = value
    tables["geometry.exp_avg"][20, 1] = np.nan
    tables["geometry.exp_avg_sq"][21, 4] = np.inf
    tables["geometry.exp_avg"][22] = 0.0
    tables["last_step"] = torch.from_numpy(draw.integers(0, last + 1, (n, 1))).int()
    return tables


def reaches_of(betas: tuple[float, float]) -> tuple[SleepReach, SleepReach]:
    reaches = SleepReach(betas, 1e-15, 2.0), SleepReach(betas, 1e-8, 0.1)
    for step in range(40):
        for reach, rate in zip(reaches, (1.0, 0.05), strict=True):
            reach.record_step(rate * (2.0 if step % 17 == 16 else 0.9**step))
    for reach in reaches:
        reach.set_ceiling(0.5 * reach.ceiling)
    return reaches


def slots_and_counts(seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    slots = draw.permutation(N_SLOTS)[:6].astype(np.int32)
    return slots, np.array([BLOCK_ROWS, 0, 1, 63, 64, 65], np.int64)


def row_by_row(
    slots: np.ndarray, counts: np.ndarray, tables: dict[str, Tensor], reaches: ReachTables
) -> Tensor:
    """(n, 9) the least of the rows of each block."""
    least = []
    for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
        rows = slice(slot * BLOCK_ROWS, slot * BLOCK_ROWS + count)
        values = [
            SleepingValues(
                *(tables[f"geometry{moment}"][rows, columns] for moment in MOMENTS),
                last_step=tables["last_step"][rows, 0],
                reach=reach,
            )
            for columns, reach in zip(BOXED.values(), (reaches.means, reaches.scales), strict=True)
        ]
        nothing = torch.tensor([[np.inf] * 7 + [0.0] * 2], dtype=torch.float64)
        least.append(torch.cat([ends_of(*values), nothing]).amin(0))
    return torch.stack(least)


def assert_equal_ends(ours: Tensor, theirs: Tensor) -> None:
    """Apart by 2^-40 of the interval that each end is of, at most; empty boxes as well."""
    ours, theirs = ours.cpu(), theirs.clone()
    theirs[:, 7:].clamp_max_(0.0)
    ours[:, 7:].clamp_max_(0.0)
    assert torch.equal(ours.isfinite(), theirs.isfinite())
    sizes = theirs.abs() + torch.cat([theirs[:, 7:8].abs().expand(-1, 6), theirs[:, 6:].abs()], 1)
    finite = theirs.isfinite()
    excess = (ours - theirs).abs()[finite]
    assert (excess <= 2.0**-40 * sizes.nan_to_num(posinf=1e300)[finite]).all()
    assert torch.equal(ours[~finite], theirs[~finite])


def check(device: str, betas: tuple[float, float], fit: Callable[..., Tensor]) -> None:
    means, scales = reaches_of(betas)
    reaches = ReachTables(means, scales, torch.device(device))
    for turn in range(3):
        tables = tables_of(turn, means.step)
        slots, counts = slots_and_counts(turn)
        there = {name: table.to(device) for name, table in tables.items()}
        rows = SlotRows(slots, counts, BLOCK_ROWS, torch.device(device))
        assert_equal_ends(fit(rows, there, reaches), row_by_row(slots, counts, tables, reaches))
        # A step as usual, one with a rate above those before, and many of them at once.
        for _ in range((1, 1, 5000)[turn]):
            for reach in (means, scales):
                reach.record_step((0.3, 1.0, 0.1)[turn] * reach.ceiling)
                reach.set_ceiling(0.9999 * reach.ceiling)


@DEVICES
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9**8, 0.999**8), (0.0, 0.9)])
def test_a_fit_in_slots_is_that_of_the_rows(device: str, betas: tuple[float, float]) -> None:
    check(device, betas, least_by_block)


@DEVICES
def test_places_are_those_of_all_rows(device: str) -> None:
    slots, counts = slots_and_counts(1)
    rows = SlotRows(slots, counts, BLOCK_ROWS, torch.device(device))
    expected = [s * BLOCK_ROWS + r for s, c in zip(slots, counts, strict=True) for r in range(c)]
    assert rows.places().tolist() == expected
    assert rows.n_rows == len(expected)
    nothing = SlotRows(slots[:0], counts[:0], BLOCK_ROWS, torch.device(device))
    assert nothing.places().tolist() == []


def masks_of(n_blocks: int, words: int, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return draw.integers(0, 2**32, (n_blocks, words), dtype=np.uint32)


def check_lists(rows: SlotRows, device: str, lists: Callable[..., ListedRows]) -> None:
    """``rows`` are of `slots_and_counts(2)` and `masks_of(6, ..., 2)`."""
    slots, counts = slots_and_counts(2)
    words = rows.layout.shape[0] - 3
    draw = np.random.default_rng(3)
    n = N_SLOTS * BLOCK_ROWS
    tables = {
        name: torch.from_numpy(draw.integers(0, 2**31, (n, 1))).int().to(device)
        for name in ("key", "last_step")
    }
    found = lists(rows, tables)
    places = [s * BLOCK_ROWS + r for s, c in zip(slots, counts, strict=True) for r in range(c)]
    assert found.places.tolist() == places
    assert found.places.dtype == torch.int64
    assert found.ids.tolist() == list(range(len(places)))
    for name, values in (("key", found.keys), ("last_step", found.last_step)):
        assert torch.equal(values, tables[name].view(-1)[found.places])
    masks = masks_of(6, words, 2).view(np.int32).repeat(counts, axis=0)
    np.testing.assert_array_equal(found.mask.cpu().numpy(), masks)
    assert {part.dtype for part in found[1:]} == {torch.int32}
    found.last_step.zero_()
    assert tables["last_step"].any()


def check_counts(device: str, counts_in: Callable[..., Tensor]) -> None:
    slots, counts = slots_and_counts(4)
    rows = SlotRows(slots, counts, BLOCK_ROWS, torch.device(device))
    for share in (0.0, 0.3, 1.0):
        marks = np.random.default_rng(5).random(rows.n_rows) < share
        found = counts_in(rows, torch.from_numpy(marks).to(device))
        own = np.split(marks, np.cumsum(counts)[:-1])
        assert found.tolist() == [int(part.sum()) for part in own]


@DEVICES
@pytest.mark.parametrize("words", [1, 3])
def test_rows_are_listed_with_the_masks_of_their_blocks(device: str, words: int) -> None:
    slots, counts = slots_and_counts(2)
    masks = masks_of(6, words, 2)
    rows = SlotRows(slots, counts, BLOCK_ROWS, torch.device(device), masks)
    check_lists(rows, device, lambda rows, tables: rows.listed(tables))


@DEVICES
def test_marked_rows_are_counted_by_block(device: str) -> None:
    check_counts(device, lambda rows, marks: rows.count(marks))


@DEVICES
def test_no_blocks_are_no_work(device: str) -> None:
    means, scales = reaches_of((0.9, 0.999))
    tables = {name: table.to(device) for name, table in tables_of(0, means.step).items()}
    slots, counts = slots_and_counts(0)
    rows = SlotRows(slots[:0], counts[:0], BLOCK_ROWS, torch.device(device))
    reaches = ReachTables(means, scales, torch.device(device))
    assert least_by_block(rows, tables, reaches).shape == (0, 9)
    boxes = BlockBoxes(3)
    boxes.fit_in_slots(np.zeros(0, np.int64), rows, tables, reaches)
    assert (boxes.state()["lower"] == np.inf).all()


@DEVICES
@pytest.mark.parametrize("chosen", [None, np.array([0, 1, 1, 0, 1, 1], bool), np.zeros(6, bool)])
def test_boxes_are_written_when_they_are_asked_for(device: str, chosen: np.ndarray | None) -> None:
    """Those of the blocks that are fitted, and no others."""
    means, scales = reaches_of((0.9, 0.999))
    tables = tables_of(0, means.step)
    slots, counts = slots_and_counts(0)
    boxes, expected = BlockBoxes(12), BlockBoxes(12)
    blocks = np.array([2, 3, 5, 7, 11, 0])
    there = {name: table.to(device) for name, table in tables.items()}
    rows = SlotRows(slots, counts, BLOCK_ROWS, torch.device(device))
    reaches = ReachTables(means, scales, torch.device(device))
    boxes.fit_in_slots(blocks, rows, there, reaches, chosen=chosen)
    places = SlotRows(slots, counts, BLOCK_ROWS, torch.device("cpu")).places()
    values = [
        SleepingValues(
            *(tables[f"geometry{moment}"][places][:, columns] for moment in MOMENTS),
            last_step=tables["last_step"][places, 0],
            reach=reach,
        )
        for columns, reach in zip(BOXED.values(), (means, scales), strict=True)
    ]
    if chosen is None:
        chosen = np.ones(6, bool)
    own = torch.from_numpy(chosen.repeat(counts))
    values = [v._replace(**{n: part[own] for n, part in zip(v._fields, v[:4])}) for v in values]
    expected.fit(blocks[chosen], counts[chosen], means=values[0], scales=values[1])
    ours, theirs = boxes.state(), expected.state()
    for name, array in theirs.items():
        if device == "cpu" or name in ("ceilings", "fit_step"):
            np.testing.assert_array_equal(ours[name], array, name)
        else:  # rounded outward from ends that differ little: neighbours of float32
            np.testing.assert_array_max_ulp(ours[name], array, 1)
    assert (ours["lower"][[1, 3]] == np.inf).all()
    assert (ours["scale"][[1, 3]] == 0).all()


@pytest.mark.skipif(not is_interpreted, reason="kernels are not interpreted")
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9**8, 0.999**8)])
def test_the_kernel_computes_the_definition(betas: tuple[float, float]) -> None:
    from gs_train.blocks import block_triton

    def by_kernel(rows: SlotRows, tables: dict[str, Tensor], reaches: ReachTables) -> Tensor:
        return block_triton.least_by_block(rows.layout, rows.block_rows, tables, reaches)

    check("cpu", betas, by_kernel)


@pytest.mark.skipif(not is_interpreted, reason="kernels are not interpreted")
def test_the_kernel_finds_the_places() -> None:
    from gs_train.blocks import block_triton

    rows = SlotRows(*slots_and_counts(3), BLOCK_ROWS, torch.device("cpu"))
    found = block_triton.places(rows.layout, rows.n_rows, BLOCK_ROWS)
    assert torch.equal(found, rows.places())


@pytest.mark.skipif(not is_interpreted, reason="kernels are not interpreted")
@pytest.mark.parametrize("words", [1, 3])
def test_the_kernel_lists_the_rows(words: int) -> None:
    from gs_train.blocks import block_triton

    masks = masks_of(6, words, 2)
    rows = SlotRows(*slots_and_counts(2), BLOCK_ROWS, torch.device("cpu"), masks)

    def lists(rows: SlotRows, tables: dict[str, Tensor]) -> ListedRows:
        found = block_triton.listed(rows.layout, rows.n_rows, rows.block_rows, tables)
        return ListedRows(*found)

    check_lists(rows, "cpu", lists)


@pytest.mark.skipif(not is_interpreted, reason="kernels are not interpreted")
def test_the_kernel_counts_marks() -> None:
    from gs_train.blocks import block_triton

    check_counts("cpu", lambda rows, marks: block_triton.count(rows.layout, marks))
