# SPDX-License-Identifier: Apache-2.0
"""Views that a caller keeps, because they come again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gs_cull.arrays import Array, Geometry, check_kind, is_torch
from gs_cull.blocks import Blocks
from gs_cull.cameras import Cameras, check_cameras
from gs_cull.checks import shown
from gs_cull.cull import cull_checked
from gs_cull.mark import mark_checked
from gs_cull.options import Inflate, Rules, options_by
from gs_cull.resident import ResidentBlocks
from gs_cull.visibility import Visibility

_USUAL = Rules()


class Views:
    """Cameras and image sizes of B views, checked once and used many times.

    A trainer sees each view once an epoch. It keeps ``Views`` of each view, and :meth:`joined` puts
    those of a batch together.

    Float32 matrices without gaps are shared with the caller: values that are written to such
    matrices count in later calls. Other matrices, sizes and rectangles are copied.

    Args:
        viewmats, Ks, width, height: as for :func:`gs_cull.cull`.

    Raises:
        TypeError: numpy and torch are mixed, matrices are not floating point, sizes are not whole
            numbers.
        ValueError: shapes disagree, a size is out of range.

    Asynchrony: matrices of another floating type are converted on torch's current stream.
    Thread-safe.

    >>> import numpy as np
    >>> K = np.array([[[100.0, 0, 50], [0, 100, 50], [0, 0, 1]]])
    >>> views = Views(np.eye(4)[None], K, 100, 100)
    >>> views
    Views(1 of 100 x 100 pixels; numpy)
    >>> means = np.array([[0, 0, 5], [0, 0, -5]], np.float32)
    >>> quats = np.array([[1, 0, 0, 0]] * 2, np.float32)
    >>> views.cull(means, np.zeros_like(means), quats).ids
    array([0], dtype=int32)
    """

    __slots__ = ("_cameras", "_device", "_kind")

    def __init__(self, viewmats: Array, Ks: Array, width: Any, height: Any) -> None:
        check_kind(viewmats=viewmats, Ks=Ks)
        # Arrays of this object's own: nobody else can give them another memory or shape.
        viewmats, Ks = _alias(viewmats), _alias(Ks)
        self._take(check_cameras(viewmats, Ks, width, height, None))

    @classmethod
    def joined(cls, parts: Iterable[Views]) -> Views:
        """The views of all parts, in their order.

        Args:
            parts: one or more, of the same kind and on the same device.

        Raises:
            TypeError: a part is no ``Views``, numpy and torch are mixed.
            ValueError: there is no part, devices differ.

        Asynchrony: on CUDA one kernel on torch's current stream, none for a single part. Never
            synchronises.
        """
        try:
            parts = tuple(parts)
        except TypeError:
            raise TypeError(f"parts must be of Views, got {shown(parts)}") from None
        for part in parts:
            if not isinstance(part, Views):
                raise TypeError(f"parts must be of Views, got {shown(part)}")
        if len(parts) < 2:
            if not parts:
                raise ValueError("parts must be one Views or more, got none")
            return parts[0]
        first = parts[0]
        for part in parts:
            if part._kind is not first._kind:
                check_kind(**{"parts[0]": first.viewmats, "parts": part.viewmats})
            if part._device != first._device:
                raise ValueError(f"parts must be on {first._device}, got one on {part._device}")
        return _of(_joined([part._cameras for part in parts]))

    def cropped(self, rects: Any) -> Views:
        """The same views as crops.

        Args:
            rects: (B, 4) ints, as for :func:`gs_cull.cull`.

        Raises:
            TypeError, ValueError: as :func:`gs_cull.cull`.
        """
        return _of(self._cameras.with_rects(rects))

    def cull(
        self,
        means: Array,
        scales: Array,
        quats: Array,
        *,
        opacities: Array | None = None,
        rules: Rules = _USUAL,
        inflate: Inflate | None = None,
        blocks: Blocks | ResidentBlocks | None = None,
    ) -> Visibility:
        """:func:`gs_cull.cull` of these views.

        Args:
            rules: by which rows show; all others as for :func:`gs_cull.cull`.

        Returns, raises, asynchrony, cost: as :func:`gs_cull.cull`.
        """
        self._check(means, scales, quats, opacities, rules)
        geometry: Geometry = (means, scales, quats, opacities)
        options = options_by(rules, inflate)
        return cull_checked(geometry, self._cameras, options, blocks, rules.activated)

    def mark(
        self,
        means: Array,
        scales: Array,
        quats: Array,
        ids: Array,
        mask: Array,
        *,
        opacities: Array | None = None,
        rules: Rules = _USUAL,
        out: Array | None = None,
    ) -> Array:
        """:func:`gs_cull.mark` of these views.

        Args:
            rules: by which rows show, as they were for the list; all others as for
                :func:`gs_cull.mark`.

        Returns, raises, asynchrony, cost: as :func:`gs_cull.mark`.
        """
        kind = self._kind
        if not (
            isinstance(ids, kind)
            and isinstance(mask, kind)
            and (out is None or isinstance(out, kind))
        ):
            more = {} if out is None else {"out": out}
            check_kind(viewmats=self._cameras.viewmats, ids=ids, mask=mask, **more)
        self._check(means, scales, quats, opacities, rules)
        geometry: Geometry = (means, scales, quats, opacities)
        return mark_checked(geometry, self._cameras, options_by(rules, None), ids, mask, out)

    def _check(
        self, means: Array, scales: Array, quats: Array, opacities: Array | None, rules: Rules
    ) -> None:
        kind = self._kind
        if not (
            isinstance(means, kind)
            and isinstance(scales, kind)
            and isinstance(quats, kind)
            and (opacities is None or isinstance(opacities, kind))
        ):
            optional = {} if opacities is None else {"opacities": opacities}
            viewmats = self._cameras.viewmats
            check_kind(means=means, scales=scales, quats=quats, viewmats=viewmats, **optional)
        if not isinstance(rules, Rules):
            raise TypeError(f"rules must be Rules, got {shown(rules)}")

    @property
    def viewmats(self) -> Array:
        """(B, 4, 4) float32, contiguous."""
        return self._cameras.viewmats

    @property
    def Ks(self) -> Array:
        """(B, 3, 3) float32, contiguous."""
        return self._cameras.Ks

    def __len__(self) -> int:
        return len(self._cameras)

    def __repr__(self) -> str:
        cameras = self._cameras
        kind = f"torch, {cameras.viewmats.device}" if is_torch(cameras.viewmats) else "numpy"
        sizes = sorted({(int(width), int(height)) for width, height in cameras.sizes[:, :2]})
        if len(sizes) == 1:
            return f"Views({len(self)} of {sizes[0][0]} x {sizes[0][1]} pixels; {kind})"
        return f"Views({len(self)} of {len(sizes)} sizes; {kind})"

    def _take(self, cameras: Cameras) -> None:
        self._cameras = cameras
        self._kind: Any = type(cameras.viewmats)
        self._device: Any = getattr(cameras.viewmats, "device", None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _of, (self._cameras,)


def _of(cameras: Cameras) -> Views:
    views = Views.__new__(Views)
    views._take(cameras)
    return views


def _alias(array: Array) -> Array:
    return array.detach() if is_torch(array) else array.view(np.ndarray)


def _joined(parts: list[Cameras]) -> Cameras:
    """Two or more in one. On CUDA a launch takes the host longer than anything else here."""
    flat = [part.flat for part in parts]
    matrices = [*(viewmats for viewmats, _ in flat), *(Ks for _, Ks in flat)]
    sizes = np.concatenate([part.sizes for part in parts])
    n = len(sizes)
    if isinstance(matrices[0], np.ndarray):
        both = np.concatenate(matrices)
        return Cameras(both[: 16 * n].reshape(n, 4, 4), both[16 * n :].reshape(n, 3, 3), sizes)
    import torch

    joined = torch.cat(matrices)
    viewmats = joined.as_strided((n, 4, 4), (16, 4, 1))
    return Cameras(viewmats, joined.as_strided((n, 3, 3), (9, 3, 1), 16 * n), sizes)
