# SPDX-License-Identifier: Apache-2.0
"""What tests of threads do instead of sleeping: they look until a thread has come to a place.

No condition here has a limit of time: pytest's ``faulthandler_timeout`` ends a run that hangs, and
a script has the time limit of its process. A slow machine makes a test longer, and changes no
verdict.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

FOLDER = str(Path(__file__).parent)
"""Where a script finds this module."""


def until(condition: Callable[[], object]) -> None:
    """Give Python's lock away until a condition is true."""
    while not condition():
        time.sleep(0)


def has_ended(thread: int) -> bool:
    """Whether the system's thread of that number, `threading.get_native_id`, is no more."""
    return not Path(f"/proc/self/task/{thread}").exists()


@contextmanager
def lock_kept() -> Iterator[None]:
    """Python's lock changes hands only where a thread gives the lock away, as native waits do."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def waits_in(thread: int, function: Any) -> bool:
    """Below `lock_kept`: the thread, a `threading.get_ident`, waits in native code that a Python
    function calls, itself or through another function of its file. The frame stands there because
    the thread has given the lock away there."""
    assert isinstance(function, FunctionType)
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_filename == function.__code__.co_filename:
        if frame.f_code is function.__code__:
            return True
        frame = frame.f_back
    return False


@contextmanager
def once_in(function: Any, action: Callable[[], object]) -> Iterator[None]:
    """Run an action on a thread of its own as soon as this thread waits in native code that the
    function calls; where this thread never waits there, the action does not run."""
    caller, is_over = threading.get_ident(), threading.Event()

    def act() -> None:
        until(lambda: is_over.is_set() or waits_in(caller, function))
        if not is_over.is_set():
            action()

    thread = threading.Thread(target=act)
    with lock_kept():
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


def ctrl_c() -> None:
    """As when the user types it: the main thread is told."""
    signal.raise_signal(signal.SIGINT)
