# SPDX-License-Identifier: Apache-2.0
"""How many cores the threads of this process may run on."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores of the calling thread, which threads that it starts inherit: a rank's share, or all
    that a container or a job of a cluster leaves; at least 1. ``os.cpu_count`` counts the host's.

    >>> usable_cores() <= os.cpu_count()
    True
    """
    return len(os.sched_getaffinity(0))
