# SPDX-License-Identifier: Apache-2.0
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gs_train.data import load_capture, read_image
from gs_train.densify import AdcConfig, McmcConfig
from gs_train.engine.geometry import add_to, penalties
from gs_train.machine.interrupt import StopRequest
from gs_train.options.config import FitConfig
from gs_train.renderers import RenderOptions, View, make_renderer
from gs_train.rows.attributes import NAMES
from gs_train.runs.trainer import Trainer
from gs_train.scene.scene import Scene

# Growth that is sure to happen and, with the cap, stays small.
BUSY = AdcConfig(refine_start=2, refine_every=3, reset_every=8, grow_grad2d=1e-5, cap=9000)


@pytest.fixture(scope="module")
def scene(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    capture = load_capture(tiny_capture, cache_dir=tmp_path_factory.mktemp("cache"))
    return Scene.load(capture, torch.device("cpu"))


def _config(**options: object) -> FitConfig:
    options = {"steps": 40, "renderer": "cpu", "sh_every": 3, "resort_every": 0.1, **options}
    return FitConfig(data=Path("-"), out=Path("-"), **options)


def _trainer(scene: Scene, config: FitConfig, drawn_by: str = "cpu") -> Trainer:
    renderer = make_renderer(drawn_by, RenderOptions(antialiased=config.antialiased))
    rows = scene.initial_rows(config, StopRequest())
    return Trainer(config, rows, renderer=renderer, extent=scene.frame.extent)


def _photograph(scene: Scene, index: int) -> tuple[View, Tensor]:
    view, truth = scene.views[index], torch.from_numpy(read_image(scene.capture.views[index]))
    return view, truth.to(view.viewmat.device)


def _run(trainer: Trainer, scene: Scene, steps: range, batch_size: int = 1) -> list[float]:
    train = scene.capture.train
    losses = []
    for step in steps:
        picks = [train[(step * batch_size + k) % len(train)] for k in range(batch_size)]
        losses.append(trainer.train_step([_photograph(scene, i) for i in picks]).loss.item())
    return losses


def _assert_same(a: Trainer, b: Trainer) -> None:
    ours, theirs = a.tensors(), b.tensors()
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def test_the_loss_falls(scene: Scene) -> None:
    losses = _run(_trainer(scene, _config()), scene, range(40))
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])


@pytest.mark.parametrize("drawn_by", ["cpu", pytest.param("raster", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("strategy", ["adc", "mcmc"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_restored_trainer_continues_with_the_same_bits(
    scene: Scene, strategy: str, batch_size: int, drawn_by: str
) -> None:
    config = _config(
        strategy=strategy,
        batch_size=batch_size,
        adc=BUSY,
        mcmc=McmcConfig(refine_start=2, refine_every=3, min_opacity=0.45),
    )
    whole = _trainer(scene, config, drawn_by)
    scene = Scene.load(scene.capture, whole.model.device)
    n_start = whole.model.n_rows
    _run(whole, scene, range(9), batch_size)
    saved = {name: value.clone() for name, value in whole.tensors().items()}
    _run(whole, scene, range(9, 16), batch_size)
    assert whole.model.n_rows != n_start, "densification must have happened"

    resumed = Trainer.restore(
        config, saved, step=9, renderer=whole.renderer, extent=scene.frame.extent
    )
    _run(resumed, scene, range(9, 16), batch_size)
    _assert_same(whole, resumed)


def test_only_the_batch_mean_matters_not_how_it_is_made(scene: Scene) -> None:
    """One step of three views moves the rows as torch's Adam does on the mean gradient."""
    config = _config(batch_size=3, adc=dataclasses.replace(BUSY, refine_start=1000), resort_every=0)
    trainer = _trainer(scene, config)
    before = {name: trainer.model.read(name).clone() for name in NAMES}
    batch = [_photograph(scene, i) for i in scene.capture.train[:3]]
    mean = {name: torch.zeros_like(value) for name, value in before.items()}
    for view, truth in batch:
        alone = _gradient_of_one(scene, config, view, truth)
        for name in NAMES:
            mean[name] += alone[name] / 3
    trainer.train_step(batch)
    settings = trainer.schedule.settings(0, max_degree=trainer.model.sh_degree)
    for name in NAMES:
        group = {"lr": settings.rates[name], "betas": settings.betas, "eps": settings.eps}
        param = before[name].clone().requires_grad_()
        param.grad = mean[name]
        torch.optim.Adam([param], lr=group["lr"], betas=group["betas"], eps=group["eps"]).step()
        moved = (trainer.model.read(name) - param.detach()).abs().max()
        # Adam's first step is lr * sign(gradient): where three gradients nearly cancel, their
        # order of summation may decide it. A count apart from those, the step is the same.
        differs = (trainer.model.read(name) - param.detach()).abs() > 1e-3 * group["lr"]
        assert differs.float().mean() < 1e-3, f"{name}: {moved}"
        assert group["betas"] == pytest.approx((0.9**3, 0.999**3))


def _gradient_of_one(
    scene: Scene, config: FitConfig, view: View, truth: Tensor
) -> dict[str, Tensor]:
    from gs_train.losses.loss import Crop, photometric_loss

    trainer = _trainer(scene, config)
    leaves = {name: trainer.model.read(name).clone().requires_grad_() for name in NAMES}
    splats = trainer.renderer.project(leaves, view, sh_degree=0)
    image, _ = trainer.renderer.rasterize(splats)
    photometric_loss(image, truth, Crop(view, view.rect), config.ssim_lambda).backward()
    return {
        name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        for name, leaf in leaves.items()
    }


def test_a_view_that_sees_nothing_leaves_rows_without_gradient(scene: Scene) -> None:
    trainer = _trainer(scene, _config())
    view, truth = _photograph(scene, 0)
    away = view.viewmat.clone()
    away[2, 3] -= 1e4  # everything far behind the camera
    result = trainer.train_step([(dataclasses.replace(view, viewmat=away), truth)])
    assert result.loss > 0
    rows = scene.initial_rows(_config(), StopRequest())
    assert all(torch.equal(trainer.model.read(name), rows[name]) for name in NAMES)


def test_regularisers_pull_every_row_also_those_that_no_view_sees(scene: Scene) -> None:
    config = _config(opacity_reg=0.5, scale_reg=0.25)
    trainer = _trainer(scene, config)
    params = trainer.model.params
    gradients = {name: torch.zeros_like(param) for name, param in params.items()}
    settings = trainer.schedule.settings(0, max_degree=trainer.model.sh_degree)
    add_to(gradients, params, penalties(settings, trainer.model.n_rows))
    opacities = trainer.model.read("opacities").clone().requires_grad_()
    scales = trainer.model.read("scales").clone().requires_grad_()
    (0.5 * torch.sigmoid(opacities).mean() + 0.25 * torch.exp(scales).mean()).backward()
    torch.testing.assert_close(gradients["opacities"], opacities.grad)
    torch.testing.assert_close(gradients["scales"], scales.grad)


@pytest.mark.parametrize("strategy", ["adc", "mcmc"])
def test_the_cap_holds_from_the_first_rows_on(scene: Scene, strategy: str) -> None:
    cap = len(scene.capture.points) // 2
    config = _config(
        strategy=strategy, cap=cap, adc=BUSY, mcmc=McmcConfig(refine_start=2, refine_every=3)
    )
    trainer = _trainer(scene, config)
    assert trainer.model.n_rows == cap
    counts: Sequence[int] = []
    for step in range(10):
        _run(trainer, scene, range(step, step + 1))
        counts = [*counts, trainer.model.n_rows]
    assert max(counts) <= cap


@pytest.mark.parametrize("resort_every", [0.0, 1e-6, 0.08])
@pytest.mark.parametrize("strategy", ["adc", "mcmc"])
def test_rows_are_sorted_when_enough_of_them_have_changed_and_memory_is_given_back_for_that_alone(
    scene: Scene, strategy: str, resort_every: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    refines = {"refine_start": 2, "refine_every": 3, "refine_stop": 9}
    config = _config(
        strategy=strategy,
        adc=dataclasses.replace(BUSY, **refines),
        mcmc=McmcConfig(**refines),
        resort_every=resort_every,
    )
    trainer = _trainer(scene, config)
    made_at: list[tuple[int, int]] = []
    monkeypatch.setattr(
        trainer.backend, "make_room", lambda: made_at.append((trainer.step, trainer.model.n_rows))
    )
    expected, changes, changed_at = [], 0, []
    for step in range(12):
        picks = [scene.capture.train[step % len(scene.capture.train)]]
        changed = trainer.train_step([_photograph(scene, i) for i in picks]).changed
        changes += changed.n_changes
        if changed.n_changes:
            changed_at.append(step)
        if resort_every and changes and changes >= resort_every * trainer.model.n_rows:
            expected.append((step + 1, trainer.model.n_rows))
            changes = 0
        assert int(trainer.tensors()["order/changes"]) == changes
    assert set(changed_at) <= {3, 6}
    assert changed_at
    assert made_at == expected
    assert trainer.sorted_at == (expected[-1][0] if expected else 0)
    # MCMC adds a twentieth each time.
    n_expected = {0.0: 0, 1e-6: len(changed_at), 0.08: 1}[resort_every]
    assert len(expected) == n_expected


def test_gradients_of_all_rows_make_room_and_come_back(scene: Scene) -> None:
    config = _config(resort_every=0)
    ours, theirs = _trainer(scene, config), _trainer(scene, config)
    for step in range(3):
        _run(ours, scene, range(step, step + 1))
        _run(theirs, scene, range(step, step + 1))
        ours.backend.make_room()
        assert all(param.grad is None for param in ours.model.params.values())
    _assert_same(ours, theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["raster", "gsplat"])
def test_renderers_of_the_device_train_as_the_cpu_renderer_does(scene: Scene, name: str) -> None:
    config = _config(adc=dataclasses.replace(BUSY, refine_start=1000))
    on_cpu, on_gpu = _trainer(scene, config), _trainer(scene, config, name)
    ours = _run(on_cpu, scene, range(20))
    theirs = _run(on_gpu, Scene.load(scene.capture, on_gpu.model.device), range(20))
    # Orders of sums and threshold flips differ; the course of the loss does not.
    assert ours == pytest.approx(theirs, rel=0.02)
