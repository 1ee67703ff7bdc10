# SPDX-License-Identifier: Apache-2.0
"""Rows that are replaced, edited and read in every tier are the same rows, bit for bit; in slots of
the device as well, however many there are.

On a GPU the host's own arithmetic may round otherwise, so rows that the device updates are compared
with each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from appearance_models import APPEARANCE, OPTIONS, RATES, make_rows, some_ids, step_host
from hypothesis import given, settings
from hypothesis import strategies as st
from replaced import sources
from torch import Tensor

from gs_train.engine.residents import Residents
from gs_train.engine.trace import Trace
from gs_train.machine.lanes import Lanes
from gs_train.rows.attributes import columns
from gs_train.rows.device_appearance import DeviceAppearance
from gs_train.rows.host_rows import HostRows
from gs_train.rows.saved_state import LAST_STEP, MOMENTS

N, MOST = 200, 500
EDITS = ("replace", "more", "fewer", "all", "overwrite", "zero_moments", "read", "home")


class AtHome:
    """Rows that the host updates in its tables."""

    def __init__(self, device: str, semantics: str) -> None:
        rows = {name: values.to(device) for name, values in make_rows(N).items()}
        self.rows = HostRows(rows, semantics=semantics, device=device, capacity=MOST)
        self.rows.set_rates(RATES, **OPTIONS)

    def step(self, ids: Tensor, following: Tensor, gradients: Tensor) -> None:
        step_host(self.rows, ids, columns(gradients))

    @contextmanager
    def staying(self) -> Iterator[None]:
        yield


class OnDevice:
    """Rows whose home is the device."""

    def __init__(self, device: str, semantics: str) -> None:
        self.rows = DeviceAppearance(
            make_rows(N), semantics=semantics, device=device, capacity=MOST
        )
        self.rows.set_rates(RATES, **OPTIONS)

    def step(self, ids: Tensor, following: Tensor, gradients: Tensor) -> None:
        step = self.rows.begin()
        self.rows.wake(ids, step, None)
        self.rows.update(ids, gradients, step, None)
        self.rows.end(step)

    @contextmanager
    def staying(self) -> Iterator[None]:
        yield


class InSlots:
    """Rows of host memory, some of them in slots."""

    def __init__(self, device: str, semantics: str, most: int | None) -> None:
        rows = {name: values.to(device) for name, values in make_rows(N).items()}
        self.rows = HostRows(rows, semantics=semantics, device=device, travels=True, capacity=MOST)
        self.rows.set_rates(RATES, **OPTIONS)
        self.lanes = lanes = Lanes(torch.device(device))
        self.residents = Residents(self.rows, lanes, Trace(lanes), most)

    def step(self, ids: Tensor, following: Tensor, gradients: Tensor) -> None:
        slots = self.residents.bring(ids)
        step = self.rows.begin()
        self.residents.wake(slots, ids, step)
        self.lanes.wait("cull", self.lanes.mark("compute"))  # where the list was made
        self.residents.bring_early(following)
        self.residents.update(slots, ids, gradients, step)
        self.rows.end(step)

    @contextmanager
    def staying(self) -> Iterator[None]:
        """Nothing comes home, nothing is forgotten, and no row moves over the link."""
        residents, before = self.residents, (self.residents.loaded, self.residents.stored)

        def refused() -> None:
            raise AssertionError("rows came home, or were forgotten")

        residents.come_home = residents.forget = refused  # type: ignore[method-assign]
        yield
        del residents.come_home, residents.forget  # type: ignore[misc]
        assert (residents.loaded, residents.stored) == before


Form = AtHome | OnDevice | InSlots


def forms_of(device: str, semantics: str) -> list[Form]:
    made: list[Form] = [
        OnDevice(device, semantics),
        *(InSlots(device, semantics, most) for most in (None, 90, 10**6)),
    ]
    return [*made, AtHome(device, semantics)] if device == "cpu" else made


def batch(n: int, seed: int) -> Tensor:
    """A window of rows, and a few from anywhere: 90 rows at most."""
    near = (torch.arange(n) - 23 * seed).remainder(max(n, 1)) < min(0.2 * n, 60)
    near[some_ids(n, seed, 0.1).long()[:30]] = True
    return near.nonzero().flatten().int()


def edited(form: Form, operation: str, seed: int) -> Tensor | None:
    """What was read, if anything."""
    rows = form.rows
    n, device = rows.n_rows, rows.device
    ids = some_ids(n, seed, 0.1 + 0.4 * (seed % 2), [torch.int32, torch.int64][seed % 2]).to(device)
    if operation == "home":
        rows.tensors()
        return None
    with form.staying():
        if operation == "read":
            mixed = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))]
            read = rows.read_rows(mixed.repeat(2))
            assert torch.equal(read["shN"], rows.read("shN", mixed.repeat(2)))
            return torch.cat([read[name].flatten(1) for name in APPEARANCE], 1).cpu()
        if operation == "overwrite":
            new = {name: values.to(device) for name, values in make_rows(len(ids), seed).items()}
            rows.overwrite(ids, {name: new[name] for name in APPEARANCE[seed % 3 :]} or new)
        elif operation == "zero_moments":
            rows.zero_moments(ids, names=APPEARANCE[seed % 3 :])
        else:
            n_removed = len(ids)
            removed = ids if operation != "all" else torch.arange(n, device=device)
            n_new = {"replace": n_removed, "more": n_removed + seed % 30, "all": 50}.get(
                operation, n_removed * (seed % 5) // 8
            )
            new = {name: values.to(device) for name, values in make_rows(n_new, seed).items()}
            rows.replace(removed, new if n_new else None)
    return None


def played(form: Form, operations: list[tuple[str, int]]) -> list[Tensor]:
    """Trained with an edit between every two steps: what was read, and what is left."""
    seen = []
    for k, (operation, seed) in enumerate([("read", 0), *operations]):
        for more in range(2):
            n = form.rows.n_rows
            ids = batch(n, k + more)
            gradients = torch.cat([v.flatten(1) for v in make_rows(len(ids), 7 * k).values()], 1)
            device = form.rows.device
            form.step(ids.to(device), batch(n, k + more + 1).to(device), gradients.to(device))
        read = edited(form, operation, seed)
        seen += [] if read is None else [read]
    left = form.rows.tensors()
    return [*seen, *(left[name].clone().cpu() for name in sorted(left))]


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(EDITS), st.integers(0, 2**16)), min_size=1, max_size=6
)


@pytest.mark.parametrize("semantics", ["deferred", "sparse"])
@given(operations=OPERATIONS)
@settings(deadline=None, max_examples=40)
def test_every_tier_has_the_same_rows(semantics: str, operations: list[tuple[str, int]]) -> None:
    _assert_same("cpu", semantics, operations)


@pytest.mark.gpu
@pytest.mark.parametrize("semantics", ["deferred", "sparse"])
@pytest.mark.parametrize("seed", range(4))
def test_every_tier_that_the_device_updates_has_the_same_rows(semantics: str, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(EDITS), (8,), generator=draw).tolist()
    _assert_same("cuda", semantics, [(EDITS[i], 100 * seed + k) for k, i in enumerate(chosen)])


def _assert_same(device: str, semantics: str, operations: list[tuple[str, int]]) -> None:
    first, *others = forms_of(device, semantics)
    expected = played(first, operations)
    for form in others:
        got = played(form, operations)
        assert len(got) == len(expected)
        for ours, theirs in zip(got, expected, strict=True):
            assert torch.equal(ours, theirs), form
        form.rows.close()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@given(data=st.data(), n_new=st.integers(0, 60))
@settings(deadline=None, max_examples=40)
def test_rows_that_stay_keep_their_bits_and_new_ones_begin_awake_without_moments(
    device: str, data: st.DataObject, n_new: int
) -> None:
    lists = st.lists(st.integers(0, N - 1), unique=True)
    removed = data.draw(st.sampled_from([[], list(range(N))]) | lists.map(sorted))
    for form in forms_of(device, "deferred"):
        for k in range(4):
            ids = batch(N, k).to(form.rows.device)
            grads = torch.ones(len(ids), 12, device=ids.device)
            form.step(ids, batch(N, k + 1).to(ids.device), grads)
        before = {name: value.clone().cpu() for name, value in form.rows.tensors().items()}
        new = make_rows(n_new, 5)
        with form.staying():
            form.rows.replace(torch.tensor(removed, dtype=torch.int32, device=device), new)
        after = {name: value.cpu() for name, value in form.rows.tensors().items()}
        places = torch.tensor(sources(N, removed, n_new), dtype=torch.int64)
        assert form.rows.n_rows == len(places)
        begins = {f"{name}.{key}": 0 * new[name] for name in APPEARANCE for key in MOMENTS}
        begins |= {**new, "appearance.last_step": torch.full((n_new,), 4, dtype=torch.int32)}
        for name, rows in begins.items():
            assert torch.equal(after[name], torch.cat([before[name], rows])[places]), name
        form.rows.close()


BAD = [
    (([1, 3, 2], 3, {}), ValueError, "ids must be sorted and unique, got 2 after 3"),
    (([1, 1], 3, {}), ValueError, "ids must be sorted and unique, got 1 after 1"),
    (([5, N], 3, {}), IndexError, f"ids must be at least 0 and below {N}, got {N}"),
    (([-1, 5], 3, {}), IndexError, f"ids must be at least 0 and below {N}, got -1"),
    (([1], 2, {"k": 8}), ValueError, r"shN must be \(R, 3, 3\), got \(2, 8, 3\)"),
    (([1, 2], MOST - N + 3, {}), MemoryError, f"there for {MOST} rows, not {MOST + 1}"),
]


@pytest.mark.parametrize(("wrong", "error", "text"), BAD)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_is_refused_changes_nothing(
    device: str, wrong: tuple[list[int], int, dict[str, int]], error: type[Exception], text: str
) -> None:
    removed, n_new, options = wrong
    for form in forms_of(device, "deferred"):
        ids = batch(N, 0).to(device)
        form.step(ids, ids, torch.ones(len(ids), 12, device=device))
        before = {name: value.clone() for name, value in form.rows.tensors().items()}
        with form.staying(), pytest.raises(error, match=text):
            form.rows.replace(torch.tensor(removed, device=device), make_rows(n_new, 1, **options))
        after = form.rows.tensors()
        assert all(torch.equal(after[name], before[name]) for name in before)
        assert form.rows.n_rows == N
        form.rows.close()


def test_where_all_rows_have_a_slot_only_new_ones_come_while_slots_suffice() -> None:
    form = InSlots("cpu", "deferred", 10**6)
    ids = torch.arange(50, dtype=torch.int32)
    step = ids, ids, torch.ones(len(ids), 12)
    form.step(*step)
    assert form.residents.loaded == N
    form.rows.replace(torch.arange(10, 20), make_rows(15, 1))
    form.step(*step)
    assert form.residents.loaded == N + 5
    form.rows.replace(torch.arange(0, 60))
    form.rows.replace(torch.arange(0, 5), make_rows(5))
    form.step(*step)
    assert (form.residents.loaded, form.residents.stored) == (N + 5, 0)
    form.rows.replace(torch.arange(0), make_rows(N))  # and then all of them, to more slots
    form.step(*step)
    assert (form.residents.loaded, form.residents.stored) == (N + 5 + form.rows.n_rows, 0)


@pytest.mark.parametrize("wrong", [-1, 2])
def test_rows_do_not_go_on_from_a_step_that_was_not_taken(wrong: int) -> None:
    tier = OnDevice("cpu", "deferred")
    ids = torch.arange(0, N, 2)
    tier.step(ids, ids, torch.ones(len(ids), tier.rows.width))
    states = {name: value.clone() for name, value in tier.rows.tensors().items()}
    states[LAST_STEP][3] = wrong
    with pytest.raises(ValueError, match=rf"last_step must be from 0 to 1, got .*{wrong}"):
        OnDevice("cpu", "deferred").rows.take(states)
