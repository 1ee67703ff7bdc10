# SPDX-License-Identifier: Apache-2.0
"""``gs-train`` in a child process that starts warm, with something that happens in its middle.

A child forked from a process that has imported everything starts in milliseconds. What happens to
it is counted in events instead of seconds, so that a seed repeats it: calls of Python functions,
or changes of files.
"""

from __future__ import annotations

import builtins
import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from gs_train.__main__ import main

Act = Callable[[], None]
OnChange = Callable[[str, str | None], None]
"""Called with the kind of a change (``open``, ``write``, or the name of a function of ``os``), and
with its path where an error of the system would name it."""

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = ("rename", "replace", "mkdir", "remove", "unlink", "rmdir", "fsync", "truncate", "link")
_POLL_S = 0.002
_FIRST_S = 0.1


@dataclass(frozen=True)
class Ended:
    """How a child ended.

    Attributes:
        status: its exit status, or minus the signal that ended it.
        lines: of stderr.
        hung: whether it was ended for taking too long.
    """

    status: int
    lines: tuple[str, ...]
    hung: bool = False

    @property
    def last(self) -> str:
        return self.lines[-1] if self.lines else ""


def run_forked(
    arguments: Sequence[str],
    folder: Path,
    *,
    seconds: float,
    before: Act | None = None,
) -> Ended:
    """Run ``gs-train`` in a child process and wait for its end.

    Args:
        arguments: the command line without the program's name.
        folder: for what it prints.
        seconds: after which it hangs and is killed.
        before: called in the child before the command.
    """
    said = folder / f"stderr-{time.monotonic_ns()}"
    said.touch()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _be_child(arguments, said, before)
    deadline, pause, hung = time.monotonic() + seconds, _FIRST_S, False
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if not hung and time.monotonic() > deadline:
            hung = True
            os.kill(child, signal.SIGKILL)
        time.sleep(pause)
        pause = _POLL_S
    text = said.read_bytes().decode(errors="backslashreplace")
    said.unlink()
    # A line of progress is overwritten, so that what counts is how it was left.
    lines = tuple(line.rsplit("\r", 1)[-1] for line in text.split("\n")[:-1])
    return Ended(os.waitstatus_to_exitcode(status), lines, hung)


def _be_child(arguments: Sequence[str], said: Path, before: Act | None) -> NoReturn:
    """All that the interpreter does around a program, to its end."""
    status = 1
    try:
        output = os.open(said, os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stdin = None
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), write_through=True)
        sys.stderr = io.TextIOWrapper(
            io.FileIO(2, "w"), errors="backslashreplace", write_through=True
        )
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if before is not None:
            before()
        sys.argv = ["gs-train", *arguments]
        status = main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def at_call(number: int, act: Act) -> Act:
    """What makes a child call ``act`` in its main thread at its ``number``-th call of a function.

    ``number`` counts from 1; `count_calls` tells how many there are.
    """

    def begin() -> None:
        left = number

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal left
            if event == "call":
                left -= 1
                if left == 0:
                    sys.setprofile(None)
                    act()

        sys.setprofile(count)

    return begin


def count_calls(path: Path) -> Act:
    """What makes a child write to ``path`` how many calls its main thread made."""

    def begin() -> None:
        made = 0
        end = os._exit

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal made
            made += event == "call"

        def ended(status: int) -> NoReturn:
            sys.setprofile(None)
            path.write_text(str(made))
            end(status)

        os._exit = ended
        sys.setprofile(count)

    return begin


def at_change(number: int, folder: Path, act: OnChange) -> Act:
    """What makes a child call ``act`` from its ``number``-th change of a file below ``folder`` on.

    Changes are opening to write, writing, flushing, syncing, renaming, making and removing, in any
    thread. ``act`` is called before each; where it raises, the change fails with that.
    `count_changes` tells how many there are.
    """

    def begin() -> None:
        left = number

        def changed(kind: str, path: str | None) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                act(kind, path)

        _tell_changes(folder, changed)

    return begin


def count_changes(folder: Path, path: Path) -> Act:
    """What makes a child write to ``path`` how many changes `at_change` would have told."""

    def begin() -> None:
        made = 0
        end = os._exit

        def changed(kind: str, path: str | None) -> None:
            nonlocal made
            made += 1

        def ended(status: int) -> NoReturn:
            n = made
            with io.FileIO(str(path), "w") as file:
                file.write(str(n).encode())
            end(status)

        os._exit = ended
        _tell_changes(folder, changed)

    return begin


def _tell_changes(folder: Path, changed: OnChange) -> None:
    """Call ``changed`` before every change below ``folder``, in this process, for good."""
    lock, busy = threading.RLock(), threading.local()

    def tell(kind: str, path: str | None) -> None:
        if getattr(busy, "is_busy", False):
            return  # what a change is made of
        busy.is_busy = True
        try:
            with lock:
                changed(kind, path)
        finally:
            busy.is_busy = False

    def is_below(path: Any) -> bool:
        if isinstance(path, int):
            try:
                path = os.readlink(f"/proc/self/fd/{path}")
            except OSError:
                return False
        return os.path.abspath(os.fsdecode(path)).startswith(str(folder))

    def told(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            if options.get("dir_fd") is not None or is_below(path):
                tell(kind, None if isinstance(path, int) else os.fsdecode(path))
            return function(path, *arguments, **options)

        return call

    opened, descriptor = io.open, os.open

    def open_told(file: Any, mode: str = "r", buffering: int = -1, *texts: Any, **more: Any) -> Any:
        writes = set(mode) & set("wax+")
        if not writes or "opener" in more or texts or not is_below(file):
            return opened(file, mode, buffering, *texts, **more)
        if not isinstance(file, int):
            tell("open", os.fsdecode(file))
        kind = mode.replace("b", "").replace("t", "")
        raw = _ToldFile(file, kind, tell, more.pop("closefd", True))
        if buffering == 0:
            return raw
        both: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return both if "b" in mode else io.TextIOWrapper(both, **more)

    def descriptor_told(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & _WRITES and (options.get("dir_fd") is not None or is_below(path)):
            tell("open", os.fsdecode(path))
        return descriptor(path, flags, *arguments, **options)

    for name in _CHANGES:
        setattr(os, name, told(name, getattr(os, name)))
    os.open = descriptor_told
    builtins.open = io.open = open_told


class _ToldFile(io.FileIO):
    """A file that tells before it is written to."""

    def __init__(self, file: Any, mode: str, tell: OnChange, closefd: bool) -> None:
        super().__init__(file, mode, closefd)
        self._tell = tell

    def write(self, data: Any) -> int:
        self._tell("write", None)
        return super().write(data)
