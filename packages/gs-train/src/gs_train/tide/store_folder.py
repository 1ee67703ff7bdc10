# SPDX-License-Identifier: Apache-2.0
"""The folder of a run's store: whose it is, which of its snapshots count, and how it goes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gs_train.errors import InputError
from gs_train.files.atomic import sync_folder
from gs_train.files.small_files import open_regular
from gs_train.files.whole import whole
from gs_train.tide.trouble import StoreTroubleError, store_trouble

_FILE = "STORE"
_IDENTITY = slice(16, 32)  # docs/store-format.md
_BLOCK_ROWS = slice(12, 16)
_MAGIC = b"GSBLOCKS"
_SNAPSHOT = re.compile(r"snap-(\d{10})", re.ASCII)
_FIRST = 1
"""Number of the snapshot of a new store, to which no checkpoint refers."""
_OWN = re.compile(r"STORE(\.tmp)?|LOCK|seg-\d{6,}|snap-\d{10}(\.tmp)?", re.ASCII)

INSIDE = "store"
"""The store's folder within the folder of its run, where no other one is named."""


@dataclass(frozen=True)
class SavedStore:
    """Where the rows of a checkpoint are.

    Attributes:
        path: the folder as the run names it; None: within the run's folder.
        identity: of the store, 32 hexadecimal digits.
        snapshot: number of the snapshot.
        n_rows, sh_degree: of the rows.
    """

    path: str | None
    identity: str
    snapshot: int
    n_rows: int
    sh_degree: int

    def to_plain(self) -> dict[str, Any]:
        """For the state of a checkpoint."""
        return dict(vars(self))

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> SavedStore:
        """What `to_plain` gave.

        Raises:
            LookupError, TypeError, ValueError: it did not.
        """
        path = plain["path"]
        numbers = [whole(plain[name]) for name in ("snapshot", "n_rows", "sh_degree")]
        if numbers[2] > 3:
            raise ValueError("sh_degree must be at most 3")
        return cls(None if path is None else "".join(path), "".join(plain["identity"]), *numbers)

    def folder(self, root: Path, given: Path | None = None) -> Path:
        """The store's folder.

        Args:
            root: folder of the run.
            given: where the store is now, if it was moved.
        """
        if given is not None:
            return given
        return root / INSIDE if self.path is None else Path(self.path)

    def require_in(self, folder: Path) -> None:
        """Check that a folder holds this very store.

        Raises:
            InputError: it holds none, or another one.
        """
        found = identity_of(folder)
        if found != self.identity:
            raise InputError(
                f"{folder} must hold the store {self.identity:.8} of this run, got "
                f"{'no store' if found is None else f'the store {found:.8}'}: name the folder "
                "where it is now with fit --resume --store, or put it back"
            )


def identity_of(folder: Path) -> str | None:
    """The identity of the store in a folder; None where there is no store.

    Raises:
        InputError: the folder cannot be read.
    """
    head = _head(folder)
    return None if head is None else head[_IDENTITY].hex()


def block_rows_of(folder: Path) -> int:
    """Rows of a block of the store in a folder, at most.

    Raises:
        InputError: there is no store, or it cannot be read.
    """
    head = _head(folder)
    if head is None:
        raise InputError(f"{folder} must hold a store of Gaussians, its file {_FILE} is none")
    return int.from_bytes(head[_BLOCK_ROWS], "little")


def _head(folder: Path) -> bytes | None:
    """The first bytes of the file that says what a store is."""
    try:
        with open_regular(folder / _FILE) as file:
            head = file.read(_IDENTITY.stop)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"the store {folder} cannot be read: {error.strerror}") from None
    return head if len(head) == _IDENTITY.stop and head.startswith(_MAGIC) else None


def require_empty(folder: Path, *, but_for_store: bool = False) -> None:
    """Check that a folder can take a new store.

    Args:
        but_for_store: a store that is there will be removed first, as `remove_store` does.

    Raises:
        InputError: it holds something else, the store that is to go is written by another process,
            the folder cannot be listed, or its name is no text.
    """
    try:
        os.fspath(folder).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"the name of the folder of the store, {folder}, must be UTF-8: name another one with "
            "--store"
        ) from None
    try:
        found = sorted(os.listdir(folder)) if folder.exists() else []
    except OSError as error:
        raise InputError(f"the store {folder} must be a folder: {error.strerror}") from None
    if but_for_store:
        found = [name for name in found if not _OWN.fullmatch(name)]
        with store_trouble(folder):
            is_written = _is_written(folder)
        if is_written:
            raise InputError(
                f"the store {folder} is written by another process: wait for that one, or name "
                "another folder with --store"
            )
    if found:
        what = "another store" if _FILE in found else found[0]
        raise InputError(
            f"the folder of the store, {folder}, must be empty or new, it holds {what}: name "
            "another one with --store"
        )


def give_up_snapshots(folder: Path, kept: Collection[int]) -> None:
    """Remove the snapshots of a store that nobody writes, but for some: what only they need becomes
    free space when the store is opened for writing.

    Raises:
        StoreTroubleError: another process writes the store, or the system refused.
    """
    with store_trouble(folder), _locked(folder):
        names = [match for name in os.listdir(folder) if (match := _SNAPSHOT.fullmatch(name))]
        surplus = [match[0] for match in names if int(match[1]) not in kept]
        for name in surplus:
            os.unlink(folder / name)
        if surplus:
            sync_folder(folder)


def may_remove(folder: Path, identities: Collection[str]) -> bool:
    """Whether a run may remove the store in a folder that it names: one that its checkpoints refer
    to, or a fresh one, to which none does, and that nobody writes. True where there is no store.

    Args:
        identities: of the stores that the checkpoints of the run refer to.

    Raises:
        InputError: the folder cannot be read.
    """
    identity = identity_of(folder)
    if identity is None or identity in identities:
        return True
    found = [_SNAPSHOT.fullmatch(name) for name in _names(folder)]
    is_fresh = all(match is None or int(match[1]) <= _FIRST for match in found)
    return is_fresh and not _is_written(folder)


def remove_store(folder: Path) -> None:
    """Remove the files of a store, one that was being made too, and the folder where nothing else
    is in it; nothing of a folder of others' files, nor of a store that another process writes. A
    link to the folder stays.

    Raises:
        InputError: the folder cannot be read.
    """
    names = _names(folder)
    own = [name for name in names if _OWN.fullmatch(name)]
    if identity_of(folder) is None and len(own) < len(names):
        return
    if _is_written(folder):
        return
    for name in sorted(own, key=lambda name: name == _FILE):  # which says whose they are
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # others' files are there, or it is a link
        folder.rmdir()


def _is_written(folder: Path) -> bool:
    """Whether another process writes a store."""
    if not (folder / "LOCK").exists():
        return False
    try:
        with _locked(folder):
            return False
    except StoreTroubleError:
        return True


def _names(folder: Path) -> list[str]:
    """Of what is in a folder; nothing where it is none."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"the store {folder} must be a folder: {error.strerror}") from None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """As the store's writer."""
    descriptor = os.open(folder / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreTroubleError(f"the store {folder} is written by another process") from None
        yield
    finally:
        os.close(descriptor)
