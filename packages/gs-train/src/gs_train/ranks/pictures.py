# SPDX-License-Identifier: Apache-2.0
"""Pictures of all ranks, sent to rank 0, which writes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gs_train.world.protocol import World

Shape = tuple[int, int]
"""Height and width."""


def sent_to_first(
    picture: NDArray[np.uint8] | None, shapes: Sequence[Shape | None], world: World
) -> list[NDArray[np.uint8]]:
    """One picture of each rank that has one. A collective.

    Args:
        picture: (H, W, 3) of this rank.
        shapes: of the pictures, by rank, the same on all ranks; None: the rank has none.
        world: moves pixels.

    Returns:
        On rank 0 the pictures in the order of ranks; nothing elsewhere.

    Raises:
        ValueError: this rank's picture is of another shape.
    """
    shape = shapes[world.rank]
    if (None if picture is None else picture.shape) != (None if shape is None else (*shape, 3)):
        found = None if picture is None else picture.shape
        raise ValueError(f"picture must be of the shape {shape}, got {found}")
    is_first = world.rank == 0
    pixels = [0 if each is None else each[0] * each[1] for each in shapes]
    send = torch.empty((0, 3), dtype=torch.uint8)
    if picture is not None:
        send = torch.from_numpy(np.ascontiguousarray(picture)).reshape(-1, 3)
    send = send.to(world.device)
    received = pixels if is_first else [0] * len(pixels)
    recv = send.new_empty((sum(received), 3))
    world.all_to_all(recv, send, received, [len(send)] + [0] * (len(pixels) - 1)).wait()
    found = recv.cpu().split(received) if is_first else ()
    return [part.view(*each, 3).numpy() for part, each in zip(found, shapes) if each is not None]
