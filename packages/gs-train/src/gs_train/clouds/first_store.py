# SPDX-License-Identifier: Apache-2.0
"""The store that a run with ``--init`` begins with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gs_train.clouds.stored_scene import FirstRows, stored_scene
from gs_train.data.point_ply import PlyPoints
from gs_train.machine.interrupt import StopRequest
from gs_train.options.config import FitConfig
from gs_train.scene.scene import Scene


def n_first_rows(config: FitConfig, path: Path) -> int:
    """Rows that a store of the points of a file will have at most, as the file says.

    Raises:
        InputError: it is no PLY file of points.
    """
    with PlyPoints(path) as points:
        n = points.n_rows
    return n if config.row_cap is None else min(n, config.row_cap)


def first_store(
    scene: Scene,
    config: FitConfig,
    path: Path,
    store: Path,
    *,
    block_rows: int,
    betas: tuple[float, float],
    eps: float,
    ceilings: Mapping[str, float],
    memory: int,
    stop: StopRequest,
) -> int:
    """Make a store of the rows that ``scene.initial_rows`` has in memory for ``--init``.

    Args:
        scene: of the run.
        config: its options.
        path: the file of ``--init``.
        store: an empty folder, or none yet; its parent exists.
        block_rows: most rows of a block.
        betas, eps: Adam's, of all steps.
        ceilings: of ``means`` and ``scales``: no step has a larger rate.
        memory, stop: as for :func:`gs_train.clouds.stored_scene.stored_scene`.

    Returns:
        The number of rows.

    Raises:
        InputError, Interrupted, OSError: as there.
    """
    first = FirstRows(
        sh_degree=config.sh_degree,
        opacity=config.by_strategy("init_opacity"),
        scale=config.by_strategy("init_scale"),
        seed=config.seed,
        block_rows=block_rows,
        betas=betas,
        eps=eps,
        ceilings=ceilings,
    )
    transform = scene.cloud_transform(path)
    return stored_scene(
        *(path, store, first),
        memory=memory,
        stop=stop,
        transform=transform,
        limit=config.row_cap,
    )
