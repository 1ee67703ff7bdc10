# SPDX-License-Identifier: Apache-2.0
"""What rows have missed is uploaded once a step, while the device may be many steps behind."""

import pytest
import torch

from gs_adam import DeviceAdam, _core

from .slots import Host, Slots, assert_same, rate

N_ROWS, N_STEPS = 2000, 60
BEHIND = 1_000_000  # cycles; shorter ones hide a fault, and right code has the same outcome


def taken(n_streams, *, n_hosts=1, waits):
    """Tables of hosts whose rows take steps on a device, each stream with rows of its own."""
    streams = [torch.cuda.Stream() for _ in range(n_streams)]
    hosts = [Host(N_ROWS, seed=seed) for seed in range(n_hosts)]
    slots = [Slots(host, N_ROWS, "cuda") for host in hosts]
    for one in slots:
        one.enter(torch.arange(N_ROWS))
    shares = [torch.arange(k, N_ROWS, n_streams) for k in range(n_streams)]
    lists = [[one.lists(share) for share in shares] for one in slots]
    generator = torch.Generator().manual_seed(0)
    grads = [torch.randn(len(share), 48, generator=generator).cuda() for share in shares]
    torch.cuda.synchronize()
    for number in range(N_STEPS):
        steps = [host.begin(rate(number)) for host in hosts]
        for turn in range(n_streams):
            k = (turn + number) % n_streams  # they upload in turns
            with torch.cuda.stream(streams[k]):
                torch.cuda._sleep(BEHIND)
                for one, (where, ids), step in zip(slots, [own[k] for own in lists], steps):
                    given = where, one.last_step, ids
                    one.rows.wake(*one.tables, *given, step=step)
                    if number % 3 == k or n_streams == 1:
                        one.rows.update(*one.tables, *given, grads[k], step=step)
        for host, step in zip(hosts, steps, strict=True):
            host.adam.end_step(step)
        if waits:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return [[*one.tables, one.last_step] for one in slots]


@pytest.mark.gpu
@pytest.mark.parametrize(("n_streams", "n_hosts"), [(1, 1), (2, 1), (3, 2)])
def test_steps_may_be_in_flight_together(n_streams, n_hosts):
    ours = taken(n_streams, n_hosts=n_hosts, waits=False)
    theirs = taken(n_streams, n_hosts=n_hosts, waits=True)
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine, other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.gpu
def test_what_is_uploaded_is_what_the_host_knows():
    alone, host = Host(50, betas=(0.5, 0.9)), Host(50, betas=(0.5, 0.9))  # a window of 65 steps
    slots = Slots(host, 50, "cuda")
    slots.enter(torch.arange(50))
    generator = torch.Generator().manual_seed(0)
    for number in range(150):
        step = alone.begin(rate(number))
        host.begin(rate(number))
        ids = torch.arange(50) if number in (0, 149) else torch.arange(number % 7, 40, 7)
        grads = torch.randn(len(ids), 48, generator=generator)
        alone.update(ids, grads, step)
        torch.cuda._sleep(BEHIND)
        slots.update(ids, grads, step)
        for one in (alone, host):
            one.adam.end_step(step)
    slots.leave(torch.arange(50))
    assert torch.equal(host.last_step, alone.last_step)
    assert_same(host.tables, alone.tables, "cuda")


@pytest.mark.gpu
def test_dense_steps_may_take_turns_on_streams():
    left = []
    for n_streams in (1, 2):
        generator = torch.Generator().manual_seed(0)
        start = torch.randn(5000, 3, generator=generator)
        param = torch.nn.Parameter(start.cuda())
        device = DeviceAdam([param], lr=0.01)
        lists = [(torch.rand(5000, generator=generator) < 0.3).nonzero().flatten() for _ in "123"]
        given = [
            (ids.cuda(), torch.randn(len(ids), 3, generator=generator).cuda()) for ids in lists
        ]
        streams = [torch.cuda.Stream() for _ in range(n_streams)]
        torch.cuda.synchronize()
        for number in range(40):
            ids, compact = given[number % 3]
            streams[number % n_streams].wait_stream(streams[(number - 1) % n_streams])
            with torch.cuda.stream(streams[number % n_streams]):
                torch.cuda._sleep(BEHIND)
                device.step(ids, [compact])
        torch.cuda.synchronize()
        left.append(param.detach().clone())
    assert torch.equal(*left)


def test_a_plan_says_how_much_there_is_to_upload():
    schedule = _core.Schedule(2, "deferred", True)
    entry, step_before = 8 * 4, 64
    for number in range(5):
        plan = schedule.propose([(0.1, 0.9, 0.999, 1e-15, 0.0)] * 2)
        assert plan.recent_bytes == 2 * (number + 1) * entry
        assert plan.past_bytes(0) == 2 * (number + 1) * step_before
        assert plan.past_bytes(number) == 2 * step_before
        assert plan.past_bytes(plan.step) == 0
        schedule.accept(plan)
    sparse = _core.Schedule(2, "sparse", True).propose([(0.1, 0.9, 0.999, 1e-15, 0.0)] * 2)
    assert sparse.recent_bytes == sparse.past_bytes(0) == 0


def test_a_step_has_the_sleeps_of_the_look_before_it_and_no_others():
    schedule, plans = _core.Schedule(2, "deferred", True), []
    for number in range(1030):  # tables grow at 1,024
        look = schedule.following() if number else None
        plan = schedule.propose([(0.1 + number, 0.9, 0.999, 1e-15, 0.0)] * 2)
        has_grown = number == 1024
        assert look is None or plan.shares_sleeps(look) is look.shares_sleeps(plan) is not has_grown
        assert not any(plan.shares_sleeps(other) for other in plans[-3:])
        assert plan.shares_sleeps(plan)
        schedule.accept(plan)
        plans.append(plan)
    other = _core.Schedule(2, "deferred", True).propose([(0.1, 0.9, 0.999, 1e-15, 0.0)] * 2)
    assert not other.shares_sleeps(plans[0])


@pytest.mark.gpu
def test_a_look_and_the_step_behind_it_are_uploaded_once(monkeypatch):
    n_uploads, upload = [0], _core.upload_sleeps

    def counting(*given):
        n_uploads[0] += 1
        upload(*given)

    monkeypatch.setattr(_core, "upload_sleeps", counting)
    alone, host = Host(50), Host(50)
    slots = Slots(host, 50, "cuda")
    slots.enter(torch.arange(50))
    where, ids = slots.lists(torch.arange(0, 50, 3))
    generator = torch.Generator().manual_seed(0)
    for number in range(20):
        if number:
            slots.rows.lookahead(*slots.tables, where, slots.last_step, ids)
        step = alone.begin(rate(number))
        host.begin(rate(number))
        grads = torch.randn(len(ids), 48, generator=generator)
        alone.update(torch.arange(0, 50, 3), grads, step)
        slots.update(torch.arange(0, 50, 3), grads, step)
        for one in (alone, host):
            one.adam.end_step(step)
    assert n_uploads[0] <= 20
    slots.leave(torch.arange(50))
    assert_same(host.tables, alone.tables, "cuda")


def test_checking_follows_the_environment(monkeypatch):
    for value, is_checking in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("GS_CHECK_INDEX", value)
        assert _core.checks_index() is is_checking
    monkeypatch.delenv("GS_CHECK_INDEX")
    assert _core.checks_index() is False
