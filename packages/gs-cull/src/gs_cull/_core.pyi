# SPDX-License-Identifier: Apache-2.0
# The native part. Host arrays are numpy's or CPU tensors of torch, contiguous; a tensor has int32
# where numpy has uint32. N Gaussians, B views, n rows or blocks of them.
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

_MeansArray: TypeAlias = NDArray[np.float32] | Tensor  # (N, 3)
_ScalesArray: TypeAlias = NDArray[np.float32] | Tensor  # (N, 3)
_QuatsArray: TypeAlias = NDArray[np.float32] | Tensor  # (N, 4)
_OpacitiesArray: TypeAlias = NDArray[np.float32] | Tensor  # (N,)
_ViewmatsArray: TypeAlias = NDArray[np.float32] | Tensor  # (B, 4, 4)
_KsArray: TypeAlias = NDArray[np.float32] | Tensor  # (B, 3, 3)
_SizesArray: TypeAlias = NDArray[np.float32]  # (B, 6): width, height, the rectangle
_IdsArray: TypeAlias = NDArray[np.int32] | Tensor  # (n,)
_BoundArray: TypeAlias = NDArray[np.float32] | Tensor  # (blocks,), (blocks, 2) or (blocks, 3)

# Results.
_Ids: TypeAlias = NDArray[np.int32]  # (n,)
_Mask: TypeAlias = NDArray[np.uint32]  # (n, ceil(B / 32)), a bit a view
_Counts: TypeAlias = NDArray[np.int32]  # (B,)
_Marks: TypeAlias = NDArray[np.bool_]  # (n,)
_Boxes: TypeAlias = NDArray[np.float32]  # (n, 4): x0, y0, x1, y1 in pixels
_PairCounts: TypeAlias = NDArray[np.int64]  # (B, B)

# n_rows, block_size, order | None, block_in_slot | None, slot_of_block | None, views of each block.
_Blocks: TypeAlias = tuple[
    int, int, _IdsArray | None, _IdsArray | None, _IdsArray | None, _Mask | Tensor
]
# n_rows, block_size, order | None, blocks, where each is stored.
_Blocking: TypeAlias = tuple[int, int, _IdsArray | None, _IdsArray, _IdsArray]
# lower, upper, scale, slack, not_finite of every block.
_Bounds: TypeAlias = tuple[_BoundArray, _BoundArray, _BoundArray, _BoundArray, _IdsArray]
# Low corner and cells per unit.
_Cube: TypeAlias = tuple[float, float, float, float]

__version__: str

def build_info() -> dict[str, Any]: ...

class CudaError(RuntimeError): ...

class CameraModel:
    pinhole: ClassVar[CameraModel]
    ortho: ClassVar[CameraModel]
    fisheye: ClassVar[CameraModel]
    def __init__(self, value: int) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class Options:
    def __init__(
        self,
        near_plane: float,
        far_plane: float,
        eps2d: float,
        radius_clip: float,
        model: CameraModel,
        activated: bool,
        antialiased: bool,
        move_means: float,
        move_scales: float,
        move_quats: float,
        move_opacities: float,
    ) -> None: ...

# Host threads.
def cull_cpu(
    means: _MeansArray,
    scales: _ScalesArray,
    quats: _QuatsArray,
    opacities: _OpacitiesArray | None,
    viewmats: _ViewmatsArray,
    Ks: _KsArray,
    sizes: _SizesArray,
    options: Options,
    blocks: _Blocks | None,
) -> tuple[_Ids, _Mask, _Counts, int]: ...
def boxes_cpu(
    means: _MeansArray,
    scales: _ScalesArray,
    quats: _QuatsArray,
    opacities: _OpacitiesArray | None,
    viewmats: _ViewmatsArray,
    Ks: _KsArray,
    sizes: _SizesArray,
    options: Options,
    ids: _IdsArray,
) -> _Boxes: ...
def mark_cpu(
    means: _MeansArray,
    scales: _ScalesArray,
    quats: _QuatsArray,
    opacities: _OpacitiesArray | None,
    viewmats: _ViewmatsArray,
    Ks: _KsArray,
    sizes: _SizesArray,
    options: Options,
    ids: _IdsArray,
    mask: _Mask,
    out: _Marks | Tensor | None,
) -> Any: ...
def checks_indices() -> bool: ...
def check_marking(
    n_rows: int,
    viewmats: _ViewmatsArray,
    Ks: _KsArray,
    sizes: _SizesArray,
    options: Options,
    ids: _IdsArray,
    mask: _Mask,
) -> None: ...
def views_of_blocks_cpu(
    bounds: _Bounds, viewmats: _ViewmatsArray, Ks: _KsArray, sizes: _SizesArray, options: Options
) -> _Mask: ...
def fit_blocks_cpu(
    means: _MeansArray,
    scales: _ScalesArray,
    quats: _QuatsArray,
    blocking: _Blocking,
    options: Options,
    bounds: _Bounds,
) -> None: ...
def morton_order_cpu(means: _MeansArray, cube: _Cube) -> _Ids: ...
def pair_counts_cpu(mask: _Mask, n_views: int) -> _PairCounts: ...

# CUDA; absent from a build without it. Arrays are addresses, 0 for one that is not there; the last
# two arguments are the device and the stream.
N_TOTALS: int

class RowsAt:
    def __init__(
        self, n_rows: int, means: int, scales: int, quats: int, opacities: int
    ) -> None: ...

class ViewsAt:
    def __init__(self, n_views: int, viewmats: int, Ks: int, sizes: _SizesArray) -> None: ...

class BoundsAt:
    def __init__(
        self, n_blocks: int, lower: int, upper: int, scale: int, slack: int, not_finite: int
    ) -> None: ...

class LayoutAt:
    def __init__(
        self,
        n_rows: int,
        block_size: int,
        order: int,
        n_slots: int,
        block_in_slot: int,
        slot_of_block: int,
        bounds: BoundsAt,
    ) -> None: ...

class CudaCull:
    def __init__(
        self,
        rows: RowsAt,
        views: ViewsAt,
        blocks: LayoutAt | None,
        options: Options,
        device: int,
        stream: int,
    ) -> None: ...
    @property
    def n_words(self) -> int: ...
    def mark(self, workspace: int, totals: int) -> tuple[int, int]: ...
    def write(self, ids: int, mask: int, counts: int) -> None: ...

def view_words(n_views: int) -> int: ...
def boxes_cuda(
    rows: RowsAt,
    views: ViewsAt,
    options: Options,
    ids: int,
    n: int,
    workspace: int,
    boxes: int,
    device: int,
    stream: int,
) -> None: ...
def mark_cuda(
    rows: RowsAt,
    views: ViewsAt,
    options: Options,
    ids: int,
    mask: int,
    n: int,
    marks: int,
    device: int,
    stream: int,
) -> None: ...
def views_of_blocks_cuda(
    bounds: BoundsAt,
    views: ViewsAt,
    options: Options,
    workspace: int,
    totals: int,
    words: int,
    device: int,
    stream: int,
) -> None: ...
def fit_blocks_cuda(
    rows: RowsAt,
    n_rows: int,
    block_size: int,
    order: int,
    blocks: int,
    stored: int,
    n: int,
    options: Options,
    bounds: BoundsAt,
    device: int,
    stream: int,
) -> None: ...
def sort_workspace_bytes_cuda(n: int, device: int) -> int: ...
def morton_order_cuda(
    means: int,
    n: int,
    cube: _Cube,
    codes: int,
    rows: int,
    workspace: int,
    n_bytes: int,
    device: int,
    stream: int,
) -> int: ...
def pair_counts_cuda(
    mask: int, n: int, n_views: int, together: int, device: int, stream: int
) -> None: ...
