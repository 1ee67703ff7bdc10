# SPDX-License-Identifier: Apache-2.0
"""Whose store it is: a run removes, overwrites and finds its own, wherever it is, and no other."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tide_runs import FEW, assert_same, command, fitted, saved

from gs_pinned import BlockStore, Plane
from gs_train.cli import main
from gs_train.runs.folder import RunFolder
from gs_train.tide.store_folder import identity_of, may_remove, remove_store

SHORT = (*FEW, "--steps", "2")


@pytest.fixture(scope="module")
def made(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, with its store in it; not to be written to."""
    return fitted(tiny_capture, tmp_path_factory.mktemp("made") / "run", *SHORT)


@pytest.fixture
def other(made: Path, tmp_path: Path) -> Path:
    """The store of a run that has been trained."""
    return Path(shutil.copytree(made / "store", tmp_path / "store of other"))


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.splitlines()[-1]


def test_overwriting_leaves_the_store_of_another_run_where_its_own_was(
    tiny_capture: Path, tmp_path: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, there = tmp_path / "run", tmp_path / "drive"
    fitted(tiny_capture, out, *SHORT, "--store", str(there))
    shutil.rmtree(there)
    other.rename(there)
    again = [*command(tiny_capture, out, *SHORT), "--overwrite"]
    assert main([*again, "--store", str(there)]) == 2
    assert f"the folder of the store, {there}, must be empty or new" in last_line(capsys)
    assert (out / "metrics.json").exists()  # nothing was removed
    assert main(again) == 0
    assert identity_of(there) is not None


def test_others_files_beside_its_store_are_found_before_a_run_is_removed(
    tiny_capture: Path, tmp_path: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(made, out)
    (out / "store" / "mine.txt").write_text("mine")
    again = [*command(tiny_capture, out, *SHORT), "--overwrite"]
    assert main(again) == 2
    assert f"{out / 'store'}, must be empty or new, it holds mine.txt" in last_line(capsys)
    assert_same(saved(out), saved(made))
    (out / "store" / "mine.txt").unlink()
    assert main(again) == 0


def test_a_run_is_not_removed_while_another_process_writes_its_store(
    tiny_capture: Path, tmp_path: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(made, out)
    with BlockStore.open(out / "store"):
        assert main([*command(tiny_capture, out, *SHORT), "--overwrite"]) == 2
    assert f"the store {out / 'store'} is written by another process" in last_line(capsys)
    assert_same(saved(out), saved(made))


@pytest.mark.parametrize("offload", ["tide", "none"])
@pytest.mark.parametrize("init", ["store", "copy of the run", "checkpoint of the copy"])
def test_a_store_elsewhere_is_not_removed_by_the_run_that_begins_with_it(
    init: str,
    offload: str,
    tiny_capture: Path,
    tmp_path: Path,
    made: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, drive, copy = tmp_path / "run", tmp_path / "drive", tmp_path / "copy"
    fitted(tiny_capture, out, *SHORT, "--store", str(drive))
    shutil.copytree(out, copy)
    places = {"store": drive, "copy of the run": copy}
    place = places.get(init, copy / "checkpoints" / "step_000002")
    again = command(tiny_capture, out, *SHORT, "--overwrite", "--init", str(place), offload=offload)
    assert main(again) == 2
    assert f"--overwrite would remove --init {place}" in last_line(capsys)
    assert_same(saved(out), saved(made))


@pytest.mark.parametrize("offload", ["none", "best"])
def test_a_run_whose_store_is_elsewhere_does_not_go_on_in_memory(
    offload: str, tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = fitted(tiny_capture, tmp_path / "run", *SHORT, "--store", str(tmp_path / "drive"))
    resume = ["fit", str(tiny_capture), "--out", str(out), "--resume", "--steps", "3"]
    assert main([*resume, "--offload", offload]) == 2
    line = last_line(capsys)
    assert f"--store needs --offload tide, got --offload {offload}: a run whose Gaussians" in line
    assert line.endswith(f"goes on there, or in a new run with --init {out}")
    assert main(resume) == 0


def test_a_run_in_memory_goes_on_without_a_store(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = fitted(tiny_capture, tmp_path / "run", "--steps", "2", offload="none")
    resume = ["fit", str(tiny_capture), "--out", str(out), "--resume", "--steps", "3"]
    assert main([*resume, "--store", str(tmp_path / "drive")]) == 2
    assert "--store needs --offload tide, got --offload none" in last_line(capsys)
    assert main(resume) == 0


def test_a_start_that_was_killed_is_not_told_to_go_on(
    tiny_capture: Path, tmp_path: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(made, out)
    shutil.rmtree(out / "checkpoints")
    assert main(command(tiny_capture, out, *SHORT)) == 2
    assert "holds another run: add --overwrite to remove it, or choose" in last_line(capsys)


def test_a_start_that_finds_a_store_at_the_last_moment_leaves_it(
    tiny_capture: Path, tmp_path: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted(os.listdir(other))
    monkeypatch.setattr(RunFolder, "check", lambda *_: None)  # as if it came after that
    command_line = command(tiny_capture, tmp_path / "run", *SHORT, "--store", str(other))
    assert main(command_line) == 2
    assert sorted(os.listdir(other)) == files


def test_a_store_behind_a_link_is_overwritten_as_any(
    tiny_capture: Path, tmp_path: Path, made: Path
) -> None:
    out, drive = tmp_path / "run", tmp_path / "drive"
    shutil.copytree(made, out)
    shutil.move(out / "store", drive)
    (out / "store").symlink_to(drive)
    before = identity_of(drive)
    fitted(tiny_capture, out, *SHORT, "--overwrite")
    assert (out / "store").is_symlink()
    assert identity_of(drive) not in (None, before)
    assert_same(saved(out), saved(made))


def test_what_a_kill_before_the_first_checkpoint_left_in_the_run_is_overwritten(
    tiny_capture: Path, tmp_path: Path, made: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(made, out)
    shutil.rmtree(out / "checkpoints")  # the store has its snapshot already
    fitted(tiny_capture, out, *SHORT, "--overwrite")


def test_a_store_that_another_process_writes_is_not_removed(tmp_path: Path) -> None:
    with BlockStore.create(tmp_path / "store", [Plane("w", 1)], block_rows=16) as store:
        assert not may_remove(store.path, [])
        remove_store(store.path)
        assert identity_of(store.path) is not None
    assert may_remove(store.path, [])
    remove_store(store.path)
    assert not store.path.exists()


@pytest.mark.parametrize("below", ["checkpoints", "checkpoints/step_000002", "x/../tensorboard/y"])
def test_a_store_is_not_among_other_files_of_its_run(
    tiny_capture: Path, tmp_path: Path, below: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(command(tiny_capture, out, *SHORT, "--store", str(out / below))) == 2
    line = last_line(capsys)
    assert line.startswith(f"gs-train: error: --store must not be {out / below}: ")
    assert "of --out is for other files of the run" in line
    assert not out.exists()


def test_the_name_of_a_store_must_be_text(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / os.fsdecode(b"caf\xe9")
    assert main(command(tiny_capture, out, *SHORT)) == 2
    assert "must be UTF-8: name another one with --store" in last_line(capsys)
    assert not out.exists()


def test_a_store_that_was_moved_is_found_by_all_once_its_run_was_told(
    tiny_capture: Path, tmp_path: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, drive = tmp_path / "run", tmp_path / "drive"
    shutil.copytree(made, out)
    shutil.move(out / "store", drive)
    assert main(["eval", str(out), "--renderer", "cpu"]) == 2
    assert "name the folder where it is now with fit --resume --store" in last_line(capsys)
    resume = ["fit", str(tiny_capture), "--out", str(out), "--resume"]
    assert main([*resume, "--store", str(drive)]) == 0
    for look in (["inspect", "--verify"], ["eval", "--renderer", "cpu"], ["store", "check"]):
        assert main([*look, str(out)]) == 0, look
    shutil.move(drive, tmp_path / "elsewhere")
    assert main(["store", "info", str(out)]) == 2
    assert f"must be a run with its store, which is not in {drive}" in last_line(capsys)


def test_another_snapshot_that_is_damaged_is_one_line(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(made, out)
    older = out / "store" / "snap-0000000002"
    older.write_bytes(b"")
    assert main(["inspect", str(out), "--verify"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if older.name in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"{out / 'store'}: snapshot 3 was opened, but ")


def test_a_check_misses_the_snapshot_of_a_checkpoint(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(made, out)
    (out / "store" / "snap-0000000003").rename(out / "store" / "snap-0000000009")
    shutil.copy(made / "store" / "snap-0000000003", out / "store")
    assert main(["store", "check", str(out)]) == 2  # one that is not what its name says
    (out / "store" / "snap-0000000009").unlink()
    assert main(["store", "check", str(out)]) == 0
    store = BlockStore.open(out / "store")
    with store:
        store.snapshot(store.state)
    (out / "store" / "snap-0000000003").unlink(missing_ok=True)
    assert main(["store", "check", str(out)]) == 2
    line = last_line(capsys)
    assert f"{out / 'store'} must have snapshot 3, which a checkpoint in " in line
    assert line.endswith(", and has 4")
