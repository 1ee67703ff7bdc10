# SPDX-License-Identifier: Apache-2.0
"""The folder of one run: where things lie, and who may write there."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from gs_train.atomic import require_writable
from gs_train.checkpoint import latest_checkpoint
from gs_train.config import FitConfig, for_the_record, load_config, save_config
from gs_train.errors import InputError


@dataclass(frozen=True)
class RunFolder:
    """Paths below the output folder of ``gs-train fit``."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.yml"

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
    def renders(self) -> Path:
        return self.root / "renders"

    @property
    def export(self) -> Path:
        return self.root / "export"

    def point_cloud(self, step: int) -> Path:
        return self.root / "point_cloud" / f"iteration_{step}" / "point_cloud.ply"

    @property
    def _owned(self) -> tuple[Path, ...]:
        """Everything that a run may leave; --overwrite removes these and nothing else.

        The image cache is not among them: its files are named after what they were made from.
        """
        files = ("config.yml", "metrics.json", "log.csv", "comparison.png")
        folders = ("checkpoints", "point_cloud", "tensorboard", "renders", "export")
        return tuple(self.root / name for name in files + folders)

    def check(self, config: FitConfig) -> None:
        """Check that ``config`` may write here, without writing anything.

        Raises:
            InputError: the folder holds another run and neither --resume nor --overwrite is given;
                --resume without a checkpoint, or with options that would change the result; the
                path is a file or may not be written to.
        """
        if self.root.exists() and not self.root.is_dir():
            raise InputError(f"--out must be a folder, {self.root} is a file")
        require_writable(self.config, option="--out")
        if config.resume:
            if latest_checkpoint(self.checkpoints) is None:
                raise InputError(f"--resume needs a checkpoint, {self.checkpoints} holds none")
            self._check_recipe(config)
            return
        found = [path for path in self._owned if path.exists()]
        if found and not self.config.exists():
            raise InputError(
                f"--out {self.root} holds {found[0].name}, but no run of gs-train: "
                "choose another folder"
            )
        if found and not config.overwrite:
            raise InputError(
                f"--out {self.root} holds another run: add --resume to go on with it, "
                "--overwrite to remove it, or choose another folder"
            )

    def prepare(self, config: FitConfig) -> None:
        """Make the folder, without the old run when overwriting, and save the configuration.

        Raises:
            InputError: the folder cannot be made or written to.
        """
        try:
            if config.overwrite:
                self.discard()
            self.root.mkdir(parents=True, exist_ok=True)
            save_config(self.config, for_the_record(config))
        except OSError as error:
            raise InputError(f"--out {self.root} cannot be written: {error.strerror}") from None

    def discard(self) -> None:
        """Remove the run; of the image cache and of others' files, nothing."""
        for path in self._owned:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty
            self.root.rmdir()

    def _check_recipe(self, config: FitConfig) -> None:
        saved = load_config(self.config).recipe
        for name, value in config.recipe.items():
            if value != saved[name]:
                raise InputError(
                    f"--resume must keep the run's options: {name} was {saved[name]}, got {value}"
                )
