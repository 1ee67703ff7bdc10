# SPDX-License-Identifier: Apache-2.0
"""A run to look at from Python."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from gs_train.data import Capture
from gs_train.data.frame import Frame
from gs_train.errors import InputError
from gs_train.files.small_files import read_small
from gs_train.renderers import Renderer
from gs_train.rows.visible import all_rows
from gs_train.runs.evaluate import EvalConfig, evaluate
from gs_train.runs.parts import Parts
from gs_train.runs.run import Run

_MOST_BYTES = 1 << 28
"""Of metrics.json, which has some hundred bytes for each test image."""


@dataclass(frozen=True)
class Fitted:
    """A run, finished or stopped.

    Attributes:
        folder: folder of the run.
        metrics: content of metrics.json: psnr, ssim, n_gaussians and so on; empty for a run that
            has not come to its end.
    """

    folder: Path
    metrics: dict[str, Any] = field(repr=False)

    @classmethod
    def open(cls, folder: str | Path) -> Fitted:
        """The run in a folder, as of its newest checkpoint.

        Raises:
            InputError: no run or no checkpoint is there, or a file of the run is damaged.
        """
        path = Run.open(Path(folder)).folder.metrics
        try:
            metrics = json.loads(read_small(path, most_bytes=_MOST_BYTES))
        except FileNotFoundError:
            metrics = {}
        except (OSError, ValueError, RecursionError):
            raise InputError(f"{path} must hold the scores of a run; remove it") from None
        return cls(Path(folder), metrics)

    @property
    def step(self) -> int:
        """Number of steps at the newest checkpoint."""
        return Run.open(self.folder).checkpoint.step

    @property
    def frame(self) -> Frame:
        """The training frame, with the way to the capture's frame."""
        return Run.open(self.folder).frame

    def rows(self, *, frame: Literal["capture", "trained"] = "capture") -> dict[str, Tensor]:
        """The Gaussians of the newest checkpoint, on the CPU.

        Args:
            frame: ``capture``: the capture's own frame, in float32. For a capture with large
                coordinates take ``trained``, and :attr:`frame`.

        Returns:
            means (N, 3), scales (N, 3) log, quats (N, 4) w x y z, opacities (N,) logit,
            sh0 (N, 1, 3) and shN (N, K, 3); float32.

        Raises:
            ValueError: another frame.
            InputError: the checkpoint is gone or damaged.
        """
        if frame not in ("capture", "trained"):
            raise ValueError(f"frame must be capture or trained, got {frame!r}")
        run, model = Run.open(self.folder).read(torch.device("cpu"))
        with contextlib.closing(model):
            rows = all_rows(model)
        return run.frame.rows_out(rows) if frame == "capture" else rows

    def evaluate(
        self,
        *,
        capture: Capture | None = None,
        renderer: str | Renderer = "auto",
        exposure: bool = False,
    ) -> dict[str, Any]:
        """Score the held-out views, as ``gs-train eval`` does; metrics.json is written anew.

        Args:
            capture: the capture of the training, where the run has a capture from Python.
            renderer: ``auto``, ``raster``, ``gsplat``, ``cpu`` or an object.
            exposure: score right halves with colours fitted, too, though the run has no exposures.

        Returns:
            The new content of metrics.json.

        Raises:
            TypeError: an argument is of another kind.
            InputError: the capture is missing or another capture; or see ``gs-train eval``.
        """
        name = renderer if isinstance(renderer, str) else "auto"
        if name not in ("auto", "raster", "gsplat", "cpu"):
            raise ValueError(
                f"renderer must be auto, raster, gsplat, cpu or an object, got {name!r}"
            )
        parts = Parts(capture, None if isinstance(renderer, str) else renderer)
        config = EvalConfig(self.folder, renderer=name, exposure=exposure)  # type: ignore[arg-type]
        return evaluate(config, parts)
