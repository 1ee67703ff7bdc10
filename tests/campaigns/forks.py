# SPDX-License-Identifier: Apache-2.0
"""``gs-train`` in a fork of this process, which may kill itself at a chosen moment."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from gs_train.cli import main

KINDS = ("disk", "file", "call")
"""Of calls; see `Moment`."""

_SECONDS = 60.0
_DISK_CALLS = frozenset(
    {
        *("open", "close", "fsync", "ftruncate", "truncate", "rename", "replace", "link"),
        *("mkdir", "rmdir", "unlink", "remove", "symlink", "scandir", "stat", "flock"),
    }
)
_FILE_CALLS = frozenset({"open", "write", "writelines", "flush", "close", "truncate"})


@dataclass(frozen=True)
class Moment:
    """A moment in the main thread of a command: just before the ``index``-th of some calls.

    Attributes:
        kind: ``disk``: calls of the operating system that open, sync, make, rename or remove;
            ``file``: calls that open, write or close Python's files; ``call``: calls of any
            function.
    """

    kind: str
    index: int


@dataclass(frozen=True)
class Exit:
    """How a forked command ended.

    Attributes:
        status: its exit status; -9 where it was killed.
        lines: of stdout and stderr.
        counts: the calls of each kind that it made; empty where it was killed.
    """

    status: int
    lines: tuple[str, ...]
    counts: dict[str, int]


def run_forked(arguments: Sequence[str], log: Path, kill_at: Moment | None = None) -> Exit:
    """Run ``gs-train`` in a fork.

    Args:
        log: a file for what it prints.
        kill_at: when it kills itself with SIGKILL; never where it ends before.
    """
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        _run_here(arguments, log, kill_at, theirs)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        counts = json.loads(pipe.read() or "{}")
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Exit(status, tuple(log.read_text(errors="replace").splitlines()), counts)


def _run_here(arguments: Sequence[str], log: Path, kill_at: Moment | None, pipe: int) -> None:
    status = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        faulthandler.dump_traceback_later(_SECONDS, exit=True, file=2)
        counter = _Counter(kill_at)
        sys.setprofile(counter)
        status = main(arguments)
        sys.setprofile(None)
        os.write(pipe, json.dumps(counter.counts).encode())
    except BaseException:
        sys.setprofile(None)
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


class _Counter:
    """Counts calls, and kills the process before the chosen one."""

    def __init__(self, kill_at: Moment | None) -> None:
        self.counts = dict.fromkeys(KINDS, 0)
        self._left = dict.fromkeys(KINDS, -1)
        if kill_at is not None:
            self._left[kill_at.kind] = kill_at.index

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            self._count("call")
        elif event == "c_call":
            self._count("call")
            name, owner = called.__name__, getattr(called, "__self__", None)
            if called.__module__ in ("posix", "fcntl"):
                if name in _DISK_CALLS:
                    self._count("disk")
            elif name in _FILE_CALLS and not isinstance(owner, str | bytes):
                self._count("file")

    def _count(self, kind: str) -> None:
        if self.counts[kind] == self._left[kind]:
            os.kill(os.getpid(), signal.SIGKILL)
        self.counts[kind] += 1
