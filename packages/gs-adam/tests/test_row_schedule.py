# SPDX-License-Identifier: Apache-2.0
"""Rows of device tables by a `RowSchedule`: what `HostAdam` makes of the same rows."""

import copy
import io
import pickle
import threading

import pytest
import torch

from gs_adam import DeviceRows, HostAdam, RowSchedule

from .slots import DEVICES, RATES, Host, Slots, assert_same, chosen, rate, width_of


class Away:
    """Tables of a device, one slot a row, and a schedule without rows."""

    def __init__(self, host, device, *, order=1, **options):
        rule = {k: options.pop(k) for k in ("semantics", "bias_correction") if k in options}
        groups = [{"lr": RATES[k], **options} for k in range(len(host.shapes))]
        self.schedule, self.device = RowSchedule(groups, **rule), device
        widths = [torch.Size(shape).numel() for shape in host.shapes]
        self.rows = DeviceRows(self.schedule, device, widths=widths)
        n_rows = len(host.last_step)
        self.slot_of = torch.arange(n_rows).roll(order)
        self.tables = [table[self.slot_of.argsort()].to(device) for table in host.tables]
        self.last_step = torch.zeros(n_rows, dtype=torch.int32, device=device)
        if self.schedule.semantics == "sparse":
            self.last_step = None

    def begin(self, factor=1.0, **options):
        for k, group in enumerate(self.schedule.param_groups):
            group["lr"] = RATES[k] * factor
        return self.schedule.begin_step(**options)

    def lists(self, ids):
        return self.slot_of[ids].to(self.device), self.last_step, ids.to(self.device)

    def wake(self, ids, step):
        self.rows.wake(*self.tables, *self.lists(ids), step=step)

    def update(self, ids, grads, step):
        self.rows.update(*self.tables, *self.lists(ids), grads.to(self.device), step=step)

    def flush(self, ids, marks=None):
        marks = None if marks is None else marks.to(self.device)
        self.rows.flush(*self.tables, *self.lists(ids), marks)

    def at_home(self):
        return [table.cpu()[self.slot_of] for table in self.tables]

    def assert_as(self, host):
        if self.last_step is not None:
            assert torch.equal(self.last_step.cpu(), host.last_step)
        assert_same(self.at_home(), host.tables, self.device)


def walk(host, away, *, n_steps=160, size=1.0, seed=0):
    """The same steps, and the same rows flushed between them."""
    generator = torch.Generator().manual_seed(seed)
    n_rows = len(host.last_step)
    for number in range(n_steps):
        step = host.begin(rate(number))
        assert away.begin(rate(number)) == step
        seen = chosen(n_rows, 0.02 if number % 50 > 5 else 0.3, generator)
        grads = torch.randn(len(seen), width_of(host.shapes), generator=generator)
        grads *= size * 10 ** (-3 * torch.rand(grads.shape, generator=generator))
        host.update(seen, grads, step)
        if number % 3 == 0:
            away.wake(seen, step)
        away.update(seen, grads, step)
        host.adam.end_step(step)
        away.schedule.end_step(step)
        if number % 20 == 7:
            ids = chosen(n_rows, 0.4, generator)
            marks = torch.rand(len(ids), generator=generator) < 0.5
            host.adam.flush(ids[marks].sort().values)
            away.flush(ids, marks)


# The windows of these betas are 397, 65 and 50 steps; epsilon is negligible, matters, is all.
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9), (0.9**8, 0.999**8)])
@pytest.mark.parametrize(
    ("size", "eps", "weight_decay"),
    [(1.0, 1e-15, 0.0), (1e-12, 1e-15, 0.05), (1e-20, 1e-15, 0.0), (1e-6, 1e-8, 0.1)],
)
def test_rows_without_a_host_are_as_a_hosts(device, betas, size, eps, weight_decay):
    options = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
    host = Host(60, **options)
    away = Away(host, device, order=7, **options)
    walk(host, away, size=size)
    away.assert_as(host)
    host.adam.flush()
    away.flush(torch.arange(60))
    assert (away.last_step == 160).all()
    away.assert_as(host)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias_correction", ["global", "off"])
def test_sparse_rows_stand_still(device, bias_correction):
    options = {
        "semantics": "sparse",
        "bias_correction": bias_correction,
        "weight_decay": 0.1,
        "eps": 1e-8,
    }
    host = Host(40, **options)
    away = Away(host, device, **options)
    walk(host, away, n_steps=60)
    away.assert_as(host)
    before = away.at_home()
    away.flush(torch.arange(40))
    assert all(map(torch.equal, away.at_home(), before))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shapes", [((3,), (0,), (7,), (6,)), ((1,),), ((700,), (900,))])
def test_rows_without_a_host_may_have_any_width(device, shapes):
    host = Host(20, shapes)
    away = Away(host, device)
    assert away.rows.width == width_of(shapes)
    walk(host, away, n_steps=30)
    host.adam.flush()
    away.flush(torch.arange(20))
    away.assert_as(host)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weight_decay", [0.0, 0.02])
def test_rows_are_flushed_after_thousands_of_steps(device, weight_decay):
    options = {"betas": (0.7, 0.95), "weight_decay": weight_decay, "eps": 1e-15}
    host = Host(10, **options)
    away = Away(host, device, **options)
    generator = torch.Generator().manual_seed(0)
    for number in range(2600):
        step = host.begin(rate(number))
        away.begin(rate(number))
        if number in (0, 1, 40, 700, 1100, 1101, 2590):
            ids = chosen(10, 0.6, generator)
            grads = torch.randn(len(ids), 48, generator=generator) * 1e-6
            host.update(ids, grads, step)
            away.update(ids, grads, step)
        host.adam.end_step(step)
        away.schedule.end_step(step)
        if number == 1050:
            host.adam.flush(torch.arange(3))
            away.flush(torch.arange(3))
    host.adam.flush()
    away.flush(torch.arange(10))
    away.assert_as(host)


@pytest.mark.parametrize("device", DEVICES)
def test_betas_change_when_the_owner_says_that_all_rows_are_awake(device):
    host = Host(6)
    away = Away(host, device)
    for betas in ((0.6, 0.95), (0.8, 0.99), (0.9, 0.999)):
        for number in range(90):
            step = host.begin()
            away.begin(all_awake=number == 0)
            ids = torch.tensor([number % 5, 5]) if number % 30 == 0 else torch.tensor([5])
            grads = torch.ones(len(ids), 48)
            host.update(ids, grads, step)
            away.update(ids, grads, step)
            host.adam.end_step(step)
            away.schedule.end_step(step)
        for group in (*host.adam.param_groups, *away.schedule.param_groups):
            group["betas"] = betas
        for begin in (host.adam.begin_step, away.schedule.begin_step):
            with pytest.raises(ValueError, match=r"betas must stay \(0\.\d, 0\.\d+\) while rows"):
                begin()
        host.adam.flush()
        away.flush(torch.arange(6))
        with pytest.raises(ValueError, match="betas must stay"):
            away.schedule.begin_step()  # nobody has said so
        assert away.schedule.step_count == step
    away.assert_as(host)


@pytest.mark.parametrize("device", DEVICES)
def test_open_steps_have_rates_of_their_own(device):
    host = Host(8)
    away = Away(host, device)
    grads = torch.randn(8, 48, generator=torch.Generator().manual_seed(0))
    even, odd = torch.arange(0, 8, 2), torch.arange(1, 8, 2)
    for _ in range(3):
        first, second = away.begin(1.0), away.begin(7.0)
        assert away.schedule.open_steps == (first, second)
        with pytest.raises(RuntimeError, match=rf"flush\(\) needs steps \[{first}, {second}\] to"):
            away.flush(even)
        away.update(odd, grads[odd], second)
        away.update(even, grads[even], first)
        away.update(even, grads[odd], second)
        with pytest.raises(ValueError, match=f"step must end after step {first}, got {second}"):
            away.schedule.end_step(second)
        for step in (first, second):
            away.schedule.end_step(step)
        step = host.begin(1.0)
        host.update(even, grads[even], step)
        host.adam.end_step(step)
        step = host.begin(7.0)
        host.update(odd, grads[odd], step)
        host.update(even, grads[odd], step)
        host.adam.end_step(step)
    away.assert_as(host)
    with pytest.raises(ValueError, match=r"step must be an open step \(open: \[\]\), got 6"):
        away.wake(even, 6)


# ---------------------------------------------------------------------- flush


@pytest.mark.parametrize("device", DEVICES)
def test_rows_that_visit_are_flushed_as_the_hosts(device):
    alone, host = Host(9), Host(9)
    slots = Slots(host, 9, device)
    slots.enter(torch.arange(9))
    grads = torch.randn(9, 48, generator=torch.Generator().manual_seed(0))
    for number in range(30):
        step = alone.begin(rate(number))
        host.begin(rate(number))
        ids = torch.tensor([number % 9, (number + 4) % 9])
        alone.update(ids, grads[ids], step)
        slots.update(ids, grads[ids], step)
        alone.adam.end_step(step)
        host.adam.end_step(step)
    where, ids = slots.lists(torch.arange(9))
    slots.rows.flush(*slots.tables, where, slots.last_step, ids)
    alone.adam.flush()
    slots.leave(torch.arange(9))
    assert torch.equal(host.last_step, alone.last_step)
    assert_same(host.tables, alone.tables, device)


@pytest.mark.parametrize("device", DEVICES)
def test_a_flush_touches_no_row_that_is_awake_or_not_marked(device):
    host = Host(6)
    away = Away(host, device)
    away.flush(torch.arange(6))  # before the first step
    away.assert_as(host)
    for number in range(2):
        step = away.begin()
        away.update(
            torch.arange(6) if number == 0 else torch.tensor([1]),
            torch.ones(6, 48)[: 6 - 5 * number],
            step,
        )
        away.schedule.end_step(step)
    before = away.at_home()
    marks = torch.tensor([True, False, True, True])
    away.flush(torch.tensor([5, 3, 1, 0]), marks)
    assert away.last_step.tolist() == [2, 2, 1, 1, 1, 2]
    kept = torch.tensor([1, 2, 3, 4])
    for a, b in zip(away.at_home(), before, strict=True):
        assert torch.equal(a[kept], b[kept])
        assert not (a[[0, 5]] == b[[0, 5]]).any()
    after = away.at_home()
    away.flush(torch.tensor([5, 1, 0]))
    assert all(map(torch.equal, away.at_home(), after))


@pytest.mark.gpu
def test_a_flush_never_waits_for_the_device():
    host = Host(1000)
    away = Away(host, "cuda")
    ids, marks = torch.arange(0, 1000, 3, device="cuda"), torch.ones(334, device="cuda").bool()
    where = away.slot_of.cuda()[ids]
    for _ in range(2):  # the first allocates page-locked memory
        away.schedule.end_step(away.begin())
        torch.cuda.synchronize()
        torch.cuda._sleep(400_000_000)
        done = torch.cuda.Event()
        away.rows.flush(*away.tables, where, away.last_step, ids, marks)
        done.record()
    assert not done.query()
    done.synchronize()
    assert (away.last_step == 2).sum() == 334


# ---------------------------------------------------------------------- state


def taken(device, steps, factor=1.0):
    away = Away(Host(9, betas=(0.5, 0.9)), device, betas=(0.5, 0.9))
    grads = torch.randn(9, 48, generator=torch.Generator().manual_seed(0))
    for number in range(steps):
        step = away.begin(factor * rate(number))
        ids = torch.arange(number % 3, 9, 4) if number < 100 else torch.tensor([2])
        away.update(ids, grads[ids], step)
        away.schedule.end_step(step)
    return away


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("steps", [1, 40, 200])
def test_a_saved_schedule_goes_on_bit_for_bit(device, steps):
    away, other = taken(device, steps), taken(device, 3, factor=3.0)
    other.flush(torch.arange(9))  # has a plan of what it has seen so far
    file = io.BytesIO()
    torch.save(away.schedule.state_dict(), file)
    file.seek(0)
    other.schedule.load_state_dict(torch.load(file, weights_only=True))
    assert other.schedule.step_count == steps
    other.tables = [table.clone() for table in away.tables]
    other.last_step = away.last_step.clone()
    for one in (away, other):
        one.flush(torch.arange(0, 9, 2))
        for number in range(3):
            step = one.begin(rate(number + 50))
            one.update(torch.arange(9), torch.ones(9, 48), step)
            one.schedule.end_step(step)
    assert all(map(torch.equal, away.at_home(), other.at_home()))
    assert torch.equal(away.last_step, other.last_step)


def test_a_state_is_a_hosts_and_stays_as_it_was():
    host = Host(9)
    away = Away(host, "cpu")
    walk(host, away, n_steps=30)
    saved = away.schedule.state_dict()
    theirs = host.adam.state_dict()["gs_adam"]["schedule"]
    assert saved["step"] == 30
    for ours, others in zip(saved["schedule"], theirs, strict=True):
        assert ours.keys() == others.keys()
        assert all(torch.equal(torch.as_tensor(ours[k]), torch.as_tensor(others[k])) for k in ours)
    kept = copy.deepcopy(saved)
    walk(host, away, n_steps=5)
    assert torch.equal(saved["schedule"][1]["missed"], kept["schedule"][1]["missed"])
    away.schedule.load_state_dict(saved)
    assert away.schedule.step_count == 30


@pytest.mark.parametrize("semantics", ["deferred", "sparse"])
def test_a_schedule_without_rates_goes_on_where_no_row_sleeps(semantics):
    schedule = RowSchedule([{}], semantics=semantics)
    assert schedule.state_dict() == {"step": 0, "schedule": []}
    schedule.load_state_dict({"step": 5, "schedule": []})
    assert schedule.step_count == 5
    assert schedule.state_dict() == {"step": 5, "schedule": []}
    rows = DeviceRows(schedule, "cpu", widths=[2])
    tables = [torch.ones(3, 2) for _ in range(3)]
    ids = torch.arange(3)
    last_step = torch.full((3,), 5, dtype=torch.int32)
    rows.flush(*tables, ids, last_step, ids)
    assert all((table == 1).all() for table in tables)
    if semantics == "deferred":
        last_step[1] = 4
        with pytest.raises(
            ValueError, match=r"last_step must be at least 5, the step .* got 4 of row 1"
        ):
            rows.flush(*tables, ids, last_step, ids)
        last_step[1] = 5
    step = schedule.begin_step()
    assert step == 6
    rows.update(*tables, ids, last_step, ids, torch.ones(3, 2), step=step)
    assert last_step.tolist() == ([6, 6, 6] if semantics == "deferred" else [5, 5, 5])


def spoiled(**parts):
    return {**taken("cpu", 4).schedule.state_dict(), **parts}


BAD_STATES = {
    "no dict": (lambda: [], TypeError, "state_dict must be a dict, got"),
    "no schedule": (lambda: {"step": 3}, ValueError, r"state_dict must hold schedule, got \['s"),
    "half a step": (lambda: spoiled(step=1.5), TypeError, "state_dict's step must be a whole num"),
    "step -1": (lambda: spoiled(step=-1), ValueError, "state_dict's step must be at least 0"),
    "another step": (lambda: spoiled(step=3), ValueError, r"missed must have shape \(4, 4\)"),
    "a word": (lambda: spoiled(schedule="no"), TypeError, "schedule must be a list, got 'no'"),
    "one group": (
        lambda: spoiled(schedule=spoiled()["schedule"][:1]),
        ValueError,
        "schedule must have 2 groups, got 1",
    ),
    "no tables": (
        lambda: spoiled(schedule=[{"missed": 3}, {}]),
        TypeError,
        r"schedule\[0\] must hold tables",
    ),
}


@pytest.mark.parametrize("bad", BAD_STATES)
def test_a_state_that_does_not_fit_changes_nothing(bad):
    state, error, message = BAD_STATES[bad]
    away = taken("cpu", 7)
    before = away.schedule.state_dict()
    with pytest.raises(error, match=message):
        away.schedule.load_state_dict(state())
    after = away.schedule.state_dict()
    assert after["step"] == before["step"] == 7
    for a, b in zip(after["schedule"], before["schedule"], strict=True):
        assert torch.equal(a["missed"], b["missed"])


def test_state_needs_steps_to_end():
    schedule = RowSchedule([{}])
    saved = schedule.state_dict()
    schedule.begin_step()
    with pytest.raises(RuntimeError, match=r"^state_dict\(\) needs steps \[1\] to end first"):
        schedule.state_dict()
    with pytest.raises(RuntimeError, match=r"^load_state_dict\(\) needs steps \[1\] to end first"):
        schedule.load_state_dict(saved)
    sparse = RowSchedule([{}] * 2, semantics="sparse")
    with pytest.raises(ValueError, match="must hold an empty schedule where semantics is sparse"):
        sparse.load_state_dict(spoiled())
    with pytest.raises(TypeError, match="RowSchedule must be saved with state_dict"):
        pickle.dumps(schedule)


# ---------------------------------------------------------------------- groups


def test_groups_have_the_defaults_of_a_hosts():
    given = {"name": "means", "note": 3}
    schedule = RowSchedule([given])
    theirs = HostAdam([torch.zeros(1)]).defaults
    (group,) = schedule.param_groups
    assert group == {**given, **{k: theirs[k] for k in ("lr", "betas", "eps", "weight_decay")}}
    assert given == {"name": "means", "note": 3}
    assert repr(schedule) == "RowSchedule(1 groups, step 0, deferred)"


BAD_GROUPS = {
    "none": ([], ValueError, "groups must be 1 to 32, got 0"),
    "too many": ([{}] * 33, ValueError, "groups must be 1 to 32, got 33"),
    "a dict": ({}, TypeError, "groups must be a list, got dict"),
    "a number": ([3], TypeError, r"groups\[0\] must be a dict, got 3"),
    "tensors": ([{}, {"params": []}], ValueError, r"groups\[1\] must have no params, whose rows"),
    "a rate": ([{"lr": -1.0}], ValueError, "lr must be at least 0 and finite, got -1.0"),
    "a beta": ([{"betas": (0.9, 1.0)}], ValueError, r"betas must be in \[0, 1\), got"),
    "one beta": ([{"betas": 0.9}], ValueError, "betas must be two numbers, got 0.9"),
    "eps": ([{"eps": "x"}], TypeError, "eps must be a number, got 'x'"),
    "L2": (
        [{"weight_decay": 0.1, "decoupled_weight_decay": False}],
        ValueError,
        "weight_decay must be decoupled",
    ),
    "amsgrad": ([{"amsgrad": True}], ValueError, "amsgrad must be False, got True"),
    "a name": ([{"name": 3}], TypeError, r"name of groups\[0\] must be a string, got 3"),
}


@pytest.mark.parametrize("bad", BAD_GROUPS)
def test_bad_groups_are_refused(bad):
    groups, error, message = BAD_GROUPS[bad]
    with pytest.raises(error, match=message):
        RowSchedule(groups)


@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        ({"semantics": "dense"}, ValueError, "semantics must be one of deferred, sparse, got 'd"),
        ({"semantics": 3}, TypeError, "semantics must be a string, got 3"),
        ({"bias_correction": "on"}, ValueError, "bias_correction must be global or off, got 'on'"),
        ({"bias_correction": "off"}, ValueError, "bias_correction must be global with deferred"),
        ({"threads": 0}, ValueError, "threads must be at least 1, got 0"),
    ],
)
def test_bad_rules_are_refused(rule, error, message):
    with pytest.raises(error, match=message):
        RowSchedule([{}], **rule)


def test_a_step_that_cannot_begin_is_not_counted():
    schedule = RowSchedule([{}, {}])
    for spoil, error, message in (
        (lambda group: group.update(lr=float("nan")), ValueError, "lr must be at least 0"),
        (lambda group: group.update(eps=0.0), ValueError, "eps must be at least 1e-20 where rows"),
        (lambda group: group.pop("betas"), ValueError, "groups must hold betas"),
        (lambda group: schedule.param_groups.pop(), ValueError, "options must be given for 2 gro"),
    ):
        spoil(schedule.param_groups[1])
        with pytest.raises(error, match=message):
            schedule.begin_step()
        schedule.param_groups[1:] = [dict(schedule.param_groups[0])]
    with pytest.raises(TypeError, match="all_awake must be True or False, got 2"):
        schedule.begin_step(all_awake=2)
    assert (schedule.step_count, schedule.open_steps) == (0, ())
    assert schedule.begin_step() == 1


@pytest.mark.parametrize(
    ("widths", "error", "message"),
    [
        (None, ValueError, "widths must be given with a RowSchedule, got None"),
        (3, TypeError, "widths must be a list, got 3"),
        ([3], ValueError, "widths must be 2, one a group, got 1"),
        ([3, 1.5], TypeError, r"widths\[1\] must be a whole number, got 1.5"),
        ([3, -1], ValueError, r"widths\[1\] must be at least 0, got -1"),
        ([2**31 - 1, 1], ValueError, r"widths must sum to less than 2\*\*31, got 2147483648"),
    ],
)
def test_bad_widths_are_refused(widths, error, message):
    with pytest.raises(error, match=message):
        DeviceRows(RowSchedule([{}, {}]), "cpu", widths=widths)


def test_widths_of_a_host_are_its_own():
    host = HostAdam([torch.zeros(3, 2)])
    with pytest.raises(ValueError, match=r"widths must be None with a HostAdam, .* got \[2\]"):
        DeviceRows(host, "cpu", widths=[2])
    with pytest.raises(TypeError, match="adam must be a HostAdam or a RowSchedule, got Adam"):
        DeviceRows(torch.optim.Adam([torch.zeros(1)]), "cpu")


def test_two_tables_follow_one_schedule():
    """Such as rows of blocks, whose tables have other sizes."""
    host = Host(12)
    schedule = RowSchedule([{"lr": RATES[0]}, {"lr": RATES[1]}])
    rows = [DeviceRows(schedule, "cpu", widths=[3, 45]) for _ in range(2)]
    tables = [[t[:5].clone() for t in host.tables], [t[5:].clone() for t in host.tables]]
    last_step = torch.zeros(12, dtype=torch.int32)
    grads = torch.randn(12, 48, generator=torch.Generator().manual_seed(0))
    for number in range(20):
        step = host.begin()
        assert schedule.begin_step() == step
        ids = torch.arange(number % 5, 12, 5)
        host.update(ids, grads[ids], step)
        for one, own, first, own_ids in zip(rows, tables, (0, 5), (ids[ids < 5], ids[ids >= 5])):
            one.update(*own, own_ids - first, last_step, own_ids, grads[own_ids], step=step)
        host.adam.end_step(step)
        schedule.end_step(step)
    assert torch.equal(last_step, host.last_step)
    for a, b, whole in zip(*tables, host.tables, strict=True):
        assert torch.equal(torch.cat([a, b]), whole)


def test_non_finite_gradients_are_counted_on_the_cpu():
    away = Away(Host(4), "cpu")
    grads = torch.ones(3, 48)
    grads[1, 7] = torch.nan
    away.update(torch.tensor([2, 0, 3]), grads, away.begin())
    assert away.schedule.nonfinite_rows == 1


# ---------------------------------------------------------------------- threads


@pytest.mark.parametrize("call", ["end_step", "load_state_dict"])
def test_the_end_of_a_step_waits_for_calls_on_rows(call):
    away = taken("cpu", 2)
    schedule = away.schedule
    saved = schedule.state_dict()
    if call == "end_step":
        held = schedule._call_in(schedule.begin_step())
        beside = threading.Thread(target=schedule.end_step, args=(3,))
    else:
        held = schedule._call_between("flush()")
        beside = threading.Thread(target=schedule.load_state_dict, args=(saved,))
    with held:
        beside.start()
        while not schedule._calls.n_waiting:
            assert beside.is_alive()
        with pytest.raises(RuntimeError, match="needs the call to end that this thread is inside"):
            schedule._wait_for_calls(call)
    beside.join()
    assert schedule.open_steps == ()


def test_steps_begin_and_end_on_other_threads_while_rows_are_updated():
    away, alone = (Away(Host(64, ((4,),)), "cpu") for _ in range(2))
    begun = [[threading.Event() for _ in range(40)] for _ in range(2)]
    done = [[threading.Event() for _ in range(40)] for _ in range(2)]
    halves = torch.arange(32), torch.arange(32, 64)

    def update(half):
        for number in range(40):
            begun[half][number].wait()
            away.update(halves[half], torch.ones(32, 4), number + 1)
            done[half][number].set()

    threads = [threading.Thread(target=update, args=(half,)) for half in range(2)]
    for thread in threads:
        thread.start()
    for number in range(40):
        assert away.begin() == number + 1
        for half in range(2):
            begun[half][number].set()
        if number:  # two steps are open meanwhile
            for half in range(2):
                done[half][number - 1].wait()
            away.schedule.end_step(number)
    for thread in threads:
        thread.join()
    away.schedule.end_step(40)
    for _ in range(40):
        step = alone.begin()
        alone.update(torch.arange(64), torch.ones(64, 4), step)
        alone.schedule.end_step(step)
    assert all(map(torch.equal, away.at_home(), alone.at_home()))
