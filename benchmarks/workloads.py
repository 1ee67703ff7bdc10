# SPDX-License-Identifier: Apache-2.0
"""A synthetic aerial city: Gaussians on ground, roofs and walls, and a drone that photographs them.

The city grows with the number of Gaussians (their density on the ground stays), and the drone flies
as high as makes one photo cover a chosen share of it. Two cities of different size therefore give
views of the same kind: equal ``n * share`` means equal altitude and about equal visible counts.

Everything is made where it is asked for, some rows at a time, with less than 1 GB beyond the
result: a city of 120 million fits beside its attributes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK = 2_000_000  # rows made at a time
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
        """The same city with its rows in another order; takes its memory once more."""
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
    lots = _lots(n, share, generator)

    means = torch.empty((n, 3), device=device)
    scales = torch.empty((n, 3), device=device)
    quats = torch.empty((n, 4), device=device)
    opacities = torch.empty(n, device=device)
    for rows in _chunks(n):
        _place(means[rows], lots, generator)
        _shape(scales[rows], quats[rows], opacities[rows], generator)
    return City(means, scales, quats, opacities, lots.side, lots.altitude)


@dataclass(frozen=True)
class Survey:
    """Points of a city of any size, some of them at a time.

    Args:
        n: points of the city.
        share: of the city that one photo shows, about.
        seed: same points for the same seed, whoever asks for which.
    """

    n: int
    share: float
    seed: int = 0

    @functools.cached_property
    def _lots(self) -> _Lots:
        return _lots(self.n, self.share, torch.Generator().manual_seed(self.seed))

    @property
    def n_chunks(self) -> int:
        return -(-self.n // CHUNK)

    def means(self, chunk: int) -> Tensor:
        """(up to CHUNK, 3) float32 of one chunk."""
        n = min(CHUNK, self.n - chunk * CHUNK)
        generator = torch.Generator().manual_seed((self.seed << 32) + 1 + chunk)
        means = torch.empty((n, 3))
        _place(means, self._lots, generator)
        return means

    def city(self, means: Tensor, *, device: torch.device | str = "cpu") -> City:
        """The city with some of its points alone, on a device."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        n = len(means)
        scales, quats = torch.empty((n, 3)), torch.empty((n, 4))
        opacities = torch.empty(n)
        for rows in _chunks(n):
            _shape(scales[rows], quats[rows], opacities[rows], generator)
        own = (values.to(device) for values in (means, scales, quats, opacities))
        return City(*own, self._lots.side, self._lots.altitude)


class _Lots(NamedTuple):
    """What buildings stand where; (lots,) half widths and heights."""

    half_widths: Tensor
    heights: Tensor
    side: float
    altitude: float


def _lots(n: int, share: float, generator: torch.Generator) -> _Lots:
    side = max(math.sqrt(n / DENSITY), 2 * LOT)
    lots = max(1, int(side // LOT))
    # 1.3: what roofs nearer to the camera, opacities and the border of the city take away again.
    across = math.sqrt(1.3 * share * side * side * 16 / 9)
    altitude = across / (2 * math.tan(FIELD_OF_VIEW / 2))
    half_widths = _uniform(generator, lots * lots, 7.5, 15)
    heights = _uniform(generator, lots * lots, 0.03, 0.25) * min(altitude, 160.0)
    return _Lots(half_widths, heights, side, altitude)


def _shape(scales: Tensor, quats: Tensor, opacities: Tensor, generator: torch.Generator) -> None:
    """Fill what a row has beside its mean: flat pebbles of some 15 cm, as wide as they are
    apart."""
    scales.normal_(-2.0, 0.5, generator=generator)
    scales[:, 2] -= 1.5
    quats.normal_(0, 0.3, generator=generator)
    quats[:, 0] += 1
    opacities.normal_(1, 2, generator=generator)


def _chunks(n: int) -> Iterator[slice]:
    return (slice(start, min(start + CHUNK, n)) for start in range(0, n, CHUNK))


def _uniform(generator: torch.Generator, n: int, low: float, high: float) -> Tensor:
    return torch.empty(n, device=generator.device).uniform_(low, high, generator=generator)


def _place(means: Tensor, city: _Lots, generator: torch.Generator) -> None:
    """Fill (n, 3) means: on the ground, on roofs or on walls of the lots' buildings."""
    half_widths, heights, side, _ = city
    n, n_lots = len(means), len(heights)
    lots = math.isqrt(n_lots)
    lot = torch.randint(n_lots, (n,), generator=generator, device=means.device)
    half_width, height = half_widths[lot], heights[lot]
    kind = _uniform(generator, n, 0, 1)
    ground, wall = kind < 0.5, kind > 5 / 6
    # Roofs fill the building; a wall is a roof pushed to its nearest edge and down.
    x, y = _uniform(generator, n, -1, 1), _uniform(generator, n, -1, 1)
    pushed = x.abs() > y.abs()
    x = torch.where(wall & pushed, x.sign(), x)
    y = torch.where(wall & ~pushed, y.sign(), y)
    reach = torch.where(ground, torch.full_like(half_width, LOT / 2), half_width)
    means[:, 0] = x * reach + ((lot % lots) + 0.5) * LOT - lots * LOT / 2
    means[:, 1] = y * reach + (lot.div(lots, rounding_mode="floor") + 0.5) * LOT - lots * LOT / 2
    means[:, :2] *= side / (lots * LOT)
    level = torch.where(wall, _uniform(generator, n, 0, 1), torch.ones_like(kind)) * height
    means[:, 2] = torch.where(ground, _uniform(generator, n, -0.2, 0.2), level)


def appearance(
    scene: City, *, sh_degree: int = 3, seed: int = 0
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Colours of the city's rows in their present order, some rows at a time.

    Colours vary over some metres, so that photos have edges; higher bands are weak noise.

    Yields:
        Which rows, sh0 (rows, 1, 3) and shN (rows, (sh_degree + 1)^2 - 1, 3), float32 on the
        scene's device. A caller that keeps them elsewhere copies each pair away.
    """
    device = scene.means.device
    generator = torch.Generator(device).manual_seed(seed)
    waves = torch.tensor([[0.9, 0.3, 0.5], [0.2, 1.1, 0.4], [0.5, 0.6, 0.8]], device=device)
    for rows in _chunks(len(scene.means)):
        n = rows.stop - rows.start
        sh0 = torch.sin(scene.means[rows] @ waves)
        sh0 += 0.3 * torch.empty_like(sh0).normal_(generator=generator)
        shN = torch.empty((n, (sh_degree + 1) ** 2 - 1, 3), device=device)
        yield rows, sh0[:, None], shN.normal_(0, 0.03, generator=generator)


def attributes(scene: City, *, sh_degree: int = 3, seed: int = 0) -> dict[str, Tensor]:
    """All that a trainer holds of the city: 236 bytes a row with ``sh_degree`` 3.

    Returns:
        means (N, 3), scales (N, 3), quats (N, 4), opacities (N,), sh0 (N, 1, 3) and
        shN (N, (sh_degree + 1)^2 - 1, 3); the first four are the city's own tensors.
    """
    n, device = len(scene.means), scene.means.device
    sh0 = torch.empty((n, 1, 3), device=device)
    shN = torch.empty((n, (sh_degree + 1) ** 2 - 1, 3), device=device)
    for rows, low, high in appearance(scene, sh_degree=sh_degree, seed=seed):
        sh0[rows], shN[rows] = low, high
    return {
        "means": scene.means,
        "scales": scene.scales,
        "quats": scene.quats,
        "opacities": scene.opacities,
        "sh0": sh0,
        "shN": shN,
    }


def host_attributes(scene: City, *, sh_degree: int = 3, seed: int = 0) -> dict[str, Tensor]:
    """The same values in host memory, for scenes whose appearance no device holds."""
    n = len(scene.means)
    sh0, shN = torch.empty((n, 1, 3)), torch.empty((n, (sh_degree + 1) ** 2 - 1, 3))
    for rows, low, high in appearance(scene, sh_degree=sh_degree, seed=seed):
        sh0[rows], shN[rows] = low.cpu(), high.cpu()
    geometry = {name: getattr(scene, name).cpu() for name in ("means", "scales", "quats")}
    return {**geometry, "opacities": scene.opacities.cpu(), "sh0": sh0, "shN": shN}


def flight(
    scene: City,
    n_views: int,
    *,
    overlap: float = 0.8,
    sidelap: float = 0.6,
    width: int = 1920,
    height: int = 1080,
    seed: int = 0,
) -> Flight:
    """Photos along the lines of a survey of the city, straight down but for some wobble.

    Args:
        scene: what to fly over; the result is on its device.
        overlap: share of a photo that shows again in the next one of its line; see
            :func:`photo_overlap`.
        sidelap: share that shows again in the neighbouring line.
    """
    generator = torch.Generator().manual_seed(seed)
    across = 2 * scene.altitude * math.tan(FIELD_OF_VIEW / 2)
    step, spacing = across * height / width * (1 - overlap), across * (1 - sidelap)
    length = max(scene.side - across, step)
    per_line = min(max(2, int(length / step)), max(2, math.ceil(math.sqrt(n_views * 2))))
    k = torch.arange(n_views)
    line, place = k // per_line, k % per_line
    place = torch.where(line % 2 == 0, place, per_line - 1 - place)
    # Lines start again from the first when the city is full; positions are about its middle.
    n_lines = max(1, min(int(length / spacing), -(-n_views // per_line)))
    x = (line % n_lines - (n_lines - 1) / 2) * spacing
    y = (place - (per_line - 1) / 2) * step
    return _photos(scene, x, y, torch.zeros(n_views), generator, width, height)


def scattered(
    scene: City, n_views: int, *, width: int = 1920, height: int = 1080, seed: int = 0
) -> Flight:
    """Photos straight down at random places and headings: what a shuffled epoch gives a batch."""
    generator = torch.Generator().manual_seed(seed)
    across = 2 * scene.altitude * math.tan(FIELD_OF_VIEW / 2)
    reach = max(scene.side - across, 0) / 2
    x, y, heading = (2 * torch.rand((3, n_views), generator=generator) - 1).unbind()
    return _photos(scene, x * reach, y * reach, math.pi * heading, generator, width, height)


def photo_overlap(jaccard: float) -> float:
    """The ``overlap`` of a flight whose neighbours have visible sets with this Jaccard index.

    The index, |A and B| / |A or B|, is what the training benchmark means by overlap: 0.72 needs
    photos that share 84 % of their area, 0.24 those that share 39 %. It is met on average, to
    0.07, so a benchmark reports what it measured. Give the result for ``sidelap`` too, so that
    turns of the flight are no exception.
    """
    return 2 * jaccard / (1 + jaccard)


def _photos(
    scene: City,
    x: Tensor,
    y: Tensor,
    heading: Tensor,
    generator: torch.Generator,
    width: int,
    height: int,
) -> Flight:
    """Photos from (B,) places at the scene's altitude, turned about the vertical by ``heading``."""
    n_views = len(x)
    centres = torch.stack([x, y, torch.full_like(x, scene.altitude)], 1).double()
    wobble = 0.03 * torch.randn((n_views, 3), generator=generator, dtype=torch.float64)
    turn = torch.zeros((n_views, 3), dtype=torch.float64)
    turn[:, 2] = heading.double()
    # x right is east; y down is south; z forward is down.
    down = torch.diag(torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64))
    rotations = torch.linalg.matrix_exp(_cross(wobble)) @ down
    rotations = rotations @ torch.linalg.matrix_exp(_cross(turn))
    viewmats = torch.eye(4, dtype=torch.float64).repeat(n_views, 1, 1)
    viewmats[:, :3, :3] = rotations
    viewmats[:, :3, 3] = -(rotations @ centres[:, :, None])[:, :, 0]
    focal = width / (2 * math.tan(FIELD_OF_VIEW / 2))
    K = torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])
    device = scene.means.device
    return Flight(viewmats.float().to(device), K.repeat(n_views, 1, 1).to(device), width, height)


@torch.no_grad()
def targets(
    scene: City,
    views: Flight,
    read: Callable[[Tensor], Mapping[str, Tensor]],
    *,
    sh_degree: int = 3,
    change: float = 0.3,
    renderer: str | None = None,
) -> Tensor:
    """Photos to train on: the city with other colours, so that gradients are those of training.

    Args:
        read: the attributes of some rows, from int64 ids; on the scene's device, wherever they are
            kept.
        change: most that a value of ``sh0`` differs, by its row alone, so that all photos agree.
        renderer: as gs-train's option; None: gsplat on CUDA, cpu on the CPU.

    Returns:
        (B, height, width, 3) uint8 on the host, over black.
    """
    import gs_cull
    from gs_train.renderers import RenderOptions, View, make_renderer

    device = scene.means.device
    name = renderer or ("gsplat" if device.type == "cuda" else "cpu")
    drawing = make_renderer(name, RenderOptions())
    images = torch.empty((len(views), views.height, views.width, 3), dtype=torch.uint8)
    for i in range(len(views)):
        pose, K = views.viewmats[i], views.Ks[i]
        size = (views.width, views.height)
        ids = gs_cull.visible_ids(*scene.rows, pose, K, *size, opacities=scene.opacities).long()
        rows = dict(read(ids))
        phase = ids[:, None].remainder(1_000_003) * torch.tensor([1, 2, 3], device=device)
        rows["sh0"] = rows["sh0"] + change * torch.sin(phase.float())[:, None]
        splats = drawing.project(rows, View(str(i), pose, K, *size), sh_degree=sh_degree)
        image, _ = drawing.rasterize(splats)
        images[i] = (255 * image.clamp(0, 1)).round().byte().cpu()
    return images


def _cross(vectors: Tensor) -> Tensor:
    """(B, 3, 3) matrices of the cross product with (B, 3) vectors."""
    x, y, z = vectors.unbind(1)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], 1).view(-1, 3, 3)
