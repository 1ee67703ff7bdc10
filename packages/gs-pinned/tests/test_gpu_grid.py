# SPDX-License-Identifier: Apache-2.0
"""Transfers of many tiles for every block: each against its numpy definition, exactly."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gs_pinned import (
    Ring,
    Table,
    exchange,
    gather,
    gather_retained,
    scatter,
    scatter_add,
    store_compact,
)

pytestmark = pytest.mark.gpu

ROWS = 60_000
# Accesses of 16, 4 and 1 bytes: all different grids.
widths = pytest.mark.parametrize(("width", "dtype"), [(48, "int32"), (45, "int32"), (33, "uint8")])
max_blocks = pytest.mark.parametrize("max_blocks", [1, 16, 40])


def numbers(rows: int, width: int, dtype: str) -> np.ndarray[Any, Any]:
    return (np.arange(rows * width, dtype=np.int64) * 7 % 251).reshape(rows, width).astype(dtype)


def chosen(rows: int) -> np.ndarray[Any, Any]:
    """Every row but some, in no order."""
    return np.random.default_rng(0).permutation(rows)[: rows - 777].astype(np.int32)


@widths
@max_blocks
def test_gathers_and_scatters(width: int, dtype: str, max_blocks: int) -> None:
    table = Table(ROWS, width, dtype, pinned=True)
    table.numpy()[:] = numbers(ROWS, width, dtype)
    ids = chosen(ROWS)
    there = torch.from_numpy(ids).cuda()
    out = torch.zeros(len(ids), width, dtype=getattr(torch, dtype), device="cuda")
    gather(table, there, out, max_blocks=max_blocks)
    np.testing.assert_array_equal(out.cpu().numpy(), table.numpy()[ids])
    parts = [torch.zeros(len(ids), n, dtype=out.dtype, device="cuda") for n in (3, width - 3)]
    gather(table, there, parts, max_blocks=max_blocks)
    assert torch.equal(torch.cat(parts, 1), out)
    expected = table.numpy().copy()
    expected[ids] = out.cpu().numpy()[::-1]
    scatter(out.flip(0), there, table, max_blocks=max_blocks)
    torch.cuda.synchronize()
    np.testing.assert_array_equal(table.numpy(), expected)
    scatter([part.flip(0) for part in parts], there.flip(0), table, max_blocks=max_blocks)
    expected[ids[::-1]] = out.cpu().numpy()[::-1]
    torch.cuda.synchronize()
    np.testing.assert_array_equal(table.numpy(), expected)


@widths
@pytest.mark.parametrize("max_blocks", [None, 1, 9])
def test_stores(width: int, dtype: str, max_blocks: int | None) -> None:
    values, ids, ring = numbers(ROWS, width, dtype), chosen(ROWS), Ring(1 << 25)
    there, positions = torch.from_numpy(values).cuda(), torch.from_numpy(ids).cuda()
    parts = [there[:, :5].contiguous(), there[:, 5:].contiguous()]
    for arrays, order, expected in (
        (there, None, values),
        (there, positions, values[ids]),
        (parts, None, values),
        (parts, positions, values[ids]),
    ):
        with store_compact(arrays, order, ring, max_blocks=max_blocks) as slot:
            np.testing.assert_array_equal(slot.numpy(), expected)


@widths
@max_blocks
@pytest.mark.parametrize("kept", [0, ROWS // 3])
def test_retained_rows(width: int, dtype: str, max_blocks: int, kept: int) -> None:
    table = Table(ROWS, width, dtype, pinned=True)
    table.numpy()[:] = numbers(ROWS, width, dtype)
    source = torch.from_numpy(numbers(ROWS, width, dtype) + 1).cuda()
    slots = np.random.default_rng(1).permutation(ROWS).astype(np.int32)
    loaded, held = slots[kept:], slots[:kept]
    out = torch.zeros_like(source)
    there = [
        torch.from_numpy(ids.copy()).cuda() for ids in (loaded[::-1], loaded, held[::-1], held)
    ]
    gather_retained(
        table, there[0], there[1], source, there[2], there[3], out, max_blocks=max_blocks
    )
    expected = np.zeros_like(table.numpy())
    expected[loaded] = table.numpy()[loaded[::-1]]
    expected[held] = source.cpu().numpy()[held[::-1]]
    np.testing.assert_array_equal(out.cpu().numpy(), expected)


def grids(call: Callable[[], object], path: Path) -> list[int]:
    """Thread blocks of each kernel that a call launches."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    profile.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    return [math.prod(e["args"]["grid"]) for e in events if e.get("cat") == "kernel"]


@pytest.mark.asynchrony
@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_a_transfer_is_one_launch_of_no_more_blocks_than_allowed(tmp_path: Path) -> None:
    table, ring = Table(ROWS, 48, pinned=True), Ring(1 << 25)
    ids = torch.arange(0, ROWS, 2, device="cuda")
    out = torch.zeros(ROWS, 48, device="cuda")
    rows, pinned = out[::2].contiguous(), table.torch()

    def store(most: int) -> None:
        store_compact(out, ids, ring, max_blocks=most).wait().release()

    calls: dict[str, Callable[[int], object]] = {
        "gather": lambda most: gather(table, ids, rows, max_blocks=most),
        "scatter": lambda most: scatter(rows, ids, table, max_blocks=most),
        "scatter_add": lambda most: scatter_add(rows, ids, table, max_blocks=most),
        "store_compact": store,
        **{
            f"gather_retained from {name}": lambda most, source=source: gather_retained(
                source, ids, ids, rows, ids[:0], ids[:0], out, max_blocks=most
            )
            for name, source in (("a table", table), ("an array", pinned))
        },
    }
    for name, call in calls.items():
        for most in (1, 2, 16):
            found = grids(lambda: call(most), tmp_path / "trace.json")  # noqa: B023 (called here)
            assert len(found) == 1, f"{name}: {found}"
            assert 1 <= found[0] <= most, f"{name}: {found} of {most}"
    exchanged = torch.zeros(100, 48, device="cuda")
    some, others = torch.arange(200, device="cuda").split(100)
    for most in (1, 4):
        found = grids(
            lambda: exchange([table], [exchanged], some, others, some, max_blocks=most),  # noqa: B023
            tmp_path / "trace.json",
        )
        assert len(found) == 1, found
        assert 1 <= found[0] <= most
