# SPDX-License-Identifier: Apache-2.0
"""Options from Python, held to the kinds of value that a file of options can hold."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.options.plain import values_of


def values_from_python(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `FitConfig` by name: numpy's scalars as Python's, paths in text as paths. What is
    returned can be written to a run's config.yml and read again.

    Raises:
        TypeError: a value of another kind than its option's; names the option.
        InputError: the text of a path is empty.
    """
    kinds = {name: str(hint) for name, hint in typing.get_type_hints(FitConfig).items()}
    plain: dict[str, Any] = {}
    words: dict[str, Any] = {}
    for name, given in options.items():
        value = _plain(given)
        if value == "" and "Path" in kinds[name]:
            raise InputError(f"{name} must name a file or a folder, got ''")
        # Which words there are is for the configuration to say, as on a command line.
        is_word = isinstance(value, str) and "Literal" in kinds[name]
        (words if is_word else plain)[name] = value
    try:
        return values_of(FitConfig, plain, Path("options")) | words
    except InputError as error:
        raise TypeError(str(error)) from None


def _plain(value: Any) -> Any:
    """As a file of options says it."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    return value
