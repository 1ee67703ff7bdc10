# SPDX-License-Identifier: Apache-2.0
"""The point cloud at the end of a run: the Gaussians of all ranks in one PLY file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gs_train.data.frame import Frame, FrameChoice
from gs_train.files.agreement import by_first
from gs_train.files.ranks_ply import write_ply_of_ranks
from gs_train.rows.shown import ShownRows
from gs_train.rows.visible import caught_up_chunks
from gs_train.scene.export_frame import ExportFrame
from gs_train.world import World


def write_point_cloud(
    ply: Path,
    model: ShownRows,
    *,
    choice: FrameChoice,
    trained: Frame,
    world: World,
    say: Callable[[str], None],
) -> None:
    """Write the Gaussians, with ``transform.json`` beside them where their frame needs it. A
    collective.

    Args:
        ply: the file; its folder is made.
        model: the rows of this rank.
        choice: of the frame. ``auto`` looks at the rows of rank 0, an even sample of the scene.
        trained: the frame that rows are in.
        world: of the ranks.
        say: called on rank 0 with lines for the user.

    Raises:
        InputError: the disk is full, or every row is left out; on all ranks.
    """
    frame = ExportFrame.of(choice, trained, model) if world.rank == 0 else None
    by_first(world, lambda: None if frame is None else frame.tell(ply))
    if frame is not None:
        say(frame.line)
    n_lost = write_ply_of_ranks(
        ply,
        caught_up_chunks(model),
        world=world,
        n_rows=model.n_rows,
        transform=None if frame is None else frame.rows_out,
    )
    if n_lost and world.rank == 0:
        say(f"{n_lost:,} Gaussians are not finite and left out of {ply.name}")
