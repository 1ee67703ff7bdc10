# SPDX-License-Identifier: Apache-2.0
"""``gs-train`` in this process, watched: what it said, where it wrote and what memory it took."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import re
import resource
import sys
import tempfile
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba

from gs_train.cli import main

MOST_BYTES = 1 << 30
"""Of memory that a command may take beyond what the process had."""

_ERROR = "gs-train: error: "
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_PATHS_OF = {
    "os.chmod": 1, "os.chown": 1, "os.link": 2, "os.mkdir": 1, "os.remove": 1, "os.rename": 2,
    "os.rmdir": 1, "os.symlink": 2, "os.truncate": 1, "shutil.rmtree": 1, "subprocess.Popen": 1,
    "os.posix_spawn": 1, "os.system": 1, "os.exec": 1,
}  # fmt: skip
"""Events of the interpreter that change something, and how many of their arguments are paths."""

_TEMPORARY = os.path.realpath(tempfile.gettempdir())

_watched: list[Watch] = []


@dataclass
class Watch:
    """What a command did beside the folder that it may write to."""

    folder: str
    outside: list[str]

    def see(self, event: str, arguments: tuple[Any, ...]) -> None:
        n_paths = _PATHS_OF.get(event, 0)
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES:
            n_paths = 1
        if event in ("os.remove", "os.rmdir") and arguments[1] >= 0:
            return  # within a folder whose removal has been seen
        for path in arguments[:n_paths]:
            if isinstance(path, str | bytes | os.PathLike):
                place, name = os.path.split(os.path.abspath(os.fsdecode(path)))
                place = os.path.join(os.path.realpath(place), name)
                if event == "open":  # which follows a link, as nothing else does
                    place = os.path.realpath(place)
                is_ours = f"{place}/".startswith((self.folder, "/dev/"))
                if not (is_ours or _is_compiled(place) or self._is_temporary(place)):
                    self.outside.append(f"{event} {os.fsdecode(path)!r}")

    def _is_temporary(self, place: str) -> bool:
        """Whether it is beside all campaigns, as are the caches that torch makes for itself."""
        work = os.path.dirname(self.folder.rstrip(os.sep))
        return place.startswith(f"{_TEMPORARY}/") and not place.startswith(f"{work}/")


def _is_compiled(place: str) -> bool:
    """Whether Python or numba keeps there what they compile, for whoever is first to call it."""
    cache = numba.config.CACHE_DIR
    is_numbas = bool(cache) and place.startswith(os.path.realpath(cache))
    return is_numbas or "__pycache__" in place


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched and (event == "open" or event in _PATHS_OF):
        _watched[-1].see(event, arguments)


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        status: its exit status.
        lines: of stderr.
    """

    status: int
    lines: tuple[str, ...]

    @property
    def error(self) -> str:
        """What it said was wrong; empty where all was well."""
        return self.lines[-1].removeprefix(_ERROR) if self.status else ""


def run_command(arguments: Sequence[str], folder: Path) -> Ended:
    """Run ``gs-train`` and check that it keeps to its rules, whatever it was given.

    The rules: it ends with 0, or with 2 and one last line that says what is wrong with which file
    or option; it prints no control characters and no warnings, writes nothing outside of
    ``folder``, leaves no temporary file (but for what it may not change), and takes a bounded
    amount of memory.

    Raises:
        AssertionError: it does not.
        BaseException: whatever the command raised.
    """
    before = set(folder.rglob("*.tmp*"))
    said, watch = io.BytesIO(), Watch(f"{folder}{os.sep}", [])
    with (
        io.TextIOWrapper(said, "utf-8", "backslashreplace", write_through=True) as stderr,
        contextlib.redirect_stderr(stderr),
        contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")),
        warnings.catch_warnings(record=True) as warned,
        _bounded_memory(),
        _as_anybody(),
    ):
        warnings.simplefilter("default")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        _watched.append(watch)
        try:
            status = main(arguments)
        except SystemExit as ended:
            raise AssertionError(f"left through {ended!r}") from ended
        finally:
            _watched.pop()
            text = said.getvalue().decode()
    lines = tuple(text.split("\n")[:-1])
    shown = f"got {status} and {lines!r}"
    assert status in (0, 2), f"status must be 0 or 2, {shown}"
    controls = {c for c in text if unicodedata.category(c) == "Cc"} - {"\n"}
    assert not controls, f"no control characters may be printed, {shown}"
    n_errors = sum(line.startswith(_ERROR) for line in lines)
    assert n_errors == (status == 2), f"errors must be one line, {shown}"
    if status:
        assert lines[-1].startswith(_ERROR), f"the error must be the last line, {shown}"
        things = r"--[a-z]|camera \d+ \(|view_\d|the reconstruction"
        named = str(folder) in lines[-1] or re.search(things, lines[-1])
        assert named, f"the error must name a file, an option, a camera or a view, {shown}"
    assert not warned, f"no warnings, got {[str(w.message) for w in warned]}"
    assert not watch.outside, f"nothing may be written outside of {folder}, got {watch.outside}"
    left = {path for path in folder.rglob("*.tmp*") if path.lstat().st_mode & 0o200} - before
    assert not left, f"no temporary files may be left, got {left}"
    return Ended(status, lines)


@contextlib.contextmanager
def _as_anybody() -> Iterator[None]:
    """Without root's right to read and write everything, so that permissions have an effect."""
    libc, version = ctypes.CDLL(None), 0x20080522
    header, sets = (ctypes.c_uint32 * 2)(version, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, sets)
    rights = sets[0]  # the effective ones
    sets[0] = rights & ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    libc.capset(header, sets)
    try:
        yield
    finally:
        sets[0] = rights
        libc.capset(header, sets)


@contextlib.contextmanager
def _bounded_memory() -> Iterator[None]:
    """Refuse what goes far beyond `MOST_BYTES`, and tell what goes beyond."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _memory("VmHWM")
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_memory("VmData") + 2 * MOST_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    taken = _memory("VmHWM") - before
    assert taken <= MOST_BYTES, f"memory must stay within {MOST_BYTES:,} bytes, got {taken:,}"


def _memory(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{name}:\s*(\d+)", text)[1])  # type: ignore[index]


sys.addaudithook(_audit)
