# SPDX-License-Identifier: Apache-2.0
"""A campaign whose cases come to known ends, by seed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from campaigns.case import Case

SECONDS = 5.0
GOOD, RAISES, CRASHES, HANGS = range(4)


def prepare(shared: Path) -> None:
    (shared / "given").write_text("given")


def run(case: Case) -> None:
    assert (case.shared / "given").read_text() == "given"
    assert not list(case.folder.iterdir())
    (case.folder / "locked").mkdir(mode=0)
    case.say(f"draw {case.rng.integers(1 << 30)}")
    if case.seed == RAISES:
        raise ValueError("first line\nsecond line")
    if case.seed == CRASHES:
        os.kill(os.getpid(), signal.SIGSEGV)
    if case.seed == HANGS:
        time.sleep(100)
