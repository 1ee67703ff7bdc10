# SPDX-License-Identifier: Apache-2.0
"""Free runs of presets with a real renderer, on the street and on a real capture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from photographed import (
    LIVELY,
    TWO,
    Photographed,
    photo_config,
    photographed,
    psnr,
    renderer,
    rows_of,
    train,
)
from scipy.spatial import cKDTree
from scripted import small_rings
from street import drive
from torch import Tensor
from watchdog import within

from gs_train.config import FitConfig
from gs_train.densify import AdcConfig, McmcConfig
from gs_train.engine.limits import UNLIMITED, Limits
from gs_train.engine.presets import PRESETS
from gs_train.rows import NAMES
from gs_train.schedule import LearningRates
from gs_train.trainer import Trainer

STEPS = 100
MIDDLE, END = 30, 45


_RATES = {"street": LIVELY, "fox": LearningRates()}
_REFINE_EVERY = {"street": 20, "fox": 40}
"""Steps. Each refinement may take one row for another by rounding, after which all rows have other
numbers and draw other noise. On fox with five of them and lively rates, orders of batches alone
make `none` end 0.4 dB and 0.7 % of the rows apart; so, 0.02 dB and the same number of rows."""

_OTHERS = {"cpu": range(1, 6), "gsplat": range(9)}
"""Other runs of `none`, some of which take the other way where a run is at a fork. 0 is the very
same; on a GPU that differs as well, and not always alike: of 24 runs of `none` on the street with
MCMC in batches of 8, 17 ended at 23.12 to 23.16 dB, 7 at 23.03 to 23.10."""

_ATTEMPTS = {"cpu": 1, "gsplat": 3}
"""Runs of a preset of which one has to stay near. Of 72 orders of `none` drawn by the CPU on the
street in batches of 8, where it repeats itself, 68 stay within 0.03 of the first (``sh0``) and 4
are 0.11 away, all alike: a handful of Gaussians go one way or another, and on a GPU not the order
alone decides."""


@dataclass(frozen=True)
class Free:
    """What runs have in common.

    Attributes:
        scene: street or fox.
        strategy: adc or mcmc.
        batch_size: views of a step.
        drawn_by: the renderer's name.
    """

    scene: str
    strategy: str
    batch_size: int
    drawn_by: str

    @property
    def taken(self) -> Photographed:
        return photographed(self.scene)

    @property
    def steps(self) -> list[list[int]]:
        return drive(STEPS, self.batch_size, n_views=len(self.taken.views))

    def run(self, preset: str, limits: Limits = UNLIMITED, *, other: int = 0) -> dict[str, Tensor]:
        """What it leaves. With ``other`` batches in another order, and first values that are other
        by a rounding: where a batch is one view; and on a GPU, where `none` rounds otherwise than
        the host's optimizer in every step and row, which moves rows a hundred times further than
        orders do."""
        rows, steps = self.taken.rows, self.steps
        if other:
            draw = torch.Generator().manual_seed(other)
            steps = [
                [batch[i] for i in torch.randperm(len(batch), generator=draw)] for batch in steps
            ]
            if self.batch_size == 1 or self.drawn_by == "gsplat":
                rows = {name: _rounded(values, draw) for name, values in rows.items()}
        trainer = Trainer(self.config, rows, **self.options(preset, limits))
        train(trainer, steps, scene=self.taken)
        return rows_of(trainer)

    def options(self, preset: str, limits: Limits = UNLIMITED) -> dict[str, Any]:
        """Of a `Trainer`."""
        return {
            "renderer": renderer(self.drawn_by),
            "extent": self.taken.extent,
            "preset": PRESETS[preset],
            "limits": limits,
        }

    @property
    def config(self) -> FitConfig:
        b = self.batch_size
        refining = {"refine_start": 10 * b, "refine_every": _REFINE_EVERY[self.scene] * b}
        return photo_config(
            batch_size=b,
            strategy=self.strategy,
            resort_every=20 * b,
            adc=AdcConfig(grow_grad2d=0.002, reset_every=50 * b, cap=5000, **refining),
            mcmc=McmcConfig(cap_max=4600, noise_lr=2e2, **refining),
            lr=_RATES[self.scene],
        )


def _rounded(values: Tensor, draw: torch.Generator) -> Tensor:
    """Each one float up, down or as it was."""
    to = torch.tensor([-torch.inf, 0.0, torch.inf])[torch.randint(3, values.shape, generator=draw)]
    return torch.where(to == 0, values, torch.nextafter(values, to))


def _differences(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, float]:
    """99.9 % quantile by attribute, each row against the most similar one."""

    def features(rows: dict[str, Tensor]) -> Tensor:
        parts = 3.0 * rows["means"], rows["scales"], rows["opacities"][:, None], rows["sh0"][:, 0]
        return torch.cat(parts, 1).double()

    nearest = torch.from_numpy(cKDTree(features(theirs)).query(features(ours))[1])
    return {
        name: float((ours[name] - theirs[name][nearest]).abs().flatten().quantile(0.999))
        for name in NAMES
    }


@pytest.fixture(autouse=True)
def _small_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    small_rings(monkeypatch)


@pytest.mark.parametrize("drawn_by", ["cpu", pytest.param("gsplat", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("strategy", ["adc", "mcmc"])
@pytest.mark.parametrize("batch_size", [1, 4, 8])
@pytest.mark.parametrize("scene", TWO)
@within(400)
def test_free_runs_differ_no_more_than_rounding_makes_them(
    scene: str, batch_size: int, strategy: str, drawn_by: str
) -> None:
    """Rounding grows in 100 steps, most where densification draws by it: hence the spread."""
    free = Free(scene, strategy, batch_size, drawn_by)
    none = free.run("none")
    others = [free.run("none", other=order) for order in _OTHERS[drawn_by]]
    apart = [_differences(other, none) for other in others]
    spread = {name: max(run[name] for run in apart) for name in NAMES}
    alike = (none, *others) if drawn_by == "gsplat" else (none,)
    reached = [psnr(run, free.taken) for run in alike]
    assert min(spread.values()) > 0
    assert len(none["means"]) > len(free.taken.rows["means"]), "densification must have happened"
    assert batch_size == 1 or reached[0] > psnr(free.taken.rows, free.taken) + 3
    presets = [("naive", None), ("clm", None), ("best", None), ("best", 0)]
    presets += [("gs-scale", None)] if batch_size == 1 else []
    for preset, residents in presets:
        for _ in range(_ATTEMPTS[drawn_by]):
            ours = free.run(preset, Limits(residents=residents))
            found = _differences(ours, none)
            far = {name: found[name] for name in NAMES if found[name] > 3 * spread[name]}
            if not min(reached) - 0.05 <= (ended := psnr(ours, free.taken)) <= max(reached) + 0.05:
                far["psnr"] = ended
            if abs(len(ours["means"]) - len(none["means"])) > 1e-3 * len(none["means"]):
                far["rows"] = len(ours["means"])
            if not far:
                break
        assert not far, f"{preset}, {residents} residents, against {spread} and {reached} dB"


@pytest.mark.parametrize("scene", TWO)
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("strategy", ["adc", "mcmc"])
@within(400)
def test_a_free_run_resumed_in_the_middle_leaves_the_same_bytes(
    scene: str, batch_size: int, strategy: str
) -> None:
    free = Free(scene, strategy, batch_size, "cpu")
    for preset in PRESETS:
        if PRESETS[preset].single_view and batch_size > 1:
            continue
        whole = Trainer(free.config, free.taken.rows, **free.options(preset))
        train(whole, free.steps[:MIDDLE], scene=free.taken)
        saved = {name: values.clone() for name, values in whole.tensors().items()}
        resumed = Trainer.restore(free.config, saved, step=MIDDLE, **free.options(preset))
        for trainer in (whole, resumed):
            train(trainer, free.steps[:END], scene=free.taken)
        ours, theirs = resumed.tensors(), whole.tensors()
        assert ours.keys() == theirs.keys()
        assert theirs["model/means"].shape != saved["model/means"].shape, "rows must have changed"
        for name in theirs:
            assert torch.equal(ours[name], theirs[name]), f"{preset}, {name}"
        rows_of(whole), rows_of(resumed)
