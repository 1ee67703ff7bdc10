# SPDX-License-Identifier: Apache-2.0
"""What can go wrong in the middle of a batch, and views and batches at the limits."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from one_thread import one_threaded
from scripted import Script, ScriptedRenderer, ScriptedSplats, signed, small_rings
from scripted_runs import BLANK, scripted_config
from street import EXTENT, NOTHING, street_rows, street_views, whole_street
from torch import Tensor

from gs_train.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from gs_train.engine import engine
from gs_train.machine.side_thread import SideThread
from gs_train.options.limits import UNLIMITED, Limits
from gs_train.options.presets import PRESETS
from gs_train.renderers import TooManyIntersectionsError, View
from gs_train.renderers.protocol import Rect
from gs_train.rows.attributes import NAMES
from gs_train.runs.trainer import Trainer

SPLIT = ("clm", "gs-scale", "best")
ROWS = signed(street_rows(3000, sh_degree=1))
ALL = whole_street(width=64, height=48)
VIEWS = [*street_views(width=64, height=48), ALL]
SCRIPT = Script(VIEWS, ROWS)


@pytest.fixture(autouse=True)
def _small_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    small_rings(monkeypatch)


@pytest.fixture(params=[False, True], ids=["alone", "thread"])
def _beside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking ahead as on the CPU, and as beside a GPU."""
    monkeypatch.setattr(
        engine, "SideThread", functools.partial(SideThread, has_thread=request.param)
    )


def _trainer(preset: str, batch_size: int = 1, *, limits: Limits = UNLIMITED) -> Trainer:
    config = dataclasses.replace(
        scripted_config("adc", batch_size), sh_degree=1, sh_every=1, mem_limit=0.2
    )
    return Trainer(
        config,
        ROWS,
        renderer=ScriptedRenderer(SCRIPT),
        extent=EXTENT,
        preset=PRESETS[preset],
        limits=limits,
    )


def _renderer(trainer: Trainer) -> ScriptedRenderer:
    assert isinstance(trainer.renderer, ScriptedRenderer)
    return trainer.renderer


def _step(trainer: Trainer, views: list[View], upcoming: list[View] | None = None) -> Tensor:
    _renderer(trainer).step = trainer.step
    return trainer.train_step([(view, BLANK) for view in views], [upcoming or views]).loss


def _steps(trainer: Trainer, batches: list[list[View]]) -> None:
    for batch in batches:
        _step(trainer, batch)


def _rows_of(trainer: Trainer) -> dict[str, Tensor]:
    trainer.backend.finish()
    return {name: trainer.model.read(name).clone() for name in NAMES}


def _same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return all(torch.equal(ours[name], theirs[name]) for name in NAMES)


def _close(trainer: Trainer) -> None:
    if trainer.preset.placement == "split":
        trainer.model.close()  # type: ignore[attr-defined]


# -- the worker


@pytest.mark.parametrize("preset", SPLIT)
@one_threaded
def test_an_exception_in_the_worker_surfaces_at_the_next_step(preset: str) -> None:
    trainer = _trainer(preset, limits=Limits(residents=0))
    for k in range(3):
        _step(trainer, [VIEWS[k]])

    def ready() -> bool:
        raise OSError("gradients never arrived")

    trainer.model.appearance.worker.flush(torch.arange(5), ready=ready)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="never arrived"):
        _steps(trainer, [[VIEWS[k]] for k in range(3, 6)])
    with pytest.raises((OSError, RuntimeError), match=r"never arrived|last checkpoint"):
        trainer.tensors()
    _close(trainer)


@pytest.mark.usefixtures("_beside")
@pytest.mark.parametrize("preset", SPLIT)
@one_threaded
def test_an_exception_in_the_worker_in_the_middle_of_a_batch_surfaces(preset: str) -> None:
    trainer = _trainer(preset, 4, limits=Limits(residents=0))
    batch = [VIEWS[k] for k in (3, 5, 7, 9)]
    _step(trainer, batch)
    drawn = []

    def ready() -> bool:
        raise OSError("gradients never arrived")

    def before(view: View, rect: Rect) -> None:
        drawn.append(view.name)
        if len(drawn) == 2:
            trainer.model.appearance.worker.flush(torch.arange(5), ready=ready)  # type: ignore[attr-defined]

    _renderer(trainer).before = before
    with pytest.raises(OSError, match="never arrived"):
        _steps(trainer, [batch] * 3)
    _close(trainer)


# -- Ctrl-C


@pytest.mark.usefixtures("_beside")
@pytest.mark.parametrize("at", [0, 2, 3])
@pytest.mark.parametrize("preset", PRESETS)
@one_threaded
def test_ctrl_c_in_a_batch_leaves_the_last_checkpoint_to_go_on_from(
    preset: str, at: int, tmp_path: Path
) -> None:
    trainer = _trainer(preset, 4)
    batches = [[VIEWS[2 * k + i] for i in (0, 2, 4, 6)] for k in range(6)]
    for k in range(3):
        _step(trainer, batches[k], batches[k + 1])
    folder = tmp_path / "checkpoints"
    save_checkpoint(folder, step=3, tensors=trainer.tensors(), state={}, keep=2)
    drawn: list[str] = []

    def interrupted(view: View, rect: Rect) -> None:
        drawn.append(view.name)
        if len(drawn) > at:
            raise KeyboardInterrupt

    _renderer(trainer).before = interrupted
    with pytest.raises(KeyboardInterrupt):
        _step(trainer, batches[3], batches[4])
    assert trainer.step == 3, "an interrupted step does not count"
    if at:
        # Half of its rows are updated: there is nothing to save or to go on from.
        with pytest.raises(RuntimeError, match="checkpoint"):
            trainer.tensors()
        with pytest.raises(RuntimeError, match="checkpoint"):
            _step(trainer, batches[3], batches[4])
    _close(trainer)

    resumed = _restored(trainer, folder)
    straight = _trainer(preset, 4)
    for k in range(3):
        _step(straight, batches[k], batches[k + 1])
    straight.tensors()
    for k in range(3, 5):
        _step(straight, batches[k], batches[k + 1])
        _step(resumed, batches[k], batches[k + 1])
    assert _same(_rows_of(resumed), _rows_of(straight))
    _close(resumed)
    _close(straight)


def _restored(trainer: Trainer, folder: Path) -> Trainer:
    newest = latest_checkpoint(folder)
    assert newest is not None
    checkpoint = load_checkpoint(newest)
    return Trainer.restore(
        trainer.config,
        checkpoint.tensors,
        step=checkpoint.step,
        renderer=ScriptedRenderer(SCRIPT),
        extent=EXTENT,
        preset=trainer.preset,
    )


# -- views and batches at the limits


@pytest.mark.parametrize("preset", PRESETS)
@one_threaded
def test_views_that_see_nothing_move_no_row(preset: str) -> None:
    trainer = _trainer(preset, 2)
    nothing = [VIEWS[NOTHING]] * 2
    losses = [_step(trainer, nothing) for _ in range(3)]
    assert float(losses[0]) > 0
    assert not _renderer(trainer).drawn
    assert _same(_rows_of(trainer), dict(ROWS))
    _close(trainer)


@pytest.mark.parametrize("preset", ["naive", *SPLIT])
@one_threaded
def test_views_of_nothing_and_of_everything_train_as_they_do_on_the_device(preset: str) -> None:
    """And a batch with more views than there are: some come twice."""
    batches = [
        [VIEWS[NOTHING], ALL],
        [ALL, VIEWS[4]],
        [VIEWS[4], VIEWS[4]],
        [VIEWS[NOTHING], VIEWS[NOTHING]],
        [ALL, ALL],
        [VIEWS[4], VIEWS[NOTHING]],
    ]
    ours, theirs = _trainer(preset, 2, limits=Limits(rows=1200)), _trainer("none", 2)
    for k, batch in enumerate(batches):
        for trainer in (ours, theirs):
            _step(trainer, batch, batches[(k + 1) % len(batches)])
    a, b = _rows_of(ours), _rows_of(theirs)
    rates = vars(ours.config.lr)
    for name in NAMES:
        excess = (a[name] - b[name]).abs() / b[name].abs().clamp_min(rates[name])
        assert excess.max() <= 1e-5, name
    was_cut = any(rect != ALL.rect for name, rect, _ in _renderer(ours).drawn if name == "all")
    assert was_cut == (preset != "naive")
    _close(ours)


# -- the device's memory


def _fails(times: int) -> Callable[[View, Rect], None]:
    left = [times]

    def before(view: View, rect: Rect) -> None:
        if left[0]:
            left[0] -= 1
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    return before


def _fails_in_the_backward_pass() -> Callable[[ScriptedSplats], None]:
    """Once, after one leaf has its gradient and others have not."""
    left = [1]

    def fail(leaf: Tensor) -> None:
        if left[0]:
            left[0] -= 1
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    def after(splats: ScriptedSplats) -> None:
        assert splats.rows is not None
        splats.rows["sh0"].register_post_accumulate_grad_hook(fail)

    return after


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("preset", PRESETS)
@one_threaded
def test_a_view_that_memory_does_not_suffice_for_is_drawn_in_two_halves(
    preset: str, where: str
) -> None:
    tight, roomy = _trainer(preset), _trainer(preset)
    # Once among other steps: Adam does not see gradients that are all twice as large.
    for step, k in enumerate((3, 3, 3, 5)):
        if step == 1 and where == "forward":
            _renderer(tight).before = _fails(1)
        elif step == 1:
            _renderer(tight).projected = _fails_in_the_backward_pass()
        losses = [float(_step(trainer, [VIEWS[k]])) for trainer in (tight, roomy)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    widths = [rect.width for _, rect, _ in _renderer(tight).drawn]
    assert widths == [64, *([64] if where == "backward" else []), 32 + 5, 32 + 5, 64, 64]
    ours, theirs = tight.densifier.tensors(), roomy.densifier.tensors()
    for name in theirs:
        assert torch.equal(ours[name], theirs[name]), name
    assert _same(_rows_of(tight), _rows_of(roomy))
    _close(tight)
    _close(roomy)


@pytest.mark.parametrize("where", ["everywhere", "on the right"])
@pytest.mark.parametrize("preset", PRESETS)
@one_threaded
def test_a_view_of_too_many_intersections_is_drawn_in_as_many_parts_as_that_takes(
    preset: str, where: str
) -> None:
    tight, roomy = _trainer(preset), _trainer(preset)

    def counts(view: View, rect: Rect) -> None:
        # On the right: a pass fails after its first part has left gradients.
        is_crowded = where == "everywhere" or rect.width == 64 or rect.x0 > 0
        if view.name == VIEWS[5].name and rect.width > 32 and is_crowded:
            raise TooManyIntersectionsError(2**31)

    _renderer(tight).before = counts
    for k in (3, 5, 3):
        losses = [float(_step(trainer, [VIEWS[k]])) for trainer in (tight, roomy)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    # Cut across x, y and x; with halos.
    widths = [rect.width for _, rect, _ in _renderer(tight).drawn]
    if where == "everywhere":
        assert widths == [64, *(2 * [16 + 5, 16 + 10]), *(2 * [16 + 10, 16 + 5]), 64]
    else:
        assert widths.count(32 + 5) > 0
    assert _same(_rows_of(tight), _rows_of(roomy))
    _close(tight)
    _close(roomy)


@pytest.mark.parametrize("preset", ["none", "clm", "best"])
@one_threaded
def test_a_view_is_cut_into_as_many_parts_as_memory_suffices_for(preset: str) -> None:
    tight, roomy = _trainer(preset), _trainer(preset)
    for k, n_failures in ((3, 0), (5, 2), (3, 4)):
        drawn = _renderer(tight).drawn
        n_before = len(drawn)
        _renderer(tight).before = _fails(n_failures)
        losses = [float(_step(trainer, [VIEWS[k]])) for trainer in (tight, roomy)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        assert len(drawn) - n_before == 2**n_failures
    assert _same(_rows_of(tight), _rows_of(roomy))
    _close(tight)
    _close(roomy)


@pytest.mark.parametrize("preset", PRESETS)
@one_threaded
def test_memory_that_does_not_suffice_for_a_part_of_a_view_is_a_clear_error(preset: str) -> None:
    trainer = _trainer(preset)
    _step(trainer, [VIEWS[3]])
    _renderer(trainer).before = _fails(5)
    with pytest.raises(
        torch.cuda.OutOfMemoryError,
        match=r"street-05 needs more device memory.*even in 16 parts.*\(CUDA out of memory\)",
    ):
        _step(trainer, [VIEWS[5]])
    _close(trainer)
