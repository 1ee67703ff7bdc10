# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that several ranks write: any number of ranks reads them, and faults leave none."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from saved_by_ranks import assert_same, by_key, made_up_tensors, part_of, save, saved
from threads_as_ranks import DeathError, ThreadWorld, outcomes, results
from torch import Tensor

from gs_train.checkpoint import (
    latest_checkpoint,
    load_checkpoint,
    open_checkpoint,
    save_by_ranks,
    save_checkpoint,
    writer,
)
from gs_train.checkpoint.row_names import KEYS, STRANDS
from gs_train.cli import main
from gs_train.errors import CommonError
from gs_train.rows.own_rows import OwnSource, own_rows
from gs_train.rows.restore import read_all
from gs_train.rows.strands import Lattice

N, W = 200, 3
LATTICE = Lattice(0, N)


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    return made_up_tensors(N)


def _joined(parts: list[dict[str, Tensor]], by_row: frozenset[str]) -> dict[str, Tensor]:
    return {
        name: torch.cat([part[name] for part in parts]) if name in by_row else values
        for name, values in parts[0].items()
    }


@pytest.mark.parametrize("max_shard_bytes", [800, 1 << 30])
@pytest.mark.parametrize("n_writers", [1, 2, 3])
def test_any_number_of_ranks_reads_what_any_number_wrote(
    tmp_path: Path, tensors: dict[str, Tensor], n_writers: int, max_shard_bytes: int
) -> None:
    path = saved(tmp_path, tensors, n_writers, max_shard_bytes=max_shard_bytes)
    assert path == tmp_path / "step_000005"
    checkpoint = open_checkpoint(path)
    checkpoint.verify()
    assert (checkpoint.step, checkpoint.state, checkpoint.n_rows) == (5, {"a": 1}, N)
    assert_same(by_key(load_checkpoint(path).tensors), by_key(tensors))
    for n_readers in (1, 2, 3):
        parts = []
        for rank in range(n_readers):
            ids, labels = own_rows(checkpoint, LATTICE, rank=rank, n_ranks=n_readers)
            parts.append(read_all(OwnSource(checkpoint, ids)))
            assert torch.equal(parts[-1][STRANDS], labels)
            assert_same(by_key(parts[-1]), by_key(part_of(tensors, rank, n_readers)))
        assert_same(by_key(_joined(parts, checkpoint.by_row)), by_key(tensors))


def test_the_files_of_each_rank_carry_its_number(
    tmp_path: Path, tensors: dict[str, Tensor]
) -> None:
    path = saved(tmp_path, tensors, W, max_shard_bytes=2000)
    names = [file.name for file in open_checkpoint(path).files]
    assert names == sorted(file.name for file in path.glob("*.safetensors"))
    assert {name[:5] for name in names} == {"00000", "00001", "00002"}
    last = part_of(tensors, 2, W)
    found = [safetensors.torch.load_file(path / name) for name in names if name[4] == "2"]
    assert torch.equal(torch.cat([each[KEYS] for each in found if KEYS in each]), last[KEYS])
    assert not any("costs/views" in each for each in found)


def test_a_reader_of_its_own_rows_opens_only_files_of_its_own(
    tmp_path: Path, tensors: dict[str, Tensor]
) -> None:
    checkpoint = open_checkpoint(saved(tmp_path, tensors, W))
    ids, _ = own_rows(checkpoint, LATTICE, rank=1, n_ranks=W)
    for rank in (0, 2):
        os.remove(checkpoint.path / f"{rank:05d}00000.safetensors")
    found = checkpoint.read(["model/means", KEYS], rows=ids)
    assert torch.equal(found["model/means"], part_of(tensors, 1, W)["model/means"])


def test_a_world_of_one_writes_the_files_that_a_trainer_without_ranks_does(
    tmp_path: Path, tensors: dict[str, Tensor]
) -> None:
    one = saved(tmp_path / "one", tensors, 1, max_shard_bytes=3000)
    alone = save_checkpoint(
        tmp_path / "alone", step=5, tensors=tensors, state={"a": 1}, max_shard_bytes=3000
    )
    files = sorted(path.name for path in one.iterdir())
    assert files == sorted(path.name for path in alone.iterdir())
    for name in files:
        assert (one / name).read_bytes() == (alone / name).read_bytes()


def test_a_world_of_one_says_nothing_to_anybody(tmp_path: Path) -> None:
    def run(world: ThreadWorld) -> int:
        save_by_ranks(tmp_path, world=world, step=1, tensors={"a": torch.ones(2)}, state={})
        return world.n_calls

    assert results(1, run) == [0]


@pytest.mark.parametrize("crowded", [0, 255])
def test_ranks_may_have_no_rows(tmp_path: Path, tensors: dict[str, Tensor], crowded: int) -> None:
    """All rows are in a strand of the first or of the last rank."""
    crowd = {**tensors, STRANDS: torch.full((N,), crowded, dtype=torch.uint8)}
    path = saved(tmp_path, crowd, W)
    assert_same(by_key(load_checkpoint(path).tensors), by_key(crowd))
    ids, _ = own_rows(open_checkpoint(path), LATTICE, rank=1, n_ranks=W)
    assert len(ids) == 0


def test_a_model_without_rows_and_one_without_a_model(tmp_path: Path) -> None:
    nothing = made_up_tensors(0)
    assert_same(load_checkpoint(saved(tmp_path, nothing, W)).tensors, nothing)

    def run(world: ThreadWorld) -> Path:
        own = {"word": torch.tensor([world.rank])}
        return save_by_ranks(tmp_path, world=world, step=9, tensors=own, state={})

    (path,) = {*results(W, run)}
    assert load_checkpoint(path).tensors["word"].tolist() == [0]
    assert open_checkpoint(path).n_rows is None


def test_the_oldest_are_removed_and_a_step_may_be_saved_again(
    tmp_path: Path, tensors: dict[str, Tensor]
) -> None:
    (tmp_path / "step_000001.tmp").mkdir()
    for step in (1, 2, 2, 3):
        saved(tmp_path, tensors, W, step=step, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["step_000002.1", "step_000003"]


# ---------------------------------------------------------------------------------- faults


def _assert_only_the_first_is_left(folder: Path, first: dict[str, Tensor]) -> None:
    assert os.listdir(folder) == ["step_000001"]
    newest = latest_checkpoint(folder)
    assert newest is not None
    assert_same(by_key(load_checkpoint(newest).tensors), by_key(first))


def _failing(point: str, culprit: int, error: BaseException) -> Callable[..., Any]:
    """A function of the writer that fails: on one rank where it writes shards."""
    real = getattr(writer, point)
    calls = []

    def fail(*arguments: Any, **options: Any) -> Any:
        if point == "write_shard":
            calls.append(arguments[0])
            if not arguments[0].name.startswith(f"{culprit:05d}"):
                return real(*arguments, **options)
            arguments[0].write_bytes(b"half")
        raise error

    return fail


@pytest.mark.parametrize(
    ("point", "culprit"),
    [
        ("require_free", 0),
        *(("write_shard", rank) for rank in range(W)),
        ("write_manifest", 0),
        ("sync_folder", 0),
    ],
)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_an_error_of_one_rank_is_raised_by_all_and_leaves_the_last_checkpoint(
    tmp_path: Path,
    tensors: dict[str, Tensor],
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    culprit: int,
    number: int,
) -> None:
    saved(tmp_path, tensors, W, step=1)
    with monkeypatch.context() as patched:
        error = OSError(number, os.strerror(number), "/the/file")
        patched.setattr(writer, point, _failing(point, culprit, error))
        found = save(tmp_path, made_up_tensors(90), W, step=2)
    assert {type(each) for each in found} == {CommonError}
    (line,) = {str(each) for each in found}
    what = "/the/file: "
    if number == errno.ENOSPC and point != "require_free":
        what = f"the disk became full while writing {tmp_path / 'step_000002'}, "
    assert line.startswith(f"rank {culprit}: {what}")
    assert "\n" not in line
    _assert_only_the_first_is_left(tmp_path, tensors)
    saved(tmp_path, tensors, W, step=2)  # what comes later succeeds


def test_an_error_after_the_rename_is_raised_by_all_and_the_new_one_is_whole(
    tmp_path: Path, tensors: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, tensors, W, step=1)
    error = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "step_000001"))
    monkeypatch.setattr(writer, "remove_older", _failing("remove_older", 0, error))
    found = save(tmp_path, tensors, W, step=2)
    assert {str(each) for each in found} == {
        f"rank 0: {tmp_path / 'step_000001'}: Permission denied"
    }
    assert_same(by_key(load_checkpoint(tmp_path / "step_000002").tensors), by_key(tensors))


def test_the_disk_must_have_room_for_all_ranks(
    tmp_path: Path, tensors: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    total = sum(values.numel() * values.element_size() for values in tensors.values())

    def usage(free: int) -> Any:
        return lambda _: shutil._ntuple_diskusage(free, 0, free)  # type: ignore[attr-defined]

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", usage(total + (1 << 20) - 1))
        found = save(tmp_path, tensors, W)
    assert {str(each) for each in found} == {
        f"rank 0: the disk of {tmp_path} must have {total + (1 << 20):,} bytes free for the "
        f"checkpoint of step 5, got {total + (1 << 20) - 1:,}; free some space or choose another "
        "folder"
    }
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr(shutil, "disk_usage", usage(total + (1 << 20)))
    saved(tmp_path, tensors, W)


@pytest.mark.parametrize("culprit", range(W))
def test_the_end_of_a_rank_at_any_call_leaves_only_whole_checkpoints(
    tmp_path: Path, tensors: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch, culprit: int
) -> None:
    for call in range(100):
        folder = tmp_path / str(call)
        saved(folder, tensors, W, step=1)

        def run(world: ThreadWorld, folder: Path = folder, call: int = call) -> Path:
            if world.rank == culprit:
                world.dies_at = call
            own = part_of(tensors, world.rank, W)
            return save_by_ranks(folder, world=world, step=2, tensors=own, state={}, keep=2)

        with monkeypatch.context() as patched:
            if culprit == 0:  # who is killed does not tidy up
                patched.setattr(shutil, "rmtree", lambda *_, **__: None)
            found = outcomes(W, run)
        if not isinstance(found[culprit], DeathError):
            break
        for rank, outcome in enumerate(found):
            assert rank == culprit or str(outcome) == "another rank has failed"
        for path in folder.glob("step_??????"):
            assert_same(by_key(load_checkpoint(path).tensors), by_key(tensors))
        newest = latest_checkpoint(folder)
        assert newest is not None
        saved(folder, tensors, W, step=3)
        assert sorted(os.listdir(folder)) == [newest.name, "step_000003"]
    assert call == 2 * W + 3
    assert {str(each) for each in found} == {str(tmp_path / str(call) / "step_000002")}


@pytest.mark.parametrize(
    ("point", "culprit", "newest"),
    [
        *(("write_shard", rank, 1) for rank in range(W)),
        ("write_manifest", 0, 1),
        ("sync_folder", 0, 1),
        ("remove_older", 0, 2),
    ],
)
def test_the_end_of_a_rank_in_its_work_leaves_only_whole_checkpoints(
    tmp_path: Path,
    tensors: dict[str, Tensor],
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    culprit: int,
    newest: int,
) -> None:
    saved(tmp_path, tensors, W, step=1)
    with monkeypatch.context() as patched:
        if culprit == 0:  # who is killed does not tidy up
            patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        patched.setattr(writer, point, _failing(point, culprit, DeathError()))
        found = save(tmp_path, tensors, W, step=2)
    assert isinstance(found[culprit], DeathError)
    assert {str(each) for each in found} == {"", "another rank has failed"}
    assert latest_checkpoint(tmp_path) == tmp_path / f"step_{newest:06d}"
    for path in tmp_path.glob("step_??????"):
        assert_same(by_key(load_checkpoint(path).tensors), by_key(tensors))
    saved(tmp_path, tensors, W, step=3, keep=1)
    assert os.listdir(tmp_path) == ["step_000003"]


def test_what_a_killed_save_left_is_removed_by_the_next(
    tmp_path: Path, tensors: dict[str, Tensor]
) -> None:
    left = tmp_path / "step_000002.tmp"
    left.mkdir()
    (left / "0000100000.safetensors").write_bytes(b"half")
    saved(tmp_path, tensors, W, step=2)
    assert os.listdir(tmp_path) == ["step_000002"]


def test_ranks_must_save_the_same_step_and_tensors(
    tmp_path: Path, tensors: dict[str, Tensor]
) -> None:
    def run(world: ThreadWorld, *, other: str) -> Path:
        own = part_of(tensors, world.rank, W)
        if world.rank == 1 and other == "missing":
            del own["densify/count"]
        if world.rank == 1 and other == "type":
            own["densify/count"] = own["densify/count"].double()
        step = world.rank + 4 if other == "step" else 4
        return save_by_ranks(tmp_path, world=world, step=step, tensors=own, state={})

    for other, line in (
        ("step", "ranks must save the same step, got 4 on rank 0 and 5 on rank 1"),
        (
            "missing",
            "tensors by row must be alike on all ranks, got densify/count F32 [] on rank 0 and "
            "not on rank 1",
        ),
        (
            "type",
            "tensors by row must be alike on all ranks, got densify/count F32 [] on rank 0 and "
            "F64 [] on rank 1",
        ),
    ):
        found = outcomes(W, lambda world, other=other: run(world, other=other))  # type: ignore[misc]
        assert {str(each) for each in found} == {line}
        assert {type(each) for each in found} == {CommonError}
    assert os.listdir(tmp_path) == []


def test_a_missing_shard_of_one_rank_is_one_line(
    tmp_path: Path, tensors: dict[str, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, tensors, W)
    assert main(["inspect", str(path), "--verify"]) == 0
    shard = path / "0000100000.safetensors"
    n_bytes = shard.stat().st_size
    assert f"0000100000.safetensors {n_bytes:,} bytes" in " ".join(capsys.readouterr().out.split())
    shard.unlink()
    assert main(["inspect", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"gs-train: error: {shard} must have {n_bytes:,} bytes, got no such file; the checkpoint "
        "is damaged, remove it and resume from an earlier one\n"
    )
