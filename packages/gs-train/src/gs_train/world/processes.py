# SPDX-License-Identifier: Apache-2.0
"""Whether another process of this host is alive."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

_ENDED = "ZX"  # states of a process that is not waited for yet
_STATE, _STARTED = 0, 19  # fields of /proc/.../stat behind the name


@dataclass(frozen=True)
class Process:
    """A process, told from a later one that has got its number.

    Attributes:
        host: the kernel and the space of numbers that ``pid`` is from.
        pid: its number there.
        started: when, in ticks of the kernel's clock.
    """

    host: str
    pid: int
    started: int

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended. A process of another host counts as alive."""
        return self.host != _host() or _started(str(self.pid)) == self.started


def this_process() -> Process:
    """The caller's."""
    # Not os.getpid(): /proc may show another space of numbers.
    pid = Path("/proc/self").readlink().name
    started = _started(pid)
    assert started is not None
    return Process(_host(), int(pid), started)


def _started(pid: str) -> int | None:
    """When a process started; None: it has ended."""
    try:
        stat = Path("/proc", pid, "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[_STATE] in _ENDED else int(fields[_STARTED])


@functools.cache
def _host() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
