# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: folders of safetensors shards with a JSON manifest, complete or invisible.

A checkpoint is written under a temporary name, synced and renamed, so whatever carries the name
``step_000300`` is whole; ``step_000300.1`` is a later save of the same step. The manifest lists
the shards and the pieces of tensors in them, each with its checksum, and the trainer's state. The
format is described in docs/checkpoint-format.md.
"""

from gs_train.checkpoint.folder import (
    complete_checkpoints,
    has_checkpoint_name,
    incomplete_checkpoints,
    is_newer,
    latest_checkpoint,
    remove_all,
    remove_stale,
    remove_surplus,
)
from gs_train.checkpoint.manifest import MANIFEST
from gs_train.checkpoint.ranks_writer import save_by_ranks
from gs_train.checkpoint.reader import (
    Checkpoint,
    SavedCheckpoint,
    load_checkpoint,
    open_checkpoint,
    open_latest,
)
from gs_train.checkpoint.writer import save_checkpoint

__all__ = [
    "MANIFEST",
    "Checkpoint",
    "SavedCheckpoint",
    "complete_checkpoints",
    "has_checkpoint_name",
    "incomplete_checkpoints",
    "is_newer",
    "latest_checkpoint",
    "load_checkpoint",
    "open_checkpoint",
    "open_latest",
    "remove_all",
    "remove_stale",
    "remove_surplus",
    "save_by_ranks",
    "save_checkpoint",
]
