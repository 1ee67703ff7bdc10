# SPDX-License-Identifier: Apache-2.0
"""Tests during which torch works on one thread.

torch's threads wait for each other by spinning, which a loaded machine punishes. No test has a time
limit of its own: pytest's ``faulthandler_timeout`` ends one that hangs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def one_threaded(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test while torch works on one thread."""

    @functools.wraps(test)
    def alone(**fixtures: Any) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            test(**fixtures)
        finally:
            torch.set_num_threads(threads)

    return alone
