# SPDX-License-Identifier: Apache-2.0
"""`gs_train.fit`: the command ``gs-train fit``, with parts that a caller may replace."""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path
from typing import Any

from gs_train.data import FROM_PYTHON, Capture
from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.options.from_python import values_from_python
from gs_train.renderers import Renderer
from gs_train.runs import training
from gs_train.runs.fitted import Fitted
from gs_train.runs.folder import saved_config
from gs_train.runs.parts import Parts
from gs_train.runs.step_report import OnStep
from gs_train.runs.strategies import Strategy

_OF_A_FOLDER = ("max_side", "max_pixels", "test_every", "test_list", "allow_missing")
"""Options of a capture that is read from a folder: another one has its sizes and its split."""


def fit(
    config: FitConfig | None = None,
    *,
    capture: Capture | None = None,
    renderer: str | Renderer | None = None,
    strategy: str | Strategy | None = None,
    on_step: OnStep | None = None,
    **options: Any,
) -> Fitted:
    """Train a scene, with checkpoints, scores and files in the folder ``out``.

    Args:
        config: the options of ``gs-train fit``; None: all from ``options``.
        capture: photographs, poses and points; None: of the folder ``data``. See
            :func:`gs_train.data.load_capture` and :func:`gs_train.data.capture_from_arrays`.
        renderer: ``auto``, ``raster``, ``gsplat``, ``cpu``, or an object as
            :class:`gs_train.renderers.Renderer` describes; None: as the options say.
        strategy: ``adc``, ``mcmc``, ``fixed``, or a function that gets a
            :class:`gs_train.runs.strategies.StrategyStart` and returns a
            :class:`gs_train.densify.Densifier`; None: as the options say. Defaults that depend on
            the strategy (``init_opacity`` and so on) follow the option ``strategy``.
        on_step: called with a :class:`gs_train.StepReport` after each step. Checkpoints do not
            record ``on_step``: a resumed run may have another function, or none.
        options: options of :class:`gs_train.options.config.FitConfig` by name, over the options of
            ``config``. Paths may be text, and numbers numpy's. With ``resume=True`` and without
            ``config``, options of the run in ``out`` stay unless given here, as on the command
            line.

    Returns:
        The run, with its scores.

    Raises:
        TypeError: an argument is of another kind, or there is no such option.
        InputError: as the command says in one line: an option, a file, a folder in use, too little
            memory, a resumed run without the parts of its start.
        Interrupted: Ctrl-C or SIGTERM, in Python's main thread, after a checkpoint was written.
        StopTraining: raised by ``on_step``; a checkpoint was written.
        Exception: whatever else a part raised. The last checkpoint stays.

    Not for two threads at a time: the cap on device memory belongs to the process.
    """
    if isinstance(renderer, str):
        options["renderer"], renderer = renderer, None
    if isinstance(strategy, str):
        options["strategy"], strategy = strategy, None
    parts = Parts(capture, renderer, strategy, on_step)
    config = _config_of(config, options, capture)
    if config.gpus is not None:
        raise InputError(
            "gpus must be left out in Python, where torchrun starts a process for each GPU, got "
            f"{config.gpus}"
        )
    metrics = training.fit(config, parts)
    return Fitted(config.out, metrics)


def _config_of(
    config: FitConfig | None, options: dict[str, Any], capture: Capture | None
) -> FitConfig:
    if not isinstance(config, FitConfig | None):
        raise TypeError(f"config must be a FitConfig, got {type(config).__name__}")
    fields = {field.name: field for field in dataclasses.fields(FitConfig)}
    for name in options:
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise TypeError(f"options must be those of FitConfig, got {name}{hint}")
    options = {
        # Absolute: a function that is called during the run may change the working directory.
        name: value.absolute() if isinstance(value, Path) and value != FROM_PYTHON else value
        for name, value in values_from_python(options).items()
    }
    if config is not None:
        config = dataclasses.replace(config, **values_from_python(vars(config)))
    if config is None and options.get("resume") and "out" in options:
        config = saved_config(options["out"])
    if config is None:
        if capture is not None or options.get("resume"):  # or there is nothing to resume
            options.setdefault("data", FROM_PYTHON)
        missing = [name for name in ("data", "out") if name not in options]
        if missing:
            raise TypeError(f"{' and '.join(missing)} must be given, or config")
        config = FitConfig(**options)
    else:
        config = dataclasses.replace(config, **options)
    if capture is not None:
        _check_left_alone(config, fields)
        config = _with_mask_of(config, capture)
        if config.depth_weight is not None and not capture.has_depths:
            raise TypeError(
                "depth_weight must be left out where the capture has no depth maps, got "
                f"{config.depth_weight!r:.80}; load_capture(depths=True) and "
                "capture_from_arrays(depths=) give it some"
            )
    return config


def _with_mask_of(config: FitConfig, capture: Capture) -> FitConfig:
    if config.mask not in ("auto", capture.mask):
        raise TypeError(
            f"mask must be left out where capture is given, or be {capture.mask} as of the "
            f"capture, got {config.mask}"
        )
    return dataclasses.replace(config, mask=capture.mask)


def _check_left_alone(config: FitConfig, fields: dict[str, Any]) -> None:
    for name in _OF_A_FOLDER:
        value = getattr(config, name)
        if value != fields[name].default:
            raise TypeError(
                f"{name} must be left out where capture is given, which has its own sizes and "
                f"split, got {value}"
            )
