# SPDX-License-Identifier: Apache-2.0
"""The plain form: storage and slots belong to the caller."""

import numpy as np
import pytest
import torch

from gs_adam import HostAdam, Schedule, flush_rows, update_rows


def tables(n_rows=30, width=8):
    values = np.random.default_rng(0).normal(size=(n_rows, width)).astype(np.float32)
    return values, np.zeros_like(values), np.zeros_like(values), np.zeros(n_rows, np.int32)


def steps(first, last, n_rows=30, width=8):
    for number in range(first, last):
        generator = np.random.default_rng(number)
        rows = np.flatnonzero(generator.random(n_rows) < 0.2).astype(np.int32)
        yield rows, generator.normal(size=(len(rows), width)).astype(np.float32), 0.9**number


def test_it_is_what_host_adam_does_in_numpy_without_torch_tensors():
    own = tables()
    p = torch.nn.Parameter(torch.from_numpy(own[0].copy()))
    host, schedule = HostAdam([p]), Schedule()
    for rows, grads, rate in steps(0, 40):
        schedule.begin(rate)
        update_rows(*own, rows, grads, schedule)
        host.param_groups[0]["lr"] = rate
        host.step(rows, [grads])
    flush_rows(*own, np.arange(0, 30, 2), schedule)
    flush_rows(*own, None, schedule)
    host.flush()
    assert np.array_equal(own[0], p.detach().numpy())
    assert (own[3] == 40).all()


def test_one_schedule_serves_pages_that_come_and_go():
    whole, schedule = tables(), Schedule()
    pages = [tuple(t[k::3].copy() for t in whole) for k in range(3)]
    for rows, grads, rate in steps(0, 30):
        schedule.begin(rate)
        update_rows(*whole, rows, grads, schedule)
        for k, page in enumerate(pages):
            mine = rows % 3 == k
            update_rows(*page, rows[mine] // 3, grads[mine], schedule, threads=1)
    for k, page in enumerate(pages):
        for a, b in zip(page, whole, strict=True):
            assert np.array_equal(a, b[k::3])


def test_a_checkpoint_continues_bit_for_bit():
    own, schedule = tables(), Schedule()
    for rows, grads, rate in steps(0, 20):
        schedule.begin(rate)
        update_rows(*own, rows, grads, schedule)
    twin, again = tuple(t.copy() for t in own), Schedule()
    again.load_state_dict(schedule.state_dict())
    assert again.step == 20
    for rows, grads, rate in steps(20, 50):
        for tensors, s in ((own, schedule), (twin, again)):
            s.begin(rate)
            update_rows(*tensors, rows, grads, s)
    for a, b in zip(own, twin, strict=True):
        assert np.array_equal(a, b)


def test_groups_have_their_own_rates():
    (w, m, v, last_step), schedule = tables(), Schedule(2)
    before = w.copy()
    schedule.begin([0.1, 0.2])
    split = [[t[:, :3], t[:, 3:]] for t in (w, m, v)]
    grads = [np.ones((30, width), np.float32) for width in (3, 5)]
    update_rows(*split, last_step, None, grads, schedule)
    np.testing.assert_allclose(before - w, [[0.1] * 3 + [0.2] * 5] * 30, rtol=1e-5)


def test_options_may_be_numbers_of_numpy():
    schedule = Schedule(2)
    betas = (np.float32(0.5), np.float32(0.75))
    assert schedule.begin(np.array([0.1, 0.2]), betas=betas, eps=np.float64(1e-8)) == 1
    other = Schedule(2)
    other.begin([0.1, 0.2], betas=(0.5, 0.75), eps=1e-8)
    for one, two in zip(schedule.state_dict()["groups"], other.state_dict()["groups"], strict=True):
        assert np.array_equal(one["missed"], two["missed"])


def test_bad_arguments_are_named():
    own, schedule = tables(), Schedule(2)
    with pytest.raises(ValueError, match=r"n_groups must be at least 1, got 0"):
        Schedule(0)
    with pytest.raises(ValueError, match=r"lr must be one value or one a group \(2\), got 3"):
        schedule.begin([1, 2, 3])
    with pytest.raises(ValueError, match=r"betas must be two numbers, got \(0.9,\)"):
        schedule.begin(0.1, betas=[(0.9, 0.999), (0.9,)])
    with pytest.raises(ValueError, match=r"params must be 2 tensors as .* groups, got 1"):
        update_rows(*own, None, None, schedule)
    schedule = Schedule()
    schedule.begin(0.1)
    rows, grads = np.array([1]), np.ones((1, 8), np.float32)
    with pytest.raises(ValueError, match=r"last_step must have shape \(30\), got \(29\)"):
        update_rows(*own[:3], own[3][:29].copy(), rows, grads, schedule)
    own[0].flags.writeable = False
    with pytest.raises(ValueError, match=r"params\[0\] must be writable, got a read-only array"):
        update_rows(*own, rows, grads, schedule)
    own[0].flags.writeable = True
    update_rows(*own, rows, grads, schedule)
    with pytest.raises(ValueError, match=r"rows must be updated once a step, got row 1 in step 1"):
        update_rows(*own, rows, grads, schedule)
