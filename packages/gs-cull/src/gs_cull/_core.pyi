# SPDX-License-Identifier: Apache-2.0
# The native part. Arrays are anything that speaks DLPack; workspaces and device outputs are int32,
# masks uint32 in numpy and int32 in torch. Geometry is means, scales, quats, opacities | None.
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

def throw_fault(fault: int, view: int) -> None: ...

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

# CUDA; absent from a build without it.
def view_words(n_views: int) -> int: ...
def mark_words(n_rows: int) -> int: ...
def visible_chunks(n_rows: int) -> int: ...
def prepare_cuda(
    viewmats: Any,
    Ks: Any,
    sizes: Any,
    one_size: tuple[float, ...] | None,
    options: Options,
    views: Any,
    stream: int,
) -> None: ...
def mark_cuda(
    means: Any,
    scales: Any,
    quats: Any,
    opacities: Any,
    views: Any,
    n_views: int,
    options: Options,
    blocks: tuple[Any, ...] | None,
    marks: Any,
    chunk_offsets: Any,
    stream: int,
) -> None: ...
def write_ids_cuda(
    marks: Any, chunk_offsets: Any, n_rows: int, ids: Any, mask: Any, counts: Any, stream: int
) -> None: ...
def write_mask_cuda(
    means: Any,
    scales: Any,
    quats: Any,
    opacities: Any,
    views: Any,
    n_views: int,
    options: Options,
    blocks: tuple[Any, ...] | None,
    ids: Any,
    mask: Any,
    counts: Any,
    stream: int,
) -> None: ...
def boxes_cuda(
    means: Any,
    scales: Any,
    quats: Any,
    opacities: Any,
    views: Any,
    options: Options,
    ids: Any,
    boxes: Any,
    stream: int,
) -> None: ...
def views_of_blocks_cuda(
    bounds: tuple[Any, ...], views: Any, n_views: int, options: Options, words: Any, stream: int
) -> None: ...
def fit_blocks_cuda(
    means: Any,
    scales: Any,
    quats: Any,
    blocking: tuple[Any, ...],
    options: Options,
    bounds: tuple[Any, ...],
    stream: int,
) -> None: ...
def sort_workspace_bytes_cuda(n: int, device: int) -> int: ...
def morton_order_cuda(
    means: Any, cube: tuple[float, ...], codes: Any, rows: Any, workspace: Any, stream: int
) -> int: ...
def pair_counts_cuda(mask: Any, n_views: int, together: Any, stream: int) -> None: ...
