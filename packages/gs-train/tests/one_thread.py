# SPDX-License-Identifier: Apache-2.0
"""A test that would hang fails instead."""

from __future__ import annotations

import faulthandler
import functools
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch


def within(seconds: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test in a thread of its own and fail when it takes longer than this.

    A signal would not do: threads that wait in native code do not see it. torch works on one thread
    meanwhile, because its own wait for each other by spinning, which a loaded machine punishes.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def guarded(**fixtures: Any) -> None:
            errors: list[BaseException] = []

            def body() -> None:
                threads = torch.get_num_threads()
                torch.set_num_threads(1)
                try:
                    test(**fixtures)
                except BaseException as error:
                    errors.append(error)
                finally:
                    torch.set_num_threads(threads)

            thread = threading.Thread(target=body, name=test.__name__, daemon=True)
            thread.start()
            thread.join(seconds)
            if thread.is_alive():
                frame = sys._current_frames().get(thread.ident or 0)
                where = "".join(traceback.format_stack(frame)[-6:]) if frame else ""
                # What waits for ever may also keep the interpreter from ending.
                faulthandler.dump_traceback_later(120, exit=True)
                pytest.fail(f"still running after {seconds} s:\n{where}", pytrace=False)
            if errors:
                raise errors[0]

        return guarded

    return decorate
