# SPDX-License-Identifier: Apache-2.0
"""How hard the loss pulls at each Gaussian in the image: what density control reads."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gs_train.renderers.protocol import Splats


class Statistics:
    """Running sums of one number a row over the views that showed it.

    Attributes:
        grad2d: (N,) float32, sum of the norms of the gradient with respect to the image
            position in normalised device coordinates (pixels times half the image's size).
        count: (N,) float32, number of views that showed the row.
        radii: (N,) float32, largest extent so far as a fraction of the longer image side; None
            unless asked for.
        absgrad: which gradient is read.
    """

    def __init__(
        self, n_rows: int, *, device: torch.device | str, absgrad: bool, radii: bool
    ) -> None:
        """Start at zero.

        Args:
            n_rows: N.
            device: where the rows' splats are.
            absgrad: read ``splats.absgrad`` instead of the gradient (AbsGS, Ye et al. 2024).
            radii: also keep the largest extents.
        """
        self._device = torch.device(device)
        self.absgrad = absgrad
        self._names = ("grad2d", "count", "radii") if radii else ("grad2d", "count")
        self.grad2d: Tensor
        self.count: Tensor
        self.radii: Tensor | None = None
        self.reset(n_rows)

    @property
    def n_rows(self) -> int:
        """N."""
        return len(self.count)

    def reset(self, n_rows: int) -> None:
        """Start again at zero, with another number of rows."""
        for name in self._names:
            setattr(self, name, torch.zeros(n_rows, device=self._device))

    @torch.no_grad()
    def observe(self, ids: Tensor | None, splats: Splats, *, batch_size: int) -> None:
        """Add one view, after its backward pass.

        The gradients of all crops of the view have added up in the splats as vectors; the norm
        is taken here, once, and the view counts once.

        Args:
            ids: (R,) int32 or int64, sorted and unique rows of the splats; None means all N.
            splats: R projected rows. ``means2d`` has a gradient (``retain_grad()`` before the
                backward pass), or ``absgrad`` is there.
            batch_size: views that the loss is the mean of, to undo that division.

        Raises:
            ValueError: there is no gradient, or the splats are not as many as the rows.

        Cost: a few kernels over R rows. Does not synchronise.
        """
        gradient = splats.absgrad if self.absgrad else splats.means2d.grad
        if gradient is None:
            raise ValueError(
                "splats.means2d must have a gradient, got None; "
                "call retain_grad() on it before the backward pass"
            )
        n_expected = self.n_rows if ids is None else len(ids)
        if len(gradient) != n_expected:
            raise ValueError(f"splats must have {n_expected} rows, got {len(gradient)}")
        width, height = splats.view.width, splats.view.height
        x = gradient[:, 0] * (width / 2.0 * batch_size)
        y = gradient[:, 1] * (height / 2.0 * batch_size)
        norm = torch.hypot(x, y)
        # Rows that do not show add zero instead of being left out, because selecting them would
        # make the host wait for their number.
        shows = (splats.radii > 0).all(dim=-1)
        norm = norm.where(shows, 0.0)
        if ids is None:
            self.grad2d += norm
            self.count += shows
        else:
            ids = ids.long()  # distinct: on a device no two additions meet
            self.grad2d.index_add_(0, ids, norm)
            self.count.index_add_(0, ids, shows.float())
        if self.radii is not None:
            # By a tensor: torch would multiply by the reciprocal of a number on some devices.
            side = norm.new_full((), float(max(width, height)))
            extent = splats.radii.amax(dim=-1).where(shows, 0) / side
            if ids is None:
                torch.maximum(self.radii, extent, out=self.radii)
            else:
                largest = torch.maximum(self.radii.index_select(0, ids), extent)
                self.radii.index_copy_(0, ids, largest)

    def average_gradient(self, rows: slice | Tensor = slice(None)) -> Tensor:
        """(R,) mean norm over the views that showed each of some rows; zero where none did."""
        return self.grad2d[rows] / self.count[rows].clamp_min(1)

    def permute(self, order: Tensor) -> None:
        """Make row ``order[i]`` row i. ``order``: (N,) int32 or int64."""
        for name in self._names:
            setattr(self, name, getattr(self, name).index_select(0, order))

    def tensors(self) -> dict[str, Tensor]:
        """``grad2d``, ``count`` and, if kept, ``radii``; not copies."""
        return {name: getattr(self, name) for name in self._names}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors` gave, copied to this device.

        Raises:
            ValueError: other names, or lengths that differ.
        """
        if set(tensors) != set(self._names):
            raise ValueError(f"tensors must be {sorted(self._names)}, got {sorted(tensors)}")
        shapes = {tuple(tensor.shape) for tensor in tensors.values()}
        if len(shapes) != 1 or len(next(iter(shapes))) != 1:
            raise ValueError(f"tensors must have one shape (N,), got {sorted(shapes)}")
        for name, tensor in tensors.items():
            setattr(self, name, tensor.to(self._device, torch.float32, copy=True))
