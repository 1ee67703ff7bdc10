# SPDX-License-Identifier: Apache-2.0
"""A small textured scene, photographed on an orbit: a capture made from nothing.

Boxes and balls on patterned ground, ray-cast with numpy. All of it is lit evenly and textured at
frequencies that some thousand Gaussians can follow.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gs_train.data.colmap_records import Camera, FloatArray
from gs_train.data.colmap_writer import NamedPose, Observations, write_model
from gs_train.machine.usable_cores import usable_cores

Floats = NDArray[np.floating]

Color = tuple[float, float, float]

_SUN = (0.4, -0.3, 0.866)
_SAMPLES = 2  # per pixel and side
_N_POINTS = 8000
_LEAST_OBSERVATIONS = 3
_GROUND = 0
_TEXTURE_CELLS = 16  # sides of the noise lattice, which repeats


@dataclass(frozen=True)
class _Box:
    """An upright box on the ground, turned by ``turn`` radians."""

    center: tuple[float, float, float]
    half: tuple[float, float, float]
    turn: float
    colors: tuple[Color, Color]
    stripes: float

    def turned(self, vectors: Floats, sign: float) -> Floats:
        c, s = np.cos(self.turn), np.sin(sign * self.turn)
        x, y, z = vectors
        return np.stack([c * x - s * y, s * x + c * y, z]).astype(vectors.dtype)

    def to_local(self, points: Floats) -> Floats:
        return self.turned(points - _column(self.center, points), -1)

    def distance_along(self, origin: Floats, directions: Floats) -> Floats:
        start = self.to_local(origin)
        inverse = 1 / self.turned(directions, -1)
        half = _column(self.half, origin)
        first, second = (-half - start) * inverse, (half - start) * inverse
        enter = np.minimum(first, second).max(axis=0)
        leave = np.maximum(first, second).min(axis=0)
        return np.where((enter < leave) & (enter > 0), enter, np.inf)

    def shade(self, points: Floats, noise: Floats) -> tuple[Floats, Floats]:
        """Colours (3, N) and normals (3, N)."""
        local = self.to_local(points)
        axis = (np.abs(local) / _column(self.half, points)).argmax(axis=0)
        normals = np.where(np.arange(3)[:, None] == axis, np.sign(local), 0).astype(points.dtype)
        x, y, z = local
        wave = np.sin(self.stripes * (x + 0.6 * y + 0.9 * z))
        weight = 0.5 + 0.5 * np.tanh(2 * wave + 2 * noise - 1)
        return _blend(self.colors, weight), self.turned(normals, 1)

    def darkening(self, ground: Floats) -> Floats:
        outside = np.abs(self.to_local(ground)[:2]) - _column(self.half[:2], ground)
        return np.exp(-np.hypot(*np.maximum(outside, 0)) / 0.35)


@dataclass(frozen=True)
class _Ball:
    """A ball that rests on the ground."""

    center: tuple[float, float, float]
    radius: float
    colors: tuple[Color, Color]

    def distance_along(self, origin: Floats, directions: Floats) -> Floats:
        start = origin - _column(self.center, origin)
        a = (directions * directions).sum(axis=0)
        b = (directions * start).sum(axis=0)
        root = b * b - a * ((start * start).sum() - self.radius**2)
        distance = (-b - np.sqrt(np.maximum(root, 0))) / a
        return np.where((root > 0) & (distance > 0), distance, np.inf)

    def shade(self, points: Floats, noise: Floats) -> tuple[Floats, Floats]:
        """Colours (3, N) and normals (3, N)."""
        normals = (points - _column(self.center, points)) / self.radius
        bands = np.sin(7 * normals[2] + 3 * normals[0])
        return _blend(self.colors, 0.5 + 0.5 * np.tanh(2 * bands + 2 * noise - 1)), normals

    def darkening(self, ground: Floats) -> Floats:
        distance = np.hypot(*(ground[:2] - _column(self.center[:2], ground)))
        return np.exp(-np.maximum(distance - 0.55 * self.radius, 0) / 0.35)


_OBJECTS: tuple[_Box | _Ball, ...] = (
    _Box((0.0, 0.0, 0.7), (0.55, 0.55, 0.7), 0.4, ((0.85, 0.35, 0.22), (0.98, 0.82, 0.55)), 5.0),
    _Box((1.5, 0.7, 0.35), (0.45, 0.7, 0.35), -0.5, ((0.16, 0.42, 0.62), (0.75, 0.88, 0.92)), 6.0),
    _Box((-1.5, -0.6, 0.45), (0.6, 0.4, 0.45), 0.9, ((0.30, 0.55, 0.28), (0.88, 0.90, 0.50)), 5.5),
    _Box((-0.5, 1.6, 0.25), (0.8, 0.3, 0.25), 0.2, ((0.52, 0.34, 0.60), (0.92, 0.78, 0.88)), 6.5),
    _Ball((1.1, -1.1, 0.5), 0.5, ((0.90, 0.62, 0.15), (0.99, 0.93, 0.75))),
    _Ball((-1.0, 0.7, 0.35), 0.35, ((0.20, 0.60, 0.60), (0.85, 0.97, 0.92))),
    _Ball((0.1, -1.6, 0.3), 0.3, ((0.80, 0.25, 0.40), (0.98, 0.80, 0.80))),
)
_GROUND_COLORS = ((0.42, 0.40, 0.38), (0.78, 0.75, 0.68))


def write_demo_capture(
    folder: str | Path, *, n_views: int = 40, width: int = 320, height: int = 240, seed: int = 0
) -> Path:
    """Write a capture as COLMAP would leave it: ``images/*.jpg`` and ``sparse/0/*.bin``.

    Args:
        folder: created when missing; files of the same names are replaced.
        n_views: photographs, at least 3, evenly around the scene at varied heights and distances.
        width, height: pixels, at least 16.
        seed: of the textures, the orbit and the choice of points. The same arguments give the same
            bytes on the same machine and versions of numpy and Pillow.

    Returns:
        ``folder``.

    Raises:
        ValueError: an argument is out of range.

    Cost: 4 s on two cores with the default arguments; one thread per core.
    """
    for name, value, least in (
        ("n_views", n_views, 3),
        ("width", width, 16),
        ("height", height, 16),
    ):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    folder = Path(folder)
    rng = np.random.default_rng(seed)
    texture = rng.random((_TEXTURE_CELLS,) * 3).astype(np.float32)
    focal = 0.95 * max(width, height)
    camera = Camera(1, "PINHOLE", width, height, (focal, focal, width / 2, height / 2))
    poses = [
        NamedPose(f"view_{index:03}.jpg", camera.id, pose)
        for index, pose in enumerate(_orbit(n_views, rng))
    ]

    (folder / "images").mkdir(parents=True, exist_ok=True)

    def photograph(pose: NamedPose) -> None:
        pixels = _render(camera, pose.world_to_camera, texture)
        Image.fromarray(pixels).save(folder / "images" / pose.name, quality=92)

    with ThreadPoolExecutor(min(8, usable_cores())) as pool:
        list(pool.map(photograph, poses))

    points, colors, observations = _triangulated(camera, poses, texture, rng)
    write_model(
        folder / "sparse/0",
        [camera],
        poses,
        points=points,
        colors=colors,
        observations=observations,
    )
    return folder


def _orbit(n_views: int, rng: np.random.Generator) -> list[FloatArray]:
    """World-to-camera matrices; z is up in the world. Steep enough that no horizon shows."""
    poses = []
    for index in range(n_views):
        around = 2 * np.pi * (index + rng.uniform(-0.3, 0.3)) / n_views
        above = np.radians(45 + 10 * np.sin(5 * around) + rng.uniform(-2, 2))
        distance = 5.2 + 0.6 * np.cos(3 * around) + rng.uniform(-0.2, 0.2)
        flat = np.array([np.cos(around), np.sin(around), 0.0])
        eye = distance * (np.cos(above) * flat + np.array([0.0, 0.0, np.sin(above)]))
        target = np.append(rng.uniform(-0.25, 0.25, 2), 0.3)
        forward = (target - eye) / np.linalg.norm(target - eye)
        right = np.cross(forward, [0.0, 0.0, 1.0])
        right /= np.linalg.norm(right)
        pose = np.eye(4)
        pose[:3, :3] = [right, np.cross(forward, right), forward]
        pose[:3, 3] = -pose[:3, :3] @ eye
        poses.append(pose)
    return poses


# Vectors are (3, N) below: numpy is several times faster along the last axis.


def _render(camera: Camera, pose: FloatArray, texture: Floats) -> NDArray[np.uint8]:
    """(height, width, 3) uint8 photograph: the mean of a grid of samples in each pixel."""
    n = _SAMPLES
    columns = (np.arange(camera.width * n) + 0.5) / n
    rows = (np.arange(camera.height * n) + 0.5) / n
    grid = np.stack(np.meshgrid(columns, rows)).reshape(2, -1)
    origin, directions = _rays(camera, pose, grid)
    origin, directions = origin.astype(np.float32), directions.astype(np.float32)
    distances, hit = _cast(origin, directions)
    colors = _shade(origin + distances * directions, hit, texture)
    colors = colors.reshape(3, camera.height, n, camera.width, n).mean(axis=(2, 4))
    return np.round(255 * np.moveaxis(colors, 0, 2)).astype(np.uint8)


def _triangulated(
    camera: Camera, poses: list[NamedPose], texture: Floats, rng: np.random.Generator
) -> tuple[FloatArray, NDArray[np.uint8], Observations]:
    """Points (P, 3) on surfaces, their colours, and where each is seen with nothing in front."""
    candidates, surfaces = [], []
    n_rays = 3 * _N_POINTS // (2 * len(poses)) + 1
    size = np.array([[camera.width], [camera.height]])
    for pose in poses:
        origin, directions = _rays(camera, pose.world_to_camera, size * rng.random((2, n_rays)))
        distances, hit = _cast(origin, directions)
        candidates.append(origin + distances * directions)
        surfaces.append(hit)
    points, hit = np.concatenate(candidates, axis=1), np.concatenate(surfaces)

    observed = [_observe(camera, pose.world_to_camera, points) for pose in poses]
    pixels = np.stack([pixels for pixels, _ in observed])
    is_visible = np.stack([is_visible for _, is_visible in observed])
    enough = np.flatnonzero(is_visible.sum(axis=0) >= _LEAST_OBSERVATIONS)
    kept = np.sort(rng.permutation(enough)[:_N_POINTS])
    colors = _shade(points[:, kept], hit[kept], texture)
    image, point = np.nonzero(is_visible[:, kept])
    return (
        points[:, kept].T.copy(),
        np.round(255 * colors.T).astype(np.uint8),
        Observations(image, point, pixels[image, :, kept[point]]),
    )


def _observe(
    camera: Camera, pose: FloatArray, points: FloatArray
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Pixels (2, N) of points and whether they lie in the image with nothing in front."""
    fx, fy, cx, cy = camera.params
    x, y, z = pose[:3, :3] @ points + pose[:3, 3:]
    u, v = fx * x / z + cx, fy * y / z + cy
    is_inside = (z > 0) & (u > 0) & (u < camera.width) & (v > 0) & (v < camera.height)
    pixels = np.stack([u, v])
    distances, _ = _cast(*_rays(camera, pose, pixels))
    return pixels, is_inside & (np.abs(distances - z) < 1e-6 * z)


def _rays(camera: Camera, pose: FloatArray, pixels: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The camera in the world (3, 1) and directions (3, N) of unit depth through pixels (2, N)."""
    fx, fy, cx, cy = camera.params
    local = np.stack([(pixels[0] - cx) / fx, (pixels[1] - cy) / fy, np.ones(pixels.shape[1])])
    to_world = pose[:3, :3].T
    return -to_world @ pose[:3, 3:], to_world @ local


def _cast(origin: Floats, directions: Floats) -> tuple[Floats, NDArray[np.int8]]:
    """How many directions away the first surface is (N,), and which it is (N,)."""
    nearest = -origin[2] / directions[2]
    hit = np.full(directions.shape[1], _GROUND, dtype=np.int8)
    for index, thing in enumerate(_OBJECTS, start=1):
        distance = thing.distance_along(origin, directions)
        is_closer = distance < nearest
        nearest = np.where(is_closer, distance, nearest)
        hit[is_closer] = index
    return nearest, hit


def _shade(points: Floats, hit: NDArray[np.int8], texture: Floats) -> Floats:
    """(3, N) colours in [0, 1] of surface points."""
    colors = np.empty_like(points)
    noise = 0.65 * _noise(texture, 1.3 * points) + 0.35 * _noise(texture, 2.9 * points)
    is_ground = hit == _GROUND
    colors[:, is_ground] = _ground_color(points[:, is_ground], noise[is_ground])
    for index, thing in enumerate(_OBJECTS, start=1):
        is_mine = hit == index
        mine = points[:, is_mine]
        albedo, normals = thing.shade(mine, noise[is_mine])
        light = 0.62 + 0.38 * np.maximum((normals * _column(_SUN, mine)).sum(axis=0), 0)
        colors[:, is_mine] = albedo * light * (1 - 0.3 * np.exp(-mine[2] / 0.2))
    return colors


def _ground_color(points: Floats, noise: Floats) -> Floats:
    """Soft checkers that fade with the distance, darker beside the objects."""
    x, y, _ = points
    checkers = np.tanh(2.5 * np.sin(np.pi / 0.8 * x) * np.sin(np.pi / 0.8 * y))
    fade = np.exp(-(x * x + y * y) / 20)
    colors = _blend(_GROUND_COLORS, 0.5 + fade * (0.35 * checkers + 0.7 * (noise - 0.5)))
    for thing in _OBJECTS:
        colors *= 1 - 0.45 * thing.darkening(points)
    return colors


def _blend(colors: tuple[Color, Color], weight: Floats) -> Floats:
    first, second = (_column(color, weight) for color in colors)
    return first + np.clip(weight, 0, 1) * (second - first)


def _column(values: tuple[float, ...], like: Floats) -> Floats:
    return np.array(values, dtype=like.dtype)[:, None]


def _noise(texture: Floats, points: Floats) -> Floats:
    """(N,) smooth value noise in [0, 1]: the lattice interpolated with smoothstep weights."""
    cell = np.floor(points)
    t = points - cell
    tx, ty, tz = t * t * (3 - 2 * t)
    x0, y0, z0 = low = cell.astype(np.int32) % _TEXTURE_CELLS
    x1, y1, z1 = (low + 1) % _TEXTURE_CELLS

    def along_x(y: NDArray[np.int32], z: NDArray[np.int32]) -> Floats:
        start = texture[x0, y, z]
        return start + tx * (texture[x1, y, z] - start)

    near, far = along_x(y0, z0), along_x(y0, z1)
    near = near + ty * (along_x(y1, z0) - near)
    far = far + ty * (along_x(y1, z1) - far)
    return near + tz * (far - near)
