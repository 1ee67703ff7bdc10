# SPDX-License-Identifier: Apache-2.0
"""The way into the world: of several ranks, or of one that is alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Literal

import torch

from gs_train.errors import InputError
from gs_train.world.alone import Alone
from gs_train.world.protocol import World
from gs_train.world.standing import standing


def in_words(error: BaseException) -> str:
    """An error as one line."""
    lines = str(error).splitlines()
    first = lines[0] if lines else ""
    if isinstance(error, InputError):
        return first
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


@contextlib.contextmanager
def joined(
    kind: Literal["cuda", "cpu"], *, describe: Callable[[BaseException], str] = in_words
) -> Iterator[World]:
    """The ranks of this run, by the variables of the environment; all enter and leave it once.

    While entered, an error that leaves the block ends every rank: one of them prints one line that
    names the rank and says what ``describe`` makes of the error. A rank that is killed, or that is
    not heard of for 25 seconds, does the same. Without ``WORLD_SIZE`` there is one rank, nothing
    of this happens, and torch.distributed is not asked.

    Args:
        kind: of device: rank k of a host gets the device ``cuda:k``.
        describe: words an error of this rank as one line.

    Raises:
        InputError: the variables do not fit; nothing has begun.
        ToldError: a rank has failed, this one or another. The process must end: it has seconds
            until it is ended.
    """
    place = standing(os.environ)
    if place is None:
        yield Alone(torch.device("cuda", 0) if kind == "cuda" else torch.device(kind))
        return
    from gs_train.world.session import entered

    with entered(place, kind, describe) as world:
        yield world
