# SPDX-License-Identifier: Apache-2.0
"""One writer of a run's folder at a time, and what its end leaves."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gs_train.runs.training
from gs_train.cli import main
from gs_train.errors import InputError
from gs_train.runs.lock import LOCK, RunLock, locked

KILLED = """
    import os, signal, sys
    from pathlib import Path
    from gs_train.runs.lock import RunLock
    lock = RunLock(Path(sys.argv[1]))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_second_writer_is_told_who_the_first_is(tmp_path: Path) -> None:
    with locked(tmp_path / "run"):
        said = (
            rf"--out {tmp_path}/run is being written by another gs-train \(process {os.getpid()}\)"
        )
        for _ in range(2):
            with pytest.raises(InputError, match=said):
                RunLock(tmp_path / "run")
    with locked(tmp_path / "run"):
        pass


@pytest.mark.parametrize("content", [b"", b"\x1b[31m", b"12", b"12 a b\n", b"9" * 1000])
def test_a_holder_that_does_not_say_who_it_is_keeps_others_out_too(
    tmp_path: Path, content: bytes
) -> None:
    with locked(tmp_path):
        (tmp_path / LOCK).write_bytes(content)
        with pytest.raises(InputError, match="by another gs-train: wait for its end"):
            RunLock(tmp_path)


def test_a_killed_process_leaves_the_lock_free(tmp_path: Path) -> None:
    source = "\n".join(line.strip() for line in KILLED.splitlines())
    assert subprocess.run([sys.executable, "-c", source, str(tmp_path)]).returncode == -9
    assert (tmp_path / LOCK).exists()
    with locked(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_only_folders_that_the_lock_made_and_that_are_empty_go_with_it(tmp_path: Path) -> None:
    with locked(tmp_path / "a" / "b" / "c"):
        (tmp_path / "a" / "mine").write_text("mine")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["mine"]
    (tmp_path / "here").mkdir()
    with locked(tmp_path / "here"):
        pass
    assert (tmp_path / "here").is_dir()


@pytest.mark.parametrize("in_the_way", ["link", "folder"])
def test_what_lies_in_the_way_of_the_lock_is_left_alone(tmp_path: Path, in_the_way: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    if in_the_way == "link":
        (tmp_path / LOCK).symlink_to(victim)
    else:
        (tmp_path / LOCK).mkdir()
    said = f"--out {tmp_path} cannot be written: {tmp_path / LOCK}: "
    with pytest.raises(InputError, match=said):
        RunLock(tmp_path)
    assert victim.read_text() == "mine"


def test_a_lock_that_may_not_be_opened_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another user's; to root, whom nothing is forbidden, the system's answer is made up."""

    def forbidden(path: Path, *_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))

    monkeypatch.setattr(os, "open", forbidden)
    said = f"--out {tmp_path} cannot be written: {tmp_path / LOCK}: Permission denied"
    with pytest.raises(InputError, match=f"^{said}$"):
        RunLock(tmp_path)


def test_a_folder_that_was_removed_is_made_again_unless_another_has_it(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with locked(root) as lock:
        shutil.rmtree(root)
        lock.renew()
        with pytest.raises(InputError, match="is being written by another"):
            RunLock(root)
        shutil.rmtree(root)
        with locked(root):
            with pytest.raises(InputError, match="is being written by another"):
                lock.renew()
            lock.release()
            assert (root / LOCK).exists()
    assert not root.exists()


def test_a_file_system_without_locks_is_named_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", none)
    with locked(tmp_path / "run"):
        pass
    said = "is on a file system without locks (Operation not supported): nothing keeps a second"
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def _files(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_nobody_starts_overwrites_or_resumes_a_run_that_another_writes(
    tiny_capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A second command comes while the first one writes its model, and finds nothing to do."""
    out = tmp_path / "run"
    command = ["fit", str(tiny_capture), "--out", str(out), "--renderer", "cpu", "--steps", "2"]
    command += ["--cap", "200"]
    write_point_cloud = gs_train.runs.training.write_point_cloud

    def beside(*arguments: Any, **options: Any) -> None:
        before = _files(out)
        capsys.readouterr()
        others = [command, [*command, "--overwrite"], [*command[:4], "--resume"]]
        for other in others:
            assert main(other) == 2
            said = capsys.readouterr().err.splitlines()
            assert len(said) == 1
            assert f"--out {out} is being written by another gs-train (process" in said[0]
        assert _files(out) == before
        write_point_cloud(*arguments, **options)

    monkeypatch.setattr(gs_train.runs.training, "write_point_cloud", beside)
    assert main(command) == 0
    assert not (out / LOCK).exists()


def test_a_demo_leaves_the_capture_of_a_run_that_is_alive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo"
    with locked(out / "run"):
        command = ["demo", "--out", str(out), "--steps", "2", "--renderer", "cpu", "--overwrite"]
        assert main(command) == 2
        assert "is being written by another gs-train" in capsys.readouterr().err
        assert not (out / "capture").exists()
