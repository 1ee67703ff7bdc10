# SPDX-License-Identifier: Apache-2.0
"""The layouts of ``gs-train export``: a file of Gaussians, and what other tools want beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from gs_train.files.gltf import GltfFormat
from gs_train.files.ply import PlyFormat
from gs_train.files.row_file import RowFormat
from gs_train.files.spz import SpzFormat
from gs_train.options.config import FitConfig

LayoutName = Literal["inria", "gsplat", "spz", "gltf"]


class ExportLayout(NamedTuple):
    """One value of ``--layout``.

    Attributes:
        rows: name of the file of Gaussians after a step, below the folder of the export.
        form: format of that file, for a run with these options.
        has_cameras: whether cameras.json and cfg_args lie beside it.
        has_ckpt: whether a checkpoint of gsplat lies beside it.
    """

    rows: Callable[[int], Path]
    form: Callable[[FitConfig], RowFormat]
    has_cameras: bool = False
    has_ckpt: bool = False


LAYOUTS: Mapping[LayoutName, ExportLayout] = {
    "inria": ExportLayout(
        lambda step: Path("point_cloud", f"iteration_{step}", "point_cloud.ply"),
        lambda _: PlyFormat("inria"),
        has_cameras=True,
    ),
    "gsplat": ExportLayout(
        lambda step: Path("ply", f"point_cloud_{step}.ply"),
        lambda _: PlyFormat("gsplat"),
        has_ckpt=True,
    ),
    "spz": ExportLayout(
        lambda step: Path(f"point_cloud_{step}.spz"),
        lambda config: SpzFormat(is_antialiased=config.antialiased),
    ),
    "gltf": ExportLayout(
        lambda step: Path(f"point_cloud_{step}.glb"),
        lambda _: GltfFormat(),
    ),
}
