# SPDX-License-Identifier: Apache-2.0
"""The held-out views of a run, scored and drawn while it trains and where it is stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image

from gs_train.engine.background import colour_of_scores
from gs_train.errors import InputError
from gs_train.files.agreement import by_first
from gs_train.files.atomic import replacing
from gs_train.files.pictures import write_comparison
from gs_train.machine.interrupt import Interrupted, StopRequest
from gs_train.machine.out_of_memory import in_short, memory_for, memory_that_ran_out
from gs_train.options.config import FitConfig
from gs_train.runs.folder import RunFolder
from gs_train.runs.metrics import ImageScore
from gs_train.runs.scores import Picture, score_views, shown_of, title_of_renders
from gs_train.runs.scores_of_ranks import score_views_of_ranks
from gs_train.runs.trainer import Trainer
from gs_train.scene.scene import Scene
from gs_train.world import World


class HeldOut:
    """Looks at the model of a run that goes on; nothing of the training is changed.

    Args:
        config: of the run.
        scene: whose held-out views they are.
        folder: of the run.
        world: of the ranks, which make all calls together.
        stop: the request of this process: it ends a look, after which the run itself answers.

    Raises:
        InputError: scores are asked for, and no view is held out.
    """

    def __init__(
        self, config: FitConfig, scene: Scene, folder: RunFolder, world: World, stop: StopRequest
    ) -> None:
        self._every = config.eval_every
        self._skip_broken = config.skip_broken
        self._fits_colours = config.exposure
        self._title = title_of_renders(config)
        self._background = colour_of_scores(config.background)
        self._scene = scene
        self._folder = folder
        self._world = world
        self._stop = stop
        if self._every and not scene.capture.test:
            raise InputError(
                f"--eval-every {self._every} needs held-out images, the capture has none: give "
                "--test-every or --test-list"
            )

    def is_due(self, step: int) -> bool:
        """Whether the views are scored after this step."""
        return self._every > 0 and step % self._every == 0

    def scores(self, trainer: Trainer, say: Callable[[str], None]) -> dict[str, float]:
        """Score all held-out views, draw the first one into the run's ``previews``, and say a line.
        A collective.

        Returns:
            Means by name, for the log; nothing where a stop was asked for meanwhile, where no view
            can be scored, or where a view needs more memory than there is.

        Raises:
            InputError: a photograph cannot be read, or the disk is full.
        """
        step = trainer.step
        try:
            with memory_for("an evaluation"):
                scores, pictures = self._look(trainer, self._scene.capture.test, self._stop)
        except Interrupted:
            return {}
        except (MemoryError, RuntimeError) as error:
            what = memory_that_ran_out(error)
            if what is None or self._world.size > 1:
                raise
            say(f"step {step:,}: not scored, {what} memory ran out{in_short(error)}")
            return {}
        by_first(self._world, lambda: self._write_preview(step, pictures))
        if not scores:
            return {}
        means = {
            "test_psnr": sum(score.psnr for score in scores) / len(scores),
            "test_ssim": sum(score.ssim for score in scores) / len(scores),
        }
        fitted = [score.fitted_psnr for score in scores if score.fitted_psnr is not None]
        after_fit = ""
        if fitted:
            means["test_fitted_psnr"] = sum(fitted) / len(fitted)
            after_fit = f" ({means['test_fitted_psnr']:.2f} with colours fitted)"
        say(
            f"step {step:,}: PSNR {means['test_psnr']:.2f}{after_fit}, "
            f"SSIM {means['test_ssim']:.4f} on {len(scores)} test images"
        )
        return means

    def write_comparison(self, trainer: Trainer, say: Callable[[str], None]) -> None:
        """Write the run's ``comparison.png`` from the model of a run that was stopped; a second
        request to stop ends this. A collective.

        One line says why where the file cannot be written: what the run saved is what matters.
        """
        shown = sorted(shown_of(self._scene.capture.test))
        try:
            with StopRequest() as again:
                _, pictures = self._look(trainer, shown, again)

            def write() -> None:
                if pictures:
                    write_comparison(self._folder.comparison, pictures, title=self._title)

            by_first(self._world, write)
        except Interrupted:
            return
        except Exception as error:
            if self._world.size > 1:  # others may be waiting
                raise
            say(f"{self._folder.comparison} is not written: {error}")

    def _look(
        self, trainer: Trainer, indices: Sequence[int], stop: StopRequest
    ) -> tuple[list[ImageScore], list[Picture]]:
        trainer.backend.finish()  # rows come home; the engine goes on with them
        how: dict[str, Any] = {
            "renderer": trainer.renderer,
            "lpips": None,
            "stop": stop,
            "skip_broken": self._skip_broken,
            "background": self._background,
            "fits_colours": self._fits_colours,
            "is_quiet": True,  # beside the run's own bar
        }
        if self._world.size == 1:
            return score_views(trainer.model, self._scene, indices, **how)
        return score_views_of_ranks(trainer.model, self._scene, indices, world=self._world, **how)

    def _write_preview(self, step: int, pictures: Sequence[Picture]) -> None:
        if not pictures:
            return
        _, _, render = pictures[0]
        with replacing(self._folder.preview(step)) as file:
            Image.fromarray(render).save(file, format="PNG")
