# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_order import bits, plan, reference
from gs_order.plans.cpu.bits import CHUNK_WORDS

KINDS = ("visible", "load", "retain", "store", "carry", "returning", "final")


def random_batch(seed, n_rows, n_views):
    """Rows seen now and then: empty and full views, repeated views, a last view of nothing."""
    rng = np.random.default_rng(seed)
    visible = rng.random((n_rows, n_views)) < rng.choice([0.02, 0.2, 0.6], n_views)
    visible[:, rng.random(n_views) < 0.1] = False
    visible[:, rng.random(n_views) < 0.05] = True
    for view in np.flatnonzero(rng.random(n_views) < 0.15):
        visible[:, view] = visible[:, rng.integers(n_views)]
    if rng.random() < 0.3:
        visible[:, n_views - 1] = False
    ids = np.sort(rng.choice(10 * n_rows + 1, n_rows, replace=False))
    return ids.astype(rng.choice([np.int32, np.int64])), visible, rng.permutation(n_views)


def capacity_of(visible, order, ahead, share):
    """A capacity between the least that works and all rows."""
    in_order = visible[:, order]
    least = max(in_order[:, i : i + ahead + 1].any(axis=1).sum() for i in range(in_order.shape[1]))
    return int(least + share * (len(visible) - least))


BATCHES = {
    "seed": st.integers(0, 10**6),
    "n_rows": st.one_of(st.integers(0, 40), st.sampled_from([63, 64, 65, 200])),
    "n_views": st.one_of(st.integers(1, 12), st.sampled_from([31, 32, 33, 64, 65])),
    "mode": st.sampled_from(["previous", "last_use", "capacity"]),
    "ahead": st.integers(0, 2),
    "share": st.sampled_from([0.0, 0.1, 0.4, 1.0]),
}


def made(seed, n_rows, n_views, mode, ahead, share, kind):
    ids, visible, order = random_batch(seed, n_rows, n_views)
    retain = capacity_of(visible, order, ahead, share) if mode == "capacity" else mode
    mask = reference.pack(visible)
    arrays = (ids, mask)
    if kind != "numpy":
        arrays = (torch.from_numpy(ids), torch.from_numpy(mask.view(np.int32)))
    made_plan = plan(*arrays, order, retain=retain, ahead=ahead)
    return ids, visible, order, retain, made_plan


def lists_of(step):
    return {kind: getattr(step, kind).tolist() for kind in KINDS}


@settings(max_examples=150, deadline=None)
@given(**BATCHES, kind=st.sampled_from(["numpy", "torch"]))
def test_plans_equal_their_definition(seed, n_rows, n_views, mode, ahead, share, kind):
    ids, visible, order, retain, made_plan = made(seed, n_rows, n_views, mode, ahead, share, kind)
    wanted = reference.plan(ids, visible, order, retain, ahead)
    assert len(made_plan) == n_views
    for i, step in enumerate(made_plan[i] for i in range(n_views)):
        assert step.view == order[i]
        assert lists_of(step) == wanted[i]
        assert (step.visible.dtype, step.load.dtype) == (made_plan.visible.values.dtype,) * 2
    for name in KINDS:
        assert made_plan.counts[name].tolist() == [len(step[name]) for step in wanted]


@settings(max_examples=150, deadline=None)
@given(**BATCHES, kind=st.sampled_from(["numpy", "torch"]))
def test_a_replay_on_device_buffers_accumulates_every_gradient_exactly(
    seed, n_rows, n_views, mode, ahead, share, kind
):
    ids, visible, order, retain, made_plan = made(seed, n_rows, n_views, mode, ahead, share, kind)
    assert mode != "capacity" or made_plan.n_slots <= retain
    totals, finished = replay(made_plan, ids, ahead, two_buffers=mode == "previous")
    contributions = {
        int(x): sum(gradient(x, view) for view in range(n_views) if visible[k, view])
        for k, x in enumerate(ids)
        if visible[k].any()
    }
    assert totals == contributions
    last_use = {
        int(x): max(i for i in range(n_views) if visible[k, order[i]])
        for k, x in enumerate(ids)
        if visible[k].any()
    }
    assert finished == last_use


def gradient(row, view):
    """An integer that no other (row, view) has: sums are exact and tell who took part."""
    return (int(row) + 1) * 1_000_003**2 + 7 ** (view % 20) * (view + 1)


def replay(made_plan, ids, ahead, two_buffers):
    """Run a plan on toy buffers, as an engine would, and check each access.

    Returns:
        gradient sums on the host, and at which microbatch each row finished.
    """
    buffers = [[None] * made_plan.n_slots for _ in range(2 if two_buffers else 1)]
    host: dict[int, int] = {}
    finished: dict[int, int] = {}

    def load(i):
        step = made_plan[i]
        here = buffers[i % len(buffers)]
        for row, slot in zip(step.load.tolist(), step.slots_of("load").tolist()):
            assert here[slot] is None, "a load must not overwrite a row that is on the device"
            here[slot] = [row, 0]

    for i in range(min(ahead, len(made_plan)) if not two_buffers else 0):
        load(i)
    for i in range(len(made_plan)):
        step = made_plan[i]
        here, other = buffers[i % len(buffers)], buffers[(i + 1) % len(buffers)]
        if two_buffers:
            here[:] = [None] * len(here)
            load(i)
            sources = step.retain_sources.tolist()
            assert len(sources) == len(step.retain)
            for slot, source in zip(step.slots_of("retain").tolist(), sources):
                assert here[slot] is None
                here[slot] = other[source]
        elif i + ahead < len(made_plan):
            load(i + ahead)
        rows, slots = step.visible.tolist(), step.slots.tolist()
        for row, slot in zip(rows, slots):
            assert here[slot][0] == row, "every visible row must be where the plan says"
            here[slot][1] += gradient(row, step.view)
        for row, slot in zip(step.store.tolist(), step.slots_of("store").tolist()):
            assert here[slot][0] == row
            host[row] = host.get(row, 0) + here[slot][1]
            here[slot] = None
        for row in step.final.tolist():
            assert row not in finished
            finished[row] = i
    if not two_buffers:
        assert all(row is None for row in buffers[0]), "nothing may be left on the device"
    return host, finished


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n_views=st.integers(1, 300),
    retain=st.sampled_from(["previous", "last_use"]),
    kind=st.sampled_from(["numpy", "torch"]),
)
def test_any_number_of_views_up_to_three_hundred_is_planned(seed, n_views, retain, kind):
    ids, visible, order, _, made_plan = made(seed, 70, n_views, retain, 0, 0, kind)
    wanted = reference.plan(ids, visible, order, retain)
    assert [lists_of(made_plan[i]) for i in range(n_views)] == wanted


@settings(max_examples=60, deadline=None)
@given(**{**BATCHES, "mode": st.just("capacity")})
def test_numpy_and_torch_give_the_same_arrays(seed, n_rows, n_views, mode, ahead, share):
    *_, one = made(seed, n_rows, n_views, mode, ahead, share, "numpy")
    *_, two = made(seed, n_rows, n_views, mode, ahead, share, "torch")
    assert one.n_slots == two.n_slots
    for kind, slots in one.slots.items():
        assert slots.values.dtype == np.int32
        assert (slots.values == two.slots[kind].values.numpy()).all()
    for kind, positions in one.positions.items():
        assert positions.values.dtype == np.int32
        assert (positions.values == two.positions[kind].values.numpy()).all()
        assert two.positions[kind].values.dtype == torch.int32


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n_rows=st.integers(1, 5), n_views=st.integers(1, 6))
def test_no_choice_of_waiting_rows_within_the_capacity_moves_less(seed, n_rows, n_views):
    rng = np.random.default_rng(seed)
    visible = rng.random((n_rows, n_views)) < 0.5
    order = np.arange(n_views)
    capacity = capacity_of(visible, order, 0, 0.3)
    made_plan = plan(np.arange(n_rows), reference.pack(visible), order, retain=capacity)
    gaps = [
        (i, j, row)
        for row in range(n_rows)
        for i, j in zip(np.flatnonzero(visible[row]), np.flatnonzero(visible[row])[1:])
    ]
    best = 0
    for chosen in range(2 ** len(gaps) if len(gaps) <= 12 else 0):
        kept = [gap for k, gap in enumerate(gaps) if chosen >> k & 1]
        waiting = [sum(i < t < j for i, j, _ in kept) for t in range(n_views)]
        if all(w + v <= capacity for w, v in zip(waiting, visible.sum(axis=0))):
            best = max(best, len(kept))
    if len(gaps) <= 12:
        assert made_plan.counts["retain"].sum() == best


def test_last_use_crosses_once_each_way_and_a_capacity_of_everything_is_the_same():
    ids, visible, order = random_batch(3, 500, 20)
    mask = reference.pack(visible)
    once = plan(ids, mask, order, retain="last_use")
    seen = int(visible.any(axis=1).sum())
    assert once.counts["load"].sum() == once.counts["store"].sum() == seen
    assert once.counts["returning"].sum() == 0
    everything = plan(ids, mask, order, retain=500)
    assert [lists_of(everything[i]) for i in range(20)] == [lists_of(once[i]) for i in range(20)]


def test_a_number_of_threads_that_is_none_is_named(monkeypatch):
    monkeypatch.setenv("GS_NUM_THREADS", "many")
    with pytest.raises(ValueError, match="GS_NUM_THREADS must be a whole number, got 'many'"):
        bits.n_threads()
    monkeypatch.setenv("GS_NUM_THREADS", "")
    assert bits.n_threads() >= 1


@pytest.mark.parametrize("retain", ["previous", "last_use", 150_000])
@pytest.mark.parametrize("n_threads", ["1", "3"])
def test_plans_do_not_depend_on_chunks_or_threads(monkeypatch, retain, n_threads):
    monkeypatch.setenv("GS_NUM_THREADS", n_threads)
    rng = np.random.default_rng(0)
    n_rows = 2 * 64 * CHUNK_WORDS + 99
    first = np.arange(n_rows)[:, None] // 20_000
    visible = (np.arange(9) - first) ** 2 < 5
    visible[rng.random(n_rows) < 0.01] = True
    ids, mask = np.arange(n_rows, dtype=np.int32), reference.pack(visible)
    numpy_plan = plan(ids, mask, np.arange(9), retain=retain)
    torch_plan = plan(
        torch.from_numpy(ids), torch.from_numpy(mask.view(np.int32)), np.arange(9), retain=retain
    )
    for kind in KINDS[1:]:
        one, two = numpy_plan.positions[kind], torch_plan.positions[kind]
        assert (one.values == two.values.numpy()).all()
        assert (one.offsets == two.offsets).all()
    if retain == "previous":
        for i in range(9):
            here, before = visible[:, i], visible[:, i - 1] if i else np.zeros(n_rows, bool)
            assert (numpy_plan[i].load == ids[here & ~before]).all()


@pytest.mark.parametrize("count_bytes", [1 << 25, 1])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("ahead", [0, 1])
def test_rows_are_given_up_across_chunks_as_if_there_were_none(
    monkeypatch, count_bytes, share, ahead
):
    monkeypatch.setattr("gs_order.plans.cpu.belady._COUNT_BYTES", count_bytes)
    rng = np.random.default_rng(1)
    n_rows = 3 * 64 * CHUNK_WORDS - 77
    visible = rng.random((n_rows, 11)) < rng.choice([0.05, 0.3], 11)
    ids, mask = np.arange(n_rows, dtype=np.int32), reference.pack(visible)
    order = rng.permutation(11)
    retain = capacity_of(visible, order, ahead, share)
    made_plan = plan(ids, mask, order, retain=retain, ahead=ahead)
    assert made_plan.counts["returning"].sum() > 0
    assert made_plan.n_slots <= retain
    wanted = reference.plan(ids, visible, order, retain, ahead)
    assert [lists_of(made_plan[i]) for i in range(11)] == wanted
    replay(made_plan, ids, ahead, two_buffers=False)


@settings(max_examples=60, deadline=None)
@given(**{**BATCHES, "mode": st.just("last_use")})
def test_slots_are_as_many_as_rows_are_ever_there_at_once(
    seed, n_rows, n_views, mode, ahead, share
):
    _, visible, order, _, made_plan = made(seed, n_rows, n_views, mode, ahead, share, "numpy")
    sees = visible[visible.any(axis=1)][:, order]
    first, last = sees.argmax(axis=1), n_views - 1 - sees[:, ::-1].argmax(axis=1)
    live = [((first - ahead <= i) & (i <= last)).sum() for i in range(n_views)]
    assert made_plan.n_slots == max(live)
    assert (made_plan.slots["visible"].values < max(live)).all()


def test_lists_of_a_batch_are_slices_of_one_array_each():
    for mode in ("previous", "last_use", "capacity"):
        *_, made_plan = made(5, 200, 12, mode, 0, 0, "torch")
        step = made_plan[3]
        for kind in ("load", "store", "returning", "final"):
            assert getattr(step, kind).data_ptr() == made_plan.ids[kind][3].data_ptr()
            slots = step.slots[step.positions(kind)]
            assert step.slots_of(kind).tolist() == slots.tolist()
            again = made_plan[3].slots_of(kind)
            assert len(again) == 0 or again.data_ptr() == step.slots_of(kind).data_ptr()
    *_, made_plan = made(5, 200, 12, "last_use", 0, 0, "torch")
    host = made_plan.to_host()
    assert host.store.values is host.final.values


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_host_gets_the_ids_of_its_four_lists(kind):
    *_, made_plan = made(5, 200, 12, "previous", 0, 0, kind)
    host = made_plan.to_host()
    assert host.wait() is host
    assert host.is_done
    for i in range(12):
        for name in ("load", "store", "final", "returning"):
            ids = getattr(host, name)[i]
            assert isinstance(ids, np.ndarray)
            assert ids.tolist() == getattr(made_plan[i], name).tolist()


def test_microbatches_are_numbered_from_zero_and_there_are_no_others():
    *_, made_plan = made(5, 20, 4, "previous", 0, 0, "numpy")
    assert len(list(made_plan)) == 4
    for i in (-1, 4):
        with pytest.raises(IndexError, match=rf"microbatch must be in \[0, 4\), got {i}"):
            made_plan[i]
    assert "4 microbatches, retain='previous'" in repr(made_plan)


IDS = np.array([2, 5, 9], np.int32)
MASK = np.array([[1], [3], [2]], np.uint32)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ids": IDS[::-1].copy()}, "ids must be sorted and unique"),
        ({"ids": np.array([2, 2, 3])}, "ids must be sorted and unique"),
        ({"ids": IDS[:2]}, r"ids must have one entry a row of mask, \(3,\), got \(2,\)"),
        ({"order": [0]}, "mask must have no bits beyond its 1 views"),
        ({"order": []}, "order must be .* with at least one view"),
        ({"order": [0, 0]}, r"order must be a permutation of 0 .. 1, got \[0, 0\]"),
        ({"order": [1, 2]}, r"order must be a permutation of 0 .. 1, got \[1, 2\]"),
        ({"order": list(range(33))}, "mask must have 2 words for 33 views .*, got 1"),
        ({"retain": "next"}, "retain must be one of previous, last_use or rows, got 'next'"),
        ({"retain": 1}, "retain must be at least 2 rows, the most that 1 consecutive .*, got 1"),
        ({"retain": 2, "ahead": 1}, "retain must be at least 3 rows, the most that 2 .*, got 2"),
        ({"ahead": -1}, "ahead must be at least 0, got -1"),
    ],
)
def test_bad_arguments_are_named(kind, changed, message):
    arguments = {"ids": IDS, "mask": MASK, "order": [0, 1], **changed}
    ids, mask, order = (arguments.pop(name) for name in ("ids", "mask", "order"))
    if kind == "torch":
        ids, mask = torch.from_numpy(ids), torch.from_numpy(mask.view(np.int32))
    with pytest.raises(ValueError, match=message):
        plan(ids, mask, order, **arguments)


def test_a_capacity_is_a_whole_number():
    with pytest.raises(TypeError, match=r"retain must be a word or a whole number .*, got 2\.5"):
        plan(IDS, MASK, [0, 1], retain=2.5)
    assert plan(IDS, MASK, [0, 1], retain=np.int64(3)).n_slots == 2


@pytest.mark.parametrize(
    ("ids", "mask", "order", "message"),
    [
        (IDS.astype(np.float32), MASK, [0, 1], "ids must be int32 or int64, got float32"),
        (IDS, MASK.astype(np.uint8), [0, 1], "mask must be uint32 .*, got uint8"),
        (IDS, torch.ones(3, 1, dtype=torch.int32), [0, 1], "ids and mask must both be numpy"),
        (IDS.tolist(), MASK, [0, 1], "ids and mask must both be numpy"),
        (IDS, MASK, [0.0, 1.0], "order must be of integers, got float64"),
    ],
)
def test_wrong_kinds_of_arrays_are_named(ids, mask, order, message):
    with pytest.raises(TypeError, match=message):
        plan(ids, mask, order)


@pytest.mark.parametrize("retain", ["previous", "last_use"])
@pytest.mark.parametrize("name", ["positions", "slots_of"])
def test_a_list_that_a_step_does_not_have_is_refused(retain: str, name: str) -> None:
    mask = np.array([[0b01], [0b11]], np.uint32)
    step = plan(np.array([3, 5], np.int32), mask, [0, 1], retain=retain)[0]
    for kind in ("other", None, []):
        with pytest.raises(ValueError, match=r"^kind must be one of .*load.*, got "):
            getattr(step, name)(kind)
