# SPDX-License-Identifier: Apache-2.0
"""What of a store the checkpoints of its run refer to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from gs_train.checkpoint import complete_checkpoints, open_checkpoint
from gs_train.errors import InputError
from gs_train.tide.store_folder import SavedStore


def named_snapshots(checkpoints: Path) -> set[int]:
    """Numbers of snapshots.

    Args:
        checkpoints: folder of the run's checkpoints.
    """
    return {saved.snapshot for saved in _saved(checkpoints)}


def named_stores(checkpoints: Path) -> set[str]:
    """Identities of stores.

    Args:
        checkpoints: folder of the run's checkpoints.
    """
    return {saved.identity for saved in _saved(checkpoints)}


def _saved(checkpoints: Path) -> Iterator[SavedStore]:
    for path in complete_checkpoints(checkpoints):
        with contextlib.suppress(InputError, LookupError, TypeError, ValueError):  # a damaged one
            yield SavedStore.from_plain(open_checkpoint(path).state["store"])
