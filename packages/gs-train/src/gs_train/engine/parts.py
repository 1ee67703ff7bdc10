# SPDX-License-Identifier: Apache-2.0
"""The parts in which a view is drawn, one after the other, where one pass would be too much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from gs_train.losses.loss import Crop
from gs_train.machine.out_of_memory import in_short
from gs_train.renderers import TooManyIntersectionsError

_MOST_PARTS = 16
"""Of a view for which the device's memory does not suffice; its rows are all there in any case."""

Drawn = TypeVar("Drawn")


def planned_parts(crop: Crop, n_intersections: int | None, most: int) -> list[Crop]:
    """The parts of a view or a crop, decided before anything of it is drawn.

    A function of numbers that all ranks know, so that ranks agree on the parts.

    Args:
        crop: what is to be drawn; row limits have been kept when it was cut.
        n_intersections: tile intersections of the whole view when it was last drawn; None: not
            known.
        most: intersections that the renderer can count in one rectangle.

    Returns:
        The crop, halved until each part has its share of ``most`` at most.
    """
    core, view = crop.core, crop.view
    share = core.width * core.height / (view.width * view.height)
    expected = 0.0 if n_intersections is None else n_intersections * share
    parts = [crop]
    while expected > most * len(parts) and have_pixels(halves := halved(parts)):
        parts = halves
    return parts


def drawn_in_parts(
    parts: Sequence[Crop],
    draw: Callable[[Sequence[Crop]], Drawn],
    forget: Callable[[], None],
    *,
    n_rows: int,
) -> tuple[Drawn, bool]:
    """Draw the parts of a view, or more of them where the renderer cannot count so many
    intersections after all, or the device's memory does not suffice.

    Args:
        parts: as they were planned.
        draw: draws all of them.
        forget: undoes what ``draw`` did before it raised.
        n_rows: of the view, for a message.

    Returns:
        What ``draw`` returned, and whether memory decided the parts.
    """
    is_tight = False
    while True:
        try:
            return draw(parts), is_tight
        except TooManyIntersectionsError:
            if not have_pixels(halved(parts)):
                raise
        except torch.cuda.OutOfMemoryError as error:
            is_tight, shortage = True, in_short(error)
        # The error is gone here, with all that the pass had made.
        forget()
        parts = halved(parts)
        if is_tight and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        if is_tight and (len(parts) > _MOST_PARTS or not have_pixels(parts)):
            raise torch.cuda.OutOfMemoryError(
                f"view {parts[0].view.name} needs more device memory than there is, even in "
                f"{len(parts) // 2} parts: it shows {n_rows:,} Gaussians; use a "
                f"smaller --max-side or --cap{shortage}"
            )


def halved(crops: Sequence[Crop]) -> list[Crop]:
    """Each crop cut across its longer side."""
    return [Crop(crop.view, half) for crop in crops for half in crop.core.halves()]


def have_pixels(crops: Sequence[Crop]) -> bool:
    """Whether no crop is empty."""
    return all(crop.core.width and crop.core.height for crop in crops)
