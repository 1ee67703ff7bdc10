# SPDX-License-Identifier: Apache-2.0
# The native part. On the host arrays are anything that speaks DLPack, and masks are uint32; below
# is what they are on a device. Geometry is means, scales, quats, opacities | None.
from typing import Any

__version__: str

def build_info() -> dict[str, Any]: ...

class CudaError(RuntimeError): ...

class CameraModel:
    pinhole: CameraModel
    ortho: CameraModel
    fisheye: CameraModel

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
    means: Any,
    scales: Any,
    quats: Any,
    opacities: Any,
    viewmats: Any,
    Ks: Any,
    sizes: Any,
    options: Options,
    blocks: tuple[Any, ...] | None,
) -> tuple[Any, Any, Any, int]: ...
def boxes_cpu(
    means: Any,
    scales: Any,
    quats: Any,
    opacities: Any,
    viewmats: Any,
    Ks: Any,
    sizes: Any,
    options: Options,
    ids: Any,
) -> Any: ...
def views_of_blocks_cpu(
    bounds: tuple[Any, ...], viewmats: Any, Ks: Any, sizes: Any, options: Options
) -> Any: ...
def fit_blocks_cpu(
    means: Any,
    scales: Any,
    quats: Any,
    blocking: tuple[Any, ...],
    options: Options,
    bounds: tuple[Any, ...],
) -> None: ...
def morton_order_cpu(means: Any, cube: tuple[float, ...]) -> Any: ...
def pair_counts_cpu(mask: Any, n_views: int) -> Any: ...

# CUDA; absent from a build without it. Arrays are addresses, 0 for one that is not there; the last
# two arguments are the device and the stream.
N_TOTALS: int

class RowsAt:
    def __init__(
        self, n_rows: int, means: int, scales: int, quats: int, opacities: int
    ) -> None: ...

class ViewsAt:
    def __init__(self, n_views: int, viewmats: int, Ks: int, sizes: Any) -> None: ...

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
    end: int,
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
    cube: tuple[float, ...],
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
