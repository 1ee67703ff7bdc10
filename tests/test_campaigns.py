# SPDX-License-Identifier: Apache-2.0
"""A small share of every campaign, and that campaigns find what is bad."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import numba
import numpy as np
import pytest

from campaigns import commands
from campaigns.case import Outcome, attempt, prepare
from campaigns.runner import run_apart
from scripted_campaign import CRASHES, GOOD, HANGS, RAISES

HERE = {"corrupt": 60}
"""Campaigns that run in this process, and how many of their cases."""
APART = {"kills": 4}
"""Campaigns that end processes."""


def test_every_bad_case_is_found_and_the_cases_after_it_run(tmp_path: Path) -> None:
    seeds = [GOOD, RAISES, CRASHES, HANGS, GOOD]
    outcomes = list(run_apart("scripted_campaign", seeds, tmp_path / "work"))
    assert [outcome.seed for outcome in outcomes] == seeds
    assert [outcome.bad for outcome in outcomes] == [
        "",
        "ValueError: first line",
        "ended the process with SIGSEGV",
        "hung for more than 5 s",
        "",
    ]
    assert "in run" in outcomes[RAISES].details
    assert "Segmentation fault" in outcomes[CRASHES].details
    assert "scripted_campaign.py" in outcomes[HANGS].details
    assert all(len(outcome.said) == 1 for outcome in outcomes)
    assert not (tmp_path / "work").exists()


def test_a_case_is_a_function_of_its_seed(tmp_path: Path) -> None:
    (apart,) = run_apart("scripted_campaign", [GOOD], tmp_path / "work")
    shared = prepare("scripted_campaign", tmp_path / "here")
    here = [attempt("scripted_campaign", seed, shared, lambda _: None) for seed in (RAISES, GOOD)]
    assert here[1] == apart
    assert here[0].said != apart.said
    assert list(shared.parent.iterdir()) == [shared]


def _ends(status: int, *lines: str) -> Callable[[Path], int]:
    def command(folder: Path) -> int:
        for line in lines:
            print(line.format(folder=folder), file=sys.stderr)
        return status

    return command


def _writes(place: str) -> Callable[[Path], int]:
    def command(folder: Path) -> int:
        (folder / place).write_text("written")
        return 0

    return command


def _asks_for_memory(_: Path) -> int:
    np.ones(commands.MOST_BYTES + (1 << 26), np.uint8)
    return 0


def _warns(_: Path) -> int:
    warnings.warn("a number", RuntimeWarning, stacklevel=1)
    return 0


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        (_ends(0), None),
        (_ends(2, "step 1/2", "gs-train: error: {folder}/a is bad"), None),
        (_writes("a"), None),
        (_writes("../compiled/a"), None),
        (_ends(1, "Traceback"), "status must be 0 or 2"),
        (_ends(2, "gs-train: error: {folder}/a\x1b[31m is bad"), "no control characters"),
        (_ends(2, "gs-train: error: {folder}/a", "b is bad"), "must be the last line"),
        (_ends(2, "gs-train: error: is bad"), "must name a file"),
        (_ends(0, "gs-train: error: {folder}/a is bad"), "errors must be one line"),
        (_writes("../a"), "outside of"),
        (_writes("link"), "outside of"),
        (_writes(".a.tmp"), "no temporary files"),
        (_asks_for_memory, "memory must stay"),
        (_warns, "no warnings"),
    ],
)
def test_a_command_that_keeps_to_its_rules_is_told_from_one_that_does_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Callable[[Path], int],
    fault: str | None,
) -> None:
    folder = tmp_path / "case"
    folder.mkdir()
    (tmp_path / "compiled").mkdir()
    (folder / "link").symlink_to(tmp_path / "beside")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setattr(commands, "main", lambda _: command(folder))
    if fault is None:
        commands.run_command([], folder)
    else:
        with pytest.raises(AssertionError, match=fault):
            commands.run_command([], folder)


@pytest.mark.parametrize("name", HERE)
def test_a_share_of_a_campaign_finds_nothing(name: str, tmp_path: Path) -> None:
    shared = prepare(f"campaigns.{name}", tmp_path / "work")
    seeds = range(HERE[name])
    _require_good(attempt(f"campaigns.{name}", seed, shared, lambda _: None) for seed in seeds)


@pytest.mark.parametrize("name", APART)
def test_a_share_of_a_campaign_of_processes_finds_nothing(name: str, tmp_path: Path) -> None:
    _require_good(run_apart(f"campaigns.{name}", range(APART[name]), tmp_path / "work"))


def _require_good(outcomes: Iterable[Outcome]) -> None:
    bad = [
        f"seed {outcome.seed}: {outcome.bad} {outcome.said}" for outcome in outcomes if outcome.bad
    ]
    assert not bad, "\n".join(bad)
