# SPDX-License-Identifier: Apache-2.0
"""Views that are drawn from tables leave the bits that views drawn from copies leave."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cpu_tables import Noted, TableCpuRenderer
from one_thread import one_threaded
from photographed import LIVELY, photo_config, photographed
from torch import Tensor

from gs_train import backends
from gs_train.densify import AdcConfig, McmcConfig
from gs_train.engine import lookahead, planner, room, table_drawing
from gs_train.engine.all_rows import AllRows
from gs_train.engine.room import KEPT_BYTES
from gs_train.engine.settings import StepSettings
from gs_train.options.limits import UNLIMITED, Limits
from gs_train.options.presets import PRESETS
from gs_train.renderers import Renderer, RenderOptions
from gs_train.renderers.cpu import CpuRenderer
from gs_train.renderers.raster import RasterRenderer
from gs_train.runs.trainer import Trainer

Room = Callable[[int, int, int], int]
"""See `CpuTables.most_room`."""

Left = tuple[list[float], dict[str, Tensor]]
"""The losses of a run, and what a checkpoint of it holds."""

FROM_TABLES = [
    ("none", UNLIMITED),
    ("best", UNLIMITED),
    ("best", Limits(residents=1300)),
    ("best", Limits(residents=10**6)),
]
"""Presets and kinds of slots."""

N_STEPS = 6

SETTINGS = StepSettings(1, {}, (0.9, 0.999), 1e-15, 0.2)


def _batches(batch_size: int, n_steps: int) -> list[list[int]]:
    """Neighbours along the street, of which each step leaves one behind; a view that sees nothing
    is in every third."""
    n_views = len(photographed("street").views)
    steps = [[(7 * step + 2 * i) % n_views for i in range(batch_size)] for step in range(n_steps)]
    for batch in steps[2::3]:
        batch[len(batch) // 2] = n_views - 1
    # Views come again once their counts are known.
    return [*steps[:-1], steps[0][::-1]]


def _trainer(
    renderer: Renderer,
    preset: str,
    limits: Limits = UNLIMITED,
    *,
    strategy: str = "adc",
    batch_size: int = 3,
    absgrad: bool = False,
) -> Trainer:
    refining = {"refine_start": 2 * batch_size, "refine_every": 2 * batch_size}
    config = photo_config(
        batch_size=batch_size,
        strategy=strategy,
        resort_every=0,
        adc=AdcConfig(
            grow_grad2d=0.002, absgrad=absgrad, reset_every=3 * batch_size, cap=5000, **refining
        ),
        mcmc=McmcConfig(cap_max=5000, noise_lr=2e2, min_opacity=0.05, **refining),
        lr=LIVELY,
    )
    taken = photographed("street")
    return Trainer(
        config,
        taken.rows,
        renderer=renderer,
        extent=taken.extent,
        preset=PRESETS[preset],
        limits=limits,
    )


def _train(
    trainer: Trainer,
    *,
    batch_size: int = 3,
    n_steps: int = N_STEPS,
    known: int = 2,
    device: str = "cpu",
) -> Left:
    taken, steps, losses = photographed("street"), _batches(batch_size, n_steps), []
    views = [view.to(device) for view in taken.views]
    for k, batch in enumerate(steps):
        upcoming = [[views[i] for i in of] for of in steps[k + 1 : k + 1 + known]]
        pairs = [(views[i], taken.photographs[i].to(device)) for i in batch]
        losses.append(float(trainer.train_step(pairs, upcoming).loss))
    left = {name: value.clone() for name, value in trainer.tensors().items()}
    if trainer.preset.placement == "split":
        trainer.model.close()  # type: ignore[attr-defined]
    return losses, left


@functools.cache
def _from_copies(
    preset: str, limits: Limits, strategy: str, batch_size: int, absgrad: bool, n_steps: int
) -> Left:
    renderer = CpuRenderer(RenderOptions(), absgrad=absgrad)
    how: dict[str, Any] = {"strategy": strategy, "batch_size": batch_size, "absgrad": absgrad}
    trainer = _trainer(renderer, preset, limits, **how)
    return _train(trainer, batch_size=batch_size, n_steps=n_steps)


def _assert_same_bits(
    renderer: TableCpuRenderer,
    preset: str,
    limits: Limits = UNLIMITED,
    *,
    strategy: str = "adc",
    batch_size: int = 3,
    n_steps: int = N_STEPS,
) -> Noted:
    absgrad = renderer.absgrad
    trainer = _trainer(
        renderer, preset, limits, strategy=strategy, batch_size=batch_size, absgrad=absgrad
    )
    losses, left = _train(trainer, batch_size=batch_size, n_steps=n_steps)
    expected_losses, expected = _from_copies(preset, limits, strategy, batch_size, absgrad, n_steps)
    assert losses == expected_losses
    assert left.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(left[name], value), name
    return renderer.tables.noted


def _n_views(batch_size: int = 3, n_steps: int = N_STEPS) -> int:
    """Views that see something."""
    last = len(photographed("street").views) - 1
    return sum(i != last for batch in _batches(batch_size, n_steps) for i in batch)


def _assert_all_drawn_once(noted: Noted, n_views: int) -> None:
    assert not noted.copied
    assert len(noted.drawn) == len(noted.added) == n_views


# -- ample room


@pytest.mark.parametrize(("preset", "limits"), FROM_TABLES)
@pytest.mark.parametrize("strategy", ["adc", "mcmc"])
@one_threaded
def test_drawn_from_tables_rows_end_as_the_same_bits(
    preset: str, limits: Limits, strategy: str
) -> None:
    noted = _assert_same_bits(TableCpuRenderer(), preset, limits, strategy=strategy)
    _assert_all_drawn_once(noted, _n_views())


@pytest.mark.parametrize("strategy", ["adc", "mcmc"])
@pytest.mark.parametrize(("batch_size", "n_steps"), [(1, 12), (3, N_STEPS)])
@one_threaded
def test_batches_that_list_all_rows_end_as_the_same_bits(
    strategy: str, batch_size: int, n_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _from_copies("none", UNLIMITED, strategy, batch_size, False, n_steps)  # which may look
    monkeypatch.setitem(backends._LISTS_ALL, "cpu", 1 << 30)
    monkeypatch.setattr(planner, "look", _refused)
    monkeypatch.setattr(lookahead, "look", _refused)
    how: dict[str, Any] = {"strategy": strategy, "batch_size": batch_size, "n_steps": n_steps}
    noted = _assert_same_bits(TableCpuRenderer(), "none", **how)
    _assert_all_drawn_once(noted, batch_size * n_steps)


def _refused(*_: object, **__: object) -> None:
    raise AssertionError("nothing need be looked for")


def test_all_rows_are_listed_of_as_many_views_as_were_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = _trainer(TableCpuRenderer(), "none", batch_size=33)
    engine, n_rows = trainer.backend, trainer.model.n_rows
    for n_views, n_words, last in ((1, 1, 1), (32, 1, -1), (33, 2, 1)):
        rows = AllRows(engine.model, n_views * n_rows)
        assert rows.suffices(n_views, SETTINGS)
        assert not rows.suffices(n_views + 1, SETTINGS)
        seen = rows.list([photographed("street").views[0]] * n_views)
        assert seen.ids.tolist() == list(range(n_rows))
        assert seen.counts == (n_rows,) * n_views
        assert seen.mask.shape == (n_rows, n_words)
        assert (seen.mask[:, -1] == last).all()
        assert (seen.mask[:, :-1] == -1).all()


def test_the_list_of_a_view_is_kept_until_rows_or_the_view_change() -> None:
    model = _trainer(TableCpuRenderer(), "none").model
    rows, views = AllRows(model, 1 << 30), photographed("street").views
    first = rows.list(views[:1])
    rows.list(views[1:2])
    assert rows.list(views[:1]) is first
    copy = dataclasses.replace(views[0])  # another view of the same name
    assert rows.list([copy]).microbatches[0].crop.view is copy
    assert rows.list([copy]).cameras is copy.camera
    n_rows = model.n_rows
    model.replace(torch.tensor([1, 4], dtype=torch.int32))
    fewer = rows.list([copy])
    assert fewer.ids.tolist() == list(range(n_rows - 2))
    assert fewer.counts == (n_rows - 2,)
    rows.list(views[:2])
    assert rows.list([copy]).mask.tolist() == [[1]] * (n_rows - 2)


@pytest.mark.parametrize("preset", ["none", "best"])
@one_threaded
def test_absolute_gradients_are_the_same(preset: str) -> None:
    noted = _assert_same_bits(TableCpuRenderer(absgrad=True), preset)
    _assert_all_drawn_once(noted, _n_views())


@pytest.mark.long
@pytest.mark.parametrize(
    ("preset", "limits"), [case for case in FROM_TABLES if case[1].residents != 1300]
)
@pytest.mark.parametrize(("strategy", "absgrad"), [("adc", False), ("adc", True), ("mcmc", False)])
@pytest.mark.parametrize(("batch_size", "n_steps"), [(1, 24), (8, 8)])
@one_threaded
def test_other_batches_end_as_the_same_bits(
    preset: str, limits: Limits, strategy: str, absgrad: bool, batch_size: int, n_steps: int
) -> None:
    """Every third view has too little room at first."""
    how: dict[str, Any] = {"strategy": strategy, "batch_size": batch_size, "n_steps": n_steps}
    renderer = TableCpuRenderer(absgrad=absgrad)
    renderer.tables.most_room = lambda index, times, room: 0 if index % 3 == times == 0 else room
    noted = _assert_same_bits(renderer, preset, limits, **how)
    assert not noted.copied
    assert noted.n_skipped == len(noted.drawn) - len(noted.added) > 0


# -- too little room


def _short(*indices: int) -> Room:
    """No room for some of a batch's views when they are drawn first."""
    return lambda index, times, room: 0 if index in indices and not times else room


ROOMS: dict[str, Room] = {
    "the first": _short(0),
    "a middle one": _short(2),
    "the last": _short(4),
    "two in a row": _short(1, 2),
    "the last two": _short(3, 4),
    "every other": _short(0, 2, 4),
    "all": _short(*range(5)),
}


@pytest.mark.parametrize("where", ROOMS)
@pytest.mark.parametrize("preset", ["none", "best"])
@one_threaded
def test_views_that_had_too_little_room_are_drawn_again(preset: str, where: str) -> None:
    renderer = TableCpuRenderer()
    renderer.tables.most_room = ROOMS[where]
    noted = _assert_same_bits(renderer, preset, batch_size=5, n_steps=4)
    assert not noted.copied
    assert len(noted.added) == _n_views(5, 4)
    assert noted.n_skipped == len(noted.drawn) - len(noted.added) >= 3


@pytest.mark.parametrize("preset", ["none", "best"])
@one_threaded
def test_room_is_what_a_view_needed_when_it_was_drawn_last(
    preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_SPARE", 0)
    monkeypatch.setattr(room, "_A_ROW", 0)
    renderer = TableCpuRenderer()
    noted = _assert_same_bits(renderer, preset)
    assert not noted.copied
    # What is known of the views of the last step lets them fit at once; all others are drawn at
    # least twice, and what was enqueued behind them.
    n_known = 3
    assert [count <= size for _, size, count in noted.drawn[-n_known:]] == [True] * n_known
    assert len(noted.added) == _n_views()
    assert noted.n_skipped >= _n_views() - n_known
    # Of few sizes, also where a view is drawn again: a renderer prepares each size once.
    for _, size, _ in noted.drawn:
        assert size % (1 << max(size.bit_length() - 5, 0)) == 0


# -- crops


@pytest.mark.parametrize(
    ("preset", "limits"), [("none", Limits(rows=120)), ("best", Limits(rows=120))]
)
@pytest.mark.parametrize(("strategy", "absgrad"), [("adc", False), ("adc", True), ("mcmc", False)])
@one_threaded
def test_crops_are_drawn_from_tables(
    preset: str, limits: Limits, strategy: str, absgrad: bool
) -> None:
    """Density control observes their splats where it wants something of them."""
    renderer = TableCpuRenderer(absgrad=absgrad)
    renderer.tables.most_room = lambda index, times, room: 0 if index % 4 == times == 0 else room
    noted = _assert_same_bits(renderer, preset, limits, strategy=strategy)
    assert not noted.copied
    assert len(noted.added) > _n_views()
    assert noted.n_skipped
    assert (noted.n_observed > 0) == (strategy == "adc")


# -- memory that does not suffice, and more than can be counted


def _fails_once(where: str, after: int) -> Callable[[str], None]:
    """Memory runs out once, where so many calls of ``where`` had enough."""
    left = [after]

    def fails(what: str) -> None:
        if what == where:
            left[0] -= 1
            if left[0] == -1:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    return fails


@one_threaded
def test_the_memory_of_views_is_kept_until_others_want_memory() -> None:
    renderer = TableCpuRenderer()
    trainer = _trainer(renderer, "none", batch_size=2)
    taken, kept = photographed("street"), renderer.tables.noted.kept
    batch = [(taken.views[i], taken.photographs[i]) for i in range(2)]
    trainer.train_step(batch)
    trainer.train_step(batch)
    assert kept == [KEPT_BYTES] * 2
    trainer.backend.finish()
    trainer.backend.make_room()
    trainer.model.replace(torch.empty(0, dtype=torch.int32))
    assert kept[2:] == [0, 0, 0]
    renderer.tables.fails = _fails_once("draw", 1)  # for the second view, which is copied
    trainer.train_step(batch)
    assert kept[5:] == [0, KEPT_BYTES]


@pytest.mark.parametrize("room", ["ample", "every other", "two in a row"])
@pytest.mark.parametrize("where", ["draw", "send_back"])
@one_threaded
def test_a_view_that_memory_does_not_suffice_for_is_drawn_from_copies(
    where: str, room: str
) -> None:
    """Whichever it is: the first, one behind others, or one that is drawn again."""
    for after in range(_n_views(5, 2)):
        renderer = TableCpuRenderer()
        renderer.tables.most_room = ROOMS.get(room, renderer.tables.most_room)
        renderer.tables.fails = _fails_once(where, after)
        noted = _assert_same_bits(renderer, "none", batch_size=5, n_steps=2)
        assert noted.copied == [None]
        assert len(noted.added) == _n_views(5, 2) - 1


@pytest.mark.parametrize("preset", ["none", "best"])
@one_threaded
def test_a_view_of_more_intersections_than_can_be_counted_is_drawn_from_copies(
    preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (table_drawing, room):
        monkeypatch.setattr(module, "MAX_INSTANCES", 300)
    noted = _assert_same_bits(TableCpuRenderer(), preset)
    assert noted.copied
    assert noted.added
    assert {size for _, size, _ in noted.drawn} == {300}
    # The last step's first view is known to have more: it is not tried.
    assert sum(index == 0 for index, _, _ in noted.drawn) == N_STEPS - 1


# -- rows that lie nowhere together, and what goes wrong


@pytest.mark.parametrize(
    ("preset", "limits"),
    [
        ("clm", UNLIMITED),
        ("gs-scale", UNLIMITED),
        ("naive", UNLIMITED),
        ("best", Limits(residents=0)),
    ],
)
@one_threaded
def test_where_the_host_updates_rows_copies_are_drawn(preset: str, limits: Limits) -> None:
    noted = _assert_same_bits(TableCpuRenderer(), preset, limits, n_steps=2)
    assert not noted.drawn
    assert len(noted.copied) >= _n_views(3, 2)


@pytest.mark.parametrize("preset", ["none", "best"])
@one_threaded
def test_what_runs_meanwhile_runs_before_the_host_waits_for_the_last_view(
    preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = TableCpuRenderer()
    trainer = _trainer(renderer, preset)
    tables, taken = renderer.tables, photographed("street")
    waited, seen, plain = [], [], tables.n_intersections

    def waiting(index: int) -> int:
        waited.append(index)
        return plain(index)

    monkeypatch.setattr(tables, "n_intersections", waiting)
    batch = [(taken.views[i], taken.photographs[i]) for i in _batches(3, 2)[0]]
    trainer.train_step(batch, meanwhile=lambda: seen.append((len(tables.noted.drawn), [*waited])))
    assert seen == [(3, [0, 1])]
    assert waited == [0, 1, 2]


class _LossFailsError(Exception):
    pass


@pytest.mark.parametrize("preset", ["none", "best"])
@one_threaded
def test_an_error_in_the_middle_of_a_batch_ends_the_run(
    preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = TableCpuRenderer()
    trainer = _trainer(renderer, preset)
    taken = photographed("street")
    batch = [(taken.views[i], taken.photographs[i]) for i in _batches(3, 2)[0]]
    trainer.train_step(batch)
    left = [1]

    def fails(*_: object, **__: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise _LossFailsError
        return drawn_loss(*_, **__)

    drawn_loss = table_drawing.drawn_loss
    monkeypatch.setattr(table_drawing, "drawn_loss", fails)
    with pytest.raises(_LossFailsError):
        trainer.train_step(batch)
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="an earlier batch ended in the middle"):
        trainer.train_step(batch)
    with pytest.raises(RuntimeError, match="an earlier batch ended in the middle"):
        trainer.tensors()


# -- on a device


def _on_device(preset: str, limits: Limits, strategy: str, *, from_tables: bool) -> Left:
    renderer: Any = RasterRenderer(RenderOptions(), device="cuda:0", absgrad=True)
    if not from_tables:
        renderer.tables = None
    trainer = _trainer(renderer, preset, limits, strategy=strategy, absgrad=strategy == "adc")
    return _train(trainer, device="cuda:0")


@pytest.mark.gpu
@pytest.mark.parametrize(("preset", "limits"), FROM_TABLES)
@pytest.mark.parametrize("strategy", ["adc", "mcmc"])
@pytest.mark.parametrize("has_room", [True, False])
def test_on_a_device_rows_end_as_the_same_bits(
    preset: str, limits: Limits, strategy: str, has_room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected = _on_device(preset, limits, strategy, from_tables=False)
    if not has_room:  # for most views, which are drawn twice
        monkeypatch.setattr(room, "_SPARE", 0)
        monkeypatch.setattr(room, "_A_ROW", 1)
    _, left = _on_device(preset, limits, strategy, from_tables=True)
    assert left.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(left[name], value), name
