# SPDX-License-Identifier: Apache-2.0
"""``gs-train export``: the model in the folders and formats that other tools read."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import tyro
from torch import Tensor

from gs_train.data.frame import FrameChoice, camera_centres
from gs_train.files.atomic import replacing, require_writable
from gs_train.files.ply import Layout, write_ply
from gs_train.machine.interrupt import StopRequest
from gs_train.rows.operations import Model
from gs_train.rows.visible import caught_up_chunks
from gs_train.runs.record import RunRecord
from gs_train.runs.run import Run
from gs_train.scene.export_frame import ExportFrame


@dataclass(frozen=True)
class ExportConfig:
    """Write a trained scene for other tools.

    Attributes:
        dir: output folder of gs-train fit.
        layout: inria: what SIBR and most viewers open (point_cloud/, cameras.json, cfg_args);
            gsplat: what gsplat's viewer and trainer load (ply/, ckpts/).
        to: folder to write to; DIR/export/LAYOUT when not given.
        frame: the capture's, or a local one with transform.json beside each file; auto takes the
            local one where float32 is too coarse for the capture's coordinates.
        data: where the capture is now, if it was moved; inria names it, and lists the cameras of
            runs of older versions from there.
    """

    dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    layout: Literal["inria", "gsplat"] = "inria"
    to: Path | None = None
    frame: FrameChoice = "auto"
    data: Path | None = None


def export(config: ExportConfig) -> None:
    """Write the newest checkpoint's model in the capture's own frame, or in a local one.

    No device is used, and PLY files are written a chunk of rows at a time. ``ckpts`` of the gsplat
    layout, which is one file of torch, needs all rows in host memory.

    Raises:
        InputError: no run there, a place that cannot be written or holds rows in another frame, or
            a disk without enough space.
    """
    run = Run.open(config.dir)
    to = config.to or run.folder.export / config.layout
    require_writable(_ply(to, run, config.layout), option="--to")
    with StopRequest() as stop:
        record = run.cameras(stop, data=config.data) if config.layout == "inria" else None
    run, model = run.read(torch.device("cpu"))
    step, ply = run.checkpoint.step, _ply(to, run, config.layout)
    frame = ExportFrame.of(config.frame, run.frame, model)
    ckpt = to / "ckpts" / f"ckpt_{step - 1}_rank0.pt"  # gsplat numbers steps from 0
    for path in (ply,) if config.layout == "inria" else (ply, ckpt):
        frame.check(path)
    frame.tell(ply)
    print(frame.line, file=sys.stderr)
    dropped = write_ply(
        ply,
        caught_up_chunks(model),
        layout=config.layout,
        n_rows=model.n_rows,
        transform=frame.rows_out,
    )
    if record is not None:
        _write_text(to / "cameras.json", json.dumps(_cameras(record, frame)))
        # Where the capture's poses are in another frame, SIBR reads those of cameras.json.
        source = config.data or run.config.data
        _write_text(
            to / "cfg_args", _cfg_args(run, record, source if frame.name == "capture" else to)
        )
    else:
        frame.tell(ckpt)
        with replacing(ckpt) as file:  # gsplat keeps the parameters alone
            torch.save({"step": step - 1, "splats": _gathered(model, frame)}, file)
    lost = f", without {dropped:,} rows that are not finite" if dropped else ""
    print(f"wrote {model.n_rows - dropped:,} Gaussians to {to}{lost}", file=sys.stderr)


def _ply(to: Path, run: Run, layout: Layout) -> Path:
    step = run.checkpoint.step
    if layout == "inria":
        return to / "point_cloud" / f"iteration_{step}" / "point_cloud.ply"
    return to / "ply" / f"point_cloud_{step}.ply"


def _gathered(model: Model, frame: ExportFrame) -> dict[str, Tensor]:
    """All rows in the frame of the export, on the CPU."""
    rows: dict[str, Tensor] = {}
    start = 0
    for chunk in caught_up_chunks(model):
        for name, values in frame.rows_out(chunk).items():
            if name not in rows:
                rows[name] = values.new_empty((model.n_rows, *values.shape[1:]))
            rows[name][start : start + len(values)] = values
        start += len(chunk["means"])
    return rows


def _cameras(record: RunRecord, frame: ExportFrame) -> list[dict[str, object]]:
    """The cameras as the Inria code lists them: camera to world, x right, y down, z forward."""
    cameras: list[dict[str, object]] = []
    centres = camera_centres(np.stack([view.world_to_camera for view in record.views]))
    for index in (*record.test, *record.train):
        view = record.views[index]
        rotation = view.world_to_camera[:3, :3].T
        cameras.append(
            {
                "id": len(cameras),
                "img_name": str(Path(view.name).with_suffix("")),
                "width": view.width,
                "height": view.height,
                "position": (centres[index] + frame.shift).tolist(),
                "rotation": rotation.tolist(),
                "fx": float(view.K[0, 0]),
                "fy": float(view.K[1, 1]),
            }
        )
    return cameras


def _cfg_args(run: Run, record: RunRecord, source: Path) -> str:
    """The arguments that SIBR's viewer looks for, in the form in which it parses them."""
    config = run.config
    return (
        f"Namespace(sh_degree={config.sh_degree}, source_path={str(source.absolute())!r}, "
        f"model_path={str(run.folder.root.absolute())!r}, images='images', resolution=-1, "
        f"white_background=False, data_device='cuda', eval={bool(record.test)})"
    )


def _write_text(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())
