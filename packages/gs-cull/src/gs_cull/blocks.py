# SPDX-License-Identifier: Apache-2.0
"""Blocks of rows along a Morton curve, so that a view looks only at what is near it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from gs_cull.arrays import Array, Rows, check_kind, is_torch, native, true_ids
from gs_cull.block_storage import load_blocks, save_blocks
from gs_cull.bounds import Bounds, Layout, all_blocks, block_ids, empty_bounds, fit_bounds
from gs_cull.cameras import check_cameras
from gs_cull.checks import check_block_size, distance, flag, shown, triples, whole_number
from gs_cull.morton import morton_order
from gs_cull.options import CameraModelName, Inflate, native_options
from gs_cull.resident import ResidentBlocks
from gs_cull.visibility import Visibility


class Blocks:
    """Conservative bounds of fixed-size blocks of rows: a box of the means and the largest scale.

    Block k holds the rows at positions ``[k * block_size, (k + 1) * block_size)`` of ``order``.
    The bounds hold for every rotation and opacity. They stay valid while no component of a mean or
    scale has moved, since its block was fitted, by more than the block's ``slack``; :meth:`widen`
    raises the slack, which costs nothing but looser bounds, :meth:`refit` brings it back.

    Make one with :meth:`build`, :meth:`from_chunks` or :meth:`load`.

    Attributes:
        n_rows: N.
        block_size: rows per block, a multiple of 32; the last block may hold fewer.
        order: (N,) int32 row at each position, or None when rows are stored in order.
        lower, upper: (blocks, 3) float32 corners of the means; lower > upper without finite rows.
        scale: (blocks,) float32, at least every scale (never a logarithm).
        slack: (blocks, 2) float32, how far components of means and scales may have moved since the
            fit, in the units of the arrays given.
        not_finite: (blocks,) int32, rows left out because a mean or scale is NaN or infinite.
        activated: whether scales are given as they are, not as logarithms.
    """

    def __init__(
        self,
        *,
        n_rows: int,
        block_size: int,
        order: Array | None,
        bounds: Bounds,
        activated: bool,
        slack: tuple[float, float],
    ) -> None:
        self.n_rows = n_rows
        self.block_size = block_size
        self.order = order
        self.lower, self.upper, self.scale, self.slack, self.not_finite = bounds
        self.activated = activated
        self._base_slack = slack
        self._n_not_finite: int | None = None

    @classmethod
    def build(
        cls,
        means: Array,
        scales: Array,
        quats: Array,
        block_size: int = 4096,
        *,
        sort: bool = True,
        activated: bool = False,
        slack_means: float = 0.0,
        slack_scales: float = 0.0,
    ) -> Blocks:
        """Sort rows along a Morton curve and bound each block.

        Args:
            means: (N, 3) float32, numpy, or torch on the CPU or on CUDA.
            scales: (N, 3) float32, logarithms unless ``activated``.
            quats: (N, 4) float32. Bounds hold for every rotation, so only the shape matters.
            block_size: a positive multiple of 32.
            sort: False takes the rows as they are, for rows already kept in Morton order; then
                blocks are contiguous and culling reads them without indirection.
            slack_means, slack_scales: how far a component of a mean (world units) or a scale (in
                the units given) may move before a refit is needed.

        Returns:
            Blocks whose arrays are of the same kind and on the same device.

        Raises:
            TypeError: numpy and torch are mixed, or a dtype is not float32.
            ValueError: shapes or devices disagree, or a number is out of range.

        Cost: a 63-bit radix sort and two passes over means and scales; 24 bytes a row meanwhile,
            and 4 for ``order``. Synchronises once on CUDA when it sorts.
        """
        check_kind(means=means, scales=scales, quats=quats)
        blocks = cls._empty(len(means), block_size, means, activated, (slack_means, slack_scales))
        blocks._fit_all((means, scales, quats))
        if flag("sort", sort) and len(means) > 0:
            blocks.order = morton_order(means, blocks.lower, blocks.upper)
            blocks._fit_all((means, scales, quats))
        return blocks

    @classmethod
    def from_chunks(
        cls,
        chunks: Iterable[Rows],
        n_rows: int,
        block_size: int = 4096,
        *,
        activated: bool = False,
        slack_means: float = 0.0,
        slack_scales: float = 0.0,
    ) -> Blocks:
        """Bound blocks of rows that arrive piece by piece, in the order they are stored in.

        Args:
            chunks: (means, scales, quats) of consecutive rows, as in :meth:`build`. Each but the
                last must hold whole blocks.
            n_rows: rows in all chunks together.

        Raises:
            TypeError: a chunk is not of three arrays; as :meth:`build`.
            ValueError: a chunk ends inside a block, or the rows do not add up to ``n_rows``.

        Cost: one pass; never more than one chunk is held.
        """
        blocks: Blocks | None = None
        done = 0
        for chunk in triples("chunks", chunks):
            check_kind(means=chunk[0], scales=chunk[1], quats=chunk[2])
            if blocks is None:
                slack = (slack_means, slack_scales)
                blocks = cls._empty(n_rows, block_size, chunk[0], activated, slack)
            if done % block_size != 0:
                raise ValueError(
                    f"chunks must hold whole blocks of {block_size} rows except for the last, got "
                    f"one that ends at row {done}"
                )
            first = done // block_size
            done += len(chunk[0])
            if done > n_rows:
                break
            which = np.arange(first, -(-done // block_size), dtype=np.int32)
            blocks.fit(chunk, which, stored=which - first, end=done)
        if blocks is None:
            raise ValueError("chunks must hold at least one chunk, got none")
        if done != n_rows:
            raise ValueError(f"chunks must hold n_rows = {n_rows} rows, got {done} or more")
        return blocks

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Blocks:
        """Read what :meth:`save` wrote, as numpy arrays; :meth:`to` moves them.

        Raises:
            ValueError: the file is not one of these, or of another format version.
        """
        return cls(**load_blocks(Path(path)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to an ``.npz`` file, under a temporary name until it is complete."""
        save_blocks(
            Path(path),
            n_rows=self.n_rows,
            block_size=self.block_size,
            order=self.order,
            bounds=self.bounds,
            activated=self.activated,
            slack=self._base_slack,
        )

    def to(self, device: Any) -> Blocks:
        """A copy as torch tensors on ``device``.

        Raises:
            ValueError: ``device`` is none of torch's.
        """
        import torch

        try:
            device = torch.device(device)
        except (TypeError, RuntimeError):
            raise ValueError(f"device must be one of torch's, got {shown(device)}") from None

        def move(array: Array) -> Array:
            return torch.as_tensor(array).to(device, copy=True)

        return Blocks(
            n_rows=self.n_rows,
            block_size=self.block_size,
            order=None if self.order is None else move(self.order),
            bounds=Bounds(*map(move, self.bounds)),
            activated=self.activated,
            slack=self._base_slack,
        )

    def __len__(self) -> int:
        return len(self.scale)

    @property
    def bounds(self) -> Bounds:
        """The arrays of the same names, together."""
        return Bounds(self.lower, self.upper, self.scale, self.slack, self.not_finite)

    def __repr__(self) -> str:
        kind = f"torch, {self.scale.device}" if is_torch(self.scale) else "numpy"
        order = "in order" if self.order is None else "permuted"
        return f"Blocks({len(self)} of {self.block_size}: {self.n_rows} rows {order}; {kind})"

    @property
    def n_not_finite(self) -> int:
        """Rows without a finite mean or scale when last fitted. Synchronises once a fit."""
        if self._n_not_finite is None:
            self._n_not_finite = int(self.not_finite.sum())
        return self._n_not_finite

    def widen(
        self, *, means: float = 0.0, scales: float = 0.0, blocks: Array | None = None
    ) -> None:
        """Let rows have moved this much further without a refit.

        Args:
            means, scales: most that a component may have moved since the last call, in the units of
                the arrays.
            blocks: (n,) ids of the blocks concerned; None for all. Checking ids that are on CUDA
                synchronises.
        """
        means, scales = distance("means", means), distance("scales", scales)
        which: Any = slice(None) if blocks is None else block_ids(self.bounds, blocks)
        self.slack[which, 0] += means
        self.slack[which, 1] += scales

    def refit(
        self, means: Array, scales: Array, quats: Array, *, blocks: Array | None = None
    ) -> None:
        """Bound blocks anew after their rows moved, and reset their slack. The order stays.

        Args:
            means, scales, quats: all N rows, as in :meth:`build`.
            blocks: (n,) ids of the blocks to look at; None for all.

        Cost: one pass over the means and scales of those blocks. On CUDA it synchronises when it
            is given ids of blocks, to check them.
        """
        check_kind(blocks=self.scale, means=means, scales=scales, quats=quats)
        self.layout(means)
        if blocks is None:
            self._fit_all((means, scales, quats))
        else:
            self.fit((means, scales, quats), block_ids(self.bounds, blocks))

    def visible(
        self,
        viewmats: Array,
        Ks: Array,
        width: Any,
        height: Any,
        *,
        near: float = 0.01,
        far: float = 1e10,
        eps2d: float = 0.3,
        camera_model: CameraModelName = "pinhole",
        rects: Any = None,
        inflate: Inflate | None = None,
    ) -> Visibility:
        """Which blocks each view may see rows of; needs no geometry.

        Arguments are those of :func:`gs_cull.cull`.

        Returns:
            A Visibility whose ids are blocks. Every block that holds a row visible to a view is in
            that view's set.
        """
        check_kind(blocks=self.scale, viewmats=viewmats, Ks=Ks)
        cameras = check_cameras(viewmats, Ks, width, height, rects)
        options = native_options(
            near=near,
            far=far,
            eps2d=eps2d,
            radius_clip=0.0,
            camera_model=camera_model,
            activated=self.activated,
            antialiased=False,
            inflate=inflate,
        )
        words = native(self.scale).views_of_blocks(self.bounds, cameras, options)
        ids = true_ids((words != 0).any(1))
        return Visibility.of_mask(ids, words[ids], len(cameras), self.n_not_finite)

    def in_slots(self, slots: Any) -> ResidentBlocks:
        """The same blocks where only some are present: slot s of the arrays holds block slots[s].

        Args:
            slots: (S,) ints, a block id or -1 for an empty slot; no block twice.

        Returns:
            What ``cull(..., blocks=)`` takes for arrays of S * block_size rows. Ids that it gives
            are global: block * block_size + place in the block.

        Raises:
            ValueError: the rows are permuted, or a block is present twice.
            IndexError: there is no such block.
        """
        return ResidentBlocks(self, slots)

    def layout(self, means: Array) -> Layout:
        """What the native part needs of blocks; checks that they are of these rows."""
        check_kind(means=means)
        if len(means) != self.n_rows:
            raise ValueError(f"blocks must be of {len(means)} rows, got those of {self.n_rows}")
        return self._layout()

    def _layout(self) -> Layout:
        return Layout(self.n_rows, self.block_size, self.order, None, None, self.bounds)

    @classmethod
    def _empty(
        cls, n_rows: int, block_size: int, like: Array, activated: bool, slack: tuple[float, float]
    ) -> Blocks:
        check_block_size(block_size)
        n_rows = whole_number("n_rows", n_rows)
        slack = distance("slack_means", slack[0]), distance("slack_scales", slack[1])
        return cls(
            n_rows=n_rows,
            block_size=block_size,
            order=None,
            bounds=empty_bounds(like, -(-n_rows // block_size)),
            activated=flag("activated", activated),
            slack=slack,
        )

    def _fit_all(self, rows: Rows) -> None:
        self.fit(rows, all_blocks(self.bounds))

    def fit(
        self,
        rows: Rows,
        which: Array,
        *,
        stored: Array | None = None,
        end: int | None = None,
    ) -> None:
        """Fit blocks ``which``, the k-th at place ``stored[k]`` of the arrays, counted in blocks.

        For rows that do not lie in one array; :meth:`refit` is for those that do.

        Args:
            rows: means, scales and quats.
            which: (n,) int32 block ids.
            stored: (n,) int32, ``which`` when None.
            end: id after the last row in the arrays, N when None.

        Raises:
            IndexError: on the CPU, there is no such block, or its rows are not in the arrays. On
                CUDA neither is checked.
        """
        (rows,) = triples("rows", (rows,))
        check_kind(blocks=self.scale, means=rows[0], scales=rows[1], quats=rows[2])
        fit_bounds(
            self._layout(),
            rows,
            which,
            which if stored is None else stored,
            self.n_rows if end is None else whole_number("end", end, most=self.n_rows),
            activated=self.activated,
            slack=self._base_slack,
        )
        self._n_not_finite = None
