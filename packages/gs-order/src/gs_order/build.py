# SPDX-License-Identifier: Apache-2.0
"""Versions of the package and of its dependencies."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from gs_order.bits import n_threads

__version__ = "0.1.0"


def build_info() -> dict[str, Any]:
    """Versions and facts that belong into a bug report.

    Returns:
        version, python, numpy, numba, llvmlite, torch (None where torch is not installed; torch is
        not imported), machine, n_threads. Kernels are compiled for this machine at their first call
        and cached on disk, so there is no compiled build to describe.
    """
    info: dict[str, Any] = {"version": __version__, "python": platform.python_version()}
    for package in ("numpy", "numba", "llvmlite", "torch"):
        try:
            info[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            info[package] = None
    info["machine"] = platform.machine()
    info["n_threads"] = n_threads()
    return info
