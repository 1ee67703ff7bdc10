# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of one host, passes signals on to them, and waits for their end.

torchrun does as well. It gives ranks half a minute after a signal and then kills them, which may be
in the middle of a checkpoint; this launcher lets them finish.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType

from gs_train.world.board import TOLD
from gs_train.world.failure import EXIT_STATUS
from gs_train.world.standing import OWN_STORE
from gs_train.world.store import LOOPBACK, served

_PERIOD_S = 0.1
_GRACE_S = 10.0
"""For which ranks may go on after one has failed; each ends itself sooner, unless it is stopped."""

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def launch(arguments: Sequence[str], ranks: int, *, module: str = "gs_train") -> int:
    """Run ``python -m module arguments...`` in as many processes as there are ranks.

    SIGINT, SIGTERM and SIGHUP reach every rank once, a terminal's Ctrl-C too: ranks are no members
    of the terminal's foreground group. All ranks have ended when this returns or raises.

    Ranks find modules where this process does, except in the current folder.

    Args:
        arguments: the command line of all ranks.
        ranks: their number, and that of the devices they use.

    Returns:
        The exit status: 0 where all ranks ended with 0, 2 where one was killed, 128 + the signal
        where a signal that was passed on ended them, else the status of the ranks.
    """
    store, port = served()
    shared = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        OWN_STORE: "True",
    }
    processes: list[subprocess.Popen[bytes]] = []
    with _passing_on(processes) as passed:
        try:
            for rank in range(ranks):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module, *arguments],
                    env=os.environ | shared | own,
                    stdin=subprocess.DEVNULL,
                    process_group=0,
                )
                processes.append(process)
                for number, reached in list(passed.items()):
                    if reached <= rank:  # it came while this one was started
                        process.send_signal(number)
            _wait(processes, passed)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    codes = [process.returncode for process in processes]
    killed = next((r for r, code in enumerate(codes) if code < 0 and -code not in passed), None)
    if killed is None:
        return _status(codes)
    if not store.check([TOLD]):
        name = signal.Signals(-codes[killed]).name
        print(f"gs-train: error: rank {killed}: it was ended by {name}", file=sys.stderr)
    return EXIT_STATUS


def _wait(processes: Sequence[subprocess.Popen[bytes]], passed: Mapping[int, int]) -> None:
    """Until all have ended, or one has failed and the time for the others is over. A rank that ends
    as it was asked to has not failed: others may still be saving."""
    patience = round(_GRACE_S / _PERIOD_S)
    while patience:
        codes = [process.poll() for process in processes]
        if None not in codes:
            return
        asked = {ended for number in tuple(passed) for ended in (-number, 128 + number)}
        patience -= not asked.issuperset(filter(None, codes))
        time.sleep(_PERIOD_S)


@contextlib.contextmanager
def _passing_on(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[dict[int, int]]:
    """While entered, signals go to the processes; for each that came, how many it has reached."""
    passed: dict[int, int] = {}

    def on_signal(number: int, _frame: FrameType | None) -> None:
        passed[number] = len(processes)
        for process in processes:
            process.send_signal(number)  # nothing where it has ended

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in _PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as below nohup
                before[number] = signal.signal(number, on_signal)
    try:
        yield passed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _status(codes: Sequence[int]) -> int:
    """Of all: errors before stops, stops before nothing."""
    positive = [128 - code if code < 0 else code for code in codes]
    return next((code for code in (EXIT_STATUS, 1) if code in positive), max(positive))
