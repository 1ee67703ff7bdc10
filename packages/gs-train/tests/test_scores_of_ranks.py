# SPDX-License-Identifier: Apache-2.0
"""Held-out views that ranks score together have the scores and the pictures of one rank."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from threads_as_ranks import ThreadWorld, outcomes, results

from gs_train.data import BrokenPhotographError, load_capture
from gs_train.losses.background import WHITE
from gs_train.machine.interrupt import StopRequest
from gs_train.options.config import FitConfig
from gs_train.ranks.first_rows import first_rows
from gs_train.renderers.cpu import CpuRenderer
from gs_train.rows.gaussians import Gaussians
from gs_train.rows.keys import RowKeys
from gs_train.runs.metrics import psnr, ssim
from gs_train.runs.scores import score_views
from gs_train.runs.scores_of_ranks import score_views_of_ranks
from gs_train.scene.scene import Scene

TESTED = (0, 1, 2, 3, 5, 7, 11)


@pytest.fixture
def scene(tiny_capture: Path, tmp_path: Path) -> Scene:
    """Of photographs that a test may change."""
    folder = Path(shutil.copytree(tiny_capture, tmp_path / "capture"))
    return Scene.load(load_capture(folder, cache_dir=tmp_path / "cache"), torch.device("cpu"))


def _model(rows: Any, keys: RowKeys | None = None) -> Gaussians:
    return Gaussians(rows, device="cpu", make_optimizer=torch.optim.SGD, keys=keys)


def _break(scene: Scene, index: int) -> None:
    Path(scene.capture.views[index].path).write_bytes(b"no photograph")


def _rows(scene: Scene) -> Any:
    config = FitConfig(data=Path("DATA"), out=Path("RUN"), cap=500)
    return scene.initial_rows(config, StopRequest())


def _scoring(scene: Scene, how: Mapping[str, Any]) -> Callable[[ThreadWorld], Any]:
    rows = _rows(scene)

    def run(world: ThreadWorld) -> Any:
        own = first_rows(rows, rank=world.rank, n_ranks=world.size)
        model = _model(own.rows, own.keys)
        return score_views_of_ranks(model, scene, TESTED, world=world, **how)

    return run


def _both(scene: Scene, n_ranks: int, **options: Any) -> tuple[Any, list[Any]]:
    """What one rank returns, and each of several."""
    how = {"renderer": CpuRenderer(), "lpips": None, "stop": StopRequest(), **options}
    one = score_views(_model(_rows(scene)), scene, TESTED, **how)
    return one, results(n_ranks, _scoring(scene, how))


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_ranks_score_as_one_does(scene: Scene, n_ranks: int) -> None:
    one, (first, *others) = _both(scene, n_ranks)
    assert len(one[0]) == len(TESTED)
    assert len(one[1]) == 4
    for ours, theirs in zip(first[1], one[1], strict=True):
        assert ours[0] == theirs[0]
        assert all((mine == other).all() for mine, other in zip(ours[1:], theirs[1:]))
    for found in (first, *others):
        assert found[0] == one[0]
    assert all(found[1] == [] for found in others)


def test_ranks_score_over_white_as_one_does(scene: Scene) -> None:
    black = _both(scene, 2)[0]
    one, several = _both(scene, 2, background=WHITE)
    assert [score.psnr for score in one[0]] != [score.psnr for score in black[0]]
    assert [found[0] for found in several] == [one[0]] * 2


def test_ranks_fit_colours_as_one_does(scene: Scene) -> None:
    one, several = _both(scene, 2, fits_colours=True)
    assert all(score.fitted_psnr is not None for score in one[0])
    assert [found[0] for found in several] == [one[0]] * 2


def test_photographs_that_are_left_out_are_told_in_order(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    for index in (0, 3):  # drawn by different ranks
        _break(scene, index)
    one, several = _both(scene, 2, skip_broken=True)
    lines = [line for line in capsys.readouterr().err.splitlines() if "not scored" in line]
    assert len(one[0]) == len(TESTED) - 2
    assert [found[0] for found in several] == [one[0]] * 2
    assert [name for name, *_ in several[0][1]] == [name for name, *_ in one[1]]
    of_one = lines[:2]  # both ranks of this process say the lines, as one did
    assert sorted(lines) == sorted(of_one * 3)


def test_a_broken_photograph_ends_the_rank_that_reads_it(scene: Scene) -> None:
    _break(scene, 3)
    how = {"renderer": CpuRenderer(), "lpips": None, "stop": StopRequest()}
    found = outcomes(2, _scoring(scene, how))
    assert isinstance(found[0], RuntimeError)
    assert isinstance(found[1], BrokenPhotographError)
    assert str(found[0]) == "another rank has failed"


def test_scores_do_not_depend_on_the_number_of_threads() -> None:
    """Ranks have fewer threads than one rank has."""
    before = torch.get_num_threads()
    random = torch.Generator().manual_seed(0)
    # With a mean squared error of 1 the PSNR is near 0, where the last bits show.
    pairs = [
        (3**0.5 * torch.rand(90, 401, 3, generator=random), torch.zeros(90, 401, 3))
        for _ in range(12)
    ]
    found = []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            found.append([*(psnr(*pair) for pair in pairs), *(ssim(*pair) for pair in pairs[:2])])
    finally:
        torch.set_num_threads(before)
    assert found[1:] == found[:1] * 2
