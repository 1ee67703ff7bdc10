# SPDX-License-Identifier: Apache-2.0
"""A run's scalars as TensorBoard events, where TensorBoard is installed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class Events:
    """An event file in a folder. Training never ends for its sake: at the first failure one line on
    stderr says why there are no more.

    Written here and by no thread, unlike torch's ``SummaryWriter``, whose thread prints a traceback
    of its own when it fails.

    Args:
        folder: for the file; made when missing.
        purge_step: what earlier files logged at this step or later is to be forgotten.
    """

    def __init__(self, folder: Path, *, purge_step: int) -> None:
        self._folder = folder
        self._file: Any = None
        try:
            # Imported here: only a run needs it.
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError:
            print(
                f"no {folder.name}/: TensorBoard is not installed, log.csv has the same numbers; "
                'pip install "gs-train[tensorboard]" for both',
                file=sys.stderr,
            )
            return
        except Exception as error:  # such as protobuf of a version that TensorBoard does not fit
            reason = " ".join(str(error).split())[:200]
            print(f"no {folder.name}/: TensorBoard does not load: {reason}", file=sys.stderr)
            return
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        with self._ending():
            folder.mkdir(parents=True, exist_ok=True)
            # TensorBoard reads files in the order of their names.
            seconds, nanoseconds = divmod(time.time_ns(), 10**9)
            name = f"events.out.tfevents.{seconds:010d}.{nanoseconds:09d}.{secrets.token_hex(8)}"
            self._file = open(folder / name, "xb")  # noqa: SIM115 (close() does)
            self._records = RecordWriter(self._file)
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(step=purge_step, file_version="brain.Event:2")
            self._write(step=purge_step, session_log=start)
            self._file.flush()

    def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log numbers at ``step``; they reach the operating system before this returns."""
        if self._file is None:
            return
        with self._ending():
            if not os.fstat(self._file.fileno()).st_nlink:
                raise FileNotFoundError(errno.ENOENT, "it was removed")
            value = self._summary.Value
            values = [value(tag=name, simple_value=number) for name, number in numbers.items()]
            self._write(step=step, summary=self._summary(value=values))
            self._file.flush()

    def close(self) -> None:
        """Finish the file; further calls do nothing."""
        if self._file is not None:
            with self._ending():
                self._file.close()
            self._file = None

    def _write(self, **content: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            print(f"{self._folder} ends, it cannot be written: {reason}", file=sys.stderr)
            file, self._file = self._file, None
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
