# SPDX-License-Identifier: Apache-2.0
"""The CPU renderer's splats as records: the reach of a splat is its extents in pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gs_raster import cpu
from gs_train.renderers.protocol import Rect, Splats, View
from gs_train.renderers.records import (
    ABSGRAD,
    FIELDS,
    GRADIENT_WORDS,
    GRADIENTS,
    REACH,
    DrawnRecords,
    SplatRecords,
    keys_of,
)


@dataclass(eq=False)
class CpuDrawnRecords:
    """A `DrawnRecords` with what its gradient needs."""

    image: Tensor
    blended: cpu.Blended

    @property
    def alpha(self) -> Tensor:
        return torch.from_numpy(self.blended.alpha[..., 0])

    @property
    def depth(self) -> Tensor | None:
        image = self.blended.image
        return torch.from_numpy(image[..., 3]) if image.shape[2] > 3 else None

    @property
    def for_gradient(self) -> None:
        return None

    @property
    def n_intersections(self) -> int:
        return self.blended.tiles.n_pairs

    def column_counts(self) -> Tensor:
        """See `DrawnRecords`."""
        tiles = self.blended.tiles
        counts = np.diff(tiles.offsets).reshape(-1, tiles.columns)
        return torch.from_numpy(counts.sum(0))


class CpuRecords:
    """A `RecordRenderer` of float32 splats on the CPU.

    Args:
        absgrad: absolute gradients travel, too.
    """

    def __init__(self, *, absgrad: bool) -> None:
        self._absgrad = absgrad

    def write(self, splats: Splats, out: SplatRecords) -> None:
        """See `RecordRenderer`.

        Raises:
            TypeError: splats are not float32.
        """
        n, keys = len(splats.depths), keys_of(splats)
        out.check_room(n)
        if splats.depths.dtype != torch.float32:
            raise TypeError(f"splats must be float32 to travel, got {splats.depths.dtype}")
        floats = out.floats[:n]
        for name, place in FIELDS.items():
            floats[:, place] = getattr(splats, name).detach()
        for axis, place in enumerate(REACH):
            out.words[:n, place] = splats.radii[:, axis]
        out.keys[:n, 0] = keys
        out.make_empty(n)

    def draw(
        self,
        records: SplatRecords,
        view: View,
        rect: Rect,
        *,
        room: int | None = None,
        depth: bool = False,
    ) -> DrawnRecords:
        """See `RecordRenderer`; there is always room."""
        floats, n_threads = records.floats, torch.get_num_threads()
        fields = {name: floats[:, place].contiguous().numpy() for name, place in FIELDS.items()}
        splats = cpu.Splats(radii=records.words[:, REACH].numpy(), **fields)
        tiles = cpu.sort(splats, rect, keys=records.keys[:, 0].numpy())
        blended = cpu.blend(splats, tiles, with_depth=depth, n_threads=n_threads)
        return CpuDrawnRecords(torch.from_numpy(blended.image)[..., :3], blended)

    def send_back(
        self,
        drawn: DrawnRecords,
        gradient: Tensor,
        of_alpha: Tensor | None = None,
        of_depth: Tensor | None = None,
    ) -> Tensor:
        """See `RecordRenderer`."""
        assert isinstance(drawn, CpuDrawnRecords)
        nothing = np.zeros_like(drawn.blended.alpha)
        if drawn.depth is not None:
            of_depth = torch.zeros_like(drawn.depth) if of_depth is None else of_depth
            gradient = torch.cat([gradient, of_depth[..., None]], 2)
        found = cpu.blend_backward(
            drawn.blended,
            gradient.contiguous().numpy(),
            nothing if of_alpha is None else of_alpha[..., None].contiguous().numpy(),
            absgrad=self._absgrad,
            n_threads=torch.get_num_threads(),
        )
        sent = torch.zeros((drawn.blended.tiles.n_rows, GRADIENT_WORDS))
        for name, place in GRADIENTS.items():
            if (values := getattr(found, name)) is not None:  # of depths only if they were drawn
                sent[:, place] = torch.from_numpy(values)
        if found.absgrad is not None:
            sent[:, ABSGRAD] = torch.from_numpy(found.absgrad)
        return sent

    def release(self, *, above: int = 0) -> None:
        """See `RecordRenderer`; nothing is kept."""

    def backward(self, splats: Splats, gradients: Tensor) -> None:
        """See `RecordRenderer`."""
        own = gradients[: len(splats.depths)]
        if self._absgrad:
            splats.shifted.append(splats.means2d.detach())
            splats.shifted[-1].absgrad = own[:, ABSGRAD]  # type: ignore[attr-defined]
        fields = [getattr(splats, name) for name in GRADIENTS]
        torch.autograd.backward(fields, [own[:, place] for place in GRADIENTS.values()])
