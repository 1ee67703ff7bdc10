# SPDX-License-Identifier: Apache-2.0
"""Small disks, where the system lets a process mount them for itself."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

_CLONE_NEWNS = 0x00020000


@functools.cache
def can_mount() -> bool:
    """Whether this process can mount file systems that no other process sees."""
    with tempfile.TemporaryDirectory() as folder:
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "unshare") or libc.unshare(_CLONE_NEWNS) != 0:
            return False
        return (
            _run("mount", "--make-rprivate", "/")
            and _run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder)
            and _run("umount", folder)
        )


@contextlib.contextmanager
def mounted(folder: Path, n_kib: int) -> Iterator[Callable[[str], None]]:
    """A disk of so many KiB at an empty folder; yields what changes its options."""
    assert _run("mount", "-t", "tmpfs", "-o", f"size={n_kib}k", "tmpfs", str(folder))

    def remount(options: str) -> None:
        assert _run("mount", "-o", f"remount,{options}", str(folder)), options

    try:
        yield remount
    finally:
        _run("umount", "-l", str(folder))


def _run(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
