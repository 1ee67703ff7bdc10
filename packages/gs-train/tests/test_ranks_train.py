# SPDX-License-Identifier: Apache-2.0
"""Ranks in processes of their own leave the bits that one rank leaves: values, moments, what sleeps
since when, statistics of density control, losses, costs of views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from one_thread import one_threaded
from photographed import photographed
from trained_by_ranks import (
    Case,
    assert_same,
    assert_same_besides,
    batches_of,
    error_of_strangers,
    in_order,
    on_one,
    on_rank,
    on_threads,
    trainer_of,
)
from world_workers import Workers

from gs_train import backends
from gs_train.checkpoint.row_names import KEYS
from gs_train.densify import AdcConfig, McmcConfig
from gs_train.engine import lookahead, shared_planner
from gs_train.errors import InputError
from gs_train.options.presets import PRESETS
from gs_train.world import Alone, World

LONG = 200
COLOUR_TERMS = (("background", "random"), ("exposure", True))
"""Options that change what drawn colours are compared with."""


@pytest.fixture(scope="module")
def two() -> Iterator[Workers]:
    with Workers(2) as workers:
        yield workers


@pytest.fixture(scope="module", params=[2, 3, 4])
def many(request: pytest.FixtureRequest) -> Iterator[Workers]:
    with Workers(request.param) as workers:
        yield workers


def _assert_as_on_one(workers: Workers, case: Case) -> None:
    assert_same(in_order(workers.call(on_rank, case)), on_one(case))


@pytest.mark.parametrize("preset", ["none", "best"])
@pytest.mark.parametrize("paces", [None, 1])
def test_two_ranks_leave_the_bits_of_one(two: Workers, preset: str, paces: int | None) -> None:
    """Also where chance decides who draws what."""
    case = Case(preset, paces=paces)
    ours = in_order(two.call(on_rank, case))
    assert_same(ours, on_one(case))
    # Each photograph is taken where its view is drawn.
    assert sorted(ours.photographs) == sorted(on_one(case).photographs)


@pytest.mark.parametrize("preset", ["none", "best"])
@pytest.mark.parametrize("drawn_by", ["cpu", "tables"])
def test_photographs_with_masks_leave_the_bits_of_one_rank(
    two: Workers, preset: str, drawn_by: str
) -> None:
    options = (("mask", "carve"),)
    case = Case(preset, drawn_by=drawn_by, options=options, scene="masked street")
    _assert_as_on_one(two, case)


@pytest.mark.parametrize("preset", ["none", "best"])
@pytest.mark.parametrize("drawn_by", ["cpu", "tables"])
def test_photographs_with_depth_maps_leave_the_bits_of_one_rank(
    two: Workers, preset: str, drawn_by: str
) -> None:
    options = (("depth_weight", "2:0.5"),)
    _assert_as_on_one(two, Case(preset, drawn_by=drawn_by, options=options, scene="deep street"))


@pytest.mark.gpu
@pytest.mark.parametrize("preset", ["none", "best"])
@pytest.mark.parametrize("more", [(), COLOUR_TERMS], ids=["depth", "all"])
@one_threaded
def test_on_a_gpu_depths_count_where_splats_travel(
    preset: str, more: tuple[tuple[str, Any], ...]
) -> None:
    """Two threads are the ranks; the one rank draws from tables. Also with a random background and
    exposures, which have gradients of their own."""
    options = (("mask", "carve"), ("depth_weight", "2:0.5"), *more)
    case = Case(preset, 3, n_steps=6, first=1, cuts_views=False, options=options)
    case = replace(case, drawn_by="raster", scene="deep street")
    ours = in_order(on_threads(2, case))
    assert_same(ours, on_one(case))
    assert not more or ours.others["exposure/values"].std(0).max() > 0


@pytest.mark.parametrize("preset", ["none", "best"])
def test_random_backgrounds_leave_the_bits_of_one_rank(two: Workers, preset: str) -> None:
    options = (("mask", "carve"), ("background", "random"))
    _assert_as_on_one(two, Case(preset, n_steps=6, options=options, scene="masked street"))


@pytest.mark.parametrize("preset", ["none", "best"])
@pytest.mark.parametrize("drawn_by", ["cpu", "tables"])
def test_exposures_leave_the_bits_of_one_rank(two: Workers, preset: str, drawn_by: str) -> None:
    """Also where ranks resume, and whoever draws a view."""
    options = (("mask", "carve"), *COLOUR_TERMS)
    how: dict[str, Any] = {"drawn_by": drawn_by, "options": options, "scene": "masked street"}
    ours = in_order(two.call(on_rank, Case(preset, 5, 8, False, stopped_at=4, paces=3, **how)))
    theirs = on_one(Case(preset, 5, 8, False, **how))
    assert_same(ours, theirs)
    assert ours.others["exposure/values"].std(0).max() > 0


def test_all_terms_of_the_loss_together_leave_the_same_bits(two: Workers) -> None:
    """Of presets, and of ranks: gradients by alpha of background, carving and depth add up."""
    options = (("mask", "carve"), ("depth_weight", "2:0.5"), *COLOUR_TERMS)
    how: dict[str, Any] = {"options": options, "scene": "deep street"}
    none, best = (Case(preset, 3, 6, False, **how) for preset in ("none", "best"))
    expected = on_one(none)
    assert_same(on_one(best), expected)
    for case in (none, best):
        assert_same(in_order(two.call(on_rank, case)), expected)
    assert expected.others["exposure/values"].std(0).max() > 0


@pytest.mark.gpu
@pytest.mark.parametrize("preset", ["none", "best"])
@one_threaded
def test_on_a_gpu_masks_carve_where_splats_travel(preset: str) -> None:
    """Two threads are the ranks; the one rank draws from tables."""
    options = (("mask", "carve"),)
    case = Case(preset, 3, n_steps=6, first=1, cuts_views=False, options=options)
    case = replace(case, drawn_by="raster", scene="masked street")
    assert_same(in_order(on_threads(2, case)), on_one(case))


def test_a_world_of_one_rank_has_nothing_that_several_have() -> None:
    trainer = trainer_of(Case(), Alone(torch.device("cpu")))
    assert trainer.backend.together is None
    assert trainer.dealing is None
    assert trainer.model.keys.labels is None


def _operations(case: Case, world: World | None) -> Counter[str]:
    """Torch's operations of the last step, by name."""
    trainer, scene = trainer_of(case, world), photographed(case.scene)
    *before, last = batches_of(case)
    for views in before:
        trainer.train_step([(scene.views[i], scene.photographs[i]) for i in views])
    trainer.backend.finish()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        trainer.train_step([(scene.views[i], scene.photographs[i]) for i in last])
        trainer.backend.finish()
    found = Counter({event.key: event.count for event in profiled.key_averages()})
    if case.preset == "best":
        trainer.model.close()  # type: ignore[attr-defined]
    return found


class _Silent(Alone):
    """Nothing is asked of it."""

    def _refused(self, *_: object, **__: object) -> Any:
        raise AssertionError("a world of one was asked")

    agree = gather = sum = all_to_all = barrier = broadcast = broadcast_tensor = _refused


@pytest.mark.parametrize("preset", ["none", "best"])
@one_threaded
def test_a_step_in_a_world_of_one_does_what_a_step_without_a_world_does(preset: str) -> None:
    case = Case(preset, 3, n_steps=3, first=1)
    _operations(case, None)  # what is done once in a process is done
    expected = _operations(case, None)
    assert sum(expected.values()) > 100
    assert _operations(case, _Silent(torch.device("cpu"))) == expected


@pytest.mark.parametrize("preset", ["naive", "clm", "gs-scale"])
def test_ranks_refuse_schedules_for_one(preset: str) -> None:
    with pytest.raises(InputError, match=f"--offload {preset} is for one GPU: several take"):
        on_threads(2, Case(preset))


def test_ranks_refuse_a_renderer_without_records() -> None:
    renderer = SimpleNamespace(name="gsplat")
    with pytest.raises(InputError, match="the renderer gsplat is for one GPU"):
        backends._check_shared(PRESETS["none"], renderer)  # type: ignore[arg-type]


@pytest.mark.parametrize("known", [0, 1])
def test_what_is_known_ahead_changes_nothing(two: Workers, known: int) -> None:
    _assert_as_on_one(two, Case("best", n_steps=10, known=known))


@pytest.mark.parametrize("batch_size", [1, 5])
def test_with_whole_views_some_ranks_are_idle(two: Workers, batch_size: int) -> None:
    _assert_as_on_one(two, Case("best", batch_size, n_steps=12, cuts_views=False, absgrad=True))


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_rank_draws_less_and_changes_no_bit(two: Workers, slow: int) -> None:
    paces = (4000, 1000) if slow == 0 else (1000, 4000)
    case = Case("best", 5, n_steps=4, first=1, cuts_views=False, paces=paces)
    parts = two.call(on_rank, case)
    assert len(parts[slow].photographs) == 4 * 2
    assert len(parts[1 - slow].photographs) == 4 * 3
    assert_same(in_order(parts), on_one(case))


@pytest.mark.parametrize("owner", [0, 1])
def test_a_rank_may_have_no_rows(two: Workers, owner: int) -> None:
    _assert_as_on_one(two, Case("best", 3, n_steps=6, cuts_views=False, owner=owner))


@pytest.mark.parametrize("batch_size", [1, 5])
def test_views_that_are_cut_give_the_same_gradients_but_for_rounding(
    two: Workers, batch_size: int
) -> None:
    """After one step a first moment is a tenth of the gradient."""
    case = Case("none", batch_size, n_steps=1, first=1)
    ours, theirs = in_order(two.call(on_rank, case)), on_one(case)
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-6)
    moments = [name for name in theirs.by_row if name.endswith("exp_avg")]
    assert moments
    for name in moments:
        most = np.abs(theirs.by_row[name]).max()
        assert np.abs(ours.by_row[name] - theirs.by_row[name]).max() <= 4e-7 * most, name
    assert_same_besides(ours, theirs)
    assert ours.others["columns/counts"].sum() == theirs.others["costs/counts"].sum() > 0


def test_cuts_follow_neither_from_who_draws_nor_from_what_is_known_ahead(two: Workers) -> None:
    case = Case("best", 3, n_steps=24, first=1)
    ours, theirs = in_order(two.call(on_rank, case)), on_one(case)
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-4)
    assert_same(in_order(two.call(on_rank, replace(case, paces=1, known=1))), ours)


@pytest.mark.parametrize(
    ("residents", "owners"), [(0, {}), (330, {}), (640, {"owner": 1}), (400, {"most_of": 1})]
)
def test_a_batch_that_one_rank_has_no_room_for_is_updated_by_all_hosts(
    two: Workers, residents: int, owners: dict[str, int]
) -> None:
    """With the last case, the other rank has an early list, and must look for an exact one."""
    case = Case("best", 5, n_steps=16, first=1, cuts_views=False)
    case = replace(case, residents=residents, **owners)
    ours = in_order(two.call(on_rank, case))
    assert {*ours.resides} == ({False, True} if residents else {False})
    assert_same(ours, on_one(case))


@pytest.mark.parametrize("cuts_views", [False, True])
def test_ranks_that_go_on_leave_the_bits_of_ranks_that_were_not_stopped(
    two: Workers, cuts_views: bool
) -> None:
    case = Case("best", 5, n_steps=12, first=1, cuts_views=cuts_views)
    ours, theirs = (in_order(two.call(on_rank, replace(case, stopped_at=k))) for k in (7, None))
    assert_same(ours, theirs)
    for name in ("steps", "counts", "views", "sizes") if cuts_views else ():
        name = f"columns/{name}"
        assert np.array_equal(ours.others[name], theirs.others[name])


@pytest.mark.parametrize("options", [{"regularise": "visible"}, {"semantics": "sparse"}])
def test_other_semantics_leave_the_bits_of_one_rank(two: Workers, options: dict[str, Any]) -> None:
    case = Case("none", 3, n_steps=8, first=1, cuts_views=False, options=tuple(options.items()))
    _assert_as_on_one(two, case)


def _refined(
    strategy: str, batch_size: int, *, reset_every: int = 9
) -> tuple[tuple[str, Any], ...]:
    """Options with which rows come, go, move and are sorted again.

    Args:
        reset_every: steps from one reset of opacities to the next.
    """
    b = batch_size
    often: dict[str, Any] = {"refine_start": 2 * b, "refine_every": 4 * b}
    adc = AdcConfig(grow_grad2d=0.002, reset_every=reset_every * b, cap=4600, **often)
    mcmc = McmcConfig(cap_max=4600, noise_lr=2e2, min_opacity=0.05, **often)
    options = {"strategy": strategy, "adc": adc, "mcmc": mcmc, "resort_every": 0.02}
    return tuple(options.items())


@pytest.mark.parametrize(("preset", "strategy"), [("none", "adc"), ("best", "mcmc")])
def test_rows_that_come_and_go_are_those_of_one_rank(
    two: Workers, preset: str, strategy: str
) -> None:
    case = Case(preset, 4, n_steps=24, first=1, options=_refined(strategy, 4))
    ours = in_order(two.call(on_rank, case))
    assert sum(map(bool, ours.changes)) > 2
    assert_same(ours, on_one(case))
    assert_same(in_order(two.call(on_rank, replace(case, stopped_at=13))), ours)


@pytest.mark.parametrize(("preset", "strategy"), [("none", "mcmc"), ("best", "adc")])
@pytest.mark.parametrize("owner", [0, 1])
def test_rows_of_one_rank_are_dealt_to_all_when_they_are_sorted(
    two: Workers, preset: str, strategy: str, owner: int
) -> None:
    case = Case(preset, 4, n_steps=16, first=1, owner=owner, options=_refined(strategy, 4))
    parts = two.call(on_rank, case)
    assert_same(in_order(parts), on_one(case))
    shares = [len(part.by_row[KEYS]) for part in parts]
    assert max(shares) < 0.55 * sum(shares)


def test_ranks_that_draw_other_views_end_together(two: Workers) -> None:
    found = two.call(error_of_strangers, Case("none", 2, n_steps=2))
    assert {*found} == {
        "DisagreementError: all ranks must draw the same views, and in step 1 they do not: start "
        "all with the same command, on the same capture"
    }


@pytest.mark.parametrize(
    ("drawn_by", "preset"),
    [
        ("tables", "none"),
        ("tables", "best"),
        pytest.param("raster", "none", marks=pytest.mark.gpu),
        pytest.param("raster", "best", marks=pytest.mark.gpu),
    ],
)
@pytest.mark.parametrize(("batch_size", "absgrad"), [(1, False), (5, True)])
@one_threaded
def test_splats_travel_from_tables(
    drawn_by: str, preset: str, batch_size: int, absgrad: bool
) -> None:
    """Three threads are the ranks."""
    case = Case(preset, batch_size, n_steps=6, first=1, cuts_views=False)
    case = replace(case, absgrad=absgrad, drawn_by=drawn_by)
    assert_same(in_order(on_threads(3, case)), on_one(case))


@pytest.mark.gpu
@pytest.mark.gpu2
@pytest.mark.parametrize(("preset", "batch_size"), [("none", 12), ("best", 5)])
@pytest.mark.parametrize("terms", [(), COLOUR_TERMS], ids=["colours", "exposures"])
def test_two_devices_leave_the_bits_of_one(
    preset: str, batch_size: int, terms: tuple[tuple[str, Any], ...]
) -> None:
    """Over NCCL; also with exposures and a random background, whose sums are of both devices."""
    case = Case(preset, batch_size, n_steps=12, cuts_views=False, drawn_by="raster", options=terms)
    with Workers(2, kinds=("cuda", "cuda")) as workers:
        ours = in_order(workers.call(on_rank, case))
    assert_same(ours, on_one(case))
    assert not terms or ours.others["exposure/values"].std(0).max() > 0


@pytest.mark.parametrize("batch_size", [3, 4])
@one_threaded
def test_batches_that_list_all_rows_leave_the_same_bits(
    batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole views, and views that are cut."""
    case = Case("none", batch_size, n_steps=6, first=1, drawn_by="tables")
    expected = in_order(on_threads(2, case))
    monkeypatch.setitem(backends._LISTS_ALL, "cpu", 1 << 30)
    monkeypatch.setattr(shared_planner, "look_at", _refused)
    monkeypatch.setattr(lookahead, "look_at", _refused)
    assert_same(in_order(on_threads(2, case)), expected)


@pytest.mark.parametrize("strategy", ["adc", "mcmc"])
@one_threaded
def test_views_that_are_cut_refine_rows_in_tables_as_copies(strategy: str) -> None:
    """Density control observes crops whose gradients it sums, and no others."""
    options = _refined(strategy, 3)
    case = Case("none", 3, n_steps=9, first=1, drawn_by="tables", options=options)
    ours = in_order(on_threads(2, case))
    assert any(ours.changes)
    assert_same(ours, in_order(on_threads(2, replace(case, drawn_by="cpu"))))


def _refused(*_: object, **__: object) -> None:
    raise AssertionError("nothing need be looked for")


@pytest.mark.long
@pytest.mark.parametrize(
    ("preset", "batch_size", "paces", "strategy"),
    [("none", 1, 1, None), ("best", 1, None, None), ("none", 5, None, None), ("best", 5, 1, None),
     ("none", 12, 1, "mcmc"), ("best", 12, 1, "adc"), ("none", 12, None, "adc"),
     ("best", 12, None, "mcmc")],
)  # fmt: skip
def test_many_ranks_leave_the_bits_of_one(
    many: Workers, preset: str, batch_size: int, paces: int | None, strategy: str | None
) -> None:
    """Some have nothing to draw in the last round, or in any; with a strategy rows come and go."""
    options = () if strategy is None else _refined(strategy, batch_size, reset_every=150)
    case = Case(preset, batch_size, LONG, cuts_views=False, paces=paces, options=options)
    ours = in_order(many.call(on_rank, case))
    assert (sum(map(bool, ours.changes)) > 10) == (strategy is not None)
    assert_same(ours, on_one(case))
