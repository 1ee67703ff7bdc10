# SPDX-License-Identifier: Apache-2.0
"""Processes that are the ranks of a world, and do what a test asks of all of them.

They are forked from one that has imported torch and nothing else, which takes milliseconds.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from gs_train.world import ToldError, joined
from gs_train.world.standing import OWN_STORE
from gs_train.world.store import LOOPBACK, served

Kind = Literal["cuda", "cpu"]


@dataclass(frozen=True)
class End:
    """How a rank has ended.

    Attributes:
        error: what left the world.
        said: on standard error.
        exit_status: of its process.
    """

    error: str
    said: str = ""
    exit_status: int | None = None


class Workers:
    """A context manager of the ranks of one world.

    Args:
        size: their number.
        kinds: of device of each; the CPU.
        environment: more of all ranks.
    """

    def __init__(
        self,
        size: int,
        *,
        kinds: Sequence[Kind] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.size = size
        self._folder = tempfile.TemporaryDirectory()
        self._store, port = served()
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(["gs_train.world.session"])
        self._pipes: list[Connection] = []
        self.processes = []
        for rank in range(size):
            variables = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": LOOPBACK,
                "MASTER_PORT": str(port),
                OWN_STORE: "True",
                **(environment or {}),
            }
            ours, theirs = server.Pipe()
            kind = "cpu" if kinds is None else kinds[rank]
            arguments = (theirs, variables, kind, self._said(rank))
            process = server.Process(target=_work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.join()
            process.close()
        self._folder.cleanup()

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What ``function(world, *arguments)`` returns on every rank."""
        self.send(function, *arguments)
        values = [pipe.recv() for pipe in self._pipes]
        assert not any(isinstance(value, End) for value in values), values
        return values

    def ends(self, function: Callable[..., Any], *arguments: Any) -> list[End]:
        """The same for a function that ends all of them."""
        self.send(function, *arguments)
        return [self.end(rank) for rank in range(self.size)]

    def lose_store(self) -> None:
        """As if the process that has it were killed."""
        del self._store

    def send(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Ask for the same, and wait for nothing."""
        for pipe in self._pipes:
            pipe.send((function, arguments))

    def has_ended(self, rank: int, *, within_s: float) -> bool:
        """Whether a rank, asked by :meth:`send`, has left the world or answered."""
        return self._pipes[rank].poll(within_s)

    def end(self, rank: int) -> End:
        """Wait for the end of a rank."""
        error = ""
        with contextlib.suppress(EOFError):  # it was killed
            error = self._pipes[rank].recv().error
        self.processes[rank].join()
        said = self._said(rank).read_text() if self._said(rank).exists() else ""
        return End(error, said, self.processes[rank].exitcode)

    def _said(self, rank: int) -> Path:
        """The file that takes the place of a rank's standard error."""
        return Path(self._folder.name, f"rank_{rank}")


def lines(ends: list[End]) -> list[str]:
    """What all ranks have said."""
    return [line for end in ends for line in end.said.splitlines()]


def _work(pipe: Connection, environment: dict[str, str], kind: Kind, said: Path) -> None:
    os.environ.update(environment)
    with said.open("wb") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())  # what is said is kept, however the rank ends
    error, status = "", 0
    try:
        with joined(kind) as world:
            while True:
                try:
                    function, arguments = pipe.recv()
                except EOFError:
                    return
                pipe.send(function(world, *arguments))
    except ToldError as told:
        error, status = "ToldError", told.exit_status
    except BaseException as other:
        error, status = f"{type(other).__name__}: {other}", 130
    pipe.send(End(error))
    sys.exit(status)
