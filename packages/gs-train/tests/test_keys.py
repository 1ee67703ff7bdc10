# SPDX-License-Identifier: Apache-2.0
"""Keys: what rows are born with, and that nothing but them decides what a run leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from photographed import LIVELY, photo_config, photographed, renderer, train
from street import drive, street_rows
from torch import Tensor

from gs_train.densify import AdcConfig, McmcConfig
from gs_train.errors import CommonError
from gs_train.options.limits import UNLIMITED, Limits
from gs_train.options.presets import PRESETS
from gs_train.rows.gaussians import Gaussians
from gs_train.rows.keys import END_OF_KEYS, RowKeys
from gs_train.rows.replacement import Replacement
from gs_train.rows.tiered import TieredGaussians
from gs_train.runs.trainer import Trainer

CPU = torch.device("cpu")
on_renderers = pytest.mark.parametrize(
    "drawn_by", ["cpu", pytest.param("raster", marks=pytest.mark.gpu)]
)


def keys_of(*values: int, next_key: int = 100) -> RowKeys:
    return RowKeys.load(torch.tensor(values, dtype=torch.int32), torch.tensor(next_key))


def test_an_initial_cloud_is_numbered_and_births_go_on_from_there() -> None:
    keys = RowKeys.numbered(3, CPU)
    assert keys.values.tolist() == [0, 1, 2]
    assert keys.values.dtype == torch.int32
    born = keys.born(2)
    assert born.tolist() == [3, 4]
    assert keys.values.tolist() == [0, 1, 2]
    keys.replace(Replacement.of(3, torch.tensor([], dtype=torch.int32), 1), born[1:])
    assert keys.values.tolist() == [0, 1, 2, 4]
    assert keys.born(1).tolist() == [5]


def test_the_order_of_keys_follows_the_rows() -> None:
    keys = keys_of(7, 2, 9, 4)
    assert keys.order.tolist() == [1, 3, 0, 2]
    keys.select(torch.tensor([2, 0, 1]))
    assert keys.values.tolist() == [9, 7, 2]
    assert keys.order.tolist() == [2, 1, 0]
    keys.replace(Replacement.of(3, torch.tensor([1]), 2), keys.born(2))
    assert keys.values.tolist() == [9, 100, 2, 101]
    assert keys.order.tolist() == [2, 0, 1, 3]


def test_labels_follow_the_rows() -> None:
    keys = RowKeys(keys_of(7, 2, 9, 4).values, 100, torch.tensor([70, 20, 90, 40]).byte())
    keys.select(torch.tensor([2, 0, 1, 3]))
    children = keys.labels_of(torch.tensor([3, 3, 0]))
    assert children is not None
    keys.replace(Replacement.of(4, torch.tensor([1]), 3), keys.born(3), children)
    found = dict(zip(keys.values.tolist(), keys.tensors()["strands"].tolist(), strict=True))
    assert found == {9: 90, 2: 20, 4: 40, 100: 40, 101: 40, 102: 90}
    keys.replace(Replacement.of(6, torch.tensor([0, 2, 3]), 0), keys.born(0))
    left = dict(zip(keys.values.tolist(), keys.tensors()["strands"].tolist(), strict=True))
    assert len(left) == 3
    assert left.items() <= found.items()


@pytest.mark.parametrize(
    ("keys", "labels", "message"),
    [
        (None, torch.zeros(2).byte(), "keys must be given where ranks share the rows, got None"),
        (torch.arange(3, 5).int(), None, r"labels must be \(2,\) uint8, got None"),
        (torch.arange(3, 5).int(), torch.zeros(1).byte(), r"labels must be .* got \(1,\)"),
        (torch.arange(3, 5).int(), torch.zeros(2).int(), r"labels must be .* torch.int32"),
    ],
)
def test_new_rows_of_a_rank_need_keys_and_labels(
    keys: Tensor | None, labels: Tensor | None, message: str
) -> None:
    own = RowKeys(torch.arange(3).int(), 3, torch.zeros(3).byte())
    model = TieredGaussians(street_rows(3), device="cpu", semantics="deferred", keys=own)
    with pytest.raises(ValueError, match=message):
        model.replace(torch.arange(0), street_rows(2), keys, labels)
    assert model.n_rows == len(own.values) == 3
    model.replace(torch.arange(2))  # without new rows nothing more is needed
    assert own.tensors()["strands"].tolist() == [0]
    model.close()


def test_tensors_load_as_they_were() -> None:
    keys = keys_of(7, 2, next_key=12)
    again = RowKeys.load(*keys.tensors().values())
    assert again.values.tolist() == [7, 2]
    assert again.born(1).tolist() == [12]


def test_the_last_key_is_given_and_none_beyond() -> None:
    keys = keys_of(0, next_key=END_OF_KEYS - 1)
    with pytest.raises(CommonError, match=r"2 Gaussians more need keys up to 2,147,483,648, and"):
        keys.born(2)
    assert keys.born(1).tolist() == [END_OF_KEYS - 1]
    with pytest.raises(CommonError, match="1 Gaussians more"):
        keys.born(1)


@pytest.mark.parametrize(
    ("values", "next_key", "message"),
    [
        (torch.tensor([0, 1]), 2, r"keys must be \(N,\) int32, got \(2,\) torch.int64"),
        (torch.zeros(2, 1, dtype=torch.int32), 2, r"keys must be \(N,\) int32, got \(2, 1\)"),
        (torch.tensor([3, 3], dtype=torch.int32), 9, "keys must be distinct"),
        (torch.tensor([3, -1], dtype=torch.int32), 9, "keys must be distinct, at least 0"),
        (torch.tensor([3, 9], dtype=torch.int32), 9, "keys must be .* below 9"),
        (torch.tensor([3], dtype=torch.int32), 2**31 + 1, "next_key must be at least 0 and at mo"),
        (torch.zeros(0, dtype=torch.int32), -1, "next_key must be at least 0"),
    ],
)
def test_what_is_no_key_is_refused(values: Tensor, next_key: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RowKeys.load(values, torch.tensor(next_key))


def test_keys_of_another_number_of_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="keys must be of 5 rows, got 3"):
        Gaussians(
            street_rows(5),
            device="cpu",
            make_optimizer=torch.optim.Adam,
            keys=RowKeys.numbered(3, CPU),
        )


@pytest.mark.parametrize("strategy", ["adc", "mcmc"])
def test_births_beyond_the_last_key_leave_rows_as_they_are(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = _trainer("none", strategy)
    trainer.model.keys.next = END_OF_KEYS
    before: dict[str, Tensor] = {}
    after_step = trainer.densifier.after_step

    def watched(*args: Any, **options: Any) -> Any:
        before.update(_present(trainer))
        return after_step(*args, **options)

    monkeypatch.setattr(trainer.densifier, "after_step", watched)
    with pytest.raises(CommonError, match="Gaussians more need keys"):
        train(trainer, _steps(), scene=photographed("street"))
    for name, value in _present(trainer).items():
        assert torch.equal(value, before[name]), name


@on_renderers
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("strategy", ["adc", "mcmc"])
def test_rows_in_another_order_before_every_step_end_as_the_same_bits(
    preset: str, strategy: str, drawn_by: str
) -> None:
    """Where rows lie changes nothing: neither what is drawn and updated nor which rows are born."""
    left, permuted = (_trainer(preset, strategy, drawn_by=drawn_by) for _ in range(2))
    draw = torch.Generator().manual_seed(3)
    steps = _steps()
    for step in range(len(steps)):
        permuted.backend.make_room()
        order = torch.randperm(permuted.model.n_rows, generator=draw).to(permuted.model.device)
        permuted.model.permute(order)
        permuted.densifier.permute(order)
        for trainer in (left, permuted):
            train(trainer, steps[: step + 1], scene=photographed("street"))
    ours, theirs = _by_key(permuted), _by_key(left)
    assert ours.keys() == theirs.keys()
    n_rows = len(photographed("street").rows["means"])
    assert len(theirs["model/keys"]) != n_rows
    assert int(theirs["model/keys"].max()) >= n_rows
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name


@on_renderers
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("strategy", ["adc", "mcmc"])
def test_none_and_best_leave_the_same_bits_by_key(
    strategy: str, batch_size: int, drawn_by: str
) -> None:
    """Values, moments, what sleeps since when, statistics and costs, whatever the number of slots,
    with coming batches known or not, and with rows re-sorted or not."""
    none = _trained("none", strategy, batch_size, drawn_by=drawn_by)
    for limits, n_known, resorts in (
        (UNLIMITED, 2, True),
        (UNLIMITED, 0, False),
        (Limits(residents=1200), 2, False),
        (Limits(residents=10**6), 1, True),
    ):
        best = _trained(
            *("best", strategy, batch_size, limits),
            n_known=n_known,
            resorts=resorts,
            drawn_by=drawn_by,
        )
        assert best.keys() == none.keys()
        for name, value in none.items():
            assert torch.equal(best[name], value), f"{name}, {limits}, {n_known}, {resorts}"


@pytest.mark.parametrize("limits", [UNLIMITED, Limits(residents=1200), Limits(residents=10**6)])
@pytest.mark.parametrize("strategy", ["adc", "mcmc"])
def test_a_refinement_brings_nothing_home_and_moves_no_row_that_it_does_not_change(
    strategy: str, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = _trainer("best", strategy, limits=limits)
    away = trainer.model.host.away  # type: ignore[attr-defined]
    after_step, n_changes = trainer.densifier.after_step, []

    def refused() -> None:
        raise AssertionError("rows came home, or were forgotten")

    def watched(*args: Any, **options: Any) -> Any:
        before = away.loaded, away.stored
        with monkeypatch.context() as patch:
            patch.setattr(away, "come_home", refused)
            patch.setattr(away, "forget", refused)
            changed = after_step(*args, **options)
        assert (away.loaded, away.stored) == before
        n_changes.append(changed.n_changes)
        return changed

    monkeypatch.setattr(trainer.densifier, "after_step", watched)
    taken, steps = photographed("street"), _steps()
    for batch in steps:
        trainer.train_step([(taken.views[i], taken.photographs[i]) for i in batch])
    assert sum(map(bool, n_changes)) >= 2
    # A batch after a refinement brings what it wants and is not here, not everything anew.
    if limits.residents is None or limits.residents > 1200:
        assert away.loaded < 2 * trainer.model.n_rows


def _trained(
    preset: str,
    strategy: str,
    batch_size: int,
    limits: Limits = UNLIMITED,
    *,
    n_known: int = 0,
    resorts: bool = False,
    drawn_by: str = "cpu",
) -> dict[str, Tensor]:
    trainer = _trainer(preset, strategy, batch_size, limits, resorts=resorts, drawn_by=drawn_by)
    taken, steps = photographed("street").on(trainer.renderer.device.type), _steps(batch_size)
    for k, batch in enumerate(steps):
        upcoming = [[taken.views[i] for i in of] for of in steps[k + 1 : k + 1 + n_known]]
        trainer.train_step([(taken.views[i], taken.photographs[i]) for i in batch], upcoming)
        assert trainer.backend.is_resident  # type: ignore[attr-defined]
    return _by_key(trainer)


def _present(trainer: Trainer) -> dict[str, Tensor]:
    """Keys, geometry with its state, and appearance, of all rows as they are now."""
    geometry = trainer.model.geometry.tensors()  # type: ignore[attr-defined]
    rows = trainer.model.snapshot(slice(None))  # type: ignore[attr-defined]
    return {name: value.clone() for name, value in (geometry | rows).items()}


def _steps(batch_size: int = 3) -> list[list[int]]:
    return drive(18, batch_size, n_views=len(photographed("street").views))


def _trainer(
    preset: str,
    strategy: str,
    batch_size: int = 3,
    limits: Limits = UNLIMITED,
    *,
    resorts: bool = False,
    drawn_by: str = "cpu",
) -> Trainer:
    refining = {"refine_start": 3 * batch_size, "refine_every": 5 * batch_size}
    config = photo_config(
        batch_size=batch_size,
        strategy=strategy,
        resort_every=0.02 if resorts else 0,
        adc=AdcConfig(grow_grad2d=0.002, reset_every=9 * batch_size, cap=5000, **refining),
        mcmc=McmcConfig(cap_max=5000, noise_lr=2e2, min_opacity=0.05, **refining),
        lr=LIVELY,
    )
    taken = photographed("street")
    return Trainer(
        config,
        taken.rows,
        renderer=renderer(drawn_by),
        extent=taken.extent,
        preset=PRESETS[preset],
        limits=limits,
    )


def _by_key(trainer: Trainer) -> dict[str, Tensor]:
    """What a checkpoint would hold but for the order of rows, rows in the order of their keys."""
    tensors = {name: value.cpu() for name, value in trainer.tensors().items()}
    del tensors["order/changes"]
    order = tensors["model/keys"].argsort()
    return {
        name: value[order] if value.ndim and len(value) == len(order) else value
        for name, value in tensors.items()
    }
