# SPDX-License-Identifier: Apache-2.0
"""A store that appears under its name once it is whole."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from gs_train.errors import InputError
from gs_train.files.file_lock import take_lock


@contextlib.contextmanager
def making(store: Path) -> Iterator[Path]:
    """A folder beside a store that is made: what the block leaves in its folder ``store`` becomes
    the store, and all else goes, however the block ends. After kill -9 the next call removes it.

    Args:
        store: an empty folder, or none yet; its parent exists.

    Raises:
        InputError: something is there, or another process makes the store.
        OSError: the system refused.
    """
    if store.exists() and (not store.is_dir() or any(store.iterdir())):
        raise InputError(f"{store} must be an empty folder or none yet, and holds something")
    folder = place_of_making(store)
    descriptor = _locked(folder)
    try:
        _empty(folder)
        yield folder
        (folder / "store").rename(store)
        _sync(store.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def place_of_making(store: Path) -> Path:
    """Where a store lies while it is made."""
    return store.with_name(f"{store.name}.making")


def _locked(folder: Path) -> int:
    while True:
        folder.mkdir(exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if take_lock(descriptor, folder):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise InputError(f"{folder} is in use: another process makes this store") from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder has removed the folder


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
