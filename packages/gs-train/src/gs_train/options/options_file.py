# SPDX-License-Identifier: Apache-2.0
"""Options of ``fit`` that come from a file: the format of a run's own ``config.yml``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.options.config_file import of_this_version, read_options
from gs_train.options.plain import values_of

_OF_ONE_CALL = {"resume": False, "overwrite": False, "trace": None, "gpus": None}
"""Options that a run does not keep, and what its ``config.yml`` says of them."""


@dataclass(frozen=True)
class OptionsFile:
    """Some or all options, as a file gives them.

    Attributes:
        path: of the file.
        values: by name, of the right types; options of options are whole.
    """

    path: Path
    values: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> OptionsFile:
        """Read a YAML file of options.

        Raises:
            InputError: the file is missing or cannot be read, is no YAML, or holds an option that
                does not exist, a value that does not fit its option, or an option of one call.
        """
        try:
            plain = read_options(path)
        except FileNotFoundError:
            raise InputError(f"--config {path} does not exist") from None
        of_now = of_this_version(plain)
        values = values_of(FitConfig, {name: of_now[name] for name in plain}, path)
        for name, value in _OF_ONE_CALL.items():
            if values.pop(name, value) != value:
                raise InputError(
                    f"{path} must leave out {name}, which belongs to one call: give --{name} on "
                    "the command line"
                )
        return cls(path, values)

    def lines(self, config: FitConfig) -> Iterator[str]:
        """A line that says which options of ``config`` are the file's and no defaults."""
        defaults = FitConfig(data=config.data, out=config.out)
        kept = [
            f"{name} {value}"
            for name, value in _flat(self.values)
            if _of(config, name) == value and value != _of(defaults, name)
        ]
        yield f"options of {self.path}: {', '.join(kept) or 'none but defaults'}"


def _flat(values: dict[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """Options with their full names, but for the places of data and results."""
    for name, value in values.items():
        if dataclasses.is_dataclass(value):
            yield from _flat(vars(value), f"{within}{name}.")
        elif f"{within}{name}" not in ("data", "out"):
            yield f"{within}{name}", value


def _of(config: FitConfig, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value
