# SPDX-License-Identifier: Apache-2.0
"""State that is laid out as the parameters are, and nothing beside it."""

import os
import subprocess
import sys

import pytest
import torch

from gs_adam import HostAdam

SHAPES = ((3,), (15, 3), ())


def views(n_rows):
    """A table whose columns are three parameters."""
    table = torch.randn(n_rows, 49, generator=torch.Generator().manual_seed(0))
    return [table[:, :3], table[:, 3:48].unflatten(1, (15, 3)), table[:, 48]]


def address(tensor):
    return tensor.data_ptr()


def are_beside(moments):
    first, second, third = moments
    return (
        address(second) == address(first) + 12
        and address(third) == address(first) + 192
        and {m.stride(0) for m in moments} == {49}
    )


def moments(host, key):
    return [host.state[p][key] for group in host.param_groups for p in group["params"]]


@pytest.mark.parametrize("semantics", ["dense", "deferred"])
def test_moments_of_columns_are_columns_and_stay_so(semantics):
    params = views(200)
    host = HostAdam(params, semantics=semantics)
    grads = [torch.ones(200, *s) for s in SHAPES]
    host.step(None, grads)
    host.flush()
    for edit in (
        lambda: host.append_rows(20),
        lambda: host.keep_rows(torch.arange(0, 220, 2)),
        lambda: host.permute_rows(torch.arange(110).flip(0)),
    ):
        edit()
        assert are_beside(moments(host, "exp_avg"))
        assert are_beside(moments(host, "exp_avg_sq"))
    assert [tuple(m.shape) for m in moments(host, "exp_avg")] == [(110, *s) for s in SHAPES]
    # The last ten rows were appended, so after turning they come first.
    assert not moments(host, "exp_avg")[1][:10].any()
    assert moments(host, "exp_avg")[1][10:].all()


def test_columns_and_tensors_apart_give_the_same_bits():
    together, apart = views(300), [v.clone() for v in views(300)]
    one, other = HostAdam(together, lr=0.1), HostAdam(apart, lr=0.1)
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        rows = (torch.rand(300, generator=generator) < 0.3).nonzero().flatten()
        grads = [torch.randn(len(rows), *s, generator=generator) for s in SHAPES]
        one.step(rows, grads)
        other.step(rows, grads)
    for a, b in zip(together, apart, strict=True):
        assert torch.equal(a, b)
    for key in ("exp_avg", "exp_avg_sq"):
        for a, b in zip(moments(one, key), moments(other, key), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("n_rows", [0, 1])
def test_tables_of_no_row_or_one_work(n_rows):
    params = views(n_rows)
    host = HostAdam(params)
    host.step(None, [torch.ones(n_rows, *s) for s in SHAPES])
    assert [tuple(m.shape) for m in moments(host, "exp_avg")] == [(n_rows, *s) for s in SHAPES]


def test_bad_gradients_of_columns_are_counted_by_row():
    params = views(100)
    host = HostAdam(params, semantics="dense")
    table = torch.zeros(100, 49)
    table[3, 0] = table[3, 48] = table[50, 20] = table[51, 21] = float("nan")
    table[99, 48] = float("inf")
    host.step(None, [table[:, :3], table[:, 3:48].unflatten(1, (15, 3)), table[:, 48]])
    assert host.nonfinite_rows == 4


STEPS = """
import resource, sys, torch, gs_adam
n, width = 400_000, 48
table = torch.zeros(n, width)
groups = [{"params": [table[:, :3]]}, {"params": [table[:, 3:]]}]
host = gs_adam.HostAdam(groups, semantics=sys.argv[1], threads=1)
grads = [torch.ones(n // 2, 3), torch.ones(n // 2, 45)]
ids = torch.arange(0, n, 2, dtype=torch.int32)
host.step(ids[:9], [grad[:9] for grad in grads])
spare = torch.empty(1 << 17, dtype=torch.uint8)  # for what a step takes whatever its rows
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (most, most))
held = []  # also what the heap still had, or a thread that has ended
try:
    while len(held) < 1000:
        held.append(torch.empty(n // 2, dtype=torch.uint8))  # a byte a row that is updated
except RuntimeError:
    print("limited")
del spare
for _ in range(3):
    host.step(ids, grads)
assert table[n - 2, -1].item() and not table[n - 1, -1].item()
print("done within it")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("semantics", ["dense", "deferred", "sparse"])
def test_a_step_takes_no_memory_that_grows_with_its_rows(semantics):
    # Whatever is larger is asked from the system, which has a limit, and not found in the heap.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 16)}
    done = subprocess.run(
        [sys.executable, "-c", STEPS, semantics],
        env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.stdout == "limited\ndone within it\n", done.stderr
