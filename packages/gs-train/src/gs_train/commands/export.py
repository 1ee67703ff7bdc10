# SPDX-License-Identifier: Apache-2.0
"""``gs-train export``: the model in the folders and formats that other tools read."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
import tyro
from torch import Tensor

from gs_train.commands.export_layouts import LAYOUTS, ExportLayout, LayoutName
from gs_train.data.frame import FrameChoice, camera_centres
from gs_train.data.readers.choose import is_transforms
from gs_train.errors import InputError
from gs_train.files.agreement import by_first
from gs_train.files.atomic import replacing, require_writable
from gs_train.files.chunks_of_ranks import by_first_with_chunks
from gs_train.files.crop import Crop
from gs_train.files.ranks_rows import write_rows_of_ranks
from gs_train.files.row_chunks import Chunk, bases_of, finite_rows, host_rows
from gs_train.files.row_file import Announced, RowFormat, Written, require_finite
from gs_train.files.survey import Survey, survey_rows_of_ranks
from gs_train.machine.interrupt import StopRequest
from gs_train.machine.progress import task_progress
from gs_train.options.plain import to_plain
from gs_train.rows.shown import ShownRows
from gs_train.rows.visible import caught_up_chunks
from gs_train.runs.all_ranks import agree_on_options, on_all_ranks
from gs_train.runs.folder import RunFolder
from gs_train.runs.record import RunRecord
from gs_train.runs.run import Run
from gs_train.runs.shared_run import SharedRun
from gs_train.scene.export_frame import ExportFrame
from gs_train.world import World

_Box = tuple[float, float, float, float, float, float]

_LONG_ROWS = 1_000_000
"""An export of fewer rows takes seconds and shows no progress."""


@dataclass(frozen=True)
class ExportConfig:
    """Write a trained scene for other tools.

    Attributes:
        dir: output folder of gs-train fit.
        layout: inria: what SIBR and most viewers open (point_cloud/, cameras.json, cfg_args);
            gsplat: what gsplat's viewer and trainer load (ply/, ckpts/); spz: one compressed file;
            gltf: one .glb file with KHR_gaussian_splatting.
        to: folder to write to; DIR/export/LAYOUT when not given.
        crop: write only the Gaussians whose centre lies in this box, in coordinates of the exported
            PLY file.
        frame: the capture's, or a local one with transform.json beside each file; auto takes the
            local one where float32 is too coarse for the capture's coordinates.
        data: where the capture is now, if it was moved; inria names it, and lists the cameras of
            runs of older versions from there.
        gpus: number of processes that read the Gaussians together, no more than GPUs where this
            machine has some, or all (one process). No GPU is used.
    """

    dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    layout: LayoutName = "inria"
    to: Path | None = None
    crop: Annotated[_Box | None, tyro.conf.arg(metavar="XMIN YMIN ZMIN XMAX YMAX ZMAX")] = None
    frame: FrameChoice = "auto"
    data: Path | None = None
    gpus: str | None = None

    def __post_init__(self) -> None:
        _ = self.box  # checks the numbers

    @property
    def files(self) -> ExportLayout:
        """The files of the layout."""
        return LAYOUTS[self.layout]

    @property
    def box(self) -> Crop | None:
        """``crop``, checked."""
        return None if self.crop is None else Crop.of(self.crop, option="--crop")


def export(config: ExportConfig) -> None:
    """Write the newest checkpoint's model in the capture's own frame, or in a local one.

    No device is used, and files are written a chunk of rows at a time. Crops, SPZ and glTF take two
    passes over the rows. ``ckpts`` of the gsplat layout, which is one file of torch, needs all rows
    in host memory.

    Where this process is one of several ranks, each reads its piece of the checkpoint, and rank 0
    writes the files of one rank.

    Raises:
        InputError: no run there, a place that cannot be written or holds rows in another frame, a
            crop without Gaussians, rows that the format cannot hold, a missing package, or a disk
            without enough space.
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
        record = run.cameras(stop, data=config.data) if config.files.has_cameras else None
    run, model = run.read(torch.device("cpu"))
    with contextlib.closing(model):
        frame = ExportFrame.of(config.frame, run.frame, model)
        _write(_Exported(config, run, to, frame, record), model, world)


def _export_together(config: ExportConfig, world: World) -> None:
    agree_on_options(world, to_plain(config))
    shared = SharedRun.open(config.dir, world)
    to = Path(by_first(world, lambda: str(_to(config, shared.run))))
    with StopRequest() as stop:
        record = shared.cameras(stop, data=config.data) if config.files.has_cameras else None
    model = shared.read_piece()
    frame = shared.export_frame(config.frame)
    _write(_Exported(config, shared.run, to, frame, record), model, world)


class _Exported(NamedTuple):
    """What is written, but for rows.

    Attributes:
        config: the options.
        run: whose newest checkpoint it is.
        to: folder of all files.
        frame: that rows are written in.
        record: of the cameras, where they are written.
    """

    config: ExportConfig
    run: Run
    to: Path
    frame: ExportFrame
    record: RunRecord | None

    @property
    def rows(self) -> Path:
        return self.to / self.config.files.rows(self.run.checkpoint.step)

    @property
    def ckpt(self) -> Path:
        # gsplat numbers steps from 0.
        return self.to / "ckpts" / f"ckpt_{self.run.checkpoint.step - 1}_rank0.pt"


def _write(exported: _Exported, model: ShownRows, world: World) -> None:
    """Write all files. A collective.

    Args:
        model: the rows of this rank.
    """
    files, crop = exported.config.files, exported.config.box
    form = files.form(exported.run.config)
    every, n_apart = model, 0
    if crop is not None:
        model = every.reaching(*exported.frame.box_in(crop.low, crop.high))
        n_apart = int(world.gather(every.n_rows - model.n_rows).sum())
    n_rows = int(world.gather(model.n_rows).sum())
    survey = None
    if form.needs_survey or crop is not None:
        survey = _survey(exported, form, model, world)
        if not survey.n_rows and n_apart:  # the message is of all rows
            survey = _survey(exported, form, every, world)
    by_first(world, lambda: _begin(exported, form, survey))
    with _progress(n_rows) as on_rows:
        written = write_rows_of_ranks(
            exported.rows,
            caught_up_chunks(model),
            world=world,
            form=form,
            n_rows=model.n_rows,
            transform=exported.frame.rows_out,
            crop=crop,
            survey=survey,
            on_rows=on_rows,
        )
    if files.has_cameras:
        by_first(world, lambda: _write_cameras(exported))
    if files.has_ckpt:
        by_first(world, lambda: exported.frame.tell(exported.ckpt))
        by_first_with_chunks(
            world,
            caught_up_chunks(model),
            functools.partial(_write_ckpt, exported, written.n_rows),
            n_rows=model.n_rows,
        )
    print(_line(written, n_apart, exported.to), file=sys.stderr)


def _survey(exported: _Exported, form: RowFormat, model: ShownRows, world: World) -> Survey:
    return survey_rows_of_ranks(
        world,
        caught_up_chunks(model),
        transform=exported.frame.rows_out,
        crop=exported.config.box,
        log_scales=form.log_scales,
    )


@contextlib.contextmanager
def _progress(n_rows: int) -> Iterator[Callable[[int], object] | None]:
    """What is called with numbers of rows that are written; None where nobody would read it."""
    if n_rows < _LONG_ROWS:
        yield None
        return
    with task_progress("Gaussians written:", n_rows) as progress:
        yield progress.advance


def _require_rows(exported: _Exported, form: RowFormat, survey: Survey) -> None:
    """Check that there are rows to write, and room for them in the format.

    Raises:
        InputError: no row is finite, none lies in the crop, or the format cannot hold them.
    """
    n_finite = survey.n_rows + survey.n_outside
    require_finite(exported.rows, n_finite, survey.n_lost)
    if survey.n_outside and not survey.n_rows:
        raise InputError(
            f"--crop must hold a Gaussian, got {exported.config.box}; in {exported.frame.place} "
            f"all {n_finite:,} lie in {Crop(survey.scene_low, survey.scene_high)}"
        )
    form.require_room(Announced(exported.rows, survey.n_rows, survey.n_bases, survey))


def _line(written: Written, n_apart: int, to: Path) -> str:
    """What was written.

    Args:
        n_apart: rows outside the crop that were not read.
    """
    line, n_outside = f"wrote {written.n_rows:,} Gaussians to {to}", written.n_outside + n_apart
    if n_outside:
        line += f", without {n_outside:,} outside --crop"
    if written.n_lost:
        and_or_without = " and" if n_outside else ", without"
        line += f"{and_or_without} {written.n_lost:,} rows that are not finite"
    return line


def _beyond(exported: _Exported, form: RowFormat, survey: Survey) -> str:
    assert form.log_scales is not None
    least, most = form.log_scales
    n_beyond, n_rows = survey.n_beyond, survey.n_rows
    return (
        f"--layout {exported.config.layout} holds log scales from {least:.4g} to {most:.4g}: "
        f"{n_beyond:,} of {n_rows:,} Gaussians have others, written as the nearest of these"
    )


def _begin(exported: _Exported, form: RowFormat, survey: Survey | None) -> None:
    if survey is not None:
        _require_rows(exported, form, survey)
        if survey.n_beyond:
            print(_beyond(exported, form, survey), file=sys.stderr)
    frame, rows = exported.frame, exported.rows
    for path in (rows, exported.ckpt) if exported.config.files.has_ckpt else (rows,):
        frame.check(path)
    frame.tell(rows)
    print(frame.line, file=sys.stderr)


def _write_cameras(exported: _Exported) -> None:
    config, run, to, frame, record = exported
    assert record is not None
    _write_text(to / "cameras.json", json.dumps(_cameras(record, frame)))
    # Where the capture's poses are in another frame, or in a file with frames and axes of its own,
    # SIBR reads those of cameras.json.
    source = config.data or run.config.data
    source = to if frame.name == "local" or is_transforms(source) else source
    _write_text(to / "cfg_args", _cfg_args(run, record, source))


def _write_ckpt(exported: _Exported, n_written: int, chunks: Iterator[Chunk], n_rows: int) -> None:
    """Write the checkpoint of gsplat, with the rows that the other file has: ``n_written`` of
    ``n_rows``."""
    rows: Iterator[dict[str, Tensor]] = map(exported.frame.rows_out, chunks)
    if n_written < n_rows:
        rows = _kept(rows, exported.config.box)
    splats = _gathered(rows, n_written)
    with replacing(exported.ckpt) as file:  # gsplat keeps the parameters alone
        torch.save({"step": exported.run.checkpoint.step - 1, "splats": splats}, file)


def _kept(chunks: Iterator[dict[str, Tensor]], crop: Crop | None) -> Iterator[dict[str, Tensor]]:
    """The rows that are finite and inside the crop."""
    for chunk in chunks:
        rows = host_rows(chunk, bases_of(chunk))
        keep = finite_rows(rows)
        if crop is not None:
            keep &= crop.holds(rows["means"])
        kept = torch.from_numpy(keep)
        yield {name: values[kept] for name, values in chunk.items()}


def _to(config: ExportConfig, run: Run) -> Path:
    """The folder to write to.

    Raises:
        InputError: the folder cannot be written, or a package is missing.
    """
    config.files.form(run.config).require_available()
    to = config.to or run.folder.export / config.layout
    require_writable(to / config.files.rows(run.checkpoint.step), option="--to")
    return to


def _gathered(chunks: Iterator[dict[str, Tensor]], n_rows: int) -> dict[str, Tensor]:
    """All rows, on the CPU."""
    rows: dict[str, Tensor] = {}
    start = 0
    for chunk in chunks:
        for name, values in chunk.items():
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
        f"white_background={config.background == 'white'}, data_device='cuda', "
        f"eval={bool(record.test)})"
    )


def _write_text(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())
