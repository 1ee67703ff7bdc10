# SPDX-License-Identifier: Apache-2.0
"""The rules that the values of options keep, with a message that names option, rule and value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gs_train.errors import InputError
from gs_train.options.plain import one_of
from gs_train.options.presets import NAMED
from gs_train.options.tide import LEAST_BLOCK_ROWS, MOST_BLOCK_ROWS

MOST_CHANGES = 16
"""Times the number of Gaussians: rows are out of order long before. Earlier versions counted images
between re-orderings, by default 1000, so that a larger number is one of these."""

BY_STRATEGY = {
    "adc": {"init_opacity": 0.1, "init_scale": 1.0, "opacity_reg": 0.0, "scale_reg": 0.0},
    "mcmc": {"init_opacity": 0.5, "init_scale": 0.1, "opacity_reg": 0.01, "scale_reg": 0.01},
    "fixed": {"init_opacity": 0.1, "init_scale": 1.0, "opacity_reg": 0.0, "scale_reg": 0.0},
}
"""Defaults that depend on the strategy."""

_LEAST = {
    "steps": 1,
    "batch_size": 1,
    "checkpoint_every": 0,
    "eval_every": 0,
    "keep_checkpoints": 1,
    "max_pixels": 1,
    "test_every": 0,
    "sh_every": 0,
    "seed": 0,
}

_CHOICES_OF_OFFLOAD = {
    "frame": ("auto", "capture", "local"),
    "semantics": ("dense", "sparse"),
    "regularise": ("all", "visible"),
    "cut_views": ("auto", "never"),
    "mask": ("auto", "ignore", "carve", "off"),
    "background": ("black", "white", "random"),
}


def require(condition: bool, name: str, rule: str, value: object) -> None:
    """Raise InputError about the option ``name`` unless ``condition`` holds."""
    if not condition:
        raise InputError(f"--{name.replace('_', '-')} must be {rule}, got {value}")


def require_name(name: str, names: tuple[str, ...]) -> None:
    """Raise ValueError unless ``name`` is one of ``names``."""
    if name not in names:
        raise ValueError(f"name must be {one_of(names)}, got {name!r:.80}")


def check_values(options: Mapping[str, Any]) -> None:
    """Check ranges and choices of the options of a run, apart from :func:`check_offload`'s.

    Args:
        options: of :class:`gs_train.options.config.FitConfig`, by name.

    Raises:
        InputError: a value breaks a rule.
    """
    _require_choice(options, "renderer", ("auto", "raster", "gsplat", "cpu"))
    _require_choice(options, "strategy", tuple(BY_STRATEGY))
    for name, least in _LEAST.items():
        value = options[name]
        require(type(value) is int and value >= least, name, f"at least {least}", value)
    decay_steps, seed = options["decay_steps"], options["seed"]
    require(decay_steps is None or decay_steps >= 1, "decay_steps", "at least 1", decay_steps)
    require(seed < 2**64, "seed", "below 2^64", seed)
    _require_choice(options, "means_extent", ("cameras", "view"))
    _check_order(options["order"], options["tile_views"], options["batch_size"])
    for name, most in (("sh_degree", 3), ("ssim_lambda", 1)):
        require(0 <= options[name] <= most, name, f"0 to {most}", options[name])
    side, cap, every = options["max_side"], options["cap"], options["resort_every"]
    fits = side == "off" or (type(side) is int and side >= 16)
    require(fits, "max_side", "at least 16 pixels, or off", side)
    require(cap is None or cap >= 4, "cap", "at least 4", cap)
    rule = f"0 to {MOST_CHANGES} times the number of Gaussians"
    require(0 <= every <= MOST_CHANGES, "resort_every", rule, every)
    _check_first_rows_and_losses(options)


def check_offload(options: Mapping[str, Any]) -> None:
    """Check what depends on where the rows live, apart from what the drive asks for.

    Args:
        options: as of :func:`check_values`.

    Raises:
        InputError: a value breaks a rule.
    """
    offload, batch_size, rows = options["offload"], options["batch_size"], options["block_rows"]
    _require_choice(options, "offload", ("auto", *NAMED))
    for name, choices in _CHOICES_OF_OFFLOAD.items():
        _require_choice(options, name, choices)
    share = options["mem_limit"]
    require(0.0 < share <= 1.0, "mem_limit", "above 0 and at most 1", share)
    if offload != "auto" and NAMED[offload].single_view and batch_size != 1:
        raise InputError(
            f"--offload {offload} needs --batch-size 1, got {batch_size}; --offload best takes any"
        )
    fits = type(rows) is int and LEAST_BLOCK_ROWS <= rows <= MOST_BLOCK_ROWS
    require(fits, "block_rows", f"{LEAST_BLOCK_ROWS} to {MOST_BLOCK_ROWS}", rows)


def _require_choice(options: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> None:
    require(options[name] in choices, name, one_of(choices), options[name])


def _check_order(order: str, tile_views: int | None, batch_size: int) -> None:
    require(order in ("shuffle", "tiles"), "order", "shuffle or tiles", order)
    if tile_views is None:
        return
    if order != "tiles":
        raise InputError(f"--tile-views needs --order tiles, got --order {order}")
    rule = f"at least the --batch-size {batch_size}"
    require(tile_views >= batch_size, "tile_views", rule, tile_views)


def _check_first_rows_and_losses(options: Mapping[str, Any]) -> None:
    for name in ("init_opacity", "init_scale", "opacity_reg", "scale_reg"):
        value = options[name]
        require(value is None or 0 <= value < math.inf, name, "finite and not negative", value)
    opacity, scale = options["init_opacity"], options["init_scale"]
    require(opacity is None or 0 < opacity < 1, "init_opacity", "between 0 and 1", opacity)
    require(scale is None or scale > 0, "init_scale", "positive", scale)
