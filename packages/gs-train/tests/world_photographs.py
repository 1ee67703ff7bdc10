# SPDX-License-Identifier: Apache-2.0
"""What ranks do with photographs in tests; functions of a module, for another process to find."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gs_train.data import PhotoReader, load_capture
from gs_train.errors import CommonError
from gs_train.runs import photographs
from gs_train.world import World


def compare(world: World, folders: Sequence[str]) -> tuple[str, int]:
    """What is said of the photographs that each rank has, and how often all were read."""
    folder = Path(folders[world.rank])
    capture = load_capture(folder, cache_dir=folder / "cache")
    n_read, crcs = 0, photographs.crcs

    def counted(*arguments: object) -> list[int | None]:
        nonlocal n_read
        n_read += 1
        return crcs(*arguments)  # type: ignore[arg-type]

    photographs.crcs = counted  # type: ignore[assignment]
    try:
        photographs.require_same_photographs(capture, PhotoReader(capture), world)
    except CommonError as error:
        return str(error), n_read
    finally:
        photographs.crcs = crcs
    return "", n_read
