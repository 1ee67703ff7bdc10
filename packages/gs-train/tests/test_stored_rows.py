# SPDX-License-Identifier: Apache-2.0
"""Rows in a store, of which few are in memory, train as all rows in one place do."""

from __future__ import annotations

import errno
import functools
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from street import drive, street_rows, street_views, whole_street
from torch import Tensor

from gs_adam import HostAdam
from gs_pinned import BlockStore, Plane, StoreCorruptError
from gs_train.blocks import block_lists, stored_rows
from gs_train.blocks.block_planes import MOMENTS
from gs_train.blocks.boxes import BlockBoxes
from gs_train.blocks.stored_rows import Look, StoredRows
from gs_train.blocks.stored_state import to_bytes
from gs_train.errors import InputError
from gs_train.machine.side_thread import SideThread
from gs_train.renderers import RenderOptions, Rows, make_renderer
from gs_train.renderers.culling import cameras_of, cull
from gs_train.rows.attributes import APPEARANCE, GEOMETRY, NAMES

N_ROWS, K = 1200, 3
RATES = {
    "means": 0.3, "scales": 0.02, "quats": 0.01, "opacities": 0.05, "sh0": 0.02, "shN": 0.001,
}  # fmt: skip
EPS, BATCH = 1e-15, 2
BETAS = 0.9**BATCH, 0.999**BATCH
WIDTHS = {"means": 3, "scales": 3, "quats": 4, "opacities": 1, "sh0": 3, "shN": 3 * K}


@pytest.fixture
def _lists_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of blocks are made on a thread of their own, as where rows are on a GPU."""
    beside = functools.partial(SideThread, has_thread=True)
    monkeypatch.setattr(stored_rows, "SideThread", beside)


def scene() -> tuple[Rows, Tensor]:
    """Rows in the order of their keys, and keys."""
    generator = torch.Generator().manual_seed(3)
    keys = torch.randperm(10 * N_ROWS, generator=generator)[:N_ROWS].sort().values.int()
    return street_rows(N_ROWS, sh_degree=1), keys


def gradients_of(keys: Tensor, step: int) -> dict[str, Tensor]:
    """Small whole numbers that push a row into a direction of its own, most of the time."""
    mixed = keys.long()[:, None] * 7919 + torch.arange(sum(WIDTHS.values())) * 104729
    steady = 2 * (mixed % 3 - 1)
    values = (steady + (mixed * 31 + step * 613) % 3 - 1).float()
    return dict(zip(NAMES, values.split(list(WIDTHS.values()), 1), strict=True))


Factor = Callable[[int], float]
"""Of the rates, by step."""


def decaying(step: int) -> float:
    return 0.97**step


FACTORS: dict[str, Factor] = {
    "decaying": decaying,
    "constant": lambda step: 1.0,
    "warm restarts": lambda step: 0.85 ** (step % 9),
}


def rates_of(step: int, factor: Factor = decaying) -> dict[str, float]:
    return {name: rate * factor(step) for name, rate in RATES.items()}


class AllRows:
    """All rows in the order of keys: deferred Adam, and torch's dense Adam beside it."""

    def __init__(self, factor: Factor = decaying) -> None:
        self._factor = factor
        self.rows, self.keys = scene()
        values = [self.rows[name].reshape(N_ROWS, -1) for name in NAMES]

        def groups(dtype: torch.dtype) -> list[dict[str, object]]:
            return [{"params": [torch.nn.Parameter(v.to(dtype).clone())]} for v in values]

        self.deferred = HostAdam(groups(torch.float32), betas=BETAS, eps=EPS, threads=1)
        self.dense = torch.optim.Adam(groups(torch.float64), betas=BETAS, eps=EPS)
        self.renderer = make_renderer("cpu", RenderOptions())

    def present(self) -> dict[str, Tensor]:
        values = dict(zip(NAMES, self.deferred.lookahead(None), strict=True))
        return {name: v.reshape(self.rows[name].shape) for name, v in values.items()}

    def step(self, views: list, step: int) -> Tensor:
        """Take a step of what some views see; returns the keys of these rows."""
        geometry = {name: v for name, v in self.present().items() if name in GEOMETRY}
        ids = cull(geometry, cameras_of(views), self.renderer).ids.long()
        gradients = gradients_of(self.keys[ids], step)
        for optimizer in (self.deferred, self.dense):
            for group, name in zip(optimizer.param_groups, NAMES, strict=True):
                group["lr"] = rates_of(step, self._factor)[name]
        self.deferred.step(ids, [gradients[name].contiguous() for name in NAMES])
        for group, name in zip(self.dense.param_groups, NAMES, strict=True):
            (param,) = group["params"]
            param.grad = torch.zeros_like(param)
            param.grad[ids] = gradients[name].double()
        self.dense.step()
        return self.keys[ids]

    def stored(self) -> dict[str, np.ndarray]:
        """What a store of these rows must hold, by plane, in the order of keys."""
        params = {
            name: group["params"][0]
            for name, group in zip(NAMES, self.deferred.param_groups, strict=True)
        }
        state = self.deferred.state
        planes = {}
        for plane, names in (("geometry", GEOMETRY), ("appearance", APPEARANCE)):
            for moment in MOMENTS:
                parts = [
                    state[params[name]][moment[1:]] if moment else params[name].detach()
                    for name in names
                ]
                planes[plane + moment] = torch.cat([p.view(N_ROWS, -1) for p in parts], 1).numpy()
        last_step = self.deferred.state_dict()["gs_adam"]["last_step"].numpy()
        return planes | {"last_step": last_step[:, None], "key": self.keys[:, None].numpy()}


def planes_by_key(path: Path) -> dict[str, np.ndarray]:
    with BlockStore.open(path, read_only=True) as store:
        assert store.verify().is_intact
        planes = store.read(store.blocks)
    order = planes["key"][:, 0].argsort()
    return {name: array[order] for name, array in planes.items()}


def create(path: Path, block_rows: int) -> None:
    """A store of the rows in another order."""
    rows, keys = scene()
    order = torch.randperm(N_ROWS, generator=torch.Generator().manual_seed(1))
    StoredRows.create(
        path,
        {name: values[order] for name, values in rows.items()},
        keys[order],
        block_rows=block_rows,
        betas=BETAS,
        eps=EPS,
        ceilings=RATES,
    )


def block_of_rows(path: Path) -> np.ndarray:
    """(N,) the block of each row, in the order of keys."""
    with BlockStore.open(path, read_only=True) as store:
        keys = store.read(store.blocks, ["key"])["key"][:, 0]
        blocks = np.repeat(store.blocks, store.counts(store.blocks))
    in_order: np.ndarray = blocks[keys.argsort()]
    return in_order


def assert_within_boxes(stored: StoredRows, block: np.ndarray, now: Rows) -> None:
    """The present values of all rows are in the boxes of their blocks."""
    boxes = stored.boxes
    slack = boxes.slack(stored.reach["means"], stored.reach["scales"])
    means, largest = now["means"].numpy(), now["scales"].amax(1).exp().numpy()
    assert (boxes.lower[block] - slack[block, :1] <= means).all()
    assert (means <= boxes.upper[block] + slack[block, :1]).all()
    assert (largest <= boxes.scale[block] * np.exp(slack[block, 1]) * (1 + 4e-6)).all()


@pytest.mark.parametrize(
    ("block_rows", "slots", "host_blocks", "n_steps", "rates"),
    [
        pytest.param(32, 16, 6, 40, "decaying", id="on disk"),
        pytest.param(32, 16, 40, 40, "decaying", id="in host memory"),
        pytest.param(75, 16, 2, 40, "decaying", id="in slots"),
        pytest.param(32, 1, 2, 12, "decaying", id="one slot"),
        pytest.param(32, 14, 4, 200, "decaying", id="on disk, long", marks=pytest.mark.long),
        pytest.param(32, 3, 4, 200, "decaying", id="in turns", marks=pytest.mark.long),
        pytest.param(16, 24, 7, 200, "decaying", id="small blocks", marks=pytest.mark.long),
        pytest.param(1024, 2, 2, 200, "decaying", id="large blocks", marks=pytest.mark.long),
        *(
            pytest.param(32, slots, 4, n_steps, rates, id=f"{slots} slots, {rates}", marks=marks)
            for rates in ("constant", "warm restarts")
            for slots, n_steps, marks in ((16, 20, ()), (14, 200, pytest.mark.long))
        ),
    ],
)
@pytest.mark.usefixtures("_lists_beside")
def test_rows_are_those_that_train_in_one_place(
    tmp_path: Path, block_rows: int, slots: int, host_blocks: int, n_steps: int, rates: str
) -> None:
    factor = FACTORS[rates]
    alone, views = AllRows(factor), street_views()
    create(tmp_path / "s", block_rows)
    block = block_of_rows(tmp_path / "s")
    batches = [[views[i] for i in batch] for batch in drive(n_steps, BATCH)]
    chance = random.Random(block_rows)
    stored = StoredRows.open(tmp_path / "s", slots=slots, host_blocks=host_blocks)
    n_marked = 0
    for step, batch in enumerate(batches):
        most_listed = chance.choice([0, 10**9])
        look = stored.look_within(batch, alone.renderer, None, most_listed=most_listed)
        assert look is not None
        if step + 1 < n_steps and chance.random() < 0.7:
            known = chance.choice([None, rates_of(step, factor)])
            then = chance.choice([[], *batches[step + 2 : step + 3]])
            stored.expect(batches[step + 1], alone.renderer, known, then)
        n_marked += look.marks is not None
        seen = torch.ones(len(look.keys), dtype=torch.bool) if look.marks is None else look.marks
        # No row is missed, none is listed in vain, and all are up to date.
        present = alone.present()
        keys = alone.step(batch, step)
        assert torch.equal(look.keys[seen].sort().values, keys)
        ids = torch.searchsorted(alone.keys, look.keys)
        for name, values in look.rows.items():
            assert torch.equal(values, present[name][ids]), name
        gradients = gradients_of(look.keys, step)
        for gradient in gradients.values():
            gradient[~seen] = torch.nan  # of rows that take no step
        later = max(factor(s) for s in range(step, n_steps)) / factor(step)
        stated = chance.choice([1.0, later * (1 + 1e-12)])  # what a rise finds unsaid costs reach
        stored.update(look, gradients, rates_of(step, factor), stated)
        assert_within_boxes(stored, block, alone.present())
        if chance.random() < 0.1:
            stored.snapshot_async()
    assert stored.step == n_steps
    assert n_marked > 0 or slots < 10
    stats = stored.cache.stats
    if host_blocks < 10 and block_rows == 32:
        assert min(stats.late + stats.hits, stats.read, stats.evicted, stats.dropped) > 0
    keys = torch.cat([part for part, _ in stored.pieces()])
    assert torch.equal(keys.sort().values, alone.keys)
    for part, rows in stored.pieces():
        ids = torch.searchsorted(alone.keys, part)
        for name, values in rows.items():
            assert torch.equal(values, alone.present()[name][ids]), name
    stored.snapshot()
    stored.close()
    for name, expected in alone.stored().items():
        np.testing.assert_array_equal(planes_by_key(tmp_path / "s")[name], expected, name)
    # And what dense Adam makes of the same gradients.
    for group, name in zip(alone.dense.param_groups, NAMES, strict=True):
        dense = group["params"][0].detach()
        ours = alone.present()[name].reshape(dense.shape).double()
        bound = 1e-5 * dense.abs().clamp_min(RATES[name])
        assert ((ours - dense).abs() <= bound).all(), name


def _update(rows: StoredRows, look: Look) -> None:
    rows.update(look, gradients_of(look.keys, 0), rates_of(0))


def _snapshot(rows: StoredRows, look: Look) -> None:
    rows.leave(look)
    rows.snapshot()


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(_update, id="update"),
        pytest.param(_snapshot, id="snapshot"),
        pytest.param(lambda rows, look: rows.blocks_in([0.0] * 3, [1.0] * 3), id="blocks_in"),
        pytest.param(lambda rows, look: rows.close(), id="close"),
    ],
)
@pytest.mark.usefixtures("_lists_beside")
def test_a_list_that_has_begun_is_made_before_boxes_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[StoredRows, Look], object]
) -> None:
    """It is made on another thread, as late as may be."""
    views, renderer = street_views(), make_renderer("cpu", RenderOptions())
    is_wanted, found, steps = threading.Event(), BlockBoxes.candidates, []

    def candidates(boxes: BlockBoxes, *given: Any, **options: Any) -> object:
        if threading.current_thread() is not threading.main_thread():
            is_wanted.wait()
            steps.append(rows.step)
        return found(boxes, *given, **options)

    def wait_for(tasks: tuple[Future[object]]) -> None:
        is_wanted.set()
        wait(tasks)

    monkeypatch.setattr(BlockBoxes, "candidates", candidates)
    monkeypatch.setattr(block_lists, "wait", wait_for)
    create(tmp_path / "s", 32)
    with StoredRows.open(tmp_path / "s", slots=16, host_blocks=5) as rows:
        try:
            rows.expect(views[:2], renderer, None, views[2:4])
            look = rows.look(views[:2], renderer)
            assert not steps
            call(rows, look)
            assert steps == [0]
        finally:
            is_wanted.set()


@pytest.mark.usefixtures("_lists_beside")
def test_a_list_that_fails_leaves_no_store_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path / "s", 32)
    rows = StoredRows.open(tmp_path / "s", slots=16, host_blocks=5)
    views, renderer = street_views(), make_renderer("cpu", RenderOptions())
    rows.expect(views[:2], renderer, None, views[2:4])

    def fail(*given: object, **options: object) -> None:
        raise RuntimeError("the device failed")

    monkeypatch.setattr(BlockBoxes, "candidates", fail)
    rows.look(views[:2], renderer)
    with pytest.raises(RuntimeError, match="the device failed"):
        rows.close()
    BlockStore.open(tmp_path / "s").close()


def test_a_run_that_ends_now_and_then_goes_on_from_its_snapshot(tmp_path: Path) -> None:
    n_steps, views, renderer = 30, street_views(), make_renderer("cpu", RenderOptions())
    batches = [[views[i] for i in batch] for batch in drive(n_steps, BATCH)]

    def train(path: Path, ends: set[int]) -> int:
        opened = 0
        while True:
            opened += 1
            with StoredRows.open(path, slots=16, host_blocks=5) as rows:
                for step in range(rows.step, n_steps):
                    look = rows.look(batches[step], renderer)
                    rows.update(look, gradients_of(look.keys, step), rates_of(step))
                    if step % 4 == 1:
                        rows.snapshot_async()
                    if step in ends:
                        ends.remove(step)
                        break
                else:
                    rows.snapshot()
                    return opened

    create(tmp_path / "whole", 32)
    create(tmp_path / "ended", 32)
    assert train(tmp_path / "whole", set()) == 1
    assert train(tmp_path / "ended", {3, 7, 8, 20}) == 5
    whole, ended = (planes_by_key(tmp_path / name) for name in ("whole", "ended"))
    for name, expected in whole.items():
        np.testing.assert_array_equal(ended[name], expected, name)
    boxes = []
    for name in ("whole", "ended"):
        with StoredRows.open(tmp_path / name, slots=16, host_blocks=5) as rows:
            boxes.append(rows.boxes.state())
            assert rows.step == n_steps
            assert len(rows) == N_ROWS
    for name, expected in boxes[0].items():
        np.testing.assert_array_equal(boxes[1][name], expected, name)


def test_looking_changes_nothing_on_disk(tmp_path: Path) -> None:
    create(tmp_path / "s", 32)
    renderer, views = make_renderer("cpu", RenderOptions()), street_views()
    with StoredRows.open(tmp_path / "s", slots=16, host_blocks=4) as rows:
        for first in range(0, 58, 2):
            rows.leave(rows.look(views[first : first + 2], renderer))
        assert rows.cache.stats.written == 0
        assert rows.cache.stats.dropped > 0
        empty = rows.look(views[-1:], renderer)  # the sky
        assert len(empty.keys) == 0
        rows.update(empty, gradients_of(empty.keys, 0), rates_of(0))
        assert rows.step == 1
        everything = rows.look([whole_street()], renderer)  # in turns
        assert everything.n_candidates == 38
        assert len(everything.keys.unique()) == N_ROWS
        rows.leave(everything)
        rows.leave(rows.look(views[:1], renderer))


def test_a_store_of_something_else_is_refused(tmp_path: Path) -> None:
    with BlockStore.create(tmp_path / "a", [Plane("w", 1)], block_rows=4) as store:
        store.snapshot(b"anything")
    with pytest.raises(InputError, match="must hold the state of a scene"):
        StoredRows.open(tmp_path / "a", slots=2, host_blocks=2)
    create(tmp_path / "b", 32)
    with BlockStore.open(tmp_path / "b", read_only=True) as good:
        state = good.state
    with BlockStore.open(tmp_path / "a") as store:
        store.snapshot(state)
    with pytest.raises(InputError, match="must hold rows of a scene, got other planes"):
        StoredRows.open(tmp_path / "a", slots=2, host_blocks=2)
    with BlockStore.open(tmp_path / "a") as store:
        store.snapshot(to_bytes({"format": 9}))
    with pytest.raises(InputError, match="must be of format 1, got 9"):
        StoredRows.open(tmp_path / "a", slots=2, host_blocks=2)


def test_a_damaged_record_ends_the_look_and_not_the_run(tmp_path: Path) -> None:
    create(tmp_path / "s", 32)
    segment = tmp_path / "s" / "seg-000000"
    data = bytearray(segment.read_bytes())
    data[4096 + 600] ^= 1  # of the first record
    segment.write_bytes(data)
    renderer = make_renderer("cpu", RenderOptions())
    with StoredRows.open(tmp_path / "s", slots=38, host_blocks=4) as rows:
        with pytest.raises(StoreCorruptError, match="is damaged"):
            rows.look([whole_street()], renderer)
        rows.leave(rows.look(street_views()[-1:], renderer))


def test_a_step_that_ends_in_the_middle_gets_into_no_snapshot(tmp_path: Path) -> None:
    """Blocks come in turns, and the drive fails as the second of these comes again."""
    create(tmp_path / "s", 32)
    left = [1000]

    def hear(name: str, path: str, *_: object) -> int:
        if name == "read" and "/seg-" in path:
            left[0] -= 1
        return 0 if left[0] >= 0 else -errno.EIO

    renderer = make_renderer("cpu", RenderOptions())
    store = BlockStore.open(tmp_path / "s", on_call=hear, threads=1)
    with StoredRows(store, slots=2, host_blocks=2) as rows:
        look = rows.look([whole_street()], renderer)
        left[0] = 3
        with pytest.raises(OSError, match="was not"):
            rows.update(look, gradients_of(look.keys, 0), rates_of(0))
        for call in (rows.snapshot, lambda: rows.look([whole_street()], renderer)):
            with pytest.raises(RuntimeError, match="an earlier step ended in the middle"):
                call()
    with StoredRows.open(tmp_path / "s", slots=2, host_blocks=2) as rows:
        assert rows.step == 0
        assert not any(stepped.any() for _, stepped in _last_steps(tmp_path / "s"))


def _last_steps(path: Path) -> list[tuple[int, np.ndarray]]:
    with BlockStore.open(path, read_only=True) as store:
        return [(block, store.read([block], ["last_step"])["last_step"]) for block in store.blocks]
