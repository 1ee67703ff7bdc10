# SPDX-License-Identifier: Apache-2.0
"""Ranks that are started by the launcher, or by torchrun."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gs_train.world.launcher import launch

HERE = Path(__file__).parent
LAUNCHER = "import signal, sys; from gs_train.world.launcher import launch; "
LAUNCHER += "signal.signal(signal.SIGINT, signal.default_int_handler); "  # ignored below nohup
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


def test_one_line_where_the_rank_that_has_the_store_fails() -> None:
    """Processes that somebody else has started, by the variables alone."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(port)}
    command = [sys.executable, "-P", "-m", "world_target", "fail", "first"]
    ranks = [
        subprocess.Popen(
            command,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    said = "".join(rank.communicate()[1] for rank in ranks)
    assert [rank.returncode for rank in ranks] == [2, 2, 2]
    assert said == "gs-train: error: rank 0: the disk is full\n"


@pytest.mark.parametrize("is_late", [False, True])
def test_a_signal_reaches_a_rank_once_while_ranks_are_started(
    is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late: after the rank has been started, and before the launcher has put it on its list."""
    started: list[Rank] = []

    class Rank:
        returncode = 128 + signal.SIGTERM

        def __init__(self, *_: object, **__: object) -> None:
            self.signals: list[int] = []
            if len(started) == 1 and not is_late:
                signal.raise_signal(signal.SIGTERM)
            started.append(self)
            if len(started) == 2 and is_late:
                signal.raise_signal(signal.SIGTERM)

        def send_signal(self, number: int) -> None:
            self.signals.append(number)

        def poll(self) -> int:
            return self.returncode

        def kill(self) -> None:
            pass

        wait = kill

    monkeypatch.setattr(subprocess, "Popen", Rank)
    assert launch([], 3) == 128 + signal.SIGTERM
    assert [rank.signals for rank in started] == [[signal.SIGTERM]] * 3


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
