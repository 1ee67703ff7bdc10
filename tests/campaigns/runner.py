# SPDX-License-Identifier: Apache-2.0
"""Cases in a process of their own, which they may crash or hang."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from campaigns.case import SHARED, Outcome, attempt, load, prepare, remove

_SECONDS_TO_START, _SECONDS_TO_ABORT = 300.0, 10.0
_LINES = 40
"""Of what a process wrote last, kept of a case that ended it."""


def run_apart(module: str, seeds: Sequence[int], work: Path) -> Iterator[Outcome]:
    """Run cases one after the other in a worker process, started anew after one that ended it.

    Args:
        module: of the campaign.
        seeds: of its cases.
        work: a folder that does not exist; removed afterwards.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the workers, which may fork
    work.mkdir()
    worker = None
    try:
        for seed in seeds:
            worker = worker or _Worker(module, work)
            outcome = worker.run(seed)
            if not worker.alive:
                worker.end()
                worker = None
            yield outcome
    finally:
        if worker is not None:
            worker.end()
        remove(work)


class _Worker:
    """A process that runs cases of one campaign when told."""

    def __init__(self, module: str, work: Path) -> None:
        self.alive = True
        self._seconds = load(module).SECONDS
        self._log = work / "worker.log"
        self._log.touch()
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(module, work, self._log, theirs)
        )
        self._process.start()
        theirs.close()
        if not self._pipe.poll(_SECONDS_TO_START):
            raise TimeoutError(f"no worker began within {_SECONDS_TO_START:g} s")
        try:
            self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"{module} cannot begin:\n{self._log.read_text()}") from None

    def run(self, seed: int) -> Outcome:
        os.truncate(self._log, 0)
        said: list[str] = []
        deadline = time.monotonic() + self._seconds
        try:
            self._pipe.send(seed)
            while self._pipe.poll(max(0.0, deadline - time.monotonic())):
                told = self._pipe.recv()
                if isinstance(told, Outcome):
                    return told
                said.append(told)
            bad = f"hung for more than {self._seconds:g} s"
            os.kill(self._process.pid or 0, signal.SIGABRT)  # which writes down where
            self._process.join(_SECONDS_TO_ABORT)
        except (EOFError, OSError):  # perhaps of what the case before has left behind
            self._process.join()
            code = self._process.exitcode or 0
            bad = f"ended the process with {signal.Signals(-code).name if code < 0 else code}"
        self.alive = False
        lines = self._log.read_text(errors="replace").splitlines()
        return Outcome(seed, bad, tuple(said), "\n".join(lines[-_LINES:]))

    def end(self) -> None:
        """End the process, and all that it started."""
        self._pipe.close()
        try:
            os.killpg(self._process.pid or 0, signal.SIGKILL)
        except ProcessLookupError:
            self._process.kill()
        self._process.join()


def _serve(module: str, work: Path, log: Path, pipe: Connection) -> None:
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable()
    shared = work / SHARED if (work / SHARED).exists() else prepare(module, work)
    pipe.send("ready")
    while True:
        try:
            seed: Any = pipe.recv()
        except EOFError:
            return
        pipe.send(attempt(module, seed, shared, pipe.send))
