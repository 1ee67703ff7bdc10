# SPDX-License-Identifier: Apache-2.0
"""An object made here and used in a forked child: it works there, or says that it cannot."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable

from campaigns.misuse.calls import Entry, Room
from campaigns.misuse.judge import fault_of, is_same, shown

_SECONDS = 300.0
_GOOD, _BAD = 0, 3


def use_in_a_child(entry: Entry, seed: int, say: Callable[[str], None]) -> None:
    """Call a function here, so that its threads run, and the same in a child process.

    Raises:
        AssertionError: the child crashed, hung, or got something else.
    """
    say(f"{entry.name} in a forked child (arguments of seed {seed})")
    expected = shown(entry.make(Room(seed)).run())
    call = entry.make(Room(seed))
    child = os.fork()
    if child == 0:
        status = _BAD
        try:
            try:
                status = _GOOD if is_same(shown(call.run()), expected) else _BAD
            except Exception as error:
                status = _BAD if fault_of(error, call.raises) else _GOOD
                if status == _BAD:
                    traceback.print_exc()
        finally:
            os._exit(status)
    deadline = time.monotonic() + _SECONDS
    while True:
        pid, ended = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError(f"hung in a child for more than {_SECONDS:g} s")
        time.sleep(0.001)
    code = os.waitstatus_to_exitcode(ended)
    assert code != _BAD, "gave another result or a wrong exception in a child"
    assert code == _GOOD, f"ended a child with {code}"
