# SPDX-License-Identifier: Apache-2.0
"""Errors of a store and its drive as lines for the user."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from gs_pinned import StoreCorruptError, StoreReadOnlyError, StoreVersionError
from gs_train.errors import InputError


class StoreTroubleError(InputError):
    """A store cannot be used, or its drive errs: nothing more can be saved there."""


@contextlib.contextmanager
def store_trouble(
    path: Path, *, is_read_only: bool = False, is_new: bool = False
) -> Iterator[None]:
    """Turn what a store raises into a `StoreTroubleError` of one line.

    Args:
        path: the store's folder.
        is_read_only: a run may write the store meanwhile, and give up what is read.
        is_new: the store is being made, and nothing has been saved.
    """
    try:
        yield
    except StoreVersionError as error:
        raise StoreTroubleError(of_another_version(path, error)) from error
    except StoreCorruptError as error:
        what = "is damaged, or not all of it is there"
        remedy = "remove the newest checkpoint to go on from the one before"
        if is_read_only:
            what += ", or a run that trains has gone on meanwhile"
            remedy = "look again, or remove the newest checkpoint to look at the one before"
        raise StoreTroubleError(f"the store {path} {what}: {_line(error)}; {remedy}") from error
    except StoreReadOnlyError as error:
        raise StoreTroubleError(f"{_line(error)}; the last checkpoint stays") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "what the last checkpoint holds stays: free some space and go on with --resume"
            if is_new:
                remedy = "free some space, or name another folder with --store"
            raise StoreTroubleError(
                f"the disk of the store {path} became full; {remedy}"
            ) from error
        if error.errno is None:
            raise
        cause = _cause(error, path)
        raise StoreTroubleError(f"the store {path} cannot be used: {cause}") from error


def of_another_version(path: Path, error: StoreVersionError) -> str:
    """The line of such a store."""
    remedy = "use the version of gs-train that wrote it"
    return f"the store {path} is of another version: {_line(error)}; {remedy}"


def _cause(error: OSError, path: Path) -> str:
    """The system's reason, with the names of files that are not the store's folder."""
    cause = (error.strerror or str(error)).replace(f" of {path}:", ":")
    named = error.filename
    is_said = named is None or named == str(path) or str(named) in cause
    return " ".join((cause if is_said else f"{named}: {cause}").split())


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
