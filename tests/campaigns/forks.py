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

_SECONDS = 60.0
_FILE_CALLS = frozenset(
    {
        *("open", "write", "writelines", "flush", "fsync", "close", "truncate", "ftruncate"),
        *("rename", "replace", "mkdir", "rmdir", "unlink", "remove", "link", "symlink", "flock"),
    }
)


@dataclass(frozen=True)
class Moment:
    """A moment in the main thread of a command: just before the ``index``-th of some calls.

    Attributes:
        kind: ``file``: calls that open, write, sync, close, make, rename or remove; ``call``: all
            calls of functions of Python and C.
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
        self.counts = {"file": 0, "call": 0}
        self._left = {"file": -1, "call": -1}
        if kill_at is not None:
            self._left[kill_at.kind] = kill_at.index

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            self._count("call")
        elif event == "c_call":
            self._count("call")
            is_text = isinstance(getattr(called, "__self__", None), str | bytes)
            if called.__name__ in _FILE_CALLS and not is_text:
                self._count("file")

    def _count(self, kind: str) -> None:
        if self.counts[kind] == self._left[kind]:
            os.kill(os.getpid(), signal.SIGKILL)
        self.counts[kind] += 1
