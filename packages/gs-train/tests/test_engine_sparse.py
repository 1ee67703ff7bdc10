# SPDX-License-Identifier: Apache-2.0
"""The named other semantics: rows that no view of a batch sees stand still."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gs_train.backends import make_backend
from gs_train.engine.engine import Engine
from gs_train.engine.settings import StepSettings
from gs_train.errors import InputError
from gs_train.options.presets import PRESETS
from gs_train.renderers import RenderOptions, View, make_renderer
from gs_train.rows.attributes import NAMES
from gs_train.rows.selective import SelectiveAdam

N = 300
RATES = {
    "means": 1e-3,
    "scales": 5e-3,
    "quats": 1e-3,
    "opacities": 5e-2,
    "sh0": 2.5e-3,
    "shN": 1e-3,
}


def rows() -> dict[str, Tensor]:
    """Two clouds, left and right of the origin."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(N, *shape, generator=generator)

    means = 0.2 * normal(3)
    means[:, 0] += torch.where(torch.arange(N) % 2 == 0, -2.0, 2.0)
    return {
        "means": means,
        "scales": -2.5 + 0.1 * normal(3),
        "quats": normal(4),
        "opacities": normal(),
        "sh0": normal(1, 3),
        "shN": 0.1 * normal(3, 3),
    }


def view(name: str, x: float) -> View:
    viewmat = torch.eye(4)
    viewmat[:3, 3] = torch.tensor([-x, 0.0, 3.0])
    K = torch.tensor([[40.0, 0, 16], [0, 40, 12], [0, 0, 1]])
    return View(name, viewmat, K, 32, 24)


VIEWS = [view("left", -2.0), view("right", 2.0)]
TRUTH = torch.randint(0, 255, (24, 32, 3), dtype=torch.uint8, generator=torch.Generator())


def settings(**options: object) -> StepSettings:
    return StepSettings(1, RATES, (0.9, 0.999), 1e-15, 0.2, **options)  # type: ignore[arg-type]


def backend(name: str, semantics: str) -> Engine:
    return make_backend(
        PRESETS[name],
        rows(),
        None,
        renderer=make_renderer("cpu", RenderOptions()),
        semantics=semantics,
        mem_limit=0.3,
    )


def train(made: Engine, batches: Sequence[Sequence[View]], options: StepSettings) -> None:
    for i, batch in enumerate(batches):
        made.step(
            [(view, TRUTH) for view in batch],
            options,
            lambda ids, splats: None,
            upcoming=batches[i + 1 : i + 3],
        )
    made.finish()


@pytest.fixture(params=["none", "clm", "best"])
def preset(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_rows_out_of_sight_stand_still(preset: str) -> None:
    made = backend(preset, "sparse")
    train(made, [VIEWS[:1]] * 3 + [VIEWS[1:]], settings())
    before = {name: made.model.read(name).clone() for name in NAMES}
    train(made, [VIEWS[1:]] * 3, settings())
    left = torch.arange(N) % 2 == 0
    for name in NAMES:
        after = made.model.read(name)
        assert torch.equal(after[left], before[name][left]), name
        assert not torch.equal(after[~left], before[name][~left]), name


@pytest.mark.parametrize("preset", ["clm", "gs-scale", "best"])
def test_all_presets_do_the_same(preset: str) -> None:
    reference, made = backend("none", "sparse"), backend(preset, "sparse")
    batches = [VIEWS, VIEWS[:1], VIEWS[1:], VIEWS]
    options = settings(opacity_reg=0.01, scale_reg=0.02)
    train(reference, batches, options)
    train(made, batches, options)
    for name in NAMES:
        torch.testing.assert_close(
            made.model.read(name), reference.model.read(name), rtol=1e-4, atol=1e-5
        )


def test_it_is_gsplats_rule() -> None:
    parameter = torch.nn.Parameter(torch.tensor([[1.0], [2.0], [3.0]]))
    adam = SelectiveAdam([{"params": [parameter]}], lr=0.1, betas=(0.9, 0.99), eps=1e-8)
    adam.step(torch.tensor([0, 2]), [torch.tensor([[0.5], [-2.0]])])
    for row, grad in ((0, 0.5), (2, -2.0)):
        mean, square = 0.1 * grad, 0.01 * grad * grad
        expected = (1.0, 2.0, 3.0)[row] - 0.1 * mean / (square**0.5 + 1e-8)
        assert parameter[row].item() == pytest.approx(expected, rel=1e-6)
    assert parameter[1].item() == 2.0


def test_regularisers_may_leave_out_rows_that_nobody_sees(preset: str) -> None:
    left = torch.arange(N) % 2 == 0
    reached = {}
    for regularise_all in (True, False):
        made = backend(preset, "dense")
        options = settings(opacity_reg=1.0, regularise_all=regularise_all)
        train(made, [VIEWS[1:]] * 2, options)
        change = made.model.read("opacities") - rows()["opacities"]
        reached[regularise_all] = change
    assert (reached[True][left] < 0).all()
    assert (reached[False][left] == 0).all()
    torch.testing.assert_close(reached[True][~left], reached[False][~left], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("preset", ["clm", "gs-scale", "best"])
def test_rows_that_a_view_just_misses_are_not_regularised(preset: str) -> None:
    """A batch that is looked at early is looked at with inflated extents."""
    rates = {**RATES, "means": 0.02, "scales": 0.05}  # extents grow by much in one step
    options = replace(settings(opacity_reg=1e-3, regularise_all=False), rates=rates)
    batches = [[view(f"{x}", x)] for x in (-3.3, -3.25, -3.2)]
    seen: dict[str, set[int]] = {}
    for name in ("none", preset):
        made = backend(name, "dense")
        train(made, batches, options)
        moved = (made.model.read("opacities") != rows()["opacities"]).nonzero()
        seen[name] = set(moved.flatten().tolist())
    assert 0 < len(seen["none"]) < N // 2
    assert seen[preset] == seen["none"]


def test_the_mirrored_preset_has_no_sparse_form() -> None:
    with pytest.raises(InputError, match="--semantics sparse needs another --offload than naive"):
        backend("naive", "sparse")
