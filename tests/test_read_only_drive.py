# SPDX-License-Identifier: Apache-2.0
"""A store on a drive that takes no writes, also not those of the superuser: a mount of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

_NO_MOUNTS = 77

_SCRIPT = """
import contextlib, io, sys
from pathlib import Path

from campaigns.disks import can_mount, mounted
from campaigns.good_files import write_captures

if not can_mount():
    sys.exit({no_mounts})
from gs_train.cli import main

folder = Path(sys.argv[1])
drive, captures = folder / "drive", folder / "captures"
drive.mkdir()
captures.mkdir()
write_captures(captures)
FIT = ["fit", str(sorted(p for p in captures.iterdir() if p.is_dir())[0]), "--renderer", "cpu",
       "--steps", "2", "--offload", "tide", "--strategy", "fixed"]


def lines_of(status, *arguments):
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        ended = main([*FIT, *arguments] if arguments[0].startswith("--") else [*arguments])
    lines = errors.getvalue().splitlines()
    assert ended == status, lines
    return [line for line in lines if "error" in line]


def expect(text, *arguments):
    (line,) = lines_of(2, *arguments)
    assert line == f"gs-train: error: {{text}}", line


with mounted(drive, 4000) as remount:
    {body}
"""


def run_on_a_drive(tmp_path: Path, body: str) -> None:
    """Run lines of Python in a process with a small drive at ``drive``."""
    script = _SCRIPT.format(no_mounts=_NO_MOUNTS, body=textwrap.indent(body, "    ").lstrip())
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode == _NO_MOUNTS:
        pytest.skip("this process may not mount file systems")
    assert ended.returncode == 0, ended.stderr


def test_a_store_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    run_on_a_drive(
        tmp_path,
        """\
remount("ro")
out, why = str(folder / "run"), "Read-only file system"
store = drive / "store"
expect(f"the store {store} cannot be used: mkdir: {why}", "--out", out, "--store", str(store))
deeper = drive / "a" / "store"
expect(f"the store {deeper} cannot be used: {deeper.parent}: {why}",
       "--out", out, "--store", str(deeper))
assert not [path for path in (folder / "run").glob("*") if path.name != "cache"]
""",
    )


def test_a_store_whose_drive_takes_no_more_writes_is_looked_at(tmp_path: Path) -> None:
    run_on_a_drive(
        tmp_path,
        """\
out, store = str(folder / "run"), str(drive / "store")
lines_of(0, "--out", out, "--store", store)
remount("ro")
(line,) = lines_of(2, "--out", out, "--resume", "--steps", "3")
assert line.startswith(f"gs-train: error: the store {store} cannot be used: "), line
assert line.count("Read-only file system") == 1, line
lines_of(0, "eval", out, "--renderer", "cpu")
lines_of(0, "inspect", out, "--verify")
remount("rw")
lines_of(0, "--out", out, "--resume", "--steps", "3")
""",
    )
