# SPDX-License-Identifier: Apache-2.0
"""The colour behind the scene, of each view of a step."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from gs_train.losses.background import BLACK, WHITE, BackgroundKind, Colour
from gs_train.rows.counter_random import Purpose, uniform_numbers


@dataclass(frozen=True)
class Background:
    """What lies behind the scene in one step.

    Attributes:
        kind: the same colour always, or one of chance for each view and step.
        seed: of the run.
        step: optimizer steps done.
    """

    kind: BackgroundKind = "black"
    seed: int = 0
    step: int = 0

    def colour(self, view: str) -> Colour:
        """Behind the view of this name: a function of (kind, seed, step, name), so that crops and
        ranks agree."""
        if self.kind == "random":
            name = zlib.crc32(view.encode("utf-8", "surrogateescape"))
            red, green, blue = uniform_numbers(self.seed, Purpose.BACKGROUND, self.step, name, 3)
            return red, green, blue
        return colour_of_scores(self.kind)


ALWAYS_BLACK = Background()


def colour_of_scores(kind: BackgroundKind) -> Colour:
    """Behind the scene wherever an image is looked at or scored: black, or white where the run says
    white."""
    return WHITE if kind == "white" else BLACK
