# SPDX-License-Identifier: Apache-2.0
"""A program of ranks that meet faults: ``python -m rank_faults ...`` is ``gs-train ...``.

The environment says which faults, see `Fault`. The rank writes the moment into a file.
"""

from __future__ import annotations

import errno
import functools
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gs_train.__main__ import main
from gs_train.errors import InputError
from gs_train.runs.trainer import Trainer

VARIABLE = "GS_TEST_FAULT"
LASTING = ("disk", "file")


@dataclass(frozen=True)
class Fault:
    """What befalls a rank, once.

    Attributes:
        rank: which one.
        after_step: steps that have been done before.
        point: function or method that is called then, ``module:name`` or ``module:class.name``.
        how: ``SIGKILL``, ``SIGSTOP``, ``SIGTERM``, ``SIGINT``, ``memory`` (of the device),
            ``host memory``; or, from then on, ``disk`` (that is full) or ``file`` (that cannot be
            read).
        call: which of the calls after the step.
        moment: the file for the time.
    """

    rank: int
    after_step: int
    point: str
    how: str
    moment: str
    call: int = 1

    def seconds_ago(self) -> float:
        """Since it has happened."""
        return time.time() - float(Path(self.moment).read_text())


def in_words(*faults: Fault) -> str:
    """For the environment."""
    return json.dumps([asdict(fault) for fault in faults])


def _befall(fault: Fault) -> None:
    moment = Path(fault.moment)
    if fault.how not in LASTING or not moment.exists():  # else it has been noted
        moment.write_text(str(time.time()))
    if fault.how == "disk":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if fault.how == "memory":
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    if fault.how == "host memory":
        raise MemoryError("page-locked memory of 2147483648 bytes is not there")
    if fault.how == "file":
        raise InputError("/photographs/7.jpg cannot be read")
    os.kill(os.getpid(), signal.Signals[fault.how])


def _arm(fault: Fault) -> None:
    """Have the fault happen where the point is called."""
    module, _, path = fault.point.partition(":")
    *holders, name = path.split(".")
    holder: Any = functools.reduce(getattr, holders, importlib.import_module(module))
    steps, calls = [0], [0]
    _call_before(Trainer, "train_step", lambda: _count(steps))

    def before() -> None:
        if steps[0] > fault.after_step:
            _count(calls)
            if calls[0] == fault.call or (fault.how in LASTING and calls[0] > fault.call):
                _befall(fault)

    _call_before(holder, name, before)


def _count(number: list[int]) -> None:
    number[0] += 1


def _call_before(holder: Any, name: str, before: Callable[[], None]) -> None:
    function = getattr(holder, name)

    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        before()
        return function(*arguments, **options)

    setattr(holder, name, called)


if __name__ == "__main__":
    # As in a terminal: whoever runs the tests in a shell's background leaves it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for told in json.loads(os.environ[VARIABLE]):
        if told["rank"] == int(os.environ["RANK"]):
            _arm(Fault(**told))
    sys.exit(main())
