# SPDX-License-Identifier: Apache-2.0
# The native part. Arrays on a device are addresses, 0 for one that is not there; what begins with
# RowsAt is missing in a build without CUDA. R rows, h x w pixels of a rectangle.
from collections.abc import Sequence
from typing import Any, TypeAlias

# Address and pitch in floats of means, scales, quats, opacities, and often sh0 and shN.
_Columns: TypeAlias = Sequence[tuple[int, int]]
# antialiased, eps2d, near plane, far plane, radius clip.
_Rules: TypeAlias = tuple[bool, float, float, float, float]
# x0, y0, x1, y1.
_Corners: TypeAlias = Sequence[int]
# Address and bytes.
_Workspace: TypeAlias = tuple[int, int]
# Lists and pixels of a drawing.
_Drawing: TypeAlias = tuple[_Workspace, _Workspace]

# Addresses of grad2d, count and extents; scales of x and y; whether of absgrad.
_Statistics: TypeAlias = tuple[int, int, int, float, float, bool]

__version__: str

def build_info() -> dict[str, Any]: ...
def looks_at_indices() -> bool: ...

class CudaError(RuntimeError): ...

class RowsAt:
    def __init__(
        self, n: int, slots: int, sh_slots: int, columns: _Columns, n_bases: int
    ) -> None: ...

class RowGradientsAt:
    def __init__(self, skip: int, places: int, add: bool, columns: _Columns) -> None: ...

class ProjectionAt:
    def __init__(
        self,
        viewmat: int,
        K: int,
        width: int,
        height: int,
        options: _Rules,
        sh_degree: int,
    ) -> None: ...

class TileListsAt:
    def __init__(
        self,
        rect: _Corners,
        room: int,
        begins: int,
        splats: int,
        slots: int,
        firsts: int,
        counts: int,
    ) -> None: ...

def project_cuda(
    rows: RowsAt, projection: ProjectionAt, splats: int, radii: int, device: int, stream: int
) -> None: ...
def project_backward_cuda(
    rows: RowsAt,
    projection: ProjectionAt,
    splats: int,
    gradients: int,
    out: RowGradientsAt,
    statistics: _Statistics,
    radii: int,
    device: int,
    stream: int,
) -> None: ...
def order_workspace_bytes(n: int, device: int) -> int: ...
def count_workspace_bytes(n: int, device: int) -> int: ...
def list_workspace_bytes(room: int, rect: _Corners, device: int) -> int: ...
def order_splats_cuda(
    splats: int,
    keys: int,
    n: int,
    order: int,
    workspace: _Workspace,
    device: int,
    stream: int,
) -> None: ...
def count_instances_cuda(
    splats: int,
    order: int,
    n: int,
    rect: _Corners,
    ends: int,
    total: int,
    host_total: int,
    workspace: _Workspace,
    device: int,
    stream: int,
) -> int: ...
def list_instances_cuda(
    splats: int,
    order: int,
    n: int,
    lists: TileListsAt,
    ends: int,
    total: int,
    workspace: _Workspace,
    device: int,
    stream: int,
) -> None: ...
def blend_cuda(
    splats: int,
    lists: TileListsAt,
    background: int,
    image: int,
    alpha: int,
    depth: int,
    transmittance: int,
    last: int,
    device: int,
    stream: int,
) -> None: ...
def blend_backward_cuda(
    splats: int,
    n: int,
    lists: TileListsAt,
    background: int,
    transmittance: int,
    last: int,
    grad_image: int,
    grad_alpha: int,
    grad_depth: int,
    absgrad: bool,
    slots: int,
    gradients: int,
    add: bool,
    device: int,
    stream: int,
) -> None: ...
def loss_partials(width: int, height: int, device: int) -> int: ...
def photometric_loss_cuda(
    image: int,
    truth: int,
    truth_pitch: int,
    has_mask: bool,
    size: tuple[int, int],
    core: _Corners,
    weights: tuple[float, float],
    share: int,
    gradient: int,
    partials: int,
    n_partials: int,
    device: int,
    stream: int,
) -> None: ...
def perturb_cuda(
    n: int,
    columns: _Columns,
    keys: int,
    source: tuple[int, int, int],
    size: float,
    device: int,
    stream: int,
) -> None: ...
def slot_width(depth: bool, absgrad: bool) -> int: ...

class GraphCache:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...

class SceneAt:
    def __init__(
        self,
        rows: RowsAt,
        keys: int,
        projection: ProjectionAt,
        rect: _Corners,
        background: int,
        has_radii: bool,
    ) -> None: ...

class SplatSceneAt:
    def __init__(self, splats: int, keys: int, n: int, rect: _Corners, background: int) -> None: ...

def draw_splats_bytes(n: int, room: int, rect: _Corners, device: int) -> tuple[int, int, int]: ...
def draw_splats_cuda(
    scene: SplatSceneAt,
    room: int,
    overflowed: int,
    n_instances: int,
    image: int,
    depth: int,
    drawing: _Drawing,
    scratch: _Workspace,
    cache: GraphCache | None,
    drawn: int,
    device: int,
    stream: int,
) -> None: ...
def draw_splats_backward_cuda(
    scene: SplatSceneAt,
    room: int,
    drawing: _Drawing,
    grad_image: int,
    grad_alpha: int,
    grad_depth: int,
    absgrad: bool,
    gradients: int,
    scratch: _Workspace,
    device: int,
    stream: int,
) -> None: ...

class ViewSplatsAt:
    def __init__(
        self,
        rows: RowsAt,
        projection: ProjectionAt,
        room: int,
        splats: int,
        keys: int,
        radii: int,
    ) -> None: ...

def project_views_cuda(
    views: Sequence[ViewSplatsAt], keys: int, device: int, stream: int
) -> None: ...
def project_views_backward_cuda(
    views: Sequence[ViewSplatsAt],
    gradients: Sequence[tuple[int, RowGradientsAt, _Statistics]],
    device: int,
    stream: int,
) -> None: ...
def draw_bytes(
    n_rows: int, room: int, rect: _Corners, has_radii: bool, device: int
) -> tuple[int, int, int]: ...
def draw_backward_bytes(room: int, depth: bool, absgrad: bool) -> int: ...
def draw_cuda(
    scene: SceneAt,
    room: int,
    overflowed: int,
    n_instances: int,
    image: int,
    depth: int,
    drawing: _Drawing,
    scratch: _Workspace,
    cache: GraphCache | None,
    drawn: int,
    device: int,
    stream: int,
) -> None: ...
def sort_bytes(n: int, room: int, rect: _Corners, device: int) -> int: ...
def sort_cuda(
    splats: int,
    keys: int,
    n: int,
    lists: TileListsAt,
    overflowed: int,
    n_instances: int,
    scratch: _Workspace,
    cache: GraphCache | None,
    sorted: int,
    device: int,
    stream: int,
) -> None: ...
def draw_backward_cuda(
    scene: SceneAt,
    room: int,
    drawing: _Drawing,
    grad_image: int,
    grad_alpha: int,
    grad_depth: int,
    absgrad: bool,
    of_splats: int,
    out: RowGradientsAt,
    statistics: _Statistics,
    scratch: _Workspace,
    device: int,
    stream: int,
) -> None: ...
