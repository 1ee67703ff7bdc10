# SPDX-License-Identifier: Apache-2.0
"""A synthetic aerial city: Gaussians on ground, roofs and walls, and a drone that photographs them.

The city grows with the number of Gaussians (their density on the ground stays), and the drone flies
as high as makes one photo cover a chosen share of it. Two cities of different size therefore give
views of the same kind: equal ``n * share`` means equal altitude and about equal visible counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

DENSITY = 20.0  # Gaussians per square metre of city
LOT = 40.0  # metres from one building to the next
FIELD_OF_VIEW = math.radians(60)  # across the image


@dataclass(frozen=True)
class City:
    """Gaussians as a trainer holds them, in metres, z up, centred on the origin.

    Attributes:
        means: (N, 3). scales: (N, 3) logarithms. quats: (N, 4) w x y z. opacities: (N,) logits.
            float32, in no particular order.
        side: length of the square city.
        altitude: of the drone above the ground.
    """

    means: Tensor
    scales: Tensor
    quats: Tensor
    opacities: Tensor
    side: float
    altitude: float

    @property
    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """means, scales and quats."""
        return self.means, self.scales, self.quats

    def reordered(self, order: Any) -> City:
        """The same city with its rows in another order."""
        means, scales, quats, opacities = (
            a[order.long()] for a in (self.means, self.scales, self.quats, self.opacities)
        )
        return City(means, scales, quats, opacities, self.side, self.altitude)


@dataclass(frozen=True)
class Flight:
    """Consecutive photos: viewmats (B, 4, 4), Ks (B, 3, 3) float32, and one size in pixels."""

    viewmats: Tensor
    Ks: Tensor
    width: int
    height: int

    def __len__(self) -> int:
        return len(self.viewmats)

    @property
    def arguments(self) -> tuple[Tensor, Tensor, int, int]:
        """What ``gs_cull.cull`` takes after the rows."""
        return self.viewmats, self.Ks, self.width, self.height


def city(n: int, *, share: float = 0.02, seed: int = 0, device: torch.device | str = "cpu") -> City:
    """A city of n Gaussians, of which one photo shows about ``share``.

    Half of them lie on the ground, a third on roofs and the rest on walls. A building stands in the
    middle of every lot, 15 to 30 metres wide and up to 40 high, or a quarter of the altitude.

    The same seed gives the same city on the same kind of device, not across kinds.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        values = torch.rand(shape or (n,), generator=generator, device=device)
        return values.mul_(high - low).add_(low)

    side = max(math.sqrt(n / DENSITY), 2 * LOT)
    lots = max(1, int(side // LOT))
    # 1.3: what roofs nearer to the camera, opacities and the border of the city take away again.
    across = math.sqrt(1.3 * share * side * side * 16 / 9)
    altitude = across / (2 * math.tan(FIELD_OF_VIEW / 2))
    half_widths = uniform(7.5, 15, lots * lots)
    heights = uniform(0.03, 0.25, lots * lots) * min(altitude, 160.0)
    lot = torch.randint(lots * lots, (n,), generator=generator, device=device)
    half_width, height = half_widths[lot], heights[lot]
    kind = uniform(0, 1)
    ground, wall = kind < 0.5, kind > 5 / 6

    means = torch.empty((n, 3), device=device)
    # Roofs fill the building; a wall is a roof pushed to its nearest edge and down.
    x, y = uniform(-1, 1), uniform(-1, 1)
    pushed = x.abs() > y.abs()
    x = torch.where(wall & pushed, x.sign(), x)
    y = torch.where(wall & ~pushed, y.sign(), y)
    reach = torch.where(ground, torch.full_like(half_width, LOT / 2), half_width)
    means[:, 0] = x * reach + ((lot % lots) + 0.5) * LOT - lots * LOT / 2
    means[:, 1] = y * reach + (lot.div(lots, rounding_mode="floor") + 0.5) * LOT - lots * LOT / 2
    means[:, :2] *= side / (lots * LOT)
    level = torch.where(wall, uniform(0, 1), torch.ones_like(kind)) * height
    means[:, 2] = torch.where(ground, uniform(-0.2, 0.2), level)
    del x, y, reach, level, pushed, half_width, height, lot, ground, wall, kind

    # Flat pebbles of some 15 cm, as wide as they are apart.
    scales = torch.randn((n, 3), generator=generator, device=device).mul_(0.5).add_(-2.0)
    scales[:, 2] -= 1.5
    quats = torch.randn((n, 4), generator=generator, device=device).mul_(0.3)
    quats[:, 0] += 1
    opacities = torch.randn(n, generator=generator, device=device).mul_(2).add_(1)
    return City(means, scales, quats, opacities, side, altitude)


def flight(
    scene: City,
    n_views: int,
    *,
    overlap: float = 0.8,
    width: int = 1920,
    height: int = 1080,
    seed: int = 0,
) -> Flight:
    """Photos along the lines of a survey of the city, straight down but for some wobble.

    Args:
        scene: what to fly over; the result is on its device.
        overlap: share of a photo that shows again in the next one of its line. Neighbouring lines
            share 60 %.
    """
    generator = torch.Generator().manual_seed(seed)
    across = 2 * scene.altitude * math.tan(FIELD_OF_VIEW / 2)
    step, spacing = across * height / width * (1 - overlap), across * 0.4
    length = max(scene.side - across, step)
    per_line = min(max(2, int(length / step)), max(2, math.ceil(math.sqrt(n_views * 2))))
    k = torch.arange(n_views)
    line, place = k // per_line, k % per_line
    place = torch.where(line % 2 == 0, place, per_line - 1 - place)
    # Lines start again from the first when the city is full; positions are about its middle.
    n_lines = max(1, min(int(length / spacing), -(-n_views // per_line)))
    x = (line % n_lines - (n_lines - 1) / 2) * spacing
    y = (place - (per_line - 1) / 2) * step
    centres = torch.stack([x, y, torch.full_like(x, scene.altitude)], 1).double()
    wobble = 0.03 * torch.randn((n_views, 3), generator=generator, dtype=torch.float64)
    # x right is east; y down is south; z forward is down.
    down = torch.diag(torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64))
    rotations = torch.linalg.matrix_exp(_cross(wobble)) @ down
    viewmats = torch.eye(4, dtype=torch.float64).repeat(n_views, 1, 1)
    viewmats[:, :3, :3] = rotations
    viewmats[:, :3, 3] = -(rotations @ centres[:, :, None])[:, :, 0]
    focal = width / (2 * math.tan(FIELD_OF_VIEW / 2))
    K = torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])
    device = scene.means.device
    return Flight(viewmats.float().to(device), K.repeat(n_views, 1, 1).to(device), width, height)


def _cross(vectors: Tensor) -> Tensor:
    """(B, 3, 3) matrices of the cross product with (B, 3) vectors."""
    x, y, z = vectors.unbind(1)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], 1).view(-1, 3, 3)
