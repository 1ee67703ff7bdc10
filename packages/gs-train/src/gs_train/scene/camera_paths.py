# SPDX-License-Identifier: Apache-2.0
"""Camera paths to render: along the training cameras, around the scene, or the views themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gs_train.data.frame import camera_centres

MAX_KEYS = 200
"""Cameras that an interpolated path passes at most; more are thinned out evenly."""

_UP = np.array([0.0, 0.0, 1.0])  # where nothing tells what is up


class Posed(Protocol):
    """What a path needs of a view."""

    @property
    def name(self) -> str: ...
    @property
    def world_to_camera(self) -> np.ndarray: ...
    @property
    def K(self) -> np.ndarray: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...


@dataclass(frozen=True)
class PathCamera:
    """One camera of a path.

    Attributes:
        name: of the view, or the frame's number.
        world_to_camera: (4, 4) float64, rigid; x right, y down, z forward.
        K: (3, 3) float64, pixels.
        width, height: pixels.
    """

    name: str
    world_to_camera: np.ndarray
    K: np.ndarray
    width: int
    height: int


def view_path(views: Sequence[Posed]) -> list[PathCamera]:
    """The views' own cameras, in order."""
    return [
        PathCamera(
            v.name, np.array(v.world_to_camera, float), np.array(v.K, float), v.width, v.height
        )
        for v in views
    ]


def interpolated_path(views: Sequence[Posed], n_frames: int = 240) -> list[PathCamera]:
    """A smooth path through the training cameras.

    The cameras keep their order or are chained by nearest neighbour, whichever is shorter; the path
    passes each (at most ``MAX_KEYS``) at a speed that is constant from one to the next. Positions
    follow an Akima spline, which does not overshoot between far and near cameras, rotations a
    spline with continuous acceleration.

    Args:
        views: at least one; a single one gives a still.
        n_frames: how many cameras to return, at least 1.

    Returns:
        ``n_frames`` cameras with the most common image size and the median K of that size.

    Raises:
        ValueError: there is no view, or ``n_frames`` is less than 1.
    """
    _check(views, n_frames)
    poses = np.stack([np.asarray(v.world_to_camera, float) for v in views])
    poses = poses[np.unique(np.linspace(0, len(poses) - 1, min(len(poses), MAX_KEYS)).astype(int))]
    features = _features(poses)
    order = _shorter(features)
    steps = np.linalg.norm(np.diff(features[order], axis=0), axis=1)
    order = order[np.concatenate(([True], steps > 1e-6))]
    steps = steps[steps > 1e-6]
    along = np.concatenate(([0.0], np.cumsum(steps)))
    path = _through(poses[order], along, np.linspace(0, along[-1], n_frames))
    return _cameras(path, views)


def keyed_path(keys: Sequence[Posed], n_frames: int = 240) -> list[PathCamera]:
    """A smooth path through cameras in their order, from the first to the last.

    The path passes each at a speed that is constant from one to the next. Positions and rotations
    follow splines as those of `interpolated_path`; focal lengths and principal points change evenly
    from one to the next. Keys that repeat the key before are one.

    Args:
        keys: at least one, all of one size; a single one gives a still.
        n_frames: how many cameras to return, at least 1.

    Raises:
        ValueError: there is no key, sizes differ, or ``n_frames`` is less than 1.
    """
    _check(keys, n_frames)
    sizes = {(key.width, key.height) for key in keys}
    if len(sizes) > 1:
        raise ValueError(f"keys must have one size, got {sorted(sizes)}")
    poses = np.stack([np.asarray(key.world_to_camera, float) for key in keys])
    steps = np.linalg.norm(np.diff(_features(poses), axis=0), axis=1)
    stay = np.concatenate(([True], steps > 1e-6))
    along = np.concatenate(([0.0], np.cumsum(steps[stay[1:]])))
    at = np.linspace(0, along[-1], n_frames)
    entries = np.stack([np.asarray(key.K, float).reshape(9) for key in keys])[stay]
    Ks = np.stack([np.interp(at, along, entry) for entry in entries.T], axis=1).reshape(-1, 3, 3)
    return [
        PathCamera(f"{index:05d}", pose, K, keys[0].width, keys[0].height)
        for index, (pose, K) in enumerate(zip(_through(poses[stay], along, at), Ks))
    ]


def ellipse_path(
    views: Sequence[Posed], n_frames: int = 240, *, points: np.ndarray | None = None
) -> list[PathCamera]:
    """A closed ellipse around what the training cameras look at.

    The focus is the point closest to all optical axes; where the axes are nearly parallel (an
    aerial or a forward-facing capture), it lies ahead of the mean camera, as deep as the points.
    The ellipse lies in the plane of the cameras' two main directions with radii of sqrt(2) standard
    deviations, which for a ring of cameras is that ring.

    Args:
        views: at least one.
        n_frames: how many cameras to return, at least 1.
        points: (P, 3) scene points, to know how deep the scene is; optional.

    Returns:
        ``n_frames`` cameras that look at the focus, up as the training cameras on the whole.

    Raises:
        ValueError: there is no view, or ``n_frames`` is less than 1.
    """
    _check(views, n_frames)
    centers, forward, camera_up = _axes(np.stack([np.asarray(v.world_to_camera) for v in views]))
    middle = centers.mean(0)
    up = _unit(camera_up.mean(0), least=0.3)
    if up is None:  # for example an aerial survey flown to and fro
        up = _unit(-forward.mean(0), least=0.3)
    if up is None:
        up = _UP
    focus = _focus(centers, forward, points)
    first, second, radii = _ellipse(centers, focus, up)
    angles = np.linspace(0, 2 * np.pi, n_frames, endpoint=False)[:, None]
    positions = middle + radii[0] * np.cos(angles) * first + radii[1] * np.sin(angles) * second
    return _cameras(np.stack([look_at(position, focus, up) for position in positions]), views)


def look_at(position: np.ndarray, target: np.ndarray, up: np.ndarray) -> np.ndarray:
    """World-to-camera matrix (4, 4) of a camera at ``position`` that looks at ``target``.

    Args:
        position, target, up: (3,); ``up`` appears upwards in the image. Where the direction is
            parallel to ``up``, or there is none, any is taken.
    """
    ahead = _unit(target - position)
    ahead = _perpendicular(up) if ahead is None else ahead
    right = _unit(np.cross(ahead, up), least=1e-6 * float(np.linalg.norm(up)))
    right = _perpendicular(ahead) if right is None else right
    rotation = np.stack((right, np.cross(ahead, right), ahead))
    return _poses(rotation[None], position[None])[0]


def _check(views: Sequence[Posed], n_frames: int) -> None:
    if not views or n_frames < 1:
        raise ValueError(
            f"views and n_frames must be at least 1, got {len(views)} views, n_frames {n_frames}"
        )


def _features(poses: np.ndarray) -> np.ndarray:
    """(V, 6) whose distances are those of cameras: metres in units of the cameras' extent, plus how
    far the gaze turns."""
    centers, forward, _ = _axes(poses)
    spread = np.linalg.norm(centers - centers.mean(0), axis=1).mean() or 1.0
    return np.concatenate((centers / spread, forward), axis=1)


def _through(poses: np.ndarray, along: np.ndarray, at: np.ndarray) -> np.ndarray:
    """(F, 4, 4) poses at places ``at`` of a smooth path that passes pose i at ``along[i]``."""
    # Either takes half a second to import.
    from scipy.interpolate import Akima1DInterpolator
    from scipy.spatial.transform import Rotation, RotationSpline

    if len(poses) == 1:
        return np.repeat(poses, len(at), axis=0)
    centers = camera_centres(poses)
    rotations = RotationSpline(along, Rotation.from_matrix(poses[:, :3, :3]))(at)
    if len(poses) == 2:
        weight = (at / along[-1])[:, None]
        positions = (1 - weight) * centers[0] + weight * centers[1]
    else:
        positions = Akima1DInterpolator(along, centers)(at)
    return _poses(rotations.as_matrix(), positions)


def _axes(poses: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centres, forward and up directions in the world, each (V, 3)."""
    rotations = poses[:, :3, :3]
    return camera_centres(poses), rotations[:, 2], -rotations[:, 1]


def _poses(rotations: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """(F, 4, 4) world-to-camera from rotations and camera centres."""
    poses = np.tile(np.eye(4), (len(centers), 1, 1))
    poses[:, :3, :3] = rotations
    poses[:, :3, 3] = -np.einsum("fij,fj->fi", rotations, centers)
    return poses


def _cameras(poses: np.ndarray, views: Sequence[Posed]) -> list[PathCamera]:
    """Frames of one size, the most common, so that they make a video."""
    (width, height), _ = Counter((v.width, v.height) for v in views).most_common(1)[0]
    same = [np.asarray(v.K, float) for v in views if (v.width, v.height) == (width, height)]
    K = np.median(np.stack(same), axis=0)
    return [
        PathCamera(f"{index:05d}", pose, K.copy(), width, height)
        for index, pose in enumerate(poses)
    ]


def _shorter(features: np.ndarray) -> np.ndarray:
    """The order as given or a nearest-neighbour chain, whichever path is shorter."""
    given = np.arange(len(features))
    left = np.ones(len(features), bool)
    # From an end of the capture rather than from its middle.
    at = int(np.linalg.norm(features - features.mean(0), axis=1).argmax())
    chain = []
    for _ in given:
        chain.append(at)
        left[at] = False
        distances = np.linalg.norm(features - features[at], axis=1)
        at = int(np.where(left, distances, np.inf).argmin())

    def length(order: np.ndarray) -> float:
        return float(np.linalg.norm(np.diff(features[order], axis=0), axis=1).sum())

    chained = np.array(chain)
    return chained if length(chained) < length(given) else given


def _focus(centers: np.ndarray, forward: np.ndarray, points: np.ndarray | None) -> np.ndarray:
    middle, ahead = centers.mean(0), _unit(forward.mean(0))
    across = np.eye(3) - forward[:, :, None] * forward[:, None, :]
    # The least eigenvalue is the mean squared sine of the axes to their common direction.
    if np.linalg.eigvalsh(across.mean(0))[0] > 0.01:
        focus = np.linalg.solve(across.sum(0), np.einsum("vij,vj->i", across, centers))
        if np.median(np.einsum("vi,vi->v", focus - centers, forward)) > 0:
            return focus
    ahead = forward[0] if ahead is None else ahead
    depth = float(np.linalg.norm(centers - middle, axis=1).max()) or 1.0
    if points is not None and len(points):
        depths = (np.asarray(points, float) - middle) @ ahead
        if (depths > 0).any():
            depth = float(np.median(depths[depths > 0]))
    return middle + depth * ahead


def _ellipse(
    centers: np.ndarray, focus: np.ndarray, up: np.ndarray
) -> tuple[np.ndarray, np.ndarray, tuple[float, float]]:
    """Two unit half axes and their radii."""
    offsets = centers - centers.mean(0)
    distance = float(np.linalg.norm(focus - centers.mean(0))) or 1.0
    _, singular, axes = np.linalg.svd(offsets, full_matrices=True)
    deviations = np.zeros(3)
    deviations[: len(singular)] = singular / np.sqrt(len(centers))
    if deviations[0] < 1e-6 * distance:  # one place: a small circle across the line of sight
        first = _perpendicular(focus - centers.mean(0))
        second = np.cross(focus - centers.mean(0), first)
        return first, second / (np.linalg.norm(second) or 1.0), (0.1 * distance,) * 2
    first = axes[0] * np.sign(axes[0][np.abs(axes[0]).argmax()])
    second = axes[1]
    if deviations[1] < 1e-3 * deviations[0]:  # a line: level, beside it
        beside = _unit(np.cross(up, first), least=1e-3)
        second = _perpendicular(first) if beside is None else beside
    # Anticlockwise seen from above.
    second = second * (1.0 if np.cross(first, second) @ up >= 0 else -1.0)
    large = float(np.sqrt(2) * deviations[0])
    return first, second, (large, max(float(np.sqrt(2) * deviations[1]), 0.1 * large))


def _unit(vector: np.ndarray, least: float = 1e-12) -> np.ndarray | None:
    """``vector`` at length 1; None when it is shorter than ``least``."""
    length = float(np.linalg.norm(vector))
    return None if length < least else vector / length


def _perpendicular(vector: np.ndarray) -> np.ndarray:
    """Some unit vector at right angles, the same each time."""
    other = np.eye(3)[np.abs(vector).argmin()]
    across = _unit(np.cross(vector, other))
    return np.eye(3)[0] if across is None else across
