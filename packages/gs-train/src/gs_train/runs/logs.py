# SPDX-License-Identifier: Apache-2.0
"""A run's scalars as CSV and as TensorBoard events."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gs_train.errors import InputError
from gs_train.files.atomic import disk_full_is_input_error, replacing
from gs_train.files.small_files import read_small
from gs_train.runs.events import Events

_MOST_BYTES = 1 << 30
_MOST_DIGITS = 18  # of a step


class RunLog:
    """Writes scalars to ``log.csv`` and ``tensorboard/`` in a folder.

    The CSV file has a column ``step`` and one for each scalar ever logged, empty where it was not;
    numbers are written so that they read back exactly. Every call reaches the operating system
    before it returns, so a killed run loses no line.

    A full disk ends a run, which can be resumed. A log that cannot be written for another reason
    ends alone, with one line on stderr: its file was removed, or is a folder.

    Args:
        folder: made when missing.
        resume_step: what was logged after this step is removed; None starts a new log.
        tensorboard: whether to write TensorBoard events too.

    Raises:
        InputError: the disk became full.
        RuntimeError: a method is called after ``close``.
    """

    def __init__(
        self, folder: str | Path, *, resume_step: int | None = None, tensorboard: bool = True
    ) -> None:
        self.folder = Path(folder)
        self._path = self.folder / "log.csv"
        self._columns: list[str] = ["step"]
        self._file: io.TextIOWrapper | None = None
        self._is_closed = False
        rows: list[dict[str, str]] = []
        if resume_step is not None:
            self._columns, rows = read_log(self._path, resume_step)
        purge_step = 0 if resume_step is None else resume_step + 1
        folder = self.folder / "tensorboard"
        self._events = Events(folder, purge_step=purge_step) if tensorboard else None
        with self._ending():
            self._file = self._begun(rows)

    def scalars(self, step: int, values: Mapping[str, Any]) -> None:
        """Log numbers (or one-element tensors, which synchronises their device) at ``step``.

        Raises:
            InputError: the disk became full.
        """
        if self._is_closed:
            raise RuntimeError(f"the log in {self.folder} must be open, it was closed")
        numbers = {name: float(value) for name, value in values.items()}
        with self._ending():
            self._log(step, numbers)
        if self._events is not None:
            self._events.scalars(step, numbers)

    def _log(self, step: int, numbers: Mapping[str, float]) -> None:
        if self._file is None:
            return
        if not os.fstat(self._file.fileno()).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "it was removed")
        new = [name for name in numbers if name not in self._columns]
        if new:
            self._file.close()
            _, rows = read_log(self._path, None)
            self._columns += new
            self._file = self._begun(rows)
        row = {"step": str(step), **{name: repr(value) for name, value in numbers.items()}}
        self._file.write(_lines(self._columns, [row]))
        self._file.flush()

    def close(self) -> None:
        """Finish both logs; further calls do nothing.

        Raises:
            InputError: the disk became full.
        """
        self._is_closed = True
        if self._events is not None:
            self._events.close()
        if self._file is not None:
            file, self._file = self._file, None
            with self._ending():
                file.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        try:
            self.close()
        except InputError:
            if error is None:  # otherwise what ended the run says more
                raise

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            with disk_full_is_input_error(self._path):
                yield
        except OSError as error:
            print(f"{self._path} ends, it cannot be written: {_reason(error)}", file=sys.stderr)
            file, self._file = self._file, None
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()

    def _begun(self, rows: list[dict[str, str]]) -> io.TextIOWrapper:
        """The file with these rows, open at its end."""
        header = dict(zip(self._columns, self._columns))
        with replacing(self._path) as file:
            file.write(_lines(self._columns, [header, *rows]).encode())
        return open(self._path, "a", newline="", encoding="utf-8")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _lines(columns: list[str], rows: list[dict[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writerows(rows)
    return text.getvalue()


def read_log(path: Path, last_step: int | None) -> tuple[list[str], list[dict[str, str]]]:
    """Columns and rows of a ``log.csv`` up to ``last_step``; a last line that a killed run left
    unfinished goes.

    Nothing of a file that is no such log; where it cannot be read, a line on stderr says why.
    """
    try:
        text = read_small(path, most_bytes=_MOST_BYTES).decode(errors="replace")
        reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
        columns = list(reader.fieldnames or ["step"])
        rows = [
            row
            for row in reader
            if None not in row
            and (row.get("step") or "").isdecimal()
            and len(row["step"]) <= _MOST_DIGITS
            and (last_step is None or int(row["step"]) <= last_step)
        ]
    except FileNotFoundError:
        return ["step"], []
    except (OSError, csv.Error) as error:
        print(f"{path} begins anew, it cannot be read: {_reason(error)}", file=sys.stderr)
        return ["step"], []
    if columns[0] != "step":
        return ["step"], []
    return columns, [{name: value or "" for name, value in row.items()} for row in rows]
