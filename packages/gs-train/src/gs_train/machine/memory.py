# SPDX-License-Identifier: Apache-2.0
"""Memory that this process has resident."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def resident_bytes() -> int | None:
    """Memory that this process has resident; None where the system does not say."""
    return _status_bytes("VmRSS")


def peak_host_bytes() -> int:
    """The most memory that this process has had resident so far, in bytes."""
    # Not getrusage where this exists: its figure starts at that of the process that launched us.
    known = _status_bytes("VmHWM")
    if known is not None:
        return known
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


def _status_bytes(name: str) -> int | None:
    """A size that Linux tells about this process."""
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None
