# SPDX-License-Identifier: Apache-2.0
"""A rank of a run meets a fault in each phase: all ranks end soon, one line names the rank, and the
last checkpoint goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from rank_faults import VARIABLE, Fault, in_words

from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.cli import main
from gs_train.world.launcher import launch

STEPS, SAVED = 4, 2
GONE = "its process has ended without a word (the system may have run out of memory)"
SILENT = "it has not been heard of for 25 seconds"
FIRST, LAST = 0, 1

BATCH = [
    ("a batch begins", "gs_train.world.ranks:Ranks.gather", 1),
    ("splats travel", "gs_train.world.ranks:Ranks.all_to_all", 1),
    ("keys travel", "gs_train.world.ranks:Ranks.all_to_all", 2),
    ("gradients travel", "gs_train.world.ranks:Ranks.all_to_all", 3),
    ("losses are added", "gs_train.world.ranks:Ranks.sum", 1),
    ("rows are refined", "gs_train.densify.rank_peers:RankPeers.roll", 1),
    ("rows are dealt", "gs_train.ranks.dealing:Dealing.again", 1),
]
SAVE = [
    ("a save begins", "gs_train.runs.saver:save_by_ranks", 1),
    ("shards are written", "gs_train.checkpoint.writer:write_shard", 1),
    ("shards have been written", "gs_train.checkpoint.ranks_writer:by_first", 2),
    ("older ones are removed", "gs_train.checkpoint.ranks_writer:by_first", 3),
]
SAVE_OF_FIRST = [
    ("the folder is made", "gs_train.checkpoint.ranks_writer:new_path", 1),
    ("the manifest is written", "gs_train.checkpoint.writer:write_manifest", 1),
    ("the manifest is there", "gs_train.checkpoint.writer:sync_folder", 1),
    ("the folder has its name", "gs_train.checkpoint.writer:sync_folder", 2),
]
END = [("the point cloud is written", "gs_train.runs.training:write_point_cloud", 1)]
END_OF_FIRST = [("views are scored", "gs_train.runs.training:report", 1)]

SAVED_BEFORE = {"the folder has its name", "older ones are removed"}
SAVED_BY_FIRST = ("shards have been written", LAST)
SAVED_BEFORE |= {phase for phase, *_ in (*END, *END_OF_FIRST)}

WORK = [
    ("a batch", "gs_train.world.ranks:Ranks.gather", 1),
    ("an exchange between ranks", "gs_train.ranks.buffers:RoundBuffers.sent", 1),
    ("the rounds of ranks", "gs_train.world.ranks:Ranks.all_to_all", 1),
    ("the rounds of ranks", "gs_train.world.ranks:Ranks.all_to_all", 3),
    ("a batch", "gs_train.world.ranks:Ranks.sum", 1),
    ("the optimizer's update", "gs_train.engine.slots:SlotPlacement.update", 1),
    ("a refinement of rows", "gs_train.densify.rank_peers:RankPeers.roll", 1),
    ("the sorting of rows", "gs_train.ranks.dealing:Dealing.again", 1),
    ("an evaluation", "gs_train.runs.held_out:score_views_of_ranks", 1),
    ("a checkpoint", "gs_train.runs.saver:save_by_ranks", 1),
    ("a checkpoint", "gs_train.checkpoint.writer:write_shard", 1),
]

EACH = [
    *((*each, rank) for each in (*BATCH, *SAVE, *END) for rank in (FIRST, LAST)),
    *((*each, FIRST) for each in (*SAVE_OF_FIRST, *END_OF_FIRST)),
]


class Ran(NamedTuple):
    """A run that had a fault.

    Attributes:
        said: all lines.
        errors: those about errors.
    """

    status: int
    said: list[str]
    errors: list[str]


@pytest.fixture
def meet(
    tiny_capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> _Meet:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return _Meet(tiny_capture, tmp_path, monkeypatch, capfd)


class _Meet:
    """Runs of two or more ranks, which refine and sort rows in each step."""

    def __init__(
        self,
        capture: Path,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        self.capture, self.out, self.moment = capture, folder / "run", folder / "moment"
        self._monkeypatch, self._capfd = monkeypatch, capfd

    def __call__(
        self,
        fault: Fault,
        *more: str,
        then: Fault | None = None,
        saves_every: int = SAVED,
        n_ranks: int = 2,
        renderer: str = "cpu",
    ) -> Ran:
        faults = [fault] if then is None else [fault, then]
        self._monkeypatch.setenv(VARIABLE, in_words(*faults))
        refines = "--adc.refine-start 1 --adc.refine-every 2 --adc.grow-grad2d 0.00005"
        options = (
            f"--renderer {renderer} --batch-size 2 --sh-degree 0 --resort-every 0.000001 {refines}"
        )
        often = f"--steps {STEPS} --checkpoint-every {saves_every}"
        command = ["fit", str(self.capture), "--out", str(self.out), "--renderer", renderer]
        command += options.split()
        status = launch([*command, *often.split(), *more], n_ranks, module="rank_faults")
        said = self._capfd.readouterr().err.replace("\r", "\n").splitlines()
        print(*said, sep="\n")  # pytest shows it where the test fails
        errors = [line for line in said if "error" in line]
        return Ran(status, said, errors)

    def fault(self, rank: int, point: str, how: str, *, call: int = 1, after: int = 3) -> Fault:
        return Fault(rank, after, point, how, str(self.moment), call)

    def newest(self) -> int:
        """The step of its last checkpoint, which opens."""
        newest = latest_checkpoint(self.out / "checkpoints")
        assert newest is not None
        assert main(["inspect", str(newest), "--verify"]) == 0
        return load_checkpoint(newest).step

    def goes_on(self) -> None:
        """With one rank."""
        command = ["fit", str(self.capture), "--out", str(self.out), "--resume"]
        assert main([*command, "--steps", str(STEPS + 1)]) == 0
        self._capfd.readouterr()


IN_EACH_PHASE = pytest.mark.parametrize(
    ("phase", "point", "call", "rank"), EACH, ids=[f"{each[0]}-{each[3]}" for each in EACH]
)


@pytest.mark.long
@IN_EACH_PHASE
def test_a_rank_that_is_killed(meet: _Meet, phase: str, point: str, call: int, rank: int) -> None:
    check_killed(meet, phase, meet.fault(rank, point, "SIGKILL", call=call), rank)


@pytest.mark.gpu2
@IN_EACH_PHASE
def test_a_rank_of_all_gpus_that_is_killed(
    meet: _Meet, phase: str, point: str, call: int, rank: int
) -> None:
    n_ranks = torch.cuda.device_count()
    fault = meet.fault(n_ranks - 1 if rank == LAST else FIRST, point, "SIGKILL", call=call)
    check_killed(meet, phase, fault, rank, n_ranks=n_ranks, renderer="raster")


def check_killed(meet: _Meet, phase: str, fault: Fault, rank: int, **options: Any) -> None:
    """Args: rank: of the phase, `FIRST` or `LAST`."""
    ran = meet(fault, **options)
    assert ran.status == 2
    assert ran.errors == [f"gs-train: error: rank {fault.rank}: {GONE}"]
    assert fault.seconds_ago() < 20
    is_saved = phase in SAVED_BEFORE or (phase, rank) == SAVED_BY_FIRST
    assert meet.newest() == (STEPS if is_saved else SAVED)


@pytest.mark.long
@pytest.mark.parametrize("how", ["SIGKILL", "memory"])
@pytest.mark.parametrize(
    "point", ["gs_train.world.ranks:Ranks.all_to_all", "gs_train.checkpoint.writer:write_shard"]
)
@pytest.mark.parametrize(("n_ranks", "rank"), [(3, 1), (4, 3)])
def test_one_of_three_or_four_ranks_ends_all(
    meet: _Meet, n_ranks: int, rank: int, point: str, how: str
) -> None:
    fault = meet.fault(rank, point, how)
    ran = meet(fault, n_ranks=n_ranks)
    assert ran.status == 2
    (line,) = ran.errors
    assert fault.seconds_ago() < 20
    what = GONE if how == "SIGKILL" else "device memory ran out after step "
    assert line.startswith(f"gs-train: error: rank {rank}: {what}")
    assert meet.newest() == SAVED
    meet.goes_on()


WHILE_STOPPED = pytest.mark.parametrize(
    ("point", "rank"),
    [
        (point, rank)
        for rank in (FIRST, LAST)
        for point in ("gs_train.world.ranks:Ranks.all_to_all", SAVE[1][1])
    ],
)


@pytest.mark.long
@WHILE_STOPPED
def test_a_rank_that_is_stopped(meet: _Meet, point: str, rank: int) -> None:
    check_stopped(meet, meet.fault(rank, point, "SIGSTOP"))


@pytest.mark.gpu2
@WHILE_STOPPED
def test_a_rank_of_two_gpus_that_is_stopped(meet: _Meet, point: str, rank: int) -> None:
    check_stopped(meet, meet.fault(rank, point, "SIGSTOP"), renderer="raster")


def check_stopped(meet: _Meet, fault: Fault, **options: Any) -> None:
    ran = meet(fault, **options)
    assert ran.status == 2
    assert ran.errors == [f"gs-train: error: rank {fault.rank}: {SILENT}"]
    assert fault.seconds_ago() < 60
    assert meet.newest() == SAVED
    meet.goes_on()


@pytest.mark.long
@pytest.mark.parametrize(
    ("n_ranks", "rank", "how"),
    [(2, FIRST, "SIGTERM"), (2, LAST, "SIGTERM"), (3, 1, "SIGTERM"), (2, FIRST, "SIGINT"),
     (2, LAST, "SIGINT")],
)  # fmt: skip
def test_a_signal_to_one_rank_stops_all_after_the_same_step(
    meet: _Meet, n_ranks: int, rank: int, how: str
) -> None:
    fault = meet.fault(rank, "gs_train.world.ranks:Ranks.all_to_all", how, after=0)
    ran = meet(fault, saves_every=0, n_ranks=n_ranks)
    assert (ran.status, ran.errors) == (128 + signal.Signals[how], [])
    assert fault.seconds_ago() < 20
    assert 1 <= meet.newest() < STEPS
    meet.goes_on()


AGAIN = [
    ("the batch goes on", "gs_train.world.ranks:Ranks.all_to_all", 2, LAST),
    ("shards are written", SAVE[1][1], 1, LAST),
    ("shards are written", SAVE[1][1], 1, FIRST),
    ("ranks part", "gs_train.world.session:_part", 1, LAST),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("phase", "point", "call", "rank"), AGAIN, ids=[f"{each[0]}-{each[3]}" for each in AGAIN]
)
def test_a_second_sigterm_leaves_the_save_alone(
    meet: _Meet, phase: str, point: str, call: int, rank: int
) -> None:
    first = meet.fault(LAST, "gs_train.world.ranks:Ranks.all_to_all", "SIGTERM", after=0)
    again = meet.fault(rank, point, "SIGTERM", call=call, after=0)
    ran = meet(first, then=again, saves_every=0)
    assert (ran.status, ran.errors) == (128 + signal.SIGTERM, [])
    saved = meet.newest()
    assert 1 <= saved < STEPS
    (line,) = (line for line in ran.said if "stopped" in line)
    assert line.startswith(f"gs-train: stopped after step {saved} of {STEPS}, checkpoint written; ")
    meet.goes_on()


@pytest.mark.long
@pytest.mark.parametrize("rank", [FIRST, LAST])
def test_ctrl_c_twice_claims_no_checkpoint(meet: _Meet, rank: int) -> None:
    first = meet.fault(rank, "gs_train.world.ranks:Ranks.all_to_all", "SIGINT", after=0)
    again = meet.fault(rank, SAVE[1][1], "SIGINT", after=0)
    ran = meet(first, then=again, saves_every=0)
    assert ran.status != 0
    assert not any("checkpoint written" in line for line in ran.said)
    assert latest_checkpoint(meet.out / "checkpoints") is None


@pytest.mark.long
def test_a_photograph_that_one_rank_cannot_read_ends_all_after_a_save(meet: _Meet) -> None:
    fault = meet.fault(LAST, "gs_train.runs.feed:ImageFeed.next", "file", after=1)
    ran = meet(fault, saves_every=0)
    assert ran.status == 2
    assert ran.errors == ["gs-train: error: rank 1: /photographs/7.jpg cannot be read"]
    assert fault.seconds_ago() < 20
    assert meet.newest() == 2
    meet.goes_on()


@pytest.mark.long
@pytest.mark.parametrize("rank", [FIRST, LAST])
def test_a_rank_whose_disk_is_full_ends_all_and_the_last_checkpoint_stays(
    meet: _Meet, rank: int
) -> None:
    """Also after the save has been tried once more."""
    fault = meet.fault(rank, SAVE[1][1], "disk")
    ran = meet(fault)
    assert ran.status == 2
    (line,) = ran.errors
    assert fault.seconds_ago() < 20
    folder = meet.out / "checkpoints"
    assert line.startswith(
        f"gs-train: error: rank {rank}: the disk became full while writing {folder}"
    )
    assert meet.newest() == SAVED
    assert not list((meet.out / "checkpoints").glob(".*"))
    meet.goes_on()


@pytest.mark.long
@pytest.mark.parametrize(
    ("rank", "how", "memory"), [(FIRST, "memory", "device"), (LAST, "host memory", "host")]
)
@pytest.mark.parametrize(("work", "point", "call"), WORK, ids=[each[1] for each in WORK])
def test_a_rank_without_memory_names_the_work(
    meet: _Meet, work: str, point: str, call: int, rank: int, how: str, memory: str
) -> None:
    fault = meet.fault(rank, point, how, call=call)
    ran = meet(fault, "--eval-every", "4")
    assert ran.status == 2
    (line,) = ran.errors
    assert fault.seconds_ago() < 20
    assert line.startswith(f"gs-train: error: rank {rank}: {memory} memory ran out after step ")
    assert f" Gaussians, in {work} (" in line
    assert f"go on from the checkpoint of step {SAVED} with --resume and more memory" in line
    assert f"(a larger --{memory}-memory) or another --offload" in line
    assert meet.newest() == SAVED
    meet.goes_on()


@pytest.mark.long
@pytest.mark.parametrize("rank", [FIRST, LAST])
def test_a_rank_without_memory_for_a_view_draws_it_in_parts(meet: _Meet, rank: int) -> None:
    point = "gs_train.renderers.cpu_records:CpuRecords.draw"
    ran = meet(meet.fault(rank, point, "memory", after=1))
    assert (ran.status, ran.errors) == (0, [])
    lines = [line for line in ran.said if "too little device memory" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"rank {rank} has too little device memory for view ")
    assert meet.newest() == STEPS
