# SPDX-License-Identifier: Apache-2.0
"""Blocks in a file: an ``.npz`` archive with the names of :class:`gs_cull.Blocks`.

Entries: ``version`` (), ``n_rows`` (), ``block_size`` (), ``activated`` (), ``base_slack`` (2,),
``lower``, ``upper`` (blocks, 3), ``scale`` (blocks,), ``slack`` (blocks, 2), ``not_finite``
(blocks,) and, for permuted rows, ``order`` (n_rows,).
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from gs_cull.arrays import Array, on_host
from gs_cull.bounds import Bounds
from gs_cull.checks import check_block_size

_VERSION = 1
_BOUNDS = Bounds._fields


def save_blocks(
    path: Path,
    *,
    n_rows: int,
    block_size: int,
    order: Array | None,
    bounds: Bounds,
    activated: bool,
    slack: tuple[float, float],
) -> None:
    """Write the parts of Blocks; the file appears whole or not at all."""

    parts: dict[str, Any] = {
        "version": _VERSION,
        "n_rows": n_rows,
        "block_size": block_size,
        "activated": activated,
        "base_slack": np.array(slack),
    }
    parts.update(zip(_BOUNDS, map(on_host, bounds)))
    if order is not None:
        parts["order"] = on_host(order)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            np.savez(file, **parts)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_blocks(path: Path) -> dict[str, Any]:
    """Keyword arguments of Blocks.

    Raises:
        ValueError: the file is damaged, incomplete or of another version.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            parts = {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise ValueError(f"path must be a file of blocks, got {path}: {error}") from error
    version = parts.get("version")
    if version is None or int(version) != _VERSION:
        raise ValueError(f"path must hold blocks of format version {_VERSION}, got {version}")
    missing = {"n_rows", "block_size", "activated", "base_slack", *_BOUNDS} - parts.keys()
    if missing:
        raise ValueError(f"path must hold blocks, got {path} without {sorted(missing)}")
    n_rows, block_size, order = int(parts["n_rows"]), int(parts["block_size"]), parts.get("order")
    check_block_size(block_size)
    is_of_rows = order is None or order.shape == (n_rows,)
    if not is_of_rows or (order is not None and (np.sort(order) != np.arange(n_rows)).any()):
        raise ValueError(f"path must hold an order of {n_rows} rows, got {path} with another")
    return {
        "n_rows": n_rows,
        "block_size": block_size,
        "order": order,
        "bounds": Bounds(*(parts[name] for name in _BOUNDS)),
        "activated": bool(parts["activated"]),
        "slack": (float(parts["base_slack"][0]), float(parts["base_slack"][1])),
    }
