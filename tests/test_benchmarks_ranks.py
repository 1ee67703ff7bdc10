# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of several GPUs, on processes of the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
TINY = ("--renderer=cpu", "--rows=2000", "--size", "64", "48", "--samples=1")


def _run(script: str, *arguments: str) -> str:
    """What a benchmark prints."""
    paths = [str(BENCHMARKS), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "ranks" / script), *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _lines(path: Path) -> Any:
    return json.loads(path.read_text())["lines"]


@pytest.mark.long
def test_one_rank_and_two_train_the_same_scene_in_one_call(tmp_path: Path) -> None:
    path = tmp_path / "ranks.json"
    few = ("--share=0.1", "--views=6", "--batch=2", "--presets=best", "--seconds=0.05")
    said = _run("bench_ranks.py", *TINY, *few, "--ranks", "1", "2", "--json", str(path))
    one, two = _lines(path)
    assert [line["axes"]["ranks"] for line in (one, two)] == [1, 2]
    assert one["facts"]["sent_bytes_an_image"] == 0 == one["facts"]["waited_share"][0]
    assert two["facts"]["sent_bytes_an_image"] > 0
    assert all(0 < share < 1 for share in two["facts"]["waited_share"])
    assert len(two["facts"]["ranks_peak_bytes"]) == 2
    (rate_of_one,), (rate_of_two,) = one["samples"], two["samples"]
    assert two["facts"]["times_one"] == pytest.approx(rate_of_two / rate_of_one)
    assert said.count("\nbest ") == 2


@pytest.mark.long
def test_a_line_that_would_begin_too_late_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ranks.json"
    few = ("--share=0.1", "--views=2", "--batch=1", "--presets=none", "--limit=0")
    said = _run("bench_ranks.py", *TINY, *few, "--ranks", "1", "2", "--json", str(path))
    assert "left out, the time is over: none, batch 1 on 2" in said
    assert not path.exists()


@pytest.mark.long
def test_every_exchange_is_timed(tmp_path: Path) -> None:
    path = tmp_path / "exchange.json"
    _run("bench_exchange.py", *TINY, "--visible", "600", "--json", str(path))
    found = {line["name"]: line for line in _lines(path)}
    assert {"forward", "back", "drawing", "gather of 12 integers", "barrier"} <= found.keys()
    # Half of the rows of the view that the other rank draws.
    assert found["forward"]["facts"]["bytes"] == 300 * 52
    assert found["back"]["facts"]["bytes"] == 300 * 36
