# SPDX-License-Identifier: Apache-2.0
"""A finished or interrupted run, opened again: for evaluation, rendering and export."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gs_train.checkpoint import SavedCheckpoint, is_newer, open_latest
from gs_train.data import FROM_PYTHON, Capture
from gs_train.data.fingerprint import changes, first_of
from gs_train.data.frame import Frame
from gs_train.errors import InputError
from gs_train.machine.interrupt import StopRequest
from gs_train.names import printable
from gs_train.options.config import FitConfig
from gs_train.options.config_file import load_config
from gs_train.renderers import Renderer
from gs_train.rows.shown import ShownRows
from gs_train.runs.captures import open_capture
from gs_train.runs.folder import RunFolder
from gs_train.runs.parts import require_given
from gs_train.runs.record import RunRecord
from gs_train.runs.renderer import renderer_for
from gs_train.runs.run_rows import RunRows
from gs_train.runs.run_state import RunState, Spent
from gs_train.scene.scene import capture_digest
from gs_train.tide.store_folder import SavedStore


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
        try:
            state = RunState.of(checkpoint.state, record)
        except (LookupError, TypeError, ValueError, AttributeError):
            raise checkpoint.damaged() from None
        run = cls(
            folder,
            config,
            checkpoint,
            state.frame,
            state.spent,
            state.placing,
            state.id,
            record,
            state.given,
            state.store,
        )
        run.rows.check()
        if record is not None and record.id != run.id:
            raise InputError(
                f"{checkpoint.path} is a checkpoint of {_named(run.id)}, {root} holds "
                f"{_named(record.id)}: remove the checkpoint, or use it in its own run"
            )
        return run

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

    @property
    def rows(self) -> RunRows:
        """The rows as they were saved."""
        return RunRows(self.checkpoint, self.store, self.folder.root, self.config)

    def geometry(self, own: Tensor | None = None) -> dict[str, Tensor]:
        """See :meth:`gs_train.runs.run_rows.RunRows.geometry`."""
        return self.rows.geometry(own)

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
        """See :meth:`gs_train.runs.run_rows.RunRows.shown`."""
        return self.rows.shown(device, own, stop=stop)

    @property
    def store_folder(self) -> Path:
        """Folder of the store that the rows are in."""
        assert self.store is not None
        return self.store.folder(self.folder.root, self.config.store)

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


def _named(id: str | None) -> str:
    return "a run without an id" if id is None else f"the run {id!r:.40}"
