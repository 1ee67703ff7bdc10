# SPDX-License-Identifier: Apache-2.0
"""What a run takes of disks: checkpoints and results to stay, decoded photographs for a while."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TypeVar

import numpy as np

from gs_train.blocks.stored_rows import StoredRows
from gs_train.data import Capture
from gs_train.data.pixel_file import PixelFile
from gs_train.errors import InputError
from gs_train.files.atomic import require_free
from gs_train.options.config import FitConfig
from gs_train.renderers import Renderer, View
from gs_train.runs.folder import RunFolder
from gs_train.runs.trainer import Trainer
from gs_train.sizes import format_bytes, parse_bytes
from gs_train.sizing.photographs import decoded_bytes, scratch_bytes, training_sizes
from gs_train.tide.block_room import BlockRoom

File = TypeVar("File")

_VIEWS_AT_ONCE = 256


def require_scratch(config: FitConfig) -> None:
    """Check that ``--scratch``, where it is given, is a folder that takes files.

    Raises:
        InputError: it is not.
    """
    if config.scratch is None:
        return
    if not config.scratch.is_dir():
        raise InputError(f"--scratch must be a folder, got {config.scratch}")
    try:
        tempfile.TemporaryFile(dir=config.scratch).close()
    except OSError as error:
        raise InputError(f"--scratch {config.scratch} takes no file: {error.strerror}") from None


def require_room(
    config: FitConfig, n_rows: int, folder: RunFolder, blocks: BlockRoom | None
) -> None:
    """Check that there is room for checkpoints and results at the present number of Gaussians.

    Of rows in a store: for their first records, as far as these are not there yet. What training
    adds to them is known once there is a store, see `require_room_to_train`.

    Args:
        blocks: of rows that are in a store, or will be; None: they are in memory.

    Raises:
        InputError: there is not.
    """
    n_bytes = _results_bytes(config, n_rows, is_stored=blocks is not None)
    if blocks is not None:
        store = folder.store_of(config)
        missing = max(0, blocks.first_drive_bytes - _taken_bytes(store))
        require_free(store, missing, "the store of the Gaussians")
    require_free(folder.root, n_bytes, "checkpoints and results")


def require_room_to_train(rows: StoredRows, views: Sequence[View], renderer: Renderer) -> None:
    """Check that there is room for the records of all blocks that views may see, once each has been
    trained. What older snapshots need comes on top.

    Args:
        rows: in a store that has not been trained.

    Raises:
        InputError: there is not.
    """
    store = rows.store
    seen = np.zeros(len(rows.boxes), bool)
    for first in range(0, len(views), _VIEWS_AT_ONCE):
        some = views[first : first + _VIEWS_AT_ONCE]
        seen[np.asarray(rows.candidates(some, renderer).ids)] = True
    n_rows = sum(store.counts(np.flatnonzero(seen)))
    missing = n_rows * rows.row_bytes - store.stats.free_bytes
    require_free(store.path, missing, f"the {n_rows:,} Gaussians that photographs may show")


def open_scratch(
    trainer: Trainer, capture: Capture, folder: RunFolder
) -> tuple[PixelFile | None, str | None]:
    """A file for the decoded photographs of a run that memory cannot hold.

    Returns:
        The file; None where memory holds all photographs, where the disk has no room beside the
        checkpoints and results to come, or where it takes no file. And a line about that; None
        where no file is needed.
    """
    config = trainer.config
    cache = parse_bytes(config.image_cache, option="--image-cache") // trainer.n_ranks
    n_images = (config.steps - trainer.step) * config.batch_size
    n_bytes = scratch_bytes(capture, cache, n_images)
    if not n_bytes:
        return None, None
    sizes = training_sizes(capture)
    return _opened(  # each rank has a file
        *(trainer, capture, folder, n_bytes),
        make=lambda place: PixelFile(place, sizes),
        n_files=trainer.n_ranks,
    )


def open_shared_scratch(
    trainer: Trainer, capture: Capture, folder: RunFolder, n_bytes: int
) -> tuple[IO[bytes] | None, str | None]:
    """The same for one file of so many bytes that ranks have together."""

    def make(place: Path) -> IO[bytes]:
        return tempfile.TemporaryFile(dir=place, buffering=0)

    return _opened(trainer, capture, folder, n_bytes, make=make)


def _opened(
    trainer: Trainer,
    capture: Capture,
    folder: RunFolder,
    n_bytes: int,
    *,
    make: Callable[[Path], File],
    n_files: int = 1,
) -> tuple[File | None, str | None]:
    """A file of ``n_bytes``; a line about it, or why there is none."""
    config = trainer.config
    place = config.scratch or folder.root
    beyond = (
        f"{format_bytes(decoded_bytes(capture))} of decoded photographs are more than "
        f"--image-cache {config.image_cache}"
    )
    again = "so that photographs are decoded again and again; --scratch names another folder"
    try:
        free = shutil.disk_usage(place).free - _kept_for_results(trainer, place, folder.root)
        if free < n_bytes * n_files:
            has = f"has {format_bytes(max(0, free))} free beside checkpoints and results"
            wanted = format_bytes(n_bytes * n_files)
            return None, f"{beyond}, and {place} {has}, not {wanted}, {again}"
        file = make(place)
    except OSError as error:
        return None, f"{beyond}, and {place} takes no file ({error.strerror}), {again}"
    return file, (
        f"{beyond}: each photograph is decoded once, into a file of {format_bytes(n_bytes)} in "
        f"{place} that goes when the run ends"
    )


def _kept_for_results(trainer: Trainer, place: Path, root: Path) -> int:
    """Bytes of the disk of ``place`` that the run will need for other files."""
    if place.stat().st_dev != root.stat().st_dev:
        return 0
    expected = (trainer.model.expected or 0) * trainer.n_ranks
    is_stored = trainer.preset.is_stored
    return _results_bytes(trainer.config, expected or trainer.n_rows, is_stored=is_stored)


def _results_bytes(config: FitConfig, n_rows: int, *, is_stored: bool) -> int:
    """Of the checkpoints that are kept, the next one, and the point cloud."""
    row_bytes = 4 * (11 + 3 * (config.sh_degree + 1) ** 2)
    copies = 0 if is_stored else 3 * (config.keep_checkpoints + 1)  # with the moments
    return (copies + config.point_cloud) * row_bytes * n_rows


def _taken_bytes(folder: Path) -> int:
    """Of the files in a folder; 0 where there is none."""
    try:
        return sum(path.stat().st_size for path in folder.iterdir())
    except OSError:
        return 0
