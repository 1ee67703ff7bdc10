# SPDX-License-Identifier: Apache-2.0
"""Which memory an exception says has run out, and for which work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

import torch

_FOR = "memory was needed for "  # begins the note of an error
_TORCH_ON_CPU = "can't allocate memory"  # its message; the type is RuntimeError


def memory_that_ran_out(error: BaseException) -> Literal["device", "host"] | None:
    """``device`` or ``host``; None for any other exception."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "device"
    is_torch = isinstance(error, RuntimeError) and _TORCH_ON_CPU in str(error)
    return "host" if is_torch or isinstance(error, MemoryError) else None


def in_short(error: BaseException) -> str:
    """The first line of what it says in brackets, behind a space; or nothing."""
    lines = str(error).splitlines()
    return f" ({lines[0]})" if lines else ""


@contextlib.contextmanager
def memory_for(work: str) -> Iterator[None]:
    """While entered, an error about memory that has run out gets a note which names the work; of
    blocks inside each other the innermost one names it.

    Args:
        work: a noun, as in "memory ran out in ...".
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if memory_that_ran_out(error) is not None and not work_of(error):
            error.add_note(_FOR + work)
        raise


def work_of(error: BaseException) -> str:
    """The work that `memory_for` has named; nothing where it has named none.

    >>> try:
    ...     with memory_for("a save"), memory_for("a copy of rows"):
    ...         raise MemoryError
    ... except MemoryError as error:
    ...     work_of(error)
    'a copy of rows'
    """
    notes: list[str] = getattr(error, "__notes__", [])
    return next((note[len(_FOR) :] for note in notes if note.startswith(_FOR)), "")
