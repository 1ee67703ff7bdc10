# SPDX-License-Identifier: Apache-2.0
"""What a run keeps of its capture, so that it can be looked at without the photographs."""

from __future__ import annotations

import json
import secrets
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gs_train.data import Capture
from gs_train.errors import InputError
from gs_train.files.atomic import replacing
from gs_train.files.small_files import read_small
from gs_train.files.whole import whole
from gs_train.scene.camera_paths import PathCamera, view_path

_FORMAT = {"format": "gs-train run", "version": 1}
_MOST_BYTES = 1 << 30
_MOST_POINTS = 1000  # which tell how deep the scene is


@dataclass(frozen=True, eq=False)
class RunRecord:
    """Which run this is, and the cameras that it was started with.

    Attributes:
        id: made when the run is started, and also in its checkpoints and metrics; None where an
            older version started it.
        views: the capture's, in its order and frame.
        train, test: indices into ``views``.
        points: (P, 3) float64, some of the capture's points, evenly over their order.
    """

    id: str | None
    views: tuple[PathCamera, ...]
    train: tuple[int, ...]
    test: tuple[int, ...]
    points: np.ndarray

    @classmethod
    def of(cls, capture: Capture, id: str | None) -> RunRecord:
        """The record of a run on ``capture``."""
        n = len(capture.points)
        some = np.linspace(0, n - 1, min(n, _MOST_POINTS)).astype(np.int64)
        views = tuple(view_path(capture.views))
        return cls(id, views, capture.train, capture.test, capture.points[some])

    def save(self, path: Path) -> None:
        """Write as JSON, to be read by :meth:`load` with the same bits."""
        plain = {
            **_FORMAT,
            "id": self.id,
            "train": self.train,
            "test": self.test,
            "views": [
                {
                    "name": view.name,
                    "width": view.width,
                    "height": view.height,
                    "K": view.K.tolist(),
                    "world_to_camera": view.world_to_camera.tolist(),
                }
                for view in self.views
            ],
            "points": self.points.tolist(),
        }
        plain["crc32"] = _crc(plain)
        with replacing(path) as file:
            file.write(json.dumps(plain).encode())

    @classmethod
    def load(cls, path: Path) -> RunRecord | None:
        """Read what :meth:`save` wrote; None where there is no such file, in runs of old.

        Raises:
            InputError: the file cannot be read or is damaged.
        """
        try:
            plain = json.loads(read_small(path, most_bytes=_MOST_BYTES))
            if {name: plain[name] for name in _FORMAT} != _FORMAT:
                raise ValueError("the format must be known")
            if plain.pop("crc32") != _crc(plain):
                raise ValueError("the checksum must be right")
            return _from_plain(plain)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from None
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            raise InputError(
                f"{path} is damaged; without it, the run is read with its capture"
            ) from None


def new_run_id() -> str:
    """A name that no other run has."""
    return secrets.token_hex(8)


def _crc(plain: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(plain, sort_keys=True).encode())


def _from_plain(plain: dict[str, Any]) -> RunRecord:
    """Raises what a wrong kind of value raises, or ValueError."""
    if plain["id"] is not None and not isinstance(plain["id"], str):
        raise ValueError("an id must be text")
    views = tuple(
        PathCamera(
            "".join(view["name"]),
            _numbers(view["world_to_camera"], (4, 4)),
            _numbers(view["K"], (3, 3)),
            _size(view["width"]),
            _size(view["height"]),
        )
        for view in plain["views"]
    )
    train, test = (tuple(whole(index) for index in plain[name]) for name in ("train", "test"))
    if sorted(train + test) != list(range(len(views))) or not train:
        raise ValueError("each view must be for training or for testing")
    points = _numbers(plain["points"], (len(plain["points"]), 3))
    return RunRecord(plain["id"], views, train, test, points)


def _numbers(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.array(values, dtype=np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError("numbers must be finite")
    return array


def _size(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= 1 << 20:
        raise ValueError("a size must be in pixels")
    return value
