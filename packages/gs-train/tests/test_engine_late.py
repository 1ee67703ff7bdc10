# SPDX-License-Identifier: Apache-2.0
"""Work that runs as late as it may, in the worker and beside drawing: what needs it has waited."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from one_thread import one_threaded
from scripted import Script, ScriptedRenderer, signed, small_rings
from scripted_runs import BLANK, Products, scripted_config
from street import EXTENT, drive, street_rows, street_views
from torch import Tensor

from gs_train.engine import engine as step_loop
from gs_train.engine import lookahead
from gs_train.engine.engine import Engine
from gs_train.machine.lanes import Lanes
from gs_train.machine.side_thread import SideThread
from gs_train.options.config import FitConfig
from gs_train.options.limits import Limits
from gs_train.options.presets import PRESETS
from gs_train.published import streamed
from gs_train.published.stores import Stores
from gs_train.published.untouched import Untouched
from gs_train.rows.attributes import NAMES
from gs_train.runs.trainer import Trainer

STEPS = 30
ROWS = signed(street_rows(4000, sh_degree=2))
VIEWS = street_views(width=64, height=48, focal=0.6)
SCRIPT = Script(VIEWS, ROWS)


class Late:
    """Holds the worker's updates back until somebody waits for them.

    Whoever waits for a look at rows waits for the updates of all steps but the last begun: those
    of the last one are his own to wait for.

    Attributes:
        held: updates of the last step begun that somebody waited for.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._worker = trainer.model.appearance.worker  # type: ignore[attr-defined]
        self._submit, self._wait = self._worker.submit, self._worker.wait
        self._updates: dict[int, tuple[int, threading.Event]] = {}
        self._last = 0
        self.held = 0
        self._worker.submit, self._worker.wait = self.submit, self.wait

    def submit(self, rows: Any, grads: Any, *, step: int, ready: Any = None, **options: Any) -> int:
        if step > self._last:
            self._last = step
        # On the CPU gradients have landed when they are sent.
        event = threading.Event()
        ticket = int(self._submit(rows, grads, step=step, ready=event.is_set, **options))
        self._updates[ticket] = step, event
        return ticket

    def wait(self, ticket: int | None = None, **options: Any) -> None:
        for update, (step, event) in self._updates.items():
            if ticket is None or ticket == update or step < self._last:
                self.held += ticket == update and step == self._last and not event.is_set()
                event.set()
        self._wait(ticket, **options)


def _run(
    preset: str,
    batch_size: int,
    *,
    is_late: bool,
    residents: int | None = 0,
    config: FitConfig | None = None,
    is_announced: bool = True,
) -> tuple[dict[str, Tensor], Products, int]:
    trainer = Trainer(
        dataclasses.replace(config or scripted_config("adc", batch_size), mem_limit=0.08),
        ROWS,
        renderer=ScriptedRenderer(SCRIPT),
        extent=EXTENT,
        preset=PRESETS[preset],
        limits=Limits(residents=residents),
    )
    late = Late(trainer) if is_late else None
    steps = drive(STEPS, batch_size)
    # The views of the batch before come again: rows that have just been updated are needed at once.
    steps = [steps[step - step % 3] for step in range(STEPS)]
    for step, batch in enumerate(steps):
        assert isinstance(trainer.renderer, ScriptedRenderer)
        trainer.renderer.step = step
        announced = steps[step + 1 : step + 3] if is_announced else []
        upcoming = [[VIEWS[i] for i in following] for following in announced]
        trainer.train_step([(VIEWS[i], BLANK) for i in batch], upcoming)
    trainer.backend.finish()
    rows = {name: trainer.model.read(name).clone() for name in NAMES}
    trainer.model.close()  # type: ignore[attr-defined]
    assert isinstance(trainer.renderer, ScriptedRenderer)
    return rows, trainer.renderer.products, 0 if late is None else late.held


def _assert_same(
    rows: dict[str, Tensor], expected: dict[str, Tensor], drawn: Products, expected_drawn: Products
) -> None:
    for name in NAMES:
        assert torch.equal(rows[name], expected[name]), name
    assert drawn.keys() == expected_drawn.keys()
    for key, (value, size) in expected_drawn.items():
        assert (drawn[key][0] - value).abs() <= 1e-12 * size, f"stale rows at {key}"


@pytest.mark.parametrize(("preset", "batch_size"), [("gs-scale", 1), ("best", 1), ("best", 4)])
@one_threaded
def test_rows_are_read_only_after_the_updates_that_they_need(
    preset: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_rings(monkeypatch)
    monkeypatch.setattr(streamed, "RING_BYTES", 4 << 20)  # a full ring waits for updates
    prompt, loaded, _ = _run(preset, batch_size, is_late=False)
    late, loaded_late, held = _run(preset, batch_size, is_late=True)
    assert held > 0, "updates must have been waited for"
    _assert_same(late, prompt, loaded_late, loaded)


@pytest.mark.parametrize("strategy", ["adc", "mcmc"])
@pytest.mark.parametrize(
    ("preset", "batch_size", "semantics"),
    [
        ("gs-scale", 1, "dense"),
        ("best", 4, "dense"),
        ("gs-scale", 1, "sparse"),
        ("best", 4, "sparse"),
        ("clm", 4, "sparse"),
    ],
)
@one_threaded
def test_edits_of_geometry_alone_leave_no_update_behind(
    preset: str, batch_size: int, semantics: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise on the means and reset opacities make what is known of the next batch stale, and rest
    no host; with sparse semantics, or unannounced batches, nothing is known."""
    never = 10**6
    config = scripted_config(strategy, batch_size)
    config = dataclasses.replace(
        config,
        semantics=semantics,  # type: ignore[arg-type]
        adc=dataclasses.replace(config.adc, refine_start=never, reset_every=4 * batch_size),
        mcmc=dataclasses.replace(config.mcmc, refine_start=never),
    )
    small_rings(monkeypatch)
    is_announced = semantics == "sparse"
    run = functools.partial(_run, preset, batch_size, config=config, is_announced=is_announced)
    prompt, loaded, _ = run(is_late=False)
    late, loaded_late, held = run(is_late=True)
    assert held > 0, "updates must have been waited for"
    _assert_same(late, prompt, loaded_late, loaded)


@pytest.mark.parametrize("place", ["before", "beside", "after"])
@pytest.mark.parametrize(
    ("preset", "batch_size", "residents"),
    [("gs-scale", 1, 0), ("best", 1, 0), ("best", 4, 0), ("clm", 4, 0), ("best", 4, None)],
)
@one_threaded
def test_a_thread_beside_drawing_changes_no_number(
    preset: str,
    batch_size: int,
    residents: int | None,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread's work is done before drawing begins, beside it, or after it has ended."""
    alone, loaded, _ = _run(preset, batch_size, is_late=False, residents=residents)

    class Placed(SideThread):
        def __init__(self, device: torch.device) -> None:
            super().__init__(device, has_thread=True)

        @contextmanager
        def running(self, call: Callable[[], Any], *, waits: bool = True) -> Iterator[Future[Any]]:
            go_on = threading.Event()

            def placed() -> Any:
                go_on.wait()
                return call()

            with super().running(placed) as task:
                if place != "after":
                    go_on.set()
                if place == "before":
                    wait((task,))
                try:
                    yield task
                finally:
                    go_on.set()

    monkeypatch.setattr(step_loop, "SideThread", Placed)
    beside, loaded_beside, _ = _run(preset, batch_size, is_late=False, residents=residents)
    _assert_same(beside, alone, loaded_beside, loaded)


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize(
    ("residents", "is_behind"), [(10**6, False), (10**6, True), (2000, False), (2000, True)]
)
@one_threaded
def test_looking_ahead_takes_a_thread_only_where_it_waits(
    residents: int, is_behind: bool, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a device that is behind."""
    alone, loaded, _ = _run("best", batch_size, is_late=False, residents=residents)
    look, threads, here = lookahead.look, [], threading.current_thread()

    def noted(*arguments: Any, inflate: Any = None, **options: Any) -> Any:
        if inflate is not None:
            threads.append(threading.current_thread())
        return look(*arguments, inflate=inflate, **options)

    monkeypatch.setattr(lookahead, "look", noted)
    monkeypatch.setattr(step_loop, "SideThread", functools.partial(SideThread, has_thread=True))
    monkeypatch.setattr(Lanes, "has_passed", lambda lanes, event: not is_behind)
    rows, drawn, _ = _run("best", batch_size, is_late=False, residents=residents)
    assert len(threads) >= STEPS - 1
    is_beside = {thread is not here for thread in threads}
    assert is_beside == {is_behind}
    _assert_same(rows, alone, drawn, loaded)


@one_threaded
def test_gradients_leave_before_the_next_batch_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, loaded, _ = _run("clm", 4, is_late=False)
    sent, go_on = threading.Event(), threading.Event()
    send = Stores.send
    had_left: list[bool] = []

    class Held(SideThread):
        """Looks ahead when some gradients have left, or when drawing is over."""

        def __init__(self, device: torch.device) -> None:
            super().__init__(device, has_thread=True)

        @contextmanager
        def running(self, call: Callable[[], Any], *, waits: bool = True) -> Iterator[Future[Any]]:
            def held() -> Any:
                go_on.wait()
                had_left.append(sent.is_set())
                return call()

            go_on.clear()
            sent.clear()
            with super().running(held) as task:
                try:
                    yield task
                finally:
                    go_on.set()

    def sending(self: Stores, *args: Any, **options: Any) -> None:
        send(self, *args, **options)
        sent.set()
        go_on.set()

    monkeypatch.setattr(step_loop, "SideThread", Held)
    monkeypatch.setattr(Stores, "send", sending)
    held, loaded_held, _ = _run("clm", 4, is_late=False)
    assert len(had_left) == STEPS
    assert sum(had_left) >= STEPS // 2
    _assert_same(held, alone, loaded_held, loaded)


@pytest.mark.parametrize(("preset", "residents"), [("clm", 0), ("best", 0), ("best", None)])
@one_threaded
def test_memory_given_back_between_batches_changes_nothing(
    preset: str, residents: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, drawn, _ = _run(preset, 4, is_late=False, residents=residents)
    step, given_back = Engine.step, []

    def and_make_room(engine: Engine, *batch: Any, **options: Any) -> Tensor:
        loss = step(engine, *batch, **options)
        assert engine.is_resident == (residents is None)
        given_back.append(engine.placement.n_bytes)
        engine.make_room()
        assert engine.placement.n_bytes == 0
        return loss

    monkeypatch.setattr(Engine, "step", and_make_room)
    again, drawn_again, _ = _run(preset, 4, is_late=False, residents=residents)
    assert min(given_back) > 0
    _assert_same(again, rows, drawn_again, drawn)


@pytest.mark.parametrize("has_thread", [False, True])
@pytest.mark.parametrize(("preset", "residents"), [("clm", 0), ("best", None)])
@one_threaded
def test_where_memory_does_not_suffice_to_look_ahead_it_is_done_later(
    preset: str, residents: int | None, has_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_size = 4
    monkeypatch.setattr(
        step_loop, "SideThread", functools.partial(SideThread, has_thread=has_thread)
    )
    monkeypatch.setattr(Lanes, "has_passed", lambda lanes, event: False)
    look, failed = lookahead.look, []

    def early_fails(*arguments: Any, inflate: Any = None, **options: Any) -> Any:
        if inflate is not None and len(failed) < 2 * STEPS:
            failed.append(threading.current_thread().name)
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return look(*arguments, inflate=inflate, **options)

    rows, _, _ = _run(preset, batch_size, is_late=False, residents=residents)
    monkeypatch.setattr(lookahead, "look", early_fails)
    again, _, _ = _run(preset, batch_size, is_late=False, residents=residents)
    assert len(failed) >= STEPS - 1
    assert all(name.startswith("gs-train") == has_thread for name in failed)
    for name in NAMES:
        assert torch.equal(again[name], rows[name]), name


@one_threaded
def test_memory_that_does_not_suffice_for_rows_that_no_view_sees_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some of them may have been updated, and others not."""

    def fails(*_: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("no room for a list")

    monkeypatch.setattr(Untouched, "update", fails)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="no room for a list"):
        _run("clm", 4, is_late=False)
