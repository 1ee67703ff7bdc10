# SPDX-License-Identifier: Apache-2.0
"""Memory that one drawing after the other lies in."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from gs_raster import _core
from gs_raster.cuda.place import Place

_ALIGNMENT = 256  # of arrays
_MOST_IMAGES = 256  # that are kept as tensors


Span: TypeAlias = tuple[int, int]
"""Where memory begins, and its bytes."""


def rounded(n_bytes: int) -> int:
    """Bytes up to where the next array may begin."""
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT


class Parts(NamedTuple):
    """Where the arrays of a drawing begin in its workspace, in bytes.

        sorting   |-------- sort -------|               lists
        blending  .          . pixels   . image         lists
        the loss  . gradient . pixels   . image         lists
        backward  . gradient . pixels   . slots ------| lists

    What is sorted is dead once the lists are complete, and the image once the loss has its
    gradient: the slots of instances lie over the image. Sorting begins where the workspace does,
    and the images of equally large views lie in the same place, whatever else differs.

    Attributes:
        sort, gradient, pixels, image, slots, lists: begin and bytes of each; slots have at least
            those of the image.
        n_bytes: of all.
    """

    sort: Span
    gradient: Span
    pixels: Span
    image: Span
    slots: Span
    lists: Span
    n_bytes: int

    @staticmethod
    def of(*, sort: int, image: int, gradient: int, pixels: int, slots: int, lists: int) -> Parts:
        """Of arrays of so many bytes, multiples of what arrays are aligned to."""
        over = gradient + pixels  # the image, and slots over it
        slots = max(slots, image)
        behind = max(sort, over + slots)
        return Parts(
            sort=(0, sort),
            gradient=(0, gradient),
            pixels=(gradient, pixels),
            image=(over, image),
            slots=(over, slots),
            lists=(behind, lists),
            n_bytes=behind + lists,
        )

    @staticmethod
    def of_rectangle(
        place: tuple[int, int, int, int],
        *,
        sort: int,
        pixels: int,
        slots: int,
        lists: int,
        holds_gradient: bool,
    ) -> Parts:
        """:meth:`of` the image of a rectangle with these corners, and of its gradient if that is
        held."""
        x0, y0, x1, y1 = place
        image = rounded(12 * (x1 - x0) * (y1 - y0))
        gradient = image if holds_gradient else 0
        return Parts.of(
            sort=sort, image=image, gradient=gradient, pixels=pixels, slots=slots, lists=lists
        )

    def at(self, first: int) -> tuple[Span, Span, Span, Span]:
        """Lists, pixels, slots and what is sorted, of memory at this address."""

        lists, pixels, slots, sort = self.lists, self.pixels, self.slots, self.sort
        return (
            (first + lists[0], lists[1]),
            (first + pixels[0], pixels[1]),
            (first + slots[0], slots[1]),
            (first + sort[0], sort[1]),
        )


class Workspace:
    """Memory that one drawing after the other lies in: each writes over the drawing before.

    Drawings that share a workspace are drawn on one stream. A workspace is empty at first, and is
    replaced by a larger one where it does not suffice. Sorting is replayed from a CUDA graph where
    drawings before, in the same place, had the same room and about as many rows.

    Args:
        holds_gradient: with room for the gradient of the image, see `Drawing.for_gradient`.

    Attributes:
        turn: how often memory was taken.
    """

    def __init__(self, *, holds_gradient: bool = True) -> None:
        self.holds_gradient = holds_gradient
        self._memory: Tensor | None = None
        self._device: torch.device | None = None
        self._n_words = 0
        self.turn = 0
        self._graphs: _core.GraphCache | None = None
        self._images: dict[tuple[int, int, int], Tensor] = {}  # of the present memory

    def __repr__(self) -> str:
        return f"Workspace({self.n_bytes} bytes)"

    @property
    def n_bytes(self) -> int:
        """Bytes that the workspace holds."""
        return 4 * self._n_words

    @property
    def graphs(self) -> _core.GraphCache:
        """Graphs of sorting drawings here."""
        if self._graphs is None:
            self._graphs = _core.GraphCache()
        return self._graphs

    def release(self) -> None:
        """Give the memory back to torch, behind what is enqueued."""
        self._memory, self._n_words = None, 0
        self._images.clear()

    def take(self, n_bytes: int, at: Place) -> Tensor:
        """Float32 memory of at least ``n_bytes``, for work on torch's current stream."""
        n_words = -(-n_bytes // 4)
        if self._memory is None or n_words > self._n_words or self._device != at.device:
            self.release()  # before more is taken
            if self._device != at.device:
                self._graphs = None  # another device may give memory at the addresses of this one
            self._memory, self._device, self._n_words = at.empty(n_words), at.device, n_words
        self.turn += 1
        return self._memory

    def image(self, height: int, width: int, begin: int) -> Tensor:
        """(height, width, 3) float32 of the memory that was taken last, from a byte on. The same
        tensor each time: to make another one takes as long as a launch."""
        known = self._images.get((height, width, begin))
        if known is None:
            assert self._memory is not None
            if len(self._images) >= _MOST_IMAGES:
                self._images.clear()
            shape, strides = (height, width, 3), (3 * width, 3, 1)
            known = self._memory.as_strided(shape, strides, begin // 4)
            self._images[height, width, begin] = known
        return known
