# SPDX-License-Identifier: Apache-2.0
"""The native functions on a CUDA device: torch gives every output and workspace.

Each function mirrors one of :mod:`gs_cull.host`. All work is enqueued on torch's current stream.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gs_cull import _core
from gs_cull.arrays import Geometry, Rows
from gs_cull.cameras import Cameras

_HAS_CUDA = _core.build_info()["cuda_toolkit"] is not None


def _stream(device: torch.device) -> int:
    if not _HAS_CUDA:
        raise _core.CudaError(
            "arrays must be on the CPU, got CUDA tensors: this build of gs-cull has no CUDA. "
            "Reinstall it where nvcc is on the PATH"
        )
    return torch.cuda.current_stream(device).cuda_stream


def _prepare(cameras: Cameras, options: _core.Options, views: Tensor, stream: int) -> None:
    sizes = None
    if cameras.one_size is None:
        sizes = torch.from_numpy(cameras.sizes).to(views.device)
    _core.prepare_cuda(
        cameras.viewmats, cameras.Ks, sizes, cameras.one_size, options, views, stream
    )


def cull(
    geometry: Geometry,
    cameras: Cameras,
    options: _core.Options,
    blocks: tuple[Any, ...] | None,
) -> tuple[Tensor, Tensor, Tensor, int]:
    """ids, mask, counts and the rows looked at that are not finite. Synchronises once."""
    device = geometry[0].device
    stream = _stream(device)
    n_views = len(cameras)
    n_rows = len(geometry[0]) if blocks is None else blocks[0]
    view_words = _core.view_words(n_views)
    zeros = torch.zeros(view_words + _core.mark_words(n_rows), dtype=torch.int32, device=device)
    views, marks = zeros[:view_words], zeros[view_words:]
    chunks = torch.empty(_core.visible_chunks(n_rows), dtype=torch.int32, device=device)
    _prepare(cameras, options, views, stream)
    _core.mark_cuda(*geometry, views, n_views, options, blocks, marks, chunks, stream)
    n_visible, n_not_finite, fault, fault_view = views[:4].tolist()
    _core.throw_fault(fault, fault_view)
    ids = torch.empty(n_visible, dtype=torch.int32, device=device)
    mask = torch.empty((n_visible, (n_views + 31) // 32), dtype=torch.int32, device=device)
    counts = torch.zeros(n_views, dtype=torch.int32, device=device)
    if n_views == 1:
        _core.write_ids_cuda(marks, chunks, n_rows, ids, mask, counts, stream)
    else:
        _core.write_ids_cuda(marks, chunks, n_rows, ids, None, None, stream)
        _core.write_mask_cuda(*geometry, views, n_views, options, blocks, ids, mask, counts, stream)
    return ids, mask, counts, n_not_finite


def boxes(geometry: Geometry, cameras: Cameras, options: _core.Options, ids: Tensor) -> Tensor:
    """(n, 4) pixels x0, y0, x1, y1 that the rows ``ids`` may reach in the one view."""
    device = ids.device
    stream = _stream(device)
    views = torch.zeros(_core.view_words(1), dtype=torch.int32, device=device)
    _prepare(cameras, options, views, stream)
    out = torch.empty((len(ids), 4), dtype=torch.float32, device=device)
    _core.boxes_cuda(*geometry, views, options, ids, out, stream)
    return out


def views_of_blocks(
    bounds: tuple[Any, ...], cameras: Cameras, options: _core.Options, *, check: bool = False
) -> Tensor:
    """(blocks, ceil(B / 32)) int32 words: which views may see each block.

    With ``check`` it synchronises and raises for a faulty camera.
    """
    device = bounds[0].device
    stream = _stream(device)
    n_views = len(cameras)
    views = torch.zeros(_core.view_words(n_views), dtype=torch.int32, device=device)
    _prepare(cameras, options, views, stream)
    words = torch.empty((len(bounds[0]), (n_views + 31) // 32), dtype=torch.int32, device=device)
    _core.views_of_blocks_cuda(bounds, views, n_views, options, words, stream)
    if check:
        _core.throw_fault(*views[2:4].tolist())
    return words


def fit_blocks(
    rows: Rows,
    blocking: tuple[Any, ...],
    options: _core.Options,
    bounds: tuple[Any, ...],
) -> None:
    """Write the bounds of the blocks that ``blocking`` names into ``bounds``."""
    _core.fit_blocks_cuda(*rows, blocking, options, bounds, _stream(bounds[0].device))


def morton_order(means: Tensor, cube: tuple[float, ...]) -> Tensor:
    """(N,) int32 rows along the curve. 24 bytes a row of workspace, returned memory included."""
    device = means.device
    stream = _stream(device)
    n = len(means)
    codes = torch.empty((2, n), dtype=torch.int64, device=device)
    first = torch.empty((2, n), dtype=torch.int32, device=device)
    n_bytes = _core.sort_workspace_bytes_cuda(n, device.index or 0)
    workspace = torch.empty(max(n_bytes, 1), dtype=torch.uint8, device=device)
    half = _core.morton_order_cuda(means, cube, codes, first, workspace, stream)
    del codes, workspace
    return first[half].clone()


def pair_counts(mask: Tensor, n_views: int) -> Tensor:
    """(B, B) int64 rows that both views see."""
    together = torch.zeros((n_views, n_views), dtype=torch.int64, device=mask.device)
    _core.pair_counts_cuda(mask, n_views, together, _stream(mask.device))
    return together
