# SPDX-License-Identifier: Apache-2.0
"""Locks of the kernel on folders: held for a block, and no file is left."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from gs_train.files.file_lock import folder_lock


def _is_free(folder: Path) -> bool:
    """Whether somebody else could lock a folder now."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def test_a_folder_is_locked_for_the_time_of_a_block_and_nothing_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    with folder_lock(folder):
        assert not _is_free(folder)
    assert _is_free(folder)
    with pytest.raises(KeyError), folder_lock(folder):
        raise KeyError
    assert _is_free(folder)
    assert list(folder.iterdir()) == []


def test_a_block_runs_where_the_file_system_has_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def none(*arguments: object) -> None:
        asked.append(arguments)
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", none)
    with folder_lock(tmp_path):
        assert len(asked) == 1
