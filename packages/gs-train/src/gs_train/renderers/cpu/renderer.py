# SPDX-License-Identifier: Apache-2.0
"""The CPU renderer: gsplat's semantics without a GPU, and the same bits on every run."""

from __future__ import annotations

import torch
from torch import Tensor

from gs_train.renderers.cpu.autograd import Project, Rasterize
from gs_train.renderers.cpu.projection import Camera
from gs_train.renderers.protocol import ATTRIBUTES, Rect, RenderOptions, Rows, Splats, View


class CpuRenderer:
    """Renders float32 or float64 rows on the CPU, differentiably.

    Semantics are those of gsplat 1.5.3's CUDA kernels for one pinhole camera and a black
    background: EWA projection with J held beyond 15 % outside of the image, a blur of ``eps2d``,
    extents of min(3.33, sqrt(2 ln(255 opacity))) sigma, alpha dropped below 1/255 and clamped to
    0.999, a pixel finished when its transmittance would reach 1e-4. Splats of equal depth are drawn
    in the order of their keys, else of the rows (gsplat leaves their order open), and a row whose
    splat or colour is not finite does not show.

    The same inputs give the same bits for any number of threads, in every process of a machine, and
    a rectangle's pixels equal those of the whole image bit for bit. Threads are torch's
    (``torch.set_num_threads``). Calls are thread-safe. Not differentiable twice, nor with respect
    to the camera. Kernels compile on first use, some 10 s, and numba keeps them on disk: beside
    this file, else in the user's cache folder, else where ``NUMBA_CACHE_DIR`` says.

    Args:
        options: how rows are projected.
        absgrad: fill ``Splats.absgrad`` in the backward pass.

    Raises:
        ValueError: ``eps2d`` is not above 0, or ``near`` is not between 0 and ``far``.
    """

    name = "cpu"
    blends_by_key = True
    device = torch.device("cpu")

    def __init__(
        self,
        options: RenderOptions = RenderOptions(),  # noqa: B008 (immutable)
        *,
        absgrad: bool = False,
    ) -> None:
        antialiased, eps2d, near, far, radius_clip = options
        if not eps2d > 0:
            raise ValueError(f"eps2d must be above 0, got {eps2d}")
        if not 0 < near < far:
            raise ValueError(f"near must be above 0 and below far, got near={near}, far={far}")
        self.absgrad = absgrad
        # Of these very types, so that the kernels are compiled for one signature.
        self.options = RenderOptions(
            bool(antialiased), float(eps2d), float(near), float(far), float(radius_clip)
        )

    def __repr__(self) -> str:
        return f"CpuRenderer({self.options}, absgrad={self.absgrad})"

    def project(
        self, rows: Rows, view: View, *, sh_degree: int, keys: Tensor | None = None
    ) -> Splats:
        """Project rows into a view and evaluate their colours.

        Args:
            rows: R rows on the CPU, all float32 or all float64, stored values (log scales, logit
                opacities). R may be 0.
            view: where from; its matrices may have any floating dtype.
            sh_degree: 0 to 3, at most what ``shN`` holds.
            keys: (R,) int32 on the CPU, distinct: rows of equal depth are drawn in their order;
                None: in the order of the rows.

        Returns:
            Splats in the dtype of the rows. Rows that do not show have radii 0, other fields of no
            meaning, and gradient 0.

        Raises:
            TypeError: a tensor is not on the CPU or not of the common dtype.
            ValueError: an attribute is missing, shapes disagree, or ``sh_degree`` is out of range.

        Cost: 0.2 us per row and thread, as much again for the gradient.
        """
        _check_rows(rows, sh_degree)
        _check_keys(keys, len(rows["means"]))
        camera = Camera.of(
            view.viewmat.detach().cpu().double().numpy(),
            view.K.detach().cpu().double().numpy(),
            view.width,
            view.height,
        )
        outputs = Project.apply(
            *(rows[name] for name in ATTRIBUTES), sh_degree, camera, self.options
        )
        means2d, conics, depths, radii, opacities, colors = outputs
        return Splats(means2d, conics, depths, radii, opacities, colors, view, keys)

    def rasterize(self, splats: Splats, rect: Rect | None = None) -> tuple[Tensor, Tensor]:
        """Composite splats over black.

        Args:
            splats: from ``project``, or of the same form, on the CPU.
            rect: pixels of the view; all of them when None. Need not be aligned to tiles.

        Returns:
            Image (h, w, 3) and alpha (h, w, 1) of the rectangle, in the dtype of the splats.

        Raises:
            ValueError: the rectangle is not inside the view.
            TooManyIntersectionsError: the splats touch 2^31 tiles or more.

        Cost: 8 bytes for each tile that each splat touches while the result's graph lives, and
            36 to 44 (float32) more during the backward pass.
        """
        view = splats.view
        rect = view.rect if rect is None else rect
        if not (0 <= rect.x0 <= rect.x1 <= view.width and 0 <= rect.y0 <= rect.y1 <= view.height):
            raise ValueError(f"rect must lie within {view.width} x {view.height}, got {rect}")
        absgrad_on = splats.means2d.detach() if self.absgrad else None
        if absgrad_on is not None:
            splats.shifted.append(absgrad_on)
        image, alpha, n_intersections = Rasterize.apply(
            splats.means2d,
            splats.conics,
            splats.opacities,
            splats.colors,
            splats.depths,
            splats.radii,
            splats.keys,
            rect,
            absgrad_on,
        )
        splats.n_intersections += n_intersections
        return image, alpha


def _check_keys(keys: Tensor | None, n_rows: int) -> None:
    if keys is None:
        return
    if keys.dtype != torch.int32 or keys.device.type != "cpu":
        raise TypeError(f"keys must be int32 on the CPU, got {keys.dtype} on {keys.device}")
    if tuple(keys.shape) != (n_rows,):
        raise ValueError(f"keys must have shape ({n_rows},), got {tuple(keys.shape)}")


def _check_rows(rows: Rows, sh_degree: int) -> None:
    missing = [name for name in ATTRIBUTES if name not in rows]
    if missing:
        raise ValueError(f"rows must hold {', '.join(ATTRIBUTES)}, got none for {missing}")
    means = rows["means"]
    if means.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"rows must be float32 or float64, got {means.dtype}")
    n_rows, n_bases = len(means), rows["shN"].shape[1] if rows["shN"].dim() == 3 else 0
    shapes = {
        "means": (n_rows, 3),
        "scales": (n_rows, 3),
        "quats": (n_rows, 4),
        "opacities": (n_rows,),
        "sh0": (n_rows, 1, 3),
        "shN": (n_rows, n_bases, 3),
    }
    for name, shape in shapes.items():
        tensor = rows[name]
        if tensor.device.type != "cpu" or tensor.dtype != means.dtype:
            raise TypeError(
                f"{name} must be {means.dtype} on the CPU, got {tensor.dtype} on {tensor.device}"
            )
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
    if not 0 <= sh_degree <= 3 or (sh_degree + 1) ** 2 - 1 > n_bases:
        raise ValueError(
            f"sh_degree must be 0 to 3 and need at most the {n_bases} bases of shN, got {sh_degree}"
        )
