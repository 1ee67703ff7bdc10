# SPDX-License-Identifier: Apache-2.0
"""Views go straight into the sums of density control, but not past whoever wants to see them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gs_train.densify import Adc, AdcConfig, Mcmc, McmcConfig, direct_of


def adc(kind: type[Adc] = Adc) -> Adc:
    return kind(AdcConfig(absgrad=True), scene_scale=1.0, seed=0, n_rows=7, device="cpu")


class Watching(Adc):
    def observe(self, *args: Any, **options: Any) -> None:
        super().observe(*args, **options)


class Both(Watching):
    def direct(self, batch_size: int) -> Any:
        return super().direct(batch_size)


class Renamed(Adc):
    """Another name, the same views."""


@pytest.mark.parametrize("kind", [Adc, Renamed, Both])
def test_sums_are_those_of_the_densifier(kind: type[Adc]) -> None:
    densifier = adc(kind)
    direct = direct_of(densifier, 5)
    assert direct is not None
    assert direct.sums is not None
    assert direct.batch_size == 5
    assert direct.sums.absgrad
    assert direct.sums.grad2d is densifier.tensors()["grad2d"]
    assert direct.sums.count is densifier.tensors()["count"]


def test_nothing_is_wanted_of_views() -> None:
    direct = direct_of(Mcmc(McmcConfig(), seed=0), 1)
    assert direct is not None
    assert direct.sums is None


def test_a_subclass_that_observes_is_told() -> None:
    assert direct_of(adc(Watching), 1) is None


def test_an_object_that_observes_is_told() -> None:
    densifier = adc()
    densifier.observe = lambda *_, **__: None  # type: ignore[method-assign]
    assert direct_of(densifier, 1) is None


def test_whoever_has_no_sums_is_told() -> None:
    others: Any = SimpleNamespace(observe=lambda *_, **__: None)
    assert direct_of(others, 1) is None
