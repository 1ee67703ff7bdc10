# SPDX-License-Identifier: Apache-2.0
"""The command line of ``gs-train fit``: its options, over those of a file or of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.options.options_file import OptionsFile
from gs_train.runs.folder import saved_config
from gs_train.runs.more_steps import with_more_steps
from gs_train.sizes import Count


@dataclass(frozen=True)
class _Arguments(FitConfig):
    """Train a scene from photographs with known poses."""

    config: Annotated[
        Path | None,
        tyro.conf.arg(
            help="YAML file of options, such as the config.yml of a run; options of the command "
            "line go before those of the file (none)."
        ),
    ] = None
    more_steps: Annotated[
        Count | None,
        tyro.conf.arg(
            help="go on with the finished run in out for so many steps, with the learning rates "
            "that the run ended with (none)."
        ),
    ] = None


def parse_fit(arguments: Sequence[str]) -> tuple[FitConfig, list[str]]:
    """The options of a run, and lines about where they come from.

    Args:
        arguments: what follows ``gs-train fit``.

    Raises:
        InputError: an option is out of range, options exclude each other, or a file of options
            cannot be used.
        SystemExit: the parser has printed what is wrong, or help.
    """
    path, out = _value(arguments, "--config"), _value(arguments, "--out")
    is_longer = _has(arguments, "--more-steps")
    if path is not None and (is_longer or "--resume" in arguments):
        option = "--more-steps" if is_longer else "--resume"
        raise InputError(f"--config and {option} exclude each other: a run keeps its options")
    file = None if path is None else OptionsFile.read(Path(path))
    before = None
    if out is not None and (is_longer or "--resume" in arguments):
        # A run that goes on keeps its saved options unless others are given.
        before = saved_config(Path(out))
    given: dict[str, Any] = {}
    if file is not None:
        given = {"data": tyro.MISSING, "out": tyro.MISSING, **file.values}
    elif before is not None:
        given = vars(before)
    default: dict[str, Any] = {"default": _of_file(given, file)} if given else {}
    parsed = tyro.cli(_Arguments, prog="gs-train fit", args=list(arguments), **default)
    config = FitConfig(
        **{field.name: getattr(parsed, field.name) for field in dataclasses.fields(FitConfig)}
    )
    if parsed.more_steps is not None:
        for option in ("--steps", "--decay-steps", "--overwrite"):
            if _has(arguments, option):
                raise InputError(f"--more-steps and {option} exclude each other")
        config = with_more_steps(config, parsed.more_steps, before)
    return config, [] if file is None else list(file.lines(config))


def _of_file(given: dict[str, Any], file: OptionsFile | None) -> _Arguments:
    try:
        return _Arguments(**given)
    except InputError as error:  # a value out of range
        raise (error if file is None else InputError(f"{file.path}: {error}")) from None


def _has(arguments: Sequence[str], option: str) -> bool:
    """Whether an option is given; the parser takes underscores for hyphens."""
    names = (argument.partition("=")[0].replace("_", "-") for argument in arguments)
    return any(name == option for name in names)


def _value(arguments: Sequence[str], option: str) -> str | None:
    """What follows an option; None without it."""
    for i, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == option and (equals or i + 1 < len(arguments)):
            return value if equals else arguments[i + 1]
    return None
