# SPDX-License-Identifier: Apache-2.0
"""The parts in which a view is drawn, one after the other, where one pass would be too much."""

from __future__ import annotations

from collections.abc import Sequence

from gs_train.losses.loss import Crop


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


def halved(crops: Sequence[Crop]) -> list[Crop]:
    """Each crop cut across its longer side."""
    return [Crop(crop.view, half) for crop in crops for half in crop.core.halves()]


def have_pixels(crops: Sequence[Crop]) -> bool:
    """Whether no crop is empty."""
    return all(crop.core.width and crop.core.height for crop in crops)
