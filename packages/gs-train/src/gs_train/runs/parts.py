# SPDX-License-Identifier: Apache-2.0
"""The parts of a run that a caller in Python gives, where a command line only names them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from gs_train.data import Capture
from gs_train.errors import InputError
from gs_train.renderers import Renderer, RenderOptions
from gs_train.runs.step_report import OnStep
from gs_train.runs.strategies import Strategy

PARTS = ("capture", "renderer", "strategy")
"""Those that decide a result: a run goes on with the same ones."""


@dataclass(frozen=True)
class Parts:
    """What a run takes instead of what its options name; None: as the options say.

    Attributes:
        capture: photographs, poses and points, with their split.
        renderer: draws the Gaussians; decides the device.
        strategy: makes the densifier.
        on_step: called after each step.
    """

    capture: Capture | None = None
    renderer: Renderer | None = None
    strategy: Strategy | None = None
    on_step: OnStep | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.capture, Capture | None):
            raise TypeError(
                "capture must be a gs_train.data.Capture, as load_capture and capture_from_arrays "
                f"return, got {type(self.capture).__name__}"
            )
        if self.renderer is not None:
            _check_renderer(self.renderer)
        if self.strategy is not None and not callable(self.strategy):
            raise TypeError(
                "strategy must be adc, mcmc, fixed or a function that gets a StrategyStart and "
                f"returns a Densifier, got {type(self.strategy).__name__}"
            )
        if self.on_step is not None and not callable(self.on_step):
            raise TypeError(
                "on_step must be a function that gets a StepReport, got "
                f"{type(self.on_step).__name__}"
            )

    @property
    def given(self) -> dict[str, str]:
        """What checkpoints keep: the full name of each part that decides a result."""
        parts = {name: getattr(self, name) for name in PARTS}
        return {name: _full_name(part) for name, part in parts.items() if part is not None}

    def require_those_of(self, saved: Mapping[str, str], root: Path) -> None:
        """Check that a resumed run gets the parts that it was started with, as far as that shows.

        Args:
            saved: :attr:`given` of the run.
            root: the run's folder.

        Raises:
            InputError: a part is missing, or is given for the first time.
        """
        given = self.given
        require_given({name: saved[name] for name in saved if name not in given}, root)
        added = [name for name in given if name not in saved]
        if added:
            raise InputError(
                f"{added[0]} must be given from Python only where the run was started so, and "
                f"{root} was not: leave it out, or start another run"
            )


def require_given(missing: Mapping[str, str], root: Path) -> None:
    """Raise InputError where parts that a run was trained with are missing."""
    if missing:
        named = " and ".join(f"the {name} {full:.80}" for name, full in missing.items())
        arguments = ", ".join(f"{name}=..." for name in missing)
        raise InputError(
            f"{root} was trained with {named}, given from Python: go on there, with "
            f"gs_train.fit(out=..., resume=True, {arguments}) or "
            f"gs_train.Fitted.open(...).evaluate(...)"
        )


def _full_name(part: object) -> str:
    named = part if inspect.isroutine(part) or inspect.isclass(part) else type(part)
    return f"{named.__module__}.{named.__qualname__}"


def _check_renderer(renderer: object) -> None:
    """Raise TypeError unless it has what `gs_train.renderers.Renderer` lists."""
    kinds = {
        "name": str,
        "device": torch.device,
        "options": RenderOptions,
        "blends_by_key": bool,
    }
    wrong = [name for name, kind in kinds.items() if not isinstance(_of(renderer, name), kind)]
    wrong += [name for name in ("project", "rasterize") if not callable(_of(renderer, name))]
    if wrong or inspect.isclass(renderer):
        kind = "a class" if inspect.isclass(renderer) else type(renderer).__name__
        without = f" without a right {', '.join(wrong)}" if wrong else ", which must be called"
        raise TypeError(
            "renderer must be auto, raster, gsplat, cpu or an object as "
            f"gs_train.renderers.Renderer describes, got {kind}{without}"
        )


def _of(renderer: object, name: str) -> object:
    return getattr(renderer, name, None)
