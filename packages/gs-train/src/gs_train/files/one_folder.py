# SPDX-License-Identifier: Apache-2.0
"""Whether ranks, which may be on different hosts, have the same folder under a path."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gs_train.errors import InputError
from gs_train.files.agreement import by_each, by_first
from gs_train.files.atomic import new_temporary
from gs_train.files.small_files import read_small
from gs_train.world import World


def require_one_folder(world: World, folder: Path, *, option: str) -> None:
    """Check that all ranks have the same folder, which need not exist yet. A collective.

    Rank 0 writes a random word into the nearest parent that exists, and the other ranks read it.
    Leaves nothing.

    Args:
        folder: as this rank names it.
        option: that names it, for the message.

    Raises:
        CommonError: a rank does not see the word, or rank 0 cannot write it.
    """
    if world.size == 1:
        return
    with contextlib.ExitStack() as held:
        word = _Word(*by_first(world, lambda: held.enter_context(_written_word(folder))))
        by_each(world, lambda: _look_for(word, folder, option))


class _Word(NamedTuple):
    """What rank 0 has written.

    Attributes:
        n_missing: how many folders above the wanted one it lies, because they do not exist.
        name: of the file.
        text: the word.
    """

    n_missing: int
    name: str
    text: str


@contextlib.contextmanager
def _written_word(folder: Path) -> Iterator[_Word]:
    """A new word, there until the block ends."""
    place, n_missing = folder.absolute(), 0
    while not place.exists():
        place, n_missing = place.parent, n_missing + 1
    descriptor, path = new_temporary(place)
    try:
        word = _Word(n_missing, path.name, secrets.token_hex(16))
        os.write(descriptor, word.text.encode())
        os.fsync(descriptor)
        yield word
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _look_for(word: _Word, folder: Path, option: str) -> None:
    places = [folder.absolute(), *folder.absolute().parents]
    place = places[min(word.n_missing, len(places) - 1)]
    try:
        found = read_small(place / word.name, most_bytes=len(word.text))
    except FileNotFoundError:
        found = b""
    if found != word.text.encode():
        raise InputError(
            f"{option} must be one folder for all ranks, {socket.gethostname()} does not see in "
            f"{place} what rank 0 has written there"
        )
