# SPDX-License-Identifier: Apache-2.0
"""A finished or interrupted run, opened again: for evaluation, rendering and export."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gs_train.checkpoint import SavedCheckpoint, is_newer, open_latest
from gs_train.data import FROM_PYTHON, Capture, load_capture
from gs_train.data.fingerprint import changes, first_of
from gs_train.data.frame import Frame
from gs_train.engine.together import Sharing
from gs_train.errors import InputError
from gs_train.files.whole import whole
from gs_train.losses.ssim import WINDOW
from gs_train.machine.interrupt import StopRequest
from gs_train.machine.progress import task_progress
from gs_train.names import printable
from gs_train.options.config import FitConfig, load_config
from gs_train.options.limits import Limits
from gs_train.options.presets import NAMED
from gs_train.options.tide import TideConfig
from gs_train.ranks.first_rows import Ownership
from gs_train.renderers import Renderer, RenderOptions, make_renderer
from gs_train.rows.attributes import GEOMETRY, NAMES
from gs_train.rows.checks import check_rows
from gs_train.rows.own_rows import LATTICE, OwnRows, OwnSource, plain_lattice
from gs_train.rows.restore import Part, Source, restored_to_look_at
from gs_train.rows.shown import ShownRows
from gs_train.rows.strands import Lattice
from gs_train.runs.folder import RunFolder
from gs_train.runs.parts import PARTS, require_given
from gs_train.runs.record import RunRecord
from gs_train.runs.strategies import Strategy
from gs_train.runs.trainer import Trainer
from gs_train.scene.scene import capture_digest
from gs_train.sizing.blocks import block_room
from gs_train.sizing.choice import Choice
from gs_train.sizing.memory import caps_of, free_on
from gs_train.tide.model import StoredModel
from gs_train.tide.store_folder import SavedStore, block_rows_of
from gs_train.tide.store_use import StoreUse


@dataclass(frozen=True)
class Spent:
    """What a run has cost so far, carried across resumes.

    Attributes:
        seconds: of training, without loading and evaluation.
        images: trained on.
        peak_device_bytes: the most device memory that tensors held; 0 on the CPU.
        peak_device_reserved_bytes: the most that torch's allocator held; 0 on the CPU.
        peak_host_bytes: the most memory that a training process had resident.
        figures: what the process that did the last step took and moved, and what was predicted of
            it; see :func:`gs_train.runs.figures.figures`. Empty before.
    """

    seconds: float = 0.0
    images: int = 0
    peak_device_bytes: int = 0
    peak_device_reserved_bytes: int = 0
    peak_host_bytes: int = 0
    figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """The newest state of a run.

    Attributes:
        folder, config: where it lies and how it was started.
        checkpoint: on disk.
        frame: that it was trained in.
        spent: until this checkpoint.
        placing: what :meth:`gs_train.sizing.choice.Choice.to_plain` said then.
        id: of the run; None where an older version started it.
        record: of its cameras; None there.
        given: full names of the parts that were given from Python, by name of the part.
        store: where the rows are; None: in the checkpoint.
    """

    folder: RunFolder
    config: FitConfig
    checkpoint: SavedCheckpoint
    frame: Frame
    spent: Spent
    placing: dict[str, Any]
    id: str | None
    record: RunRecord | None
    given: Mapping[str, str]
    store: SavedStore | None = None

    @classmethod
    def open(cls, root: Path, checkpoint: SavedCheckpoint | None = None) -> Run:
        """Read the configuration and a checkpoint.

        Args:
            checkpoint: of this run; the newest one when None.

        Raises:
            InputError: the folder is missing, holds no run or no checkpoint, a checkpoint of
                another format version or run, or an incomplete or damaged one.
        """
        folder = RunFolder(root)
        if not root.is_dir():
            raise InputError(f"{root} must be the output folder of a run, and does not exist")
        config = load_config(folder.config)
        record = RunRecord.load(folder.record)
        if checkpoint is None:
            checkpoint = open_latest(folder.checkpoints)
        if checkpoint is None:
            raise InputError(f"{root} must have a checkpoint, {folder.no_checkpoint()}")
        state = checkpoint.state
        try:
            frame, spent = _frame(state["frame"]), _spent(state["spent"])
            placing = _placing(state["placing"])
            dict.keys(state.get("recipe", {}))
            str.encode(state["capture"])
            _check_data(state.get("data"), record)
            given = _given(state.get("given", {}))
            plain_store = state.get("store")
            store = None if plain_store is None else SavedStore.from_plain(plain_store)
        except (LookupError, TypeError, ValueError, AttributeError):
            raise checkpoint.damaged() from None
        if store is None:
            with _damage(checkpoint):
                _check_rows(checkpoint)
        id = state.get("run_id")
        if record is not None and record.id != id:
            raise InputError(
                f"{checkpoint.path} is a checkpoint of {_named(id)}, {root} holds "
                f"{_named(record.id)}: remove the checkpoint, or use it in its own run"
            )
        return cls(folder, config, checkpoint, frame, spent, placing, id, record, given, store)

    def require_data(self, capture: Capture) -> None:
        """Check that the photographs are the bytes that were trained on; print what else differs.

        Checkpoints of earlier versions do not say.

        Raises:
            InputError: some are others.
        """
        saved = self.checkpoint.state.get("data")
        if saved is None:
            return
        found = changes(saved, capture)
        if found.photographs:
            raise InputError(
                f"{capture.folder} must hold the photographs that {self.folder.root} was trained "
                f"on, got changed ones: {first_of(found.photographs)}; put them back, or start "
                "again with --overwrite"
            )
        if found.has_other_points:
            line = "other points than the run started from; it goes on from its own Gaussians"
            print(f"{printable(str(capture.folder))}: {line}", file=sys.stderr)
        if found.remade:
            what = "undistorted or reduced images differ from those trained on"
            why = "photographs that changed, or another version of Pillow"
            print(printable(f"{what}: {first_of(found.remade)}: {why}"), file=sys.stderr)

    def require_capture_on_disk(self) -> None:
        """Raise InputError where the capture was given from Python."""
        if "capture" in self.given:
            require_given({"capture": self.given["capture"]}, self.folder.root)

    def require_capture(self, capture: Capture) -> None:
        """Check that ``capture`` is what was trained on, split as it was then.

        Raises:
            InputError: it is not.
        """
        if self.checkpoint.state["capture"] != capture_digest(capture):
            if capture.folder == FROM_PYTHON:
                raise InputError(
                    f"capture must be the one that {self.folder.root} was trained on, got one "
                    "whose names, sizes, poses, held-out views or depth maps differ"
                )
            raise InputError(
                f"--data {capture.folder} holds other views or another split than "
                f"{self.config.data} held when {self.folder.root} was trained on it (names, sizes, "
                "poses, held-out images or depth maps differ): name the folder where that capture "
                "is now"
            )

    def cameras(self, stop: StopRequest, *, data: Path | None = None) -> RunRecord:
        """The cameras and the split: from the run's folder, or from the capture where the folder of
        an older run has none.

        Args:
            data: where the capture is; the run's own cameras are not used then.

        Raises:
            InputError: the capture cannot be used, or is not what was trained on.
            Interrupted: a stop was asked for while images were prepared.
        """
        if data is None and self.record is not None:
            return self.record
        return RunRecord.of(self.capture(stop, data=data), self.id)

    def capture(self, stop: StopRequest, *, data: Path | None = None) -> Capture:
        """The photographs that the run was trained on.

        Args:
            data: where they are now, when not where they were.

        Raises:
            InputError: they are gone or others, or were given from Python.
            Interrupted: a stop was asked for while images were prepared.
        """
        self.require_capture_on_disk()
        try:
            capture = open_capture(self.config, self.folder, stop, data=data)
        except InputError as error:
            if data is not None:
                raise
            raise InputError(f"{error}; where the capture was moved, name it with --data") from None
        self.require_capture(capture)
        return capture

    def geometry(self, own: Tensor | None = None) -> dict[str, Tensor]:
        """Means, scales, quats and opacities on the CPU.

        Args:
            own: (R,) int64, sorted: the rows of this rank; None: all.

        Raises:
            InputError: the checkpoint is damaged.
        """
        with _damage(self.checkpoint):
            read = self.checkpoint.read([f"model/{name}" for name in GEOMETRY], rows=own)
        return {name: read[f"model/{name}"] for name in GEOMETRY}

    def read(self, device: torch.device, stop: StopRequest | None = None) -> tuple[Run, ShownRows]:
        """The model for looking at, and the run as of the checkpoint that it is from.

        That is a newer one where a running ``fit`` has removed this one meanwhile.

        Args:
            stop: as for :meth:`model`.

        Raises:
            InputError: the checkpoint is damaged, or gone without a newer one.
            Interrupted: a stop was asked for.
        """
        run = self
        while True:
            try:
                return run, run.model(device, stop=stop)
            except InputError:
                old = run.checkpoint.path
                if old.exists():
                    raise
                run = Run.open(run.folder.root)
                if run.id != self.id:
                    raise InputError(f"{run.folder.root} holds another run by now") from None
                if not is_newer(run.checkpoint.path, old):
                    raise

    def model(
        self,
        device: torch.device,
        own: Tensor | None = None,
        *,
        stop: StopRequest | None = None,
    ) -> ShownRows:
        """The model for looking at, without state that only training needs.

        Appearance is in host memory where rows were saved asleep, and where the whole model would
        take more than half of the device's memory.

        Args:
            own: (R,) int64, sorted: the rows of this rank; None: all.
            stop: looked at between blocks of a file, where all rows are read.

        Raises:
            InputError: the checkpoint is damaged.
            Interrupted: a stop was asked for.
        """
        if self.store is not None:
            return self._stored_model(device)
        saved: Source = self.checkpoint
        if own is not None:
            saved = OwnSource(self.checkpoint, own)
        elif stop is not None:
            saved = _StoppableSource(self.checkpoint, stop)
        with _damage(self.checkpoint):
            return restored_to_look_at(
                Part(saved, "model/"), device=device, room=self.room_on(device)
            )

    @property
    def store_folder(self) -> Path:
        """Folder of the store that the rows are in."""
        assert self.store is not None
        return self.store.folder(self.folder.root, self.config.store)

    def store_folder_of(self, config: FitConfig) -> Path:
        """The same where a run goes on with other options."""
        assert self.store is not None
        return self.store.folder(self.folder.root, config.store)

    def _stored_model(self, device: torch.device) -> ShownRows:
        """The rows where they are: those that a look needs come to the device."""
        assert self.store is not None
        folder, caps = self.store_folder, caps_of(self.config, device)
        self.store.require_in(folder)
        caps = dataclasses.replace(caps, device=self.room_on(device))
        config = dataclasses.replace(self.config, tide=TideConfig())
        room = block_room(config, self.store.n_rows, caps, block_rows=block_rows_of(folder))
        use = StoreUse(folder, room.for_looks(), self.store.path, self.store.snapshot)
        return StoredModel(use.open(device, read_only=True))

    def room_on(self, device: torch.device) -> int:
        """Bytes of a device for looking at the run, beside a training that may still have some."""
        room = caps_of(self.config, device).device
        return min(room, free_on(device)) if device.type == "cuda" else room

    def renderer(self, name: str) -> Renderer:
        """A renderer for looking at the run, named as on the command line.

        One line says so where the run was trained with one that was given from Python.
        """
        renderer = renderer_for(self.config, name)
        if "renderer" in self.given:
            root, full = self.folder.root, self.given["renderer"]
            line = f"{root} was trained with the renderer {full:.80}; {renderer.name} draws it now"
            print(printable(line), file=sys.stderr)
        return renderer

    def trainer(
        self,
        renderer: Renderer,
        config: FitConfig,
        choice: Choice,
        strategy: Strategy | None = None,
        own: OwnRows | None = None,
        sharing: Sharing | None = None,
        lattice: Lattice | None = None,
        store: StoreUse | None = None,
        views: Sequence[str] = (),
    ) -> Trainer:
        """The trainer as it was, with a resumed run's options and place for the rows.

        One line says so where the checkpoint is of an earlier format.

        Args:
            own: the rows of this rank; None: all.
            sharing: with other ranks, of which each restores its own rows.
            lattice: of the rows' strands, where there are other ranks.
            store: that the rows are in; None: they are in the checkpoint.
            views: names of the training views.

        Raises:
            InputError: the checkpoint is damaged.
        """
        if self.checkpoint.is_of_old_format:
            rules = "the run goes on by the rules of this version"
            line = f"has checkpoint format {self.checkpoint.version}: {rules}, with the index of"
            said = f"{self.checkpoint.path} {line} each Gaussian as its key"
            print(printable(said), file=sys.stderr)
        # What a strategy from Python raises is no damage of the checkpoint.
        damage = _damage(self.checkpoint) if strategy is None else contextlib.nullcontext()
        ownership = None
        if own is not None and lattice is not None:
            ownership = Ownership(own.labels, lattice)
        with damage:
            return Trainer.restore(
                config,
                self.checkpoint if own is None else OwnSource(self.checkpoint, own.ids),
                step=self.checkpoint.step,
                renderer=renderer,
                extent=self.frame.extent,
                means_extent=self.frame.means_extent,
                strategy=strategy,
                preset=choice.preset,
                limits=choice.limits,
                sharing=sharing,
                ownership=ownership,
                store=store,
                views=views,
            )


class _StoppableSource:
    """A `Source` of all rows of a checkpoint, whose reading a stop ends."""

    def __init__(self, saved: SavedCheckpoint, stop: StopRequest) -> None:
        self._saved = saved
        self._stop = stop
        self.shapes = saved.shapes
        self.dtypes = saved.dtypes

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """See `Source.fill`."""
        work = printable(f"the reading of {self._saved.path}")
        self._saved.fill(targets, report=lambda _: self._stop.check(work))


def checkpoint_state(
    frame: Frame,
    spent: Spent,
    capture: str,
    choice: Choice,
    *,
    data: Mapping[str, Any],
    run_id: str | None,
    recipe: Mapping[str, Any],
    given: Mapping[str, str],
    lattice: Lattice | None = None,
    apart: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a checkpoint keeps beside the tensors; read by :meth:`Run.open`.

    Args:
        capture: digest of the capture that it was trained on.
        data: what :meth:`gs_train.data.PhotoReader.fingerprint` gave.
        run_id, recipe: of the run: a checkpoint goes on with no other.
        given: :attr:`gs_train.runs.parts.Parts.given`.
        lattice: of the rows' strands, where there are ranks.
        apart: what :meth:`gs_train.rows.shown.SavingRows.wait` gave.
    """
    return {
        **(apart or {}),
        **({} if lattice is None else {LATTICE: plain_lattice(lattice)}),
        "run_id": run_id,
        "recipe": dict(recipe),
        "given": dict(given),
        "frame": dataclasses.asdict(frame),
        "spent": dataclasses.asdict(spent),
        "capture": capture,
        "placing": choice.to_plain(),
        "data": data,
    }


def open_capture(
    config: FitConfig, folder: RunFolder, stop: StopRequest, *, data: Path | None = None
) -> Capture:
    """The run's photographs and poses; images are prepared when they are not in its cache.

    Args:
        data: where the capture is now, when not where the configuration says.

    Raises:
        InputError: see :func:`gs_train.data.load_capture`; or an image is smaller than the 11
            pixels of SSIM's window.
        Interrupted: a stop was asked for while images were prepared.
    """
    with task_progress("preparing image") as progress:

        def report(done: int, total: int) -> None:
            stop.check("the preparation of images; what is ready is kept")
            progress.update(done, total)

        capture = load_capture(
            data or config.data,
            cache_dir=folder.image_cache,
            max_side=config.longest_side,
            test_every=config.test_every,
            test_list=config.test_list,
            max_pixels=config.max_pixels,
            skip_broken=config.skip_broken,
            allow_missing=config.allow_missing,
            mask=config.mask,
            depths=config.depth_weight is not None,
            background=config.background,
            progress=report,
        )
    require_windows(capture)
    return capture


def require_windows(capture: Capture) -> None:
    """Raise InputError where an image is smaller than the 11 pixels of SSIM's window."""
    for view in capture.views:
        if min(view.width, view.height) < WINDOW:
            raise InputError(
                f"images must be at least {WINDOW} pixels wide and high, {view.name} is "
                f"{view.width}x{view.height} here"
            )


def renderer_for(config: FitConfig, name: str | None = None) -> Renderer:
    """The renderer of a run, or another one with the run's options."""
    options = RenderOptions(antialiased=config.antialiased)
    absgrad = config.strategy == "adc" and config.adc.absgrad
    return make_renderer(name or config.renderer, options, absgrad=absgrad)


@contextlib.contextmanager
def _damage(checkpoint: SavedCheckpoint) -> Iterator[None]:
    """What tensors that are missing, or of other shapes, raise where they are used."""
    try:
        yield
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"{checkpoint.path} does not hold what its run needs: "
            f"{' '.join(str(error).split())}; remove it and resume from an earlier one"
        ) from error


def _check_rows(checkpoint: SavedCheckpoint) -> None:
    """Check names, types and shapes of the model without reading it."""
    source = Part(checkpoint, "model/")
    check_rows(
        {
            name: torch.empty(source.shapes[name], dtype=source.dtypes[name], device="meta")
            for name in NAMES
        }
    )


def _named(id: str | None) -> str:
    return "a run without an id" if id is None else f"the run {id!r:.40}"


def _given(plain: Mapping[str, str]) -> dict[str, str]:
    return {name: "".join(plain[name]) for name in PARTS if name in plain}


def _frame(plain: Mapping[str, Any]) -> Frame:
    x, y, z = (_number(value) for value in plain["shift"])
    means_extent = plain.get("means_extent")  # which earlier versions did not have
    own = None if means_extent is None else _number(means_extent)
    frame = Frame((x, y, z), _number(plain["scale"]), _number(plain["extent"]), own)
    if not (frame.scale > 0 and frame.extent > 0 and (own is None or own > 0)):
        raise ValueError("a frame must have a size")
    return frame


def _spent(plain: Mapping[str, Any]) -> Spent:
    spent = Spent(**plain)
    _number(spent.seconds)
    dict.keys(spent.figures)  # type: ignore[arg-type]
    for name in ("images", "peak_device_bytes", "peak_device_reserved_bytes", "peak_host_bytes"):
        whole(getattr(spent, name))
    return spent


def _check_data(plain: Any, record: RunRecord | None) -> None:
    """Raise unless it is what :meth:`gs_train.data.PhotoReader.fingerprint` gave of these views."""
    if plain is None:
        return
    str.encode(plain["points"])
    photographs = list(plain["photographs"])
    for of_one in photographs:
        if of_one is not None:
            n_bytes, time_ns, crc = of_one
            whole(n_bytes), whole(time_ns), whole(0 if crc is None else crc)
    n_views = len(photographs) if record is None else len(record.views)
    if len(photographs) != n_views or any(whole(i) >= n_views for i in plain["skipped"]):
        raise ValueError("photographs must be those of the views")


def _placing(plain: Mapping[str, Any]) -> dict[str, Any]:
    NAMED[plain["preset"]]
    for limit in dataclasses.asdict(Limits(**plain["limits"])).values():
        if limit is not None:
            whole(limit)
    return dict(plain)


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not -1e300 < value < 1e300:
        raise ValueError("a number must be finite")
    return float(value)
