# SPDX-License-Identifier: Apache-2.0
"""What the stages hand to each other. R rows, all arrays of one dtype, float32 or float64, unless
said otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gs_raster.cpu.tiles import TileLists
from gs_raster.numbers import whole


class Rows(NamedTuple):
    """Gaussians as a trainer stores them, or gradients of these.

    Attributes:
        means: (R, 3).
        scales: (R, 3), logarithms.
        quats: (R, 4), w x y z of any length but 0.
        opacities: (R,), logits.
        sh0: (R, 1, 3), the constant harmonic of each colour.
        shN: (R, K, 3), the other harmonics, K = 0, 3, 8 or 15.
    """

    means: np.ndarray
    scales: np.ndarray
    quats: np.ndarray
    opacities: np.ndarray
    sh0: np.ndarray
    shN: np.ndarray  # noqa: N815 (the field's own name)


class Camera(NamedTuple):
    """What the kernels need of a pinhole view; all float64.

    Attributes:
        world: (4, 4) world to camera; x right, y down, z forward.
        lens: fx, fy, cx, cy in pixels; the centre of the first pixel is (0.5, 0.5).
        limits: x/z at the left and right and y/z at the top and bottom beyond which the Jacobian of
            the projection is held.
        size: width, height in pixels.
    """

    world: np.ndarray
    lens: tuple[float, float, float, float]
    limits: tuple[float, float, float, float]
    size: tuple[float, float]

    @classmethod
    def of(cls, viewmat: np.ndarray, K: np.ndarray, width: int, height: int) -> Camera:
        """The camera of a view, with the Jacobian held beyond 15 % of the image, as gsplat does.

        Args:
            viewmat: (4, 4) world to camera, any float dtype.
            K: (3, 3) intrinsics in pixels, any float dtype.
            width, height: pixels.

        Raises:
            TypeError: ``width`` or ``height`` is no whole number.
            ValueError: a shape is another one, or a focal length is 0.
        """
        width, height = whole("width", width), whole("height", height)
        for name, matrix, shape in (("viewmat", viewmat, (4, 4)), ("K", K, (3, 3))):
            if np.shape(matrix) != shape:
                raise ValueError(f"{name} must have shape {shape}, got {np.shape(matrix)}")
        fx, fy, cx, cy = (float(K[i]) for i in ((0, 0), (1, 1), (0, 2), (1, 2)))
        if not (fx and fy):
            raise ValueError(f"K must have focal lengths other than 0, got {fx} and {fy}")
        margin_x, margin_y = 0.15 * width / fx, 0.15 * height / fy
        limits = (
            -cx / fx - margin_x,
            (width - cx) / fx + margin_x,
            -cy / fy - margin_y,
            (height - cy) / fy + margin_y,
        )
        world = np.array(viewmat, np.float64, order="C")
        return cls(world, (fx, fy, cx, cy), limits, (float(width), float(height)))

    @property
    def centre(self) -> np.ndarray:
        """(3,) float64, the camera's position in the world."""
        return np.linalg.inv(self.world)[:3, 3]


class Splats(NamedTuple):
    """Rows projected into one view, in the order of the rows.

    Attributes:
        means2d: (R, 2) pixels of the whole view.
        conics: (R, 3) upper triangle (xx, xy, yy) of the inverse 2D covariance, 1 / pixel^2.
        depths: (R,) camera z.
        radii: (R, 2) int32 half extents in pixels; 0 where the row does not show.
        opacities: (R,) in [0, 1], compensated when antialiased.
        colors: (R, 3) RGB, at least 0.
    """

    means2d: np.ndarray
    conics: np.ndarray
    depths: np.ndarray
    radii: np.ndarray
    opacities: np.ndarray
    colors: np.ndarray


class SplatGradients(NamedTuple):
    """Gradients of what ``Splats`` holds, of the same shapes; None stands for zeros.

    Attributes:
        means2d, conics, depths, opacities, colors: as in ``Splats``.
        absgrad: (R, 2) sum over pixels of |d loss / d means2d| (AbsGS, Ye et al. 2024), where
            ``blend_backward`` was asked for these sums.
        background: (3,), where ``blend`` was given one.
    """

    means2d: np.ndarray | None = None
    conics: np.ndarray | None = None
    depths: np.ndarray | None = None
    opacities: np.ndarray | None = None
    colors: np.ndarray | None = None
    absgrad: np.ndarray | None = None
    background: np.ndarray | None = None


@dataclass(frozen=True)
class Blended:
    """A rectangle's pixels, and what their gradient needs.

    Attributes:
        image: (h, w, 3) RGB, or (h, w, 4) RGB and the sum of shares times depths.
        alpha: (h, w, 1).
        transmittance: (h, w), what is left of the light behind the last splat.
        last: (h, w) int32, place in its tile of the last splat that a pixel shows; -1: none.
        tiles: the lists that were blended.
        packed: the splats as the kernels read them, front to back.
        background: (3,) or None, what ``blend`` was given.
    """

    image: np.ndarray
    alpha: np.ndarray
    transmittance: np.ndarray
    last: np.ndarray
    tiles: TileLists
    packed: np.ndarray
    background: np.ndarray | None
