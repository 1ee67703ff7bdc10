# SPDX-License-Identifier: Apache-2.0
"""What is forecast covers what the committed results of benchmarks have measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gs_train.tide.block_room import OF_A_BLOCK

_RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "quoted"


@pytest.mark.parametrize("block_rows", [64, 1024])
def test_host_memory_of_a_block_is_as_much_as_was_measured(block_rows: int) -> None:
    assert _measured(block_rows) <= OF_A_BLOCK


def test_host_memory_of_a_block_is_little_more_than_was_measured() -> None:
    """With many small blocks: what a few large ones take is below the noise."""
    assert _measured(64) >= OF_A_BLOCK / 1.2


def _measured(block_rows: int) -> float:
    found = json.loads((_RESULTS / "limits.json").read_text())
    bytes_of = {
        line["axes"]["gaussians"]: max(line["samples"])
        for line in found["lines"]
        if (line["name"], line["unit"]) == ("training", "B")
        and line["axes"]["block_rows"] == block_rows
    }
    least, most = min(bytes_of), max(bytes_of)
    return (bytes_of[most] - bytes_of[least]) / ((most - least) / block_rows)
