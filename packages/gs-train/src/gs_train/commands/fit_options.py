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


def parse_fit(arguments: Sequence[str]) -> tuple[FitConfig, list[str]]:
    """The options of a run, and lines about where they come from.

    Args:
        arguments: what follows ``gs-train fit``.

    Raises:
        InputError: an option is out of range, options exclude each other, or a file of options
            cannot be used.
        SystemExit: the parser has printed what is wrong, or help.
    """
    file = None
    given: dict[str, Any] = {}
    path, out = _value(arguments, "--config"), _value(arguments, "--out")
    is_resumed = "--resume" in arguments
    if path is not None:
        if is_resumed:
            raise InputError("--config and --resume exclude each other: a run keeps its options")
        file = OptionsFile.read(Path(path))
        given = {"data": tyro.MISSING, "out": tyro.MISSING, **file.values}
    elif is_resumed and out is not None:
        # A resumed run keeps its saved options unless others are given.
        saved = saved_config(Path(out))
        given = {} if saved is None else vars(saved)
    default: dict[str, Any] = {"default": _of_file(given, file)} if given else {}
    parsed = tyro.cli(_Arguments, prog="gs-train fit", args=list(arguments), **default)
    config = FitConfig(
        **{field.name: getattr(parsed, field.name) for field in dataclasses.fields(FitConfig)}
    )
    return config, [] if file is None else list(file.lines(config))


def _of_file(given: dict[str, Any], file: OptionsFile | None) -> _Arguments:
    try:
        return _Arguments(**given)
    except InputError as error:  # a value out of range
        raise (error if file is None else InputError(f"{file.path}: {error}")) from None


def _value(arguments: Sequence[str], option: str) -> str | None:
    """What follows an option; None without it."""
    for i, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == option and (equals or i + 1 < len(arguments)):
            return value if equals else arguments[i + 1]
    return None
