# SPDX-License-Identifier: Apache-2.0
"""Ranks that are started by the launcher, or by torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gs_train.world.launcher import launch

HERE = Path(__file__).parent
LAUNCHER = "import sys; from gs_train.world.launcher import launch; "
LAUNCHER += "sys.exit(launch(sys.argv[1:], 2, module='world_target'))"


@pytest.fixture(autouse=True)
def _target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes find the program, and no rank of another launcher is around."""
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_every_rank_runs_outside_of_the_foreground_group(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert launch(["report"], 2, module="world_target") == 0
    said = capfd.readouterr()
    (first, second) = json.loads(said.out)
    assert (first[:2], second[:2]) == ([0, 2], [1, 2])
    assert len({first[2], second[2], os.getpgid(0)}) == 3
    assert said.err == ""


@pytest.mark.parametrize(
    ("what", "said"),
    [
        pytest.param("fail", "rank 1: the disk is full", marks=pytest.mark.long),
        ("kill", "rank 1: its process has ended without a word"),
    ],
)
def test_one_line_and_status_2_where_a_rank_fails(
    what: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert launch([what], 2, module="world_target") == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"gs-train: error: {said}")


def test_the_launcher_speaks_where_no_rank_can(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch(["kill", "before"], 2, module="world_target") == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line == "gs-train: error: rank 0: it was ended by SIGKILL"


@pytest.mark.long
def test_the_status_is_that_of_ranks_that_have_had_their_say() -> None:
    assert launch(["fail", "before"], 2, module="world_target") == 1


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_a_signal_stops_all_ranks_after_the_same_step(number: signal.Signals) -> None:
    command = [sys.executable, "-c", LAUNCHER, "train"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "trains\n"
        run.send_signal(number)
        out, err = run.communicate()
    assert run.returncode == 128 + number
    steps = out.splitlines()
    assert len(steps) == 2
    assert steps[0] == steps[1]
    assert err == ""


@pytest.mark.long
def test_ranks_of_a_launcher_that_was_killed_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LAUNCHER, "train"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "trains\n"
        run.kill()
        _, err = run.communicate()  # until nobody has the pipe any more
    assert "gs-train: error: the process that started the ranks has ended" in err


@pytest.mark.long
@pytest.mark.parametrize(("what", "status"), [("report", 0), ("fail", 1), ("kill", 1)])
def test_torchrun_starts_ranks_as_well(what: str, status: int) -> None:
    """Its own status is 1 after any failure, and it has more to say."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "world_target", what]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == status
    lines = [line for line in run.stderr.splitlines() if line.startswith("gs-train: error: rank 1")]
    assert len(lines) == (status != 0)
