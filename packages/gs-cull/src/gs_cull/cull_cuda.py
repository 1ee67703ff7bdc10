# SPDX-License-Identifier: Apache-2.0
"""The device side of :func:`gs_cull.cull`: torch gives every output and workspace."""

from __future__ import annotations

from typing import Any

import torch

from gs_cull import _core
from gs_cull.cameras import Cameras
from gs_cull.visibility import Visibility


def require_cuda_build() -> None:
    """Raise unless the native part was compiled with CUDA."""
    if _core.build_info()["cuda_toolkit"] is None:
        raise _core.CudaError(
            "means must be on the CPU, got a CUDA tensor: this build of gs-cull has no CUDA. "
            "Reinstall it where nvcc is on the PATH"
        )


def cull_cuda(geometry: tuple[Any, ...], cameras: Cameras, options: _core.Options) -> Visibility:
    """Visible sets of rows on a CUDA device; see :func:`gs_cull.cull`."""
    require_cuda_build()
    means = geometry[0]
    device = means.device
    stream = torch.cuda.current_stream(device).cuda_stream
    n_views = len(cameras)
    n_words, n_zeroed = _core.workspace_words(len(means), n_views)
    workspace = torch.empty(n_words, dtype=torch.int32, device=device)
    workspace[:n_zeroed].zero_()
    sizes = None
    if cameras.one_size is None:
        sizes = torch.from_numpy(cameras.sizes).to(device)
    _core.mark_cuda(
        *geometry,
        cameras.viewmats,
        cameras.Ks,
        sizes,
        cameras.one_size,
        options,
        workspace,
        stream,
    )
    n_visible, n_not_finite, fault, fault_view = workspace[:4].tolist()  # synchronises
    _core.throw_fault(fault, fault_view)
    ids = torch.empty(n_visible, dtype=torch.int32, device=device)
    mask = torch.empty((n_visible, (n_views + 31) // 32), dtype=torch.int32, device=device)
    counts = torch.zeros(n_views, dtype=torch.int32, device=device)
    _core.write_cuda(*geometry, n_views, options, workspace, ids, mask, counts, stream)
    return Visibility(ids, mask, counts, n_not_finite)
