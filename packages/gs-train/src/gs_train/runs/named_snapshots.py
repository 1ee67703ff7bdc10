# SPDX-License-Identifier: Apache-2.0
"""The snapshots of a store that the checkpoints of its run refer to."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gs_train.checkpoint import complete_checkpoints, open_checkpoint
from gs_train.errors import InputError
from gs_train.files.whole import whole


def named_snapshots(checkpoints: Path) -> set[int]:
    """Their numbers.

    Args:
        checkpoints: folder of the run's checkpoints.
    """
    numbers: set[int] = set()
    for path in complete_checkpoints(checkpoints):
        with contextlib.suppress(InputError, LookupError, TypeError, ValueError):  # a damaged one
            numbers.add(whole(open_checkpoint(path).state["store"]["snapshot"]))
    return numbers
