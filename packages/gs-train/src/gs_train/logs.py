# SPDX-License-Identifier: Apache-2.0
"""A run's scalars as CSV and as TensorBoard events."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gs_train.atomic import disk_full_is_input_error, replacing
from gs_train.errors import InputError


class RunLog:
    """Writes scalars to ``log.csv`` and ``tensorboard/`` in a folder.

    The CSV file has a column ``step`` and one for each scalar ever logged, empty where it was not;
    numbers are written so that they read back exactly. Every call reaches the operating system
    before it returns, so a killed run loses no line.

    Args:
        folder: made when missing.
        resume_step: what was logged after this step is removed; None starts a new log.
        tensorboard: whether to write TensorBoard events too.

    Raises:
        RuntimeError: a method is called after ``close``.
    """

    def __init__(
        self, folder: str | Path, *, resume_step: int | None = None, tensorboard: bool = True
    ) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path = self.folder / "log.csv"
        self._columns: list[str] = ["step"]
        rows: list[dict[str, str]] = []
        if resume_step is not None:
            self._columns, rows = _read(self._path, resume_step)
        self._events: Any = None
        if tensorboard:
            # Imported here: it takes a second, and only a run needs it.
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(
                str(self.folder / "tensorboard"),
                purge_step=0 if resume_step is None else resume_step + 1,
            )
        self._rewrite(rows)
        self._file: io.TextIOWrapper | None = self._append()

    def scalars(self, step: int, values: Mapping[str, Any]) -> None:
        """Log numbers (or one-element tensors, which synchronises their device) at ``step``.

        Raises:
            InputError: the disk became full.
        """
        with disk_full_is_input_error(self._path):
            self._log(step, values)

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        file = self._opened()
        numbers = {name: float(value) for name, value in values.items()}
        new = [name for name in numbers if name not in self._columns]
        if new:
            file.close()
            _, rows = _read(self._path, None)
            self._columns += new
            self._rewrite(rows)
            self._file = file = self._append()
        row = {"step": str(step), **{name: repr(value) for name, value in numbers.items()}}
        file.write(_lines(self._columns, [row]))
        file.flush()
        if self._events is not None:
            for name, value in numbers.items():
                self._events.add_scalar(name, value, step)
            self._events.flush()

    def close(self) -> None:
        """Finish both logs; further calls do nothing.

        Raises:
            InputError: the disk became full.
        """
        if self._file is not None:
            file, self._file = self._file, None
            with disk_full_is_input_error(self._path):
                try:
                    file.close()
                finally:
                    if self._events is not None:
                        self._events.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        try:
            self.close()
        except (InputError, OSError):
            if error is None:  # otherwise what ended the run says more
                raise

    def _opened(self) -> io.TextIOWrapper:
        if self._file is None:
            raise RuntimeError(f"the log in {self.folder} must be open, it was closed")
        return self._file

    def _append(self) -> io.TextIOWrapper:
        return open(self._path, "a", newline="", encoding="utf-8")

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        header = dict(zip(self._columns, self._columns))
        with replacing(self._path) as file:
            file.write(_lines(self._columns, [header, *rows]).encode())


def _lines(columns: list[str], rows: list[dict[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writerows(rows)
    return text.getvalue()


def _read(path: Path, last_step: int | None) -> tuple[list[str], list[dict[str, str]]]:
    """Columns and rows up to ``last_step``; a last line that a killed run left unfinished goes."""
    if not path.is_file():
        return ["step"], []
    text = path.read_text(encoding="utf-8", errors="replace")
    complete = text[: text.rfind("\n") + 1]
    reader = csv.DictReader(io.StringIO(complete))
    columns = list(reader.fieldnames or ["step"])
    rows = [
        row
        for row in reader
        if None not in row
        and (row.get("step") or "").isdecimal()
        and (last_step is None or int(row["step"]) <= last_step)
    ]
    if columns[0] != "step":
        return ["step"], []
    return columns, [{name: value or "" for name, value in row.items()} for row in rows]
