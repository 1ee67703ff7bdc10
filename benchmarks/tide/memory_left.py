# SPDX-License-Identifier: Apache-2.0
"""Less memory than the machine has, held back from outside a process that is measured."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_HOLDER = """
import sys, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(max(0, free - int(sys.argv[1])), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""

_GROUPS = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def device_left(n_bytes: int | None) -> Iterator[None]:
    """While another process holds the device's memory but for so many bytes."""
    if n_bytes is None:
        yield
        return
    command = [sys.executable, "-c", _HOLDER, str(n_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        if holder.stdout.readline() != b"held\n":
            raise RuntimeError("the rest of the device must be held")
        try:
            yield
        finally:
            holder.stdin.close()


@contextlib.contextmanager
def host_left(n_bytes: int | None) -> Iterator[bool]:
    """While this process and those that it starts may have so many bytes, the page cache included,
    and none in swap. Gives whether that is so: where no group of processes can be made or limited,
    one line says why, and nothing is held back."""
    if n_bytes is None:
        yield False
        return
    limit: _Limit | None = None
    try:
        limit = _Limit(n_bytes)
    except OSError as error:
        print(f"--host-left is left out, no cgroup v2 can be limited: {error}", file=sys.stderr)
    try:
        yield limit is not None
    finally:
        if limit is not None:
            limit.end()


class _Limit:
    """A group of processes with so much memory, which this process has joined.

    Raises:
        OSError: there can be none; this process is where it was.
    """

    def __init__(self, n_bytes: int) -> None:
        self._own = _own_group()
        self._group = self._own / f"survey-{os.getpid()}"
        self._controls = self._own / "cgroup.subtree_control"
        self._has_enabled = "memory" not in self._controls.read_text().split()
        self._group.mkdir()
        try:
            _join(self._group)  # a group with processes of its own gives groups below no limits
            if self._has_enabled:
                self._controls.write_text("+memory")
            (self._group / "memory.max").write_text(str(n_bytes))
            with contextlib.suppress(OSError):  # a kernel without swap
                (self._group / "memory.swap.max").write_text("0")
        except OSError:
            self.end()
            raise

    def end(self) -> None:
        """Go back, and leave the groups as they were."""
        with contextlib.suppress(OSError):
            if self._has_enabled:  # a group that limits those below takes no process back
                self._controls.write_text("-memory")
        with contextlib.suppress(OSError):
            _join(self._own)
            self._group.rmdir()


def _own_group() -> Path:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    paths = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    if not paths or not (_GROUPS / "cgroup.controllers").exists():
        raise FileNotFoundError("this system has none")
    return _GROUPS / paths[0]


def _join(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))
