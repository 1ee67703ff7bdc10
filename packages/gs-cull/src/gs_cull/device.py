# SPDX-License-Identifier: Apache-2.0
"""The native functions on a CUDA device: torch gives every output and workspace.

Each function mirrors one of :mod:`gs_cull.host`. All work is enqueued on torch's current stream,
and where the host has to wait, it waits for that stream alone. The native functions take addresses;
what they point to is checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gs_cull import _core, host
from gs_cull.addresses import address
from gs_cull.arrays import Geometry, Rows
from gs_cull.bounds import Bounds, Layout
from gs_cull.cameras import Cameras

_HAS_CUDA = _core.build_info()["cuda_toolkit"] is not None


class _Place(NamedTuple):
    """A device, and the stream that torch works on there now."""

    device: torch.device
    number: int
    stream: int

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=self.device)


def _place(tensor: Tensor) -> _Place:
    if not _HAS_CUDA:
        raise _core.CudaError(
            "arrays must be on the CPU, got CUDA tensors: this build of gs-cull has no CUDA. "
            "Reinstall it where nvcc is on the PATH"
        )
    number = tensor.get_device()
    return _Place(tensor.device, number, _current_stream(number))


def _public_current_stream(number: int) -> int:
    return torch.cuda.current_stream(number).cuda_stream


# The handle without torch's object around it, where this torch has that: making the object takes as
# long as a launch.
_current_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", _public_current_stream
)


def _totals() -> Tensor:
    """Room for what the host waits for; page-locked, so that only the stream is waited for."""
    return torch.empty(_core.N_TOTALS, dtype=torch.int32, pin_memory=True)


_last_rows: tuple[tuple[Any, ...], _core.RowsAt] | None = None
"""All that is checked of the rows of the last call, and what it gave. It holds no tensor."""


def _rows(geometry: Geometry, device: torch.device) -> _core.RowsAt:
    global _last_rows
    means, scales, quats, opacities = geometry
    last = _last_rows
    # One line each, no loop: this is most of what checks take where the same rows come again.
    key = (
        device,
        (means.data_ptr(), means.shape, means.dtype, means.device, means.is_contiguous()),
        (scales.data_ptr(), scales.shape, scales.dtype, scales.device, scales.is_contiguous()),
        (quats.data_ptr(), quats.shape, quats.dtype, quats.device, quats.is_contiguous()),
        None
        if opacities is None
        else (
            opacities.data_ptr(),
            opacities.shape,
            opacities.dtype,
            opacities.device,
            opacities.is_contiguous(),
        ),
    )
    if last is not None and last[0] == key:
        return last[1]
    rows = _checked_rows(geometry, device)
    _last_rows = key, rows
    return rows


def _checked_rows(geometry: Geometry, device: torch.device) -> _core.RowsAt:
    means, scales, quats, opacities = geometry
    real = torch.float32
    mean = address("means", means, (-1, 3), real, device)
    n = means.shape[0]
    if n >= 2**31 - 1:
        raise ValueError(f"means must have fewer than 2^31 - 1 rows, got {n}")
    return _core.RowsAt(
        n,
        mean,
        address("scales", scales, (n, 3), real, device),
        address("quats", quats, (n, 4), real, device),
        0 if opacities is None else address("opacities", opacities, (n,), real, device),
    )


def _views(cameras: Cameras, at: _Place) -> _core.ViewsAt:
    """Views that come again are checked again only where a matrix has gone elsewhere."""
    viewmats, Ks = cameras.viewmats, cameras.Ks
    known = cameras.on_device
    if known is not None:
        views, number, viewmat, K = known
        if number == at.number and viewmat == viewmats.data_ptr() and Ks.data_ptr() == K:
            return views
    n, real = cameras.sizes.shape[0], torch.float32
    viewmat = address("viewmats", viewmats, (n, 4, 4), real, at.device)
    K = address("Ks", Ks, (n, 3, 3), real, at.device)
    views = _core.ViewsAt(n, viewmat, K, cameras.sizes)
    cameras.on_device = views, at.number, viewmat, K
    return views


def _bounds(bounds: Bounds, n: int, device: torch.device) -> _core.BoundsAt:
    real = torch.float32
    return _core.BoundsAt(
        n,
        address("lower", bounds.lower, (n, 3), real, device),
        address("upper", bounds.upper, (n, 3), real, device),
        address("scale", bounds.scale, (n,), real, device),
        address("slack", bounds.slack, (n, 2), real, device),
        address("not_finite", bounds.not_finite, (n,), torch.int32, device),
    )


def _order(layout: Layout, device: torch.device) -> int:
    if layout.order is None:
        return 0
    return address("order", layout.order, (layout.n_rows,), torch.int32, device)


def _layout(layout: Layout, device: torch.device) -> _core.LayoutAt:
    slots, inverse = layout.block_in_slot, layout.slot_of_block
    n_slots = -1 if slots is None else len(slots)
    n_blocks = -(-layout.n_rows // layout.block_size)
    return _core.LayoutAt(
        layout.n_rows,
        layout.block_size,
        _order(layout, device),
        n_slots,
        0 if slots is None else address("block_in_slot", slots, (-1,), torch.int32, device),
        0
        if inverse is None
        else address("slot_of_block", inverse, (n_blocks,), torch.int32, device),
        _bounds(layout.bounds, n_blocks, device),
    )


def cull(
    geometry: Geometry, cameras: Cameras, options: _core.Options, layout: Layout | None
) -> tuple[Tensor, Tensor, Tensor, int]:
    """ids, mask, counts and the rows that are not finite. Synchronises once."""
    at = _place(geometry[0])
    call = _core.CudaCull(
        _rows(geometry, at.device),
        _views(cameras, at),
        None if layout is None else _layout(layout, at.device),
        options,
        at.number,
        at.stream,
    )
    n_views = cameras.sizes.shape[0]
    workspace = at.empty(call.n_words)
    totals = _totals()
    n_visible, n_not_finite = call.mark(workspace.data_ptr(), totals.data_ptr())
    ids = at.empty(n_visible)
    mask = at.empty(n_visible, (n_views + 31) // 32)
    counts = at.empty(n_views)
    call.write(ids.data_ptr(), mask.data_ptr(), counts.data_ptr())
    return ids, mask, counts, n_not_finite


def mark(
    geometry: Geometry,
    cameras: Cameras,
    options: _core.Options,
    ids: Tensor,
    mask: Tensor,
    out: Tensor | None,
) -> Tensor:
    """(U,) bool, ``out`` if given: which of the rows ``ids`` a view of their mask sees.

    Never synchronises, unless GS_CHECK_INDEX=1 asks for a look at ids, mask and views first.
    """
    at = _place(geometry[0])
    rows, views = _rows(geometry, at.device), _views(cameras, at)
    id_address = address("ids", ids, (-1,), torch.int32, at.device)
    n, n_views = ids.shape[0], len(cameras.sizes)
    mask_address = address("mask", mask, (n, (n_views + 31) // 32), torch.int32, at.device)
    if out is None:
        out = torch.empty(n, dtype=torch.bool, device=at.device)
        out_address = out.data_ptr()
    else:
        out_address = address("out", out, (n,), torch.bool, at.device)
    if _core.checks_indices():
        there = Cameras(cameras.viewmats.cpu(), cameras.Ks.cpu(), cameras.sizes)
        host.check_marking(geometry[0].shape[0], there, options, ids.cpu(), mask.cpu())
    _core.mark_cuda(
        rows, views, options, id_address, mask_address, n, out_address, at.number, at.stream
    )
    return out


def boxes(geometry: Geometry, cameras: Cameras, options: _core.Options, ids: Tensor) -> Tensor:
    """(n, 4) pixels x0, y0, x1, y1 that the rows ``ids`` may reach in the one view."""
    at = _place(geometry[0])
    n = len(ids)
    out = torch.empty((n, 4), dtype=torch.float32, device=at.device)
    workspace = at.empty(_core.view_words(1))
    _core.boxes_cuda(
        _rows(geometry, at.device),
        _views(cameras, at),
        options,
        address("ids", ids, (n,), torch.int32, at.device),
        n,
        workspace.data_ptr(),
        out.data_ptr(),
        at.number,
        at.stream,
    )
    return out


def views_of_blocks(bounds: Bounds, cameras: Cameras, options: _core.Options) -> Tensor:
    """(blocks, ceil(B / 32)) int32 words: which views may see each block. Synchronises once."""
    at = _place(bounds.scale)
    n_views = len(cameras)
    words = at.empty(len(bounds.scale), (n_views + 31) // 32)
    workspace, totals = at.empty(_core.view_words(n_views)), _totals()
    _core.views_of_blocks_cuda(
        _bounds(bounds, len(bounds.scale), at.device),
        _views(cameras, at),
        options,
        workspace.data_ptr(),
        totals.data_ptr(),
        words.data_ptr(),
        at.number,
        at.stream,
    )
    return words


def fit_blocks(
    rows: Rows, layout: Layout, which: Tensor, stored: Tensor, end: int, options: _core.Options
) -> None:
    """Write the bounds of blocks ``which`` of rows at ``stored`` into those of ``layout``."""
    at = _place(layout.bounds.scale)
    n, n_blocks = len(which), -(-layout.n_rows // layout.block_size)
    _core.fit_blocks_cuda(
        _rows((*rows, None), at.device),
        end,
        layout.block_size,
        _order(layout, at.device),
        address("blocks", which, (n,), torch.int32, at.device),
        address("stored", stored, (n,), torch.int32, at.device),
        n,
        options,
        _bounds(layout.bounds, n_blocks, at.device),
        at.number,
        at.stream,
    )


def morton_order(means: Tensor, cube: tuple[float, float, float, float]) -> Tensor:
    """(N,) int32 rows along the curve. 24 bytes a row of workspace, returned memory included."""
    at = _place(means)
    mean = address("means", means, (-1, 3), torch.float32, at.device)
    n = len(means)
    codes = torch.empty((2, n), dtype=torch.int64, device=at.device)
    rows = at.empty(2, n)
    n_bytes = _core.sort_workspace_bytes_cuda(n, at.number)
    workspace = torch.empty(max(n_bytes, 1), dtype=torch.uint8, device=at.device)
    half = _core.morton_order_cuda(
        mean,
        n,
        cube,
        codes.data_ptr(),
        rows.data_ptr(),
        workspace.data_ptr(),
        n_bytes,
        at.number,
        at.stream,
    )
    del codes, workspace
    return rows[half].clone()


def pair_counts(mask: Tensor, n_views: int) -> Tensor:
    """(B, B) int64 rows that both views see."""
    at = _place(mask)
    words = address("mask", mask, (-1, (n_views + 31) // 32), torch.int32, at.device)
    together = torch.zeros((n_views, n_views), dtype=torch.int64, device=at.device)
    _core.pair_counts_cuda(words, len(mask), n_views, together.data_ptr(), at.number, at.stream)
    return together
