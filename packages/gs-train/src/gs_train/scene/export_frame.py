# SPDX-License-Identifier: Apache-2.0
"""The frame of exported rows: the capture's own, or a local one where float32 is too coarse.

Files of Gaussians hold float32. At a northing of 5,000,000 m its numbers are half a metre apart,
so that rows of a georeferenced capture are exported relative to a point in their middle, and
``transform.json`` beside them says which one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gs_train.data.frame import Frame, FrameChoice
from gs_train.errors import InputError
from gs_train.files.atomic import replacing
from gs_train.rows.shown import Point, ShownRows

TRANSFORM = "transform.json"
_SUFFIXES = (".ply", ".pt", ".spz", ".glb")
"""Of files that hold rows."""

_CONVENTION = "captured = local / scale - shift"

_FINE = 1e-4
"""Steps of float32 below this share of the rows' spacing are fine."""
_GAIN = 10
"""A local frame must have steps so many times finer than the capture's to be worth it."""

_RUNS, _RUN_ROWS = 64, 1024

_ROUNDING = 2.0**-22
"""Of a coordinate that becomes a float32, with room for the arithmetic before."""


@dataclass(frozen=True)
class ExportFrame:
    """Where rows are exported to: ``local = (captured + shift) * scale``, with scale 1.

    Attributes:
        name: whose it is.
        trained: frame that the rows are in.
        shift: (3,) in the capture's units; all zero in the capture's own frame.
        because: why this one, for the message.
    """

    name: Literal["capture", "local"]
    trained: Frame
    shift: tuple[float, float, float]
    because: str

    @classmethod
    def of(cls, choice: FrameChoice, trained: Frame, model: ShownRows) -> ExportFrame:
        """The frame that ``--frame`` asks for.

        ``auto`` takes the capture's own frame where the step of float32 at the median row's largest
        coordinate is below 1e-4 of the median distance of a row to its nearest neighbour, or where
        a local frame would not be ten times finer. Rows are those of :func:`_sample`.
        """
        return cls.of_means(choice, trained, model.some_means())

    @classmethod
    def of_means(cls, choice: FrameChoice, trained: Frame, means: Tensor) -> ExportFrame:
        """:meth:`of` rows at these positions, (N, 3) in the training frame."""
        shift = _rounded(trained)
        step, local_step, spacing = _measure(trained, shift, means)
        name: Literal["capture", "local"]
        limit = f"{_FINE:g} of their spacing, {spacing:.2g}"
        if choice != "auto":
            there = step if choice == "capture" else local_step
            name, because = choice, f"--frame asks for it (float32's step there is {there:.2g})"
        elif step < _FINE * spacing:
            name, because = "capture", f"float32's step there, {step:.2g}, is below {limit}"
        elif step < _GAIN * local_step:
            name = "capture"
            because = f"float32's step there, {step:.2g}, is hardly finer in a local one"
        else:
            name = "local"
            because = f"float32's step in the capture's, {step:.2g}, is above {limit}"
        return cls(name, trained, shift if name == "local" else (0.0, 0.0, 0.0), because)

    @property
    def line(self) -> str:
        """Which frame, and why."""
        where = self.place
        if self.name == "local":
            where += f", from which {TRANSFORM} beside them leads back"
        return f"Gaussians are written in {where}: {self.because}"

    @property
    def place(self) -> str:
        """The frame, in words."""
        return "a local frame" if self.name == "local" else "the capture's frame"

    def rows_out(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows of the training frame in this one."""
        return self.trained.rows_out(rows, origin=[-value for value in self.shift])

    def box_in(self, low: Sequence[float], high: Sequence[float]) -> tuple[Point, Point]:
        """A box of this frame in the training frame, a little larger, so that `rows_out` puts no
        row into it that lies outside of what this returns."""
        ends = np.array([low, high], np.float64)
        step = _ROUNDING * np.abs(ends).max()
        ends += np.array([[-step], [step]])
        inside = self.trained.points_in(ends - np.array(self.shift)).tolist()
        (x, y, z), (x_high, y_high, z_high) = inside
        return (x, y, z), (x_high, y_high, z_high)

    def check(self, path: Path) -> None:
        """Check that no other rows lie beside ``path`` in another frame.

        Raises:
            InputError: some do.
        """
        others = sorted(
            other for other in path.parent.glob("*") if other.suffix in _SUFFIXES and other != path
        )
        if others and not self._is_told(path):
            raise InputError(
                f"{path.parent} holds {others[0].name} in another frame than the {self.name} one "
                f"of this export: choose another folder (--to) or another --frame"
            )

    def tell(self, path: Path) -> None:
        """Put transform.json beside ``path``, or take it away, before rows are written there.

        Rows at ``path`` in another frame are removed first: whenever the process ends, no rows lie
        beside a transform that is another's.
        """
        if self._is_told(path):
            return
        path.unlink(missing_ok=True)
        beside = path.with_name(TRANSFORM)
        if self.name == "capture":
            beside.unlink()
            return
        with replacing(beside) as file:
            file.write(self._text())

    def _is_told(self, path: Path) -> bool:
        beside = path.with_name(TRANSFORM)
        if self.name == "capture":
            return not beside.is_file()
        return beside.is_file() and beside.read_bytes() == self._text()

    def _text(self) -> bytes:
        told = {"convention": _CONVENTION, "shift": self.shift, "scale": 1.0}
        return (json.dumps(told, indent=2) + "\n").encode()


def read_transform(path: Path) -> tuple[np.ndarray, float] | None:
    """What transform.json beside a file of rows or points says.

    Returns:
        shift (3,) float64 and scale: ``captured = local / scale - shift``. None where there is no
        transform.json, so that the file is in the capture's frame.

    Raises:
        InputError: transform.json is another file than those that exports write.
    """
    beside = path.with_name(TRANSFORM)
    if not beside.is_file():
        return None
    try:
        told = json.loads(beside.read_bytes())
        shift, scale = np.array(told["shift"], dtype=np.float64), float(told["scale"])
        is_valid = shift.shape == (3,) and np.isfinite(shift).all() and 0 < scale < math.inf
    except (OSError, ValueError, TypeError, LookupError, OverflowError, RecursionError):
        is_valid = False
    if not is_valid:
        raise InputError(
            f"{beside} must hold shift, three numbers, and scale, one above 0, for {path.name} "
            "beside it; move either of them to another folder where they do not belong together"
        )
    return shift, scale


def _rounded(trained: Frame) -> tuple[float, float, float]:
    """The training frame's shift, rounded to a power of ten that is below the scene's size."""
    digits = -math.floor(math.log10(1.0 / trained.scale))
    x, y, z = (round(value, digits) + 0.0 for value in trained.shift)
    return x, y, z


def _measure(
    trained: Frame, shift: tuple[float, float, float], means: Tensor
) -> tuple[float, float, float]:
    """Float32's step in the capture's frame and in the local one, and the rows' spacing, all in
    the capture's units."""
    from scipy.spatial import cKDTree  # which takes half a second to import

    # Copies that densification has just made lie in one place and count once.
    runs = [np.unique(run[np.isfinite(run).all(axis=1)], axis=0) for run in _sample(means)]
    nearest = [cKDTree(run).query(run, k=2)[0][:, 1] for run in runs if len(run) > 1]
    spacing = float(np.median(np.concatenate(nearest))) if nearest else 1.0
    places = np.concatenate(runs) / trained.scale - trained.shift
    if not len(places):
        places = -np.array([trained.shift])
    return _step(places), _step(places + shift), spacing / trained.scale


def _sample(means: Tensor) -> list[np.ndarray]:
    """All rows, or of more than 65,536 as many in 64 runs of neighbours along the Morton curve.

    Rows are not always sorted along it; where they are not, their spacing is overestimated.
    """
    n = len(means)
    starts, length = [0], n
    if n > _RUNS * _RUN_ROWS:
        starts, length = [i * (n - _RUN_ROWS) // (_RUNS - 1) for i in range(_RUNS)], _RUN_ROWS
    with torch.no_grad():
        return [means[at : at + length].double().cpu().numpy() for at in starts]


def _step(points: np.ndarray) -> float:
    """Of float32 at the largest coordinate of the median point."""
    _, exponent = math.frexp(float(np.median(np.abs(points).max(axis=1))))
    return math.ldexp(1.0, exponent - 24)  # 24 binary digits; beyond float32's range too
