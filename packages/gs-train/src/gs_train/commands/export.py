# SPDX-License-Identifier: Apache-2.0
"""``gs-train export``: the model in the folders and formats that other tools read."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
import tyro
from torch import Tensor

from gs_train.data.frame import FrameChoice, camera_centres
from gs_train.data.readers.choose import is_transforms
from gs_train.files.agreement import by_first
from gs_train.files.atomic import replacing, require_writable
from gs_train.files.chunks_of_ranks import by_first_with_chunks
from gs_train.files.ply import Layout
from gs_train.files.ranks_ply import write_ply_of_ranks
from gs_train.files.row_chunks import Chunk
from gs_train.machine.interrupt import StopRequest
from gs_train.options.plain import to_plain
from gs_train.rows.operations import Model
from gs_train.rows.visible import caught_up_chunks
from gs_train.runs.all_ranks import agree_on_options, on_all_ranks
from gs_train.runs.folder import RunFolder
from gs_train.runs.record import RunRecord
from gs_train.runs.run import Run
from gs_train.runs.shared_run import SharedRun
from gs_train.scene.export_frame import ExportFrame
from gs_train.world import World


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
        gpus: number of processes that read the Gaussians together, no more than GPUs where this
            machine has some, or all (one process). No GPU is used.
    """

    dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    layout: Literal["inria", "gsplat"] = "inria"
    to: Path | None = None
    frame: FrameChoice = "auto"
    data: Path | None = None
    gpus: str | None = None


def export(config: ExportConfig) -> None:
    """Write the newest checkpoint's model in the capture's own frame, or in a local one.

    No device is used, and PLY files are written a chunk of rows at a time. ``ckpts`` of the gsplat
    layout, which is one file of torch, needs all rows in host memory.

    Where this process is one of several ranks, each reads its piece of the checkpoint, and rank 0
    writes the files of one rank.

    Raises:
        InputError: no run there, a place that cannot be written or holds rows in another frame, or
            a disk without enough space.
        ToldError: this rank or another has failed, and a line about it is printed.
    """
    with on_all_ranks("cpu", RunFolder(config.dir)) as world:
        if world.size == 1:
            _export_alone(config, world)
        else:
            _export_together(config, world)


def _export_alone(config: ExportConfig, world: World) -> None:
    run = Run.open(config.dir)
    to = _to(config, run)
    with StopRequest() as stop:
        record = run.cameras(stop, data=config.data) if config.layout == "inria" else None
    run, model = run.read(torch.device("cpu"))
    frame = ExportFrame.of(config.frame, run.frame, model)
    _write(config, _Exported(run, to, frame, record), model, world)


def _export_together(config: ExportConfig, world: World) -> None:
    agree_on_options(world, to_plain(config))
    shared = SharedRun.open(config.dir, world)
    to = Path(by_first(world, lambda: str(_to(config, shared.run))))
    with StopRequest() as stop:
        record = shared.cameras(stop, data=config.data) if config.layout == "inria" else None
    model = shared.read_piece()
    frame = shared.export_frame(config.frame)
    _write(config, _Exported(shared.run, to, frame, record), model, world)


class _Exported(NamedTuple):
    """What is written, but for rows.

    Attributes:
        run: whose newest checkpoint it is.
        to: folder of all files.
        frame: that rows are written in.
        record: of the cameras, where they are written.
    """

    run: Run
    to: Path
    frame: ExportFrame
    record: RunRecord | None

    @property
    def ply(self) -> Path:
        return _ply(self.to, self.run, "gsplat" if self.record is None else "inria")

    @property
    def ckpt(self) -> Path:
        # gsplat numbers steps from 0.
        return self.to / "ckpts" / f"ckpt_{self.run.checkpoint.step - 1}_rank0.pt"


def _write(config: ExportConfig, exported: _Exported, model: Model, world: World) -> None:
    """Write all files. A collective.

    Args:
        model: the rows of this rank.
    """
    n_rows = int(world.gather(model.n_rows).sum())
    by_first(world, lambda: _begin(exported))
    dropped = write_ply_of_ranks(
        exported.ply,
        caught_up_chunks(model),
        world=world,
        n_rows=model.n_rows,
        layout=config.layout,
        transform=exported.frame.rows_out,
    )
    if exported.record is not None:
        by_first(world, lambda: _write_cameras(config, exported))
    else:
        by_first(world, lambda: exported.frame.tell(exported.ckpt))
        by_first_with_chunks(
            world,
            caught_up_chunks(model),
            functools.partial(_write_ckpt, exported),
            n_rows=model.n_rows,
        )
    lost = f", without {dropped:,} rows that are not finite" if dropped else ""
    print(f"wrote {n_rows - dropped:,} Gaussians to {exported.to}{lost}", file=sys.stderr)


def _begin(exported: _Exported) -> None:
    frame, ply = exported.frame, exported.ply
    for path in (ply,) if exported.record is not None else (ply, exported.ckpt):
        frame.check(path)
    frame.tell(ply)
    print(frame.line, file=sys.stderr)


def _write_cameras(config: ExportConfig, exported: _Exported) -> None:
    run, to, frame, record = exported
    assert record is not None
    _write_text(to / "cameras.json", json.dumps(_cameras(record, frame)))
    # Where the capture's poses are in another frame, or in a file with frames and axes of its own,
    # SIBR reads those of cameras.json.
    source = config.data or run.config.data
    source = to if frame.name == "local" or is_transforms(source) else source
    _write_text(to / "cfg_args", _cfg_args(run, record, source))


def _write_ckpt(exported: _Exported, chunks: Iterator[Chunk], n_rows: int) -> None:
    splats = _gathered(chunks, n_rows, exported.frame)
    with replacing(exported.ckpt) as file:  # gsplat keeps the parameters alone
        torch.save({"step": exported.run.checkpoint.step - 1, "splats": splats}, file)


def _to(config: ExportConfig, run: Run) -> Path:
    """The folder to write to.

    Raises:
        InputError: it cannot be written.
    """
    to = config.to or run.folder.export / config.layout
    require_writable(_ply(to, run, config.layout), option="--to")
    return to


def _ply(to: Path, run: Run, layout: Layout) -> Path:
    step = run.checkpoint.step
    if layout == "inria":
        return to / "point_cloud" / f"iteration_{step}" / "point_cloud.ply"
    return to / "ply" / f"point_cloud_{step}.ply"


def _gathered(chunks: Iterator[Chunk], n_rows: int, frame: ExportFrame) -> dict[str, Tensor]:
    """All rows in the frame of the export, on the CPU."""
    rows: dict[str, Tensor] = {}
    start = 0
    for chunk in chunks:
        for name, values in frame.rows_out(chunk).items():
            if name not in rows:
                rows[name] = values.new_empty((n_rows, *values.shape[1:]))
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
