# SPDX-License-Identifier: Apache-2.0
"""The last resort of the command line: errors that nothing foresaw, as one line.

What a user can correct is an ``InputError`` where it is found. Nothing relies on this module.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import traceback
from pathlib import Path

from gs_train.checkpoint import latest_checkpoint
from gs_train.errors import InputError
from gs_train.files.atomic import replacing
from gs_train.machine.out_of_memory import in_short, memory_that_ran_out
from gs_train.runs.folder import RunFolder

_MOST_LETTERS = 300


def in_one_line(error: Exception, folder: RunFolder | None) -> tuple[str, int]:
    """A line for any error, and the exit status of the command that it ends."""
    if isinstance(error, InputError):
        return str(error), 2
    what = memory_that_ran_out(error)
    if what is not None:
        return f"{what} memory ran out{in_short(error)}; what has been saved stays", 2
    line = file_trouble(error, folder) if isinstance(error, OSError) else None
    return (unforeseen(error, folder), 1) if line is None else (line, 2)


def file_trouble(error: OSError, folder: RunFolder | None) -> str | None:
    """A line for an error of the system that names a file; None where it names none."""
    path = error.filename if error.filename2 is None else error.filename2
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    return f"{os.fsdecode(path)} cannot be used: {error.strerror}{_how_to_go_on(error, folder)}"


def unforeseen(error: Exception, folder: RunFolder | None) -> str:
    """A line for any other error, whose traceback is written to a file.

    Args:
        folder: of the run that it is about; its ``traceback.txt`` is written where it holds a run,
            else a temporary file.
    """
    lines = str(error).strip().splitlines()
    what = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return (
        f"{what[:_MOST_LETTERS]} - this was not foreseen, please report it with "
        f"{_write_traceback(error, folder)}{_how_to_go_on(error, folder)}"
    )


def _write_traceback(error: Exception, folder: RunFolder | None) -> str:
    """Where it was written."""
    text = "".join(traceback.format_exception(error)).encode(errors="backslashreplace")
    with contextlib.suppress(OSError, InputError):
        if folder is not None and folder.config.is_file():
            with replacing(folder.traceback) as file:
                file.write(text)
            return str(folder.traceback)
    with contextlib.suppress(OSError):
        descriptor, path = tempfile.mkstemp(prefix="gs-train-traceback-", suffix=".txt")
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        return path
    traceback.print_exception(error)
    return "the traceback above, which no file took"


def _how_to_go_on(error: Exception, folder: RunFolder | None) -> str:
    """What training said about it, or else which checkpoint there is."""
    notes = getattr(error, "__notes__", [])
    if notes:
        return "".join(f"; {note}" for note in notes)
    newest: Path | None = None
    with contextlib.suppress(OSError, InputError):
        newest = None if folder is None else latest_checkpoint(folder.checkpoints)
    return "" if newest is None else f"; {newest} is there: fit goes on from it with --resume"
