# SPDX-License-Identifier: Apache-2.0
"""Rows that no view sees are all updated, those first that the next batch reads."""

import itertools
import threading

import pytest
import torch
from appearance_models import Plain64, make_host, make_rows, some_ids
from street import N_VIEWS, street_rows, street_views

from gs_train.backends import make_backend
from gs_train.engine.settings import StepSettings
from gs_train.options.presets import PRESETS
from gs_train.published import untouched as module
from gs_train.published.untouched import Untouched
from gs_train.renderers.cpu import CpuRenderer
from gs_train.rows.attributes import NAMES

N = 500


class Submitted:
    """Stands between `Untouched` and the worker, and notes what is submitted."""

    def __init__(self, host):
        self._submit, host.worker.submit = host.worker.submit, self
        self.calls = []

    def __call__(self, rows, grads, *, step, **options):
        assert grads is None
        self.calls.append((torch.as_tensor(rows).clone(), options["priority"]))
        return self._submit(rows, grads, step=step, **options)


def test_what_the_next_batch_reads_goes_first_and_every_row_goes_once():
    host = make_host(N, "dense")
    untouched, submitted = Untouched(host, torch.device("cpu")), Submitted(host)
    seen, needed = some_ids(N, 1, 0.2), some_ids(N, 2, 0.3)
    host.begin()
    tickets = untouched.update(seen, needed, 1)
    (first, priority), *later = submitted.calls
    assert len(tickets) == 1
    assert set(first.tolist()) == set(needed.tolist()) - set(seen.tolist())
    rest = [rows for rows, _ in later]
    assert len(rest) > 3
    assert all(less < priority for _, less in later)
    everything = torch.cat([seen, first, *rest])
    assert torch.equal(everything.sort().values, torch.arange(N, dtype=everything.dtype))


@pytest.mark.parametrize("listed", [1, 7, N - 1, 2 * N])
def test_rows_are_listed_part_by_part(listed, monkeypatch):
    monkeypatch.setattr(module, "listed_at_once", lambda n: listed)
    host = make_host(N, "dense")
    submitted = Submitted(host)
    seen = some_ids(N, 3, 0.4)
    assert Untouched(host, torch.device("cpu")).update(seen, None, host.begin()) == ()
    rows = torch.cat([seen, *(rows for rows, _ in submitted.calls)])
    assert torch.equal(rows.sort().values, torch.arange(N, dtype=rows.dtype))


def test_a_step_may_end_while_the_next_one_runs():
    """Each step's gradients come when the next one's rows have been listed already; rows are
    replaced in between."""
    host, twin = make_host(N, "dense"), Plain64(make_rows(N))
    untouched = Untouched(host, torch.device("cpu"))
    batches = [some_ids(N, k, 0.3) for k in range(12)]
    arrived = threading.Event()
    for k, (seen, needed) in enumerate(itertools.pairwise(batches)):
        if k == 6:
            arrived.set()
            more = make_rows(70, 9)
            for rows in (host, twin):
                rows.replace(some_ids(N, 3, 0.1), more)
        step, before, arrived = host.begin(), arrived, threading.Event()
        gradients = {name: v[: len(seen)] for name, v in make_rows(len(seen), 50 + k).items()}
        host.worker.submit(seen, list(gradients.values()), step=step, ready=arrived.wait)
        untouched.update(seen, needed, step)
        before.set()
        host.end_before(step)
        assert host.adam.open_steps == (step,)
        twin.step(seen, gradients)
    arrived.set()
    ours = host.snapshot()
    for name, values in twin.values.items():
        assert torch.allclose(ours[name].double(), values, atol=1e-5, rtol=1e-5), name


def test_a_model_without_rows_has_none_to_update():
    host = make_host(5, "dense")
    host.replace(torch.arange(5))
    untouched, submitted = Untouched(host, torch.device("cpu")), Submitted(host)
    nothing = torch.empty(0, dtype=torch.int32)
    step = host.begin()
    untouched.update(nothing, nothing, step)
    assert all(len(rows) == 0 for rows, _ in submitted.calls)
    host.rest()
    assert host.adam.step_count == step
    assert host.adam.open_steps == ()


@pytest.mark.parametrize("batch_size", [1, 3])
def test_clm_begins_a_batch_before_all_rows_have_had_the_last_step(batch_size):
    rows, views = street_rows(3000, sh_degree=1), street_views()[: N_VIEWS // 2]
    backend = make_backend(
        PRESETS["clm"], rows, None, renderer=CpuRenderer(), semantics="dense", mem_limit=0.3
    )
    settings = StepSettings(1, dict.fromkeys(NAMES, 1e-4), (0.9, 0.999), 1e-15, 0.2)
    photo = torch.full((views[0].height, views[0].width, 3), 99, dtype=torch.uint8)
    host = backend.model.appearance

    def step(first, *, known):
        now, following = (views[k : k + batch_size] for k in (first, first + batch_size))
        backend.step(
            [(view, photo) for view in now], settings, lambda ids, splats: None,
            upcoming=(following,) if known else (),
        )  # fmt: skip

    for k in range(4):
        step(k * batch_size, known=True)
        assert host.adam.open_steps == (host.adam.step_count,)
    step(4 * batch_size, known=False)
    assert host.adam.open_steps == ()
    step(5 * batch_size, known=True)
    backend.finish()
    assert host.adam.open_steps == ()
    assert host.worker.is_idle
