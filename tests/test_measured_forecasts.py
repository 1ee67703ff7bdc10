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
    """And no more than half as much again."""
    found = json.loads((_RESULTS / "limits.json").read_text())
    bytes_of = {
        line["axes"]["gaussians"]: max(line["samples"])
        for line in found["lines"]
        if (line["name"], line["unit"]) == ("training", "B")
        and line["axes"]["block_rows"] == block_rows
    }
    least, most = min(bytes_of), max(bytes_of)
    measured = (bytes_of[most] - bytes_of[least]) / ((most - least) / block_rows)
    assert measured <= OF_A_BLOCK <= 1.5 * measured
