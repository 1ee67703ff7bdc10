# SPDX-License-Identifier: Apache-2.0
"""Rows that live on the device are the rows that the host would have updated, bit for bit.

On a GPU the comparison is with the same kernels and another history of arrivals: where a row is
changes no number.
"""

import pytest
import torch
from appearance_models import APPEARANCE, OPTIONS, RATES, make_rows, some_ids, step_host
from torch_memory import MemoryRunsOut

from gs_train.engine.buffers import RowBuffer
from gs_train.engine.residents import Residents
from gs_train.engine.trace import Trace
from gs_train.machine.lanes import Lanes
from gs_train.rows.host_rows import HostRows

N, STEPS = 600, 40
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
on_every_device = pytest.mark.parametrize("device", DEVICES)


def make(device="cpu", *, semantics="deferred", most=None, n=N):
    rows = {name: values.to(device) for name, values in make_rows(n).items()}
    host = HostRows(rows, semantics=semantics, device=device, travels=True)
    host.set_rates(RATES, **OPTIONS)
    lanes = Lanes(torch.device(device))
    return host, Residents(host, lanes, Trace(lanes), most)


def batch(step, n=N, share=0.1):
    """A window of rows that wanders, and a few from anywhere."""
    near = (torch.arange(n) - 23 * step).remainder(n) < share * n
    near[some_ids(n, step, 0.02).long()] = True
    return near.nonzero().flatten().int()


def gradients_of(ids, step):
    """(U, W); every fifth row has none, as rows that were only expected to be seen."""
    columns = make_rows(len(ids), step + 1)
    grads = torch.cat([columns[name].flatten(1) for name in APPEARANCE], 1)
    grads[::5] = 0
    return grads


def advance(host, residents, ids, step, following=None):
    """One batch; returns the values that it renders."""
    ids = ids.to(host.device)
    slots = residents.bring(ids)
    number = host.begin()
    residents.wake(slots, ids, number)
    drawn = residents.values.index_select(0, slots).cpu()
    if following is not None:
        with residents._lanes.on("cull"):  # as lists are found
            following = following.to(host.device)
        residents.bring_early(following)
    residents.update(slots, ids, gradients_of(ids, step).to(host.device), number)
    host.end(number)
    return drawn


def advance_host(host, ids, step):
    drawn = {name: rows[ids] for name, rows in host.snapshot().items()}
    grads = gradients_of(ids, step).split([3, 9], 1)
    step_host(host, ids, dict(zip(APPEARANCE, (grads[0].view(-1, 1, 3), grads[1].view(-1, 3, 3)))))
    return torch.cat([drawn[name].flatten(1) for name in APPEARANCE], 1)


def state(host):
    return {name: value.clone().cpu() for name, value in host.tensors().items()}


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name in theirs:
        assert torch.equal(ours[name], theirs[name]), name


@pytest.mark.parametrize("semantics", ["deferred", "sparse"])
@pytest.mark.parametrize("most", [None, 130, 80, N])
@pytest.mark.parametrize("hints", ["right", "wrong", "none"])
def test_they_are_what_the_host_would_have_made_of_them(semantics, most, hints):
    (host, residents), (twin, _) = make(semantics=semantics, most=most), make(semantics=semantics)
    for step in range(STEPS):
        following = batch(step + (1 if hints == "right" else 9)) if hints != "none" else None
        assert residents.fits(len(batch(step)))
        drawn = advance(host, residents, batch(step), step, following)
        assert torch.equal(drawn, advance_host(twin, batch(step), step)), step
        if step % 7 == 6:
            assert_same(state(host), state(twin))
    assert residents.stored > N if most in (130, 80) else residents.loaded <= N or most is None
    assert_same(state(host), state(twin))


@on_every_device
def test_where_rows_are_changes_no_number(device):
    one, other = make(device), make(device, most=80)
    for step in range(STEPS):
        drawn = [advance(*one, batch(step), step, batch(step + 1))]
        drawn.append(advance(*other, batch(step), step, batch(step + 5) if step % 3 else None))
        if step % 11 == 5:
            state(other[0])
        assert torch.equal(*drawn), step
    assert_same(state(one[0]), state(other[0]))
    assert other[1].stored > one[1].stored


@on_every_device
def test_reading_brings_them_home_and_editing_makes_them_come_again(device):
    (host, residents), (twin, _) = make(device), make(device)
    edits = [
        lambda rows: rows.permute(
            torch.randperm(rows.n_rows, generator=torch.Generator().manual_seed(1)).to(device)
        ),
        lambda rows: rows.zero_moments(torch.arange(50, dtype=torch.int32, device=device)),
        lambda rows: rows.overwrite(
            torch.arange(5, dtype=torch.int32, device=device),
            {"sh0": torch.ones(5, 1, 3, device=device)},
        ),
        lambda rows: rows.read("sh0"),
        lambda rows: rows.snapshot(),
    ]
    fresh = None
    for step, edit in enumerate(edits):
        n = host.n_rows
        for k in range(3):
            ids = batch(3 * step + k, n)
            advance(host, residents, ids, k, batch(3 * step + k + 1, n))
            # The twin's rows go home after every batch.
            if fresh is None or k == 0:
                lanes = Lanes(torch.device(device))
                fresh = Residents(twin, lanes, Trace(lanes), None)
            advance(twin, fresh, ids, k)
            twin.rest()
        edit(host)
        edit(twin)
        assert host.n_rows == twin.n_rows
        assert_same(state(host), state(twin))


def test_it_grows_to_what_two_batches_want_and_no_further_than_it_may():
    host, residents = make()
    for step in range(12):
        advance(host, residents, batch(step), step, batch(step + 1))
    two = max(len(torch.cat([batch(s), batch(s + 1)]).unique()) for s in range(12))
    assert two <= len(residents.values) <= 1.2 * two
    _, small = make(most=90)
    assert small.fits(90)
    assert not small.fits(91)
    advance(*make(most=90), batch(0), 0, batch(1))


def test_rows_stay_while_it_grows():
    (host, residents), (twin, _) = make(), make()
    far = 20
    for step, k in enumerate([0, far, 0, far]):
        # The first batch makes room for itself alone; the next one's rows come early.
        advance(host, residents, batch(k), step, batch(far - k))
        advance_host(twin, batch(k), step)
    assert residents.loaded == len(torch.cat([batch(0), batch(far)]).unique())
    assert residents.stored == 0
    assert_same(state(host), state(twin))


def test_memory_is_given_back_before_more_is_asked_for(monkeypatch):
    buffer = RowBuffer(6, torch.device("cpu"))
    buffer.of(10)
    held = []
    empty = torch.empty

    def noted(*arguments, **options):
        held.append(buffer._rows.untyped_storage().nbytes())
        return empty(*arguments, **options)

    monkeypatch.setattr(torch, "empty", noted)
    assert len(buffer.of(100)) >= 100
    assert held[-1] == 0
    buffer.release()
    assert buffer.n_bytes == 0
    assert len(buffer.of(5)) >= 5


def test_a_batch_that_sees_nothing_and_one_that_sees_everything():
    (host, residents), (twin, _) = make(n=50), make(n=50)
    nothing, everything = torch.empty(0, dtype=torch.int32), torch.arange(50, dtype=torch.int32)
    for step, ids in enumerate([nothing, everything, nothing, nothing, everything[:7]]):
        advance(host, residents, ids, step, everything if step % 2 else nothing)
        advance_host(twin, ids, step)
    assert_same(state(host), state(twin))


def test_rows_that_stay_do_not_move():
    host, residents = make()
    for step in range(5):
        advance(host, residents, batch(0), step, batch(0))
    assert residents.loaded == len(batch(0))
    assert residents.stored == 0


@pytest.mark.gpu
def test_tables_that_have_grown_are_locked_in_pieces_and_read_as_one():
    n = 400_000
    (host, residents), (twin, other) = make("cuda", n=n), make("cuda", n=n)
    nobody = torch.empty(0, dtype=torch.int32, device="cuda")
    for _ in range(3):
        for rows in (host, twin):
            rows.replace(nobody, {k: v.cuda() for k, v in make_rows(n, 5).items()})
    wide = torch.arange(0, host.n_rows, 3, dtype=torch.int32)
    for step in range(3):
        advance(host, residents, wide, step, wide)
        advance(twin, other, wide, step)
        twin.rest()
    assert_same(state(host), state(twin))
    assert (host.tensors()["appearance.last_step"][::3] == host.adam.step_count).all()


def test_where_memory_sets_the_slots_no_table_is_copied_to_a_larger_one(monkeypatch):
    """All rows have slots while they become more; the device never holds more than these take."""
    most = 1000
    host, residents = make(most=most)
    theirs = HostRows(make_rows(N), semantics="deferred", device="cpu")
    theirs.set_rates(RATES, **OPTIONS)
    empty, held = torch.empty, []

    def noted(*size, **options):
        made = empty(*size, **options)
        if made.ndim == 2 and made.shape[1] == host.width:
            held.append(sum(rows.nbytes for rows in residents._here.tables) + made.nbytes)
        return made

    for step in range(12):
        ids = batch(step, host.n_rows)
        with monkeypatch.context() as during:
            during.setattr(torch, "empty", noted)
            residents.bring(ids)
        advance(host, residents, ids, step)
        advance_host(theirs, ids, step)
        for rows in (host, theirs):
            rows.replace(some_ids(rows.n_rows, step, 0.02), make_rows(40, step))
    assert N < host.n_rows <= most
    assert 0 < max(held) <= Residents.table_bytes(most, host.width)
    assert_same(state(host), state(theirs))


def test_memory_that_runs_out_while_slots_become_more_loses_nothing():
    """Wherever that is: each operation that takes much memory fails in turn."""
    (host, residents), (theirs, _) = make(), make()
    few, many = batch(0, share=0.05), batch(1, share=0.4)
    advance(host, residents, few, 0)
    advance_host(theirs, few, 0)
    n_slots, refused = len(residents.values), 0
    while True:
        try:
            with MemoryRunsOut(after=refused, n_bytes=4 * len(many)):
                residents.bring(many)
        except torch.OutOfMemoryError:
            refused += 1
        else:
            break
    assert refused > 3
    assert len(residents.values) > n_slots
    for step in range(1, 4):
        advance(host, residents, many, step)
        advance_host(theirs, many, step)
    assert_same(state(host), state(theirs))
