# SPDX-License-Identifier: Apache-2.0
"""What a drawing lies in: memory of its own, or a workspace that the next one writes over."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from gs_raster import _core
from gs_raster.cuda.addresses import span
from gs_raster.cuda.place import Place
from gs_raster.cuda.workspace import Parts, Span, Workspace


class Memory(NamedTuple):
    """What a drawing lies in.

    Attributes:
        words: float32.
        spans: addresses and bytes of its lists and pixels.
        scratch: likewise, what its gradient may use.
        workspace: that all of this belongs to, and its turn.
    """

    words: Tensor
    spans: tuple[Span, Span]
    scratch: Span = (0, 0)
    workspace: Workspace | None = None
    turn: int = 0

    def check(self) -> None:
        """Raise RuntimeError where another drawing lies there."""
        if self.workspace is not None and self.workspace.turn != self.turn:
            raise RuntimeError("drawing must be the last one of its workspace, got an earlier one")

    def check_gradient(self, address: int) -> None:
        """Raise ValueError where a gradient of the image lies in what its own gradient uses."""
        begin, n_bytes = self.scratch
        if begin <= address < begin + n_bytes:
            raise ValueError("grad_image must have memory of its own, got the image's")

    def part(self, shape: tuple[int, ...], address: int) -> Tensor:
        """A contiguous array of the drawing."""
        self.check()
        strides = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
        return self.words.as_strided(shape, strides, (address - self.words.data_ptr()) // 4)

    def slots(self, room: int, depth: bool, absgrad: bool, at: Place) -> tuple[Span, Tensor | None]:
        """Memory for gradients of instances, and what it belongs to if that is not the drawing's.

        Args:
            room, depth, absgrad: as of the drawing and of its gradient.
        """
        n_bytes = _core.draw_backward_bytes(room, depth, absgrad)
        if n_bytes <= self.scratch[1]:
            return self.scratch, None
        own = at.workspace(n_bytes)
        return span(own), own


class Taken(NamedTuple):
    """Memory of a drawing that begins.

    Attributes:
        memory: that lasts.
        image: (h, w, 3) float32.
        for_gradient: likewise, of the workspace; None without one that holds a gradient.
        sort: what sorting uses.
        graphs: of sorting there.
        own: what ``sort`` belongs to, if that is nothing else.
    """

    memory: Memory
    image: Tensor
    for_gradient: Tensor | None
    sort: Span
    graphs: _core.GraphCache | None
    own: Tensor | None


def take(parts: Parts, workspace: Workspace | None, at: Place, h: int, w: int) -> Taken:
    """Memory for a drawing of h x w pixels, in a workspace or of its own."""
    if workspace is None:
        (_, n_lists), (_, n_pixels) = parts.lists, parts.pixels
        words, own = at.empty((n_lists + n_pixels) // 4), at.workspace(parts.sort[1])
        first = words.data_ptr()
        memory = Memory(words, ((first, n_lists), (first + n_lists, n_pixels)))
        return Taken(memory, at.empty(h, w, 3), None, span(own), None, own)
    words = workspace.take(parts.n_bytes, at)
    image, for_gradient = workspace.image(h, w, parts.image[0]), None
    if workspace.holds_gradient:
        for_gradient = workspace.image(h, w, parts.gradient[0])
    lists, pixels, slots, sort = parts.at(words.data_ptr())
    memory = Memory(words, (lists, pixels), slots, workspace, workspace.turn)
    return Taken(memory, image, for_gradient, sort, workspace.graphs, None)
