# SPDX-License-Identifier: Apache-2.0
"""The noise of Markov chain Monte Carlo on rows, on a CUDA device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gs_raster import _core
from gs_raster.cuda.addresses import check
from gs_raster.cuda.columns import check_columns, column_addresses
from gs_raster.cuda.indices import check_indices
from gs_raster.cuda.place import place_of
from gs_raster.cuda.rows import MAX_ROWS
from gs_raster.numbers import real, whole

_MOST = torch.finfo(torch.float32).max


def perturb(
    means: Tensor,
    *,
    scales: Tensor,
    quats: Tensor,
    opacities: Tensor,
    keys: Tensor,
    size: float,
    seed: int,
    step: int,
    purpose: int,
) -> None:
    """Move rows by normal noise shaped by their covariances, the more the fainter they are.

    Each mean gets ``size * sigmoid(100 * (0.005 - opacity)) * C z``, where C is the row's
    covariance and z has three standard normal numbers: the noise term of 3DGS-MCMC (Kheradmand et
    al., 3D Gaussian Splatting as Markov Chain Monte Carlo, 2024), as gsplat 1.5.3 has it.

    z is a function of (seed, purpose, step, key): the words of Philox4x32-10 (Salmon et al. 2011)
    under the key ``seed`` of the counter (key, 0, step, purpose), by the transform of Box and
    Muller. The new mean of a row is therefore a function of that row and these numbers: the same
    bits in any order of rows, among any others, on any stream.

    Args:
        means: (N, 3) float32, written to. As the other attributes' its rows are contiguous and may
            lie apart by any pitch, so that an attribute may be columns of a wider table.
        scales: (N, 3) float32 logarithms.
        quats: (N, 4) float32 w x y z of any length; one of length 0 rotates nothing.
        opacities: (N,) float32 logits.
        keys: (N,) int32, at least 0; rows of equal keys get the same z. Values are trusted unless
            ``GS_CHECK_INDEX=1``.
        size: of the noise; at least 0, finite in float32.
        seed: in [0, 2^64).
        step: in [0, 2^32).
        purpose: in [0, 2^32); a caller numbers its uses of one seed.

    Raises:
        TypeError: a dtype differs, or a number is of another type.
        ValueError: the rows are not on one CUDA device, a shape differs, rows of ``means`` overlap,
            or a number is out of range.
        IndexError: a key below 0, with ``GS_CHECK_INDEX=1`` alone.
        CudaError: this build has no CUDA, or the launch failed.

    Asynchrony: one kernel on torch's current stream; does not synchronise.
    Cost: no memory; reads each row's opacity, and the other 48 bytes of rows whose noise is not 0,
        which an opacity above 0.9 makes it. GIL released.
    """
    columns = {"means": means, "scales": scales, "quats": quats, "opacities": opacities}
    check_columns(columns, written=("means",))
    at = place_of("means", means)
    n = len(means)
    for name, tensor in columns.items():
        if len(tensor) != n:
            raise ValueError(f"{name} must have as many rows as means, {n}, got {len(tensor)}")
    if n > MAX_ROWS:
        raise ValueError(f"means must have fewer than 2^31 - 1 rows, got {n}")
    check("keys", keys, (n,), torch.int32, at.device)
    check_indices("keys", keys, None, distinct=False)
    source = _within("seed", seed, 64), _within("purpose", purpose, 32), _within("step", step, 32)
    factor = real("size", size)
    if not 0 <= factor <= _MOST:
        raise ValueError(f"size must be at least 0 and finite in float32, got {factor}")
    if n:
        _core.perturb_cuda(
            n,
            column_addresses(columns),
            keys.data_ptr(),
            source,
            factor,
            at.number,
            at.stream,
        )
        torch.autograd.graph.increment_version(means)


def _within(name: str, value: Any, n_bits: int) -> int:
    number = whole(name, value)
    if not 0 <= number < 1 << n_bits:
        raise ValueError(f"{name} must be at least 0 and below 2^{n_bits}, got {number}")
    return number
