# SPDX-License-Identifier: Apache-2.0
"""The folder of one run: where things lie, and who may write there."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gs_train.checkpoint import (
    incomplete_checkpoints,
    latest_checkpoint,
    remove_all,
    remove_surplus,
)
from gs_train.clouds.making import place_of_making
from gs_train.errors import InputError
from gs_train.files.atomic import require_writable
from gs_train.options.config import FitConfig
from gs_train.options.config_file import for_the_record, load_config, save_config
from gs_train.runs.lock import RunLock
from gs_train.runs.named_snapshots import named_stores
from gs_train.runs.record import RunRecord
from gs_train.tide.store_folder import INSIDE, may_remove, remove_store, require_empty


@dataclass(frozen=True)
class RunFolder:
    """Paths below the output folder of ``gs-train fit``.

    Attributes:
        root: the folder.
        lock: of a run that writes there; None for all that only look.
    """

    root: Path
    lock: RunLock | None = None

    @property
    def config(self) -> Path:
        return self.root / "config.yml"

    @property
    def record(self) -> Path:
        return self.root / "run.json"

    @property
    def traceback(self) -> Path:
        return self.root / "traceback.txt"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.json"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def image_cache(self) -> Path:
        return self.root / "cache"

    @property
    def comparison(self) -> Path:
        return self.root / "comparison.png"

    @property
    def log(self) -> Path:
        return self.root / "log.csv"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def renders(self) -> Path:
        return self.root / "renders"

    @property
    def export(self) -> Path:
        return self.root / "export"

    def store_of(self, config: FitConfig) -> Path:
        """The store of a run with these options, where its rows are in one."""
        return self.root / INSIDE if config.store is None else config.store.absolute()

    @property
    def named_store(self) -> Path | None:
        """The store that the run here was last given; None without one, or without a run."""
        with contextlib.suppress(InputError):
            return load_config(self.config).store
        return None

    def preview(self, step: int) -> Path:
        return self.root / "previews" / f"{step:06}.png"

    def point_cloud(self, step: int) -> Path:
        return self.root / "point_cloud" / f"iteration_{step}" / "point_cloud.ply"

    @property
    def _owned(self) -> tuple[Path, ...]:
        """Everything that a run may leave; --overwrite removes these and nothing else.

        The image cache is not among them: its files are named after what they were made from.
        The configuration comes last: it says that the others are a run's.
        """
        files = ("run.json", "metrics.json", "log.csv", "comparison.png", "report.html")
        folders = ("checkpoints", "point_cloud", "tensorboard", "previews", "renders", "export")
        half_made = place_of_making(Path(INSIDE)).name
        names = (*files, "traceback.txt", *folders, half_made, "config.yml")
        return tuple(self.root / name for name in names)

    def check_place(self) -> None:
        """Check that files may be written here, without writing any.

        Raises:
            InputError: the path is a file, cannot be a folder's, or may not be written to.
        """
        try:
            if self.root.exists() and not self.root.is_dir():
                raise InputError(f"--out must be a folder, {self.root} is a file")
        except OSError as error:
            raise InputError(f"--out {self.root} cannot be used: {error.strerror}") from None
        require_writable(self.config, option="--out")

    def check(self, config: FitConfig) -> None:
        """Check that ``config`` may write here, without writing anything.

        Raises:
            InputError: the folder holds another run and neither --resume nor --overwrite is given;
                --resume without a checkpoint, or with options that would change the result.
        """
        if config.resume:
            if latest_checkpoint(self.checkpoints) is None:
                raise InputError(f"--resume needs a checkpoint, {self.no_checkpoint()}")
            require_same_options(load_config(self.config).recipe, config.recipe)
            return
        found = [path for path in self._owned if path.exists()]
        if found and not self.config.exists():
            raise InputError(
                f"--out {self.root} holds {found[0].name}, but no run of gs-train: "
                "choose another folder"
            )
        if found and not config.overwrite:
            has_saved = latest_checkpoint(self.checkpoints) is not None
            go_on = "--resume to go on with it, " if has_saved else ""
            raise InputError(
                f"--out {self.root} holds another run: add {go_on}--overwrite to remove it, or "
                "choose another folder"
            )
        if not config.is_stored:
            return
        store = self.store_of(config)
        self._check_store(store)
        require_empty(store, but_for_store=bool(found) and store in self.own_stores())

    def _check_store(self, store: Path) -> None:
        """Check that a store is not in the way of what the run writes.

        Raises:
            InputError: it is.
        """
        place = Path(os.path.abspath(store))
        for path in self._owned:
            if Path(os.path.abspath(path)) in (place, *place.parents):
                raise InputError(
                    f"--store must not be {store}: {path.name} of --out is for other files of the "
                    "run; leave --store out, or name another folder"
                )

    def no_checkpoint(self) -> str:
        """That there is none, for a message, and what is in its place."""
        broken = incomplete_checkpoints(self.checkpoints)
        why = f" ({broken[-1].name} has no manifest.json that can be read)" if broken else ""
        return f"{self.checkpoints} holds none{why}"

    def prepare(self, config: FitConfig, record: RunRecord) -> None:
        """Make the folder, without the old run when overwriting, and save what the run is.

        What a killed run left of a checkpoint half written or half removed goes, and old ones that
        it did not come to remove.

        Raises:
            InputError: the folder cannot be made or written to.
        """
        try:
            if config.overwrite:
                self.discard()
            self.root.mkdir(parents=True, exist_ok=True)
            self._save(config, record)
            remove_surplus(self.checkpoints, keep=config.keep_checkpoints)
        except OSError as error:
            raise InputError(f"--out {self.root} cannot be written: {error.strerror}") from None

    def keep(self, config: FitConfig, record: RunRecord) -> None:
        """Before something is written: see that the folder still is this run's.

        Raises:
            InputError: somebody removed it, and another run writes there now.
        """
        if self.lock is not None:
            self.lock.renew()
        if not self.config.exists():
            print(f"{self.root} was removed or emptied: its run goes on there", file=sys.stderr)
            self._save(config, record)

    def discard(self) -> None:
        """Remove the run and its store; of the image cache, of others' files and of a store of
        another run, nothing."""
        if self.lock is not None:
            self.lock.renew()
        own_stores = self.own_stores()
        if self.checkpoints.is_dir() and not self.checkpoints.is_symlink():
            remove_all(self.checkpoints)  # before what they refer to
        for store in own_stores:
            remove_store(store)
        for path in self._owned:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def own_stores(self) -> list[Path]:
        """Where the run that is here has a store, or may have one, that goes with the run."""
        named = self.named_store
        places = [self.root / INSIDE, *([] if named is None else [named])]
        return [store for store in places if self._is_own(store)]

    def _is_own(self, store: Path) -> bool:
        """Whether a store is of the run that is here. In a folder elsewhere, another run's may have
        come to its place."""
        if store == self.root / INSIDE and not store.is_symlink():
            return True
        return may_remove(store, named_stores(self.checkpoints))

    def _save(self, config: FitConfig, record: RunRecord) -> None:
        save_config(self.config, for_the_record(config))
        record.save(self.record)


def saved_config(root: Path) -> FitConfig | None:
    """The options of the run in a folder, as the start of those that resume it; None without any.

    Raises:
        InputError: the file that holds them is damaged.
    """
    path = RunFolder(root).config
    return load_config(path) if path.exists() else None


def require_same_options(saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check the recipe of a resumed run against the one it was started with.

    Options that only one of them has, which another version wrote, are left out.

    Raises:
        InputError: an option would change the result.
    """
    given = dict(_flat(now))
    for name, value in _flat(saved):
        if given.get(name, value) != value:
            raise InputError(
                f"--resume must keep the run's options: {name} was {value!r:.80}, got "
                f"{given[name]!r:.80}"
            )


def _flat(plain: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """Options with their full names."""
    for name, value in plain.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", value
