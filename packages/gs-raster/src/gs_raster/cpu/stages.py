# SPDX-License-Identifier: Apache-2.0
"""The five stages: plain arrays in, plain arrays out.

Semantics are those of gsplat 1.5.3's CUDA kernels for one pinhole camera: EWA projection with the
Jacobian held beyond 15 % outside of the image, a blur of ``eps2d``, extents of
min(3.33, sqrt(2 ln(255 opacity))) sigma, alpha dropped below 1/255 and clamped to 0.999, a pixel
finished when its transmittance would reach 1e-4. Unlike in gsplat, splats of equal depth have an
order (:func:`sort`), and a row whose splat or colour is not finite does not show.

The same inputs give the same bits for any number of threads, in every process of a machine, and a
rectangle's pixels equal those of the whole image bit for bit. Calls are thread-safe, release the
GIL in their kernels, write no argument, and copy an argument that is read-only or not contiguous.
"""

from __future__ import annotations

import numpy as np

from gs_raster.cpu import blending, harmonics, projection
from gs_raster.cpu.arguments import (
    checked,
    checked_camera,
    checked_degree,
    checked_rect,
    checked_rows,
    checked_splats,
    checked_threads,
    filled,
    made_of,
    zeros,
)
from gs_raster.cpu.parallel import for_each_range
from gs_raster.cpu.tiles import TileLists, list_tiles
from gs_raster.cpu.types import Blended, Camera, Rows, SplatGradients, Splats
from gs_raster.types import Options, Rect

_INT32 = np.dtype(np.int32)


def project(
    rows: Rows,
    camera: Camera,
    *,
    sh_degree: int,
    options: Options = Options(),  # noqa: B008 (immutable)
    n_threads: int | None = None,
) -> Splats:
    """Project rows into a view and evaluate their colours.

    Args:
        rows: R rows, all float32 or all float64; R may be 0.
        camera: the view, see ``Camera.of``.
        sh_degree: 0 to 3, at most what ``shN`` holds.
        options: which rows show.
        n_threads: None: as many as this process has processors.

    Returns:
        Splats in the dtype of the rows. Rows that do not show have radii 0, and other values of no
        meaning.

    Raises:
        TypeError: an argument is of another class, or an array not of the common dtype.
        ValueError: shapes disagree, or ``sh_degree`` or an option is out of range.

    Cost: 0.2 us per row and thread.
    Source: Zwicker et al., EWA splatting, 2001; extents: StopThePop, Radl et al. 2024, B.2.
    """
    rows, camera, n_threads = checked_rows(rows), checked_camera(camera), checked_threads(n_threads)
    sh_degree = checked_degree(sh_degree, rows.shN.shape[1])
    options = made_of(Options, "options", options).checked()
    n_rows, dtype = len(rows.means), rows.means.dtype
    splats = Splats(
        means2d=zeros((n_rows, 2), dtype),
        conics=zeros((n_rows, 3), dtype),
        depths=zeros((n_rows,), dtype),
        radii=zeros((n_rows, 2), _INT32),
        opacities=zeros((n_rows,), dtype),
        colors=zeros((n_rows, 3), dtype),
    )
    for_each_range(
        projection.project_rows, n_rows, *rows[:4], *camera, options, *splats[:5],
        n_threads=n_threads,
    )  # fmt: skip
    for_each_range(
        harmonics.color_rows,
        n_rows,
        sh_degree,
        rows.means,
        rows.sh0,
        rows.shN,
        camera.centre,
        splats.radii,
        splats.colors,
        n_threads=n_threads,
    )
    return splats


def sort(splats: Splats, rect: Rect, *, keys: np.ndarray | None = None) -> TileLists:
    """List the splats that each tile of a rectangle shows, front to back.

    Args:
        splats: from :func:`project`, or of the same form.
        rect: pixels of the view, not negative; need not be aligned to tiles.
        keys: (R,) int32, distinct: splats of equal depth come in the order of their keys; None: in
            the order of the rows.

    Raises:
        TypeError: an argument is of another class, or an array of another dtype.
        ValueError: shapes disagree, or ``rect`` has negative or too large corners or extents.
        TooManyInstancesError: the splats touch 2^31 tiles of the rectangle or more.

    Cost: one thread; 8 bytes for each tile that each splat touches.
    """
    splats, rect = checked_splats(splats), checked_rect(rect)
    if keys is not None:
        keys = checked("keys", keys, splats.depths.shape, _INT32)
    return list_tiles(splats.means2d, splats.radii, splats.depths, rect, keys)


def blend(
    splats: Splats,
    tiles: TileLists,
    *,
    background: np.ndarray | None = None,
    with_depth: bool = False,
    n_threads: int | None = None,
) -> Blended:
    """Composite splats over a background in the pixels of a rectangle.

    With w the share of a splat in a pixel, the pixel's channels are the sums of w times the colour,
    plus the rest of the light times the background, and the sum of w times the depth.

    Args:
        splats: those that ``tiles`` was made of.
        tiles: from :func:`sort`.
        background: (3,) RGB, dtype of the splats; None: black.
        with_depth: whether depth is a fourth channel of the image.
        n_threads: None: as many as this process has processors.

    Returns:
        Pixels in the dtype of the splats.

    Raises:
        TypeError: an argument is of another class, or an array of another dtype.
        ValueError: shapes disagree.

    Source: Kerbl et al., 3D Gaussian Splatting, 2023.
    """
    splats, rect = checked_splats(splats), made_of(TileLists, "tiles", tiles).rect
    n_threads = checked_threads(n_threads)
    dtype, size = splats.means2d.dtype, (rect.height, rect.width)
    if len(splats.depths) != tiles.n_rows:
        raise ValueError(
            f"splats must be the {tiles.n_rows} that tiles was made of, got {len(splats.depths)}"
        )
    if background is not None:
        background = checked("background", background, (3,), dtype)
    packed = np.empty((len(tiles.order), blending.SPLAT_WIDTH), dtype)
    for_each_range(
        blending.pack_splats, len(tiles.order), tiles.order, *splats, packed, n_threads=n_threads
    )
    blended = Blended(
        image=zeros((*size, 4 if with_depth else 3), dtype),
        alpha=zeros((*size, 1), dtype),
        transmittance=np.ones(size, dtype),
        last=np.full(size, -1, np.int32),
        tiles=tiles,
        packed=packed,
        background=background,
    )
    for_each_range(
        blending.composite,
        tiles.n_tiles,
        tiles.offsets,
        tiles.splats,
        packed,
        tiles.columns,
        tiles.x0,
        tiles.y0,
        (rect.x0, rect.y0, rect.x1, rect.y1),
        blended.image,
        blended.alpha,
        blended.transmittance,
        blended.last,
        blended.image[..., 3] if with_depth else None,
        n_threads=n_threads,
    )
    if background is not None:
        blended.image[..., :3] += blended.transmittance[..., None] * background
    return blended


def blend_backward(
    blended: Blended,
    grad_image: np.ndarray,
    grad_alpha: np.ndarray,
    *,
    absgrad: bool = False,
    n_threads: int | None = None,
) -> SplatGradients:
    """Gradients of splats from gradients of pixels.

    Args:
        blended: from :func:`blend`.
        grad_image: shape and dtype of the image.
        grad_alpha: (h, w, 1), dtype of the image.
        absgrad: fill ``SplatGradients.absgrad`` too.
        n_threads: None: as many as this process has processors.

    Returns:
        Gradients of the splats, ``means2d`` by pixels of the whole view; ``depths`` is None where
        depth was no channel, ``background`` where there was none. Gradients of the rectangles of a
        view add up to the gradient of the view.

    Raises:
        TypeError: an argument is of another class, or an array of another dtype.
        ValueError: shapes disagree.

    Cost: 36 bytes (float32; 8 more with ``absgrad``, 4 more with depth) for each tile that each
        splat touches.
    """
    tiles, packed = made_of(Blended, "blended", blended).tiles, blended.packed
    rect, n_threads = tiles.rect, checked_threads(n_threads)
    dtype = packed.dtype
    grad_image = checked("grad_image", grad_image, blended.image.shape, dtype)
    grad_alpha = checked("grad_alpha", grad_alpha, blended.alpha.shape, dtype)
    with_depth, grad_background = grad_image.shape[2] == 4, None
    if blended.background is not None:
        # A pixel holds (1 - alpha) times the background.
        grad_rgb = grad_image[..., :3]
        grad_alpha = grad_alpha - (grad_rgb * blended.background).sum(-1, keepdims=True)
        grad_background = (grad_rgb * blended.transmittance[..., None]).sum((0, 1))
    width = blending.SLOT_WIDTH + blending.ABSGRAD_WIDTH * bool(absgrad)
    slot_grads = np.empty((tiles.n_pairs, width + blending.DEPTH_WIDTH * with_depth), dtype)
    for_each_range(
        blending.composite_backward,
        tiles.n_tiles,
        tiles.offsets,
        tiles.splats,
        tiles.slots,
        packed,
        tiles.columns,
        tiles.x0,
        tiles.y0,
        (rect.x0, rect.y0, rect.x1, rect.y1),
        blended.transmittance,
        blended.last,
        grad_image,
        grad_alpha,
        grad_image[..., 3] if with_depth else None,
        slot_grads,
        n_threads=n_threads,
    )
    n_rows = tiles.n_rows
    means2d, conics = zeros((n_rows, 2), dtype), zeros((n_rows, 3), dtype)
    opacities, colors = zeros((n_rows,), dtype), zeros((n_rows, 3), dtype)
    depths, absolute = zeros((n_rows,), dtype), zeros((n_rows, 2), dtype)
    for_each_range(
        blending.sum_slots,
        len(tiles.order),
        tiles.order,
        tiles.slot_begins,
        slot_grads,
        means2d,
        conics,
        depths,
        opacities,
        colors,
        absolute,
        n_threads=n_threads,
    )
    return SplatGradients(
        means2d=means2d,
        conics=conics,
        depths=depths if with_depth else None,
        opacities=opacities,
        colors=colors,
        absgrad=absolute if absgrad else None,
        background=grad_background,
    )


def project_backward(
    rows: Rows,
    camera: Camera,
    gradients: SplatGradients,
    *,
    radii: np.ndarray,
    sh_degree: int,
    options: Options = Options(),  # noqa: B008 (immutable)
    n_threads: int | None = None,
) -> Rows:
    """Gradients of rows from gradients of their splats.

    Args:
        rows, camera, sh_degree, options: what :func:`project` was given.
        gradients: of the splats; ``absgrad`` and ``background`` are not read.
        radii: (R, 2) int32 from :func:`project`.
        n_threads: None: as many as this process has processors.

    Returns:
        Gradients of the stored values, in the dtype of the rows; 0 for rows that do not show.

    Raises:
        TypeError: an argument is of another class, or an array not of the common dtype.
        ValueError: shapes disagree, or ``sh_degree`` or an option is out of range.

    Cost: 0.2 us per row and thread.
    """
    rows, camera, n_threads = checked_rows(rows), checked_camera(camera), checked_threads(n_threads)
    sh_degree = checked_degree(sh_degree, rows.shN.shape[1])
    options = made_of(Options, "options", options).checked()
    n_rows, dtype = len(rows.means), rows.means.dtype
    radii = checked("radii", radii, (n_rows, 2), _INT32)
    gradients = filled(gradients, n_rows, dtype)
    outputs = Rows(*(zeros(values.shape, dtype) for values in rows))
    for_each_range(
        projection.project_rows_backward,
        n_rows,
        *rows[:4],
        camera.world,
        camera.lens,
        camera.limits,
        options,
        radii,
        gradients.means2d,
        gradients.conics,
        gradients.depths,
        gradients.opacities,
        *outputs[:4],
        n_threads=n_threads,
    )
    if gradients.colors is not None:
        for_each_range(
            harmonics.color_rows_backward,
            n_rows,
            sh_degree,
            rows.means,
            rows.sh0,
            rows.shN,
            camera.centre,
            radii,
            gradients.colors,
            outputs.means,
            outputs.sh0,
            outputs.shN,
            n_threads=n_threads,
        )
    return outputs
