# SPDX-License-Identifier: Apache-2.0
"""The YAML file of a run's options, of this version and of earlier ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gs_train.data.arrays import FROM_PYTHON
from gs_train.errors import InputError
from gs_train.files.atomic import replacing
from gs_train.files.small_files import read_small
from gs_train.options.config import FitConfig
from gs_train.options.plain import from_plain, to_plain
from gs_train.options.rules import MOST_CHANGES

_MOST_BYTES = 1 << 20
"""Of the YAML file, which has some hundred lines: reading a large one takes minutes."""


def for_the_record(config: FitConfig) -> FitConfig:
    """The configuration for config.yml: absolute paths, no options of this one call."""

    def absolute(path: Path | None) -> Path | None:
        return None if path is None else path.absolute()

    return dataclasses.replace(
        config,
        data=config.data if config.data == FROM_PYTHON else config.data.absolute(),
        out=config.out.absolute(),
        init=absolute(config.init),
        scratch=absolute(config.scratch),
        store=absolute(config.store),
        test_list=absolute(config.test_list),
        lpips_backbone=absolute(config.lpips_backbone),
        resume=False,
        overwrite=False,
        trace=None,
        gpus=None,
    )


def save_config(path: Path, config: FitConfig) -> None:
    """Write the configuration as YAML, under a temporary name first."""
    with replacing(path) as file:
        file.write(yaml.safe_dump(to_plain(config), sort_keys=False).encode())


def load_config(path: Path) -> FitConfig:
    """Read a file of :func:`save_config`.

    Raises:
        InputError: the file is missing, cannot be read, is no YAML, or holds an option that does
            not exist or a value that does not fit its option.
    """
    try:
        plain = read_options(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: {path.parent} holds no run of gs-train") from None
    config = from_plain(FitConfig, of_this_version(plain), path)
    assert isinstance(config, FitConfig)
    return config


def read_options(path: Path) -> dict[Any, Any]:
    """The mapping that a YAML file of options holds, none of its values checked.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: it cannot be read, is no YAML, or holds something else.
    """
    try:
        plain = yaml.safe_load(read_small(path, most_bytes=_MOST_BYTES).decode())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:  # no UTF-8, a date that there is not
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise InputError(f"{path} is not valid YAML: brackets lie too deep in each other") from None
    if not isinstance(plain, dict):
        raise InputError(f"{path} must hold a mapping of options, got {type(plain).__name__}")
    return plain


_OF_EARLIER_VERSIONS = {
    "order": "shuffle",
    "tile_views": None,
    "means_extent": "cameras",
    "mask": "off",
    "depth_weight": None,
    "background": "black",
    "exposure": False,
}


def of_this_version(plain: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options that an earlier version wrote, as this one says the same.

    ``resort_every`` was a number of images, which has become the default. Views were shuffled,
    neither masks nor depth maps used, scenes trained over black, and no exposure was trained; the
    means' learning rate was a multiple of the cameras' extent. Photographs of any size were used as
    they were.
    """
    plain = {**_OF_EARLIER_VERSIONS, **plain}
    if "max_side" in plain and plain["max_side"] is None:
        plain["max_side"] = "off"
    every = plain.get("resort_every")
    if type(every) is int and every > MOST_CHANGES:
        return {**plain, "resort_every": FitConfig.resort_every}
    return plain
