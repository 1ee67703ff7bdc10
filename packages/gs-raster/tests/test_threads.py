# SPDX-License-Identifier: Apache-2.0
"""The same bits for any number of threads, and threads that outlive nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from torch import Tensor

from gs_raster.cpu.parallel import for_each_range

sys.path.insert(0, str(Path(__file__).parent))
import raster_oracle as oracle
from raster_drawing import assert_same_bits, draw

VIEW = oracle.random_view(50, width=150, height=101)
ROWS = {k: v.float() for k, v in oracle.random_rows(50, VIEW, n_rows=600).items()}


def test_any_number_of_threads_gives_the_same_bits():
    expected = draw(ROWS, VIEW, absgrad=True, n_threads=1)
    assert expected["image"].max() > 0.5
    for n_threads in (2, 3, 5, None):
        assert_same_bits(draw(ROWS, VIEW, absgrad=True, n_threads=n_threads), expected)


def test_a_second_run_gives_the_same_bits():
    assert_same_bits(draw(ROWS, VIEW, antialiased=True), draw(ROWS, VIEW, antialiased=True))


def test_two_python_threads_may_draw_at_once():
    expected = draw(ROWS, VIEW, n_threads=2)
    results: list[dict[str, Tensor]] = []

    def work() -> None:
        results.extend(draw(ROWS, VIEW, n_threads=2) for _ in range(3))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    for result in results:
        assert_same_bits(result, expected)


def test_a_forked_child_draws_after_its_parent_did():
    source = """
import os
from gs_raster.cpu.parallel import for_each_range
def count(begin, end, out): out.extend(range(begin, end))
for_each_range(count, 100, [], n_threads=2)
child = os.fork()
out = []
for_each_range(count, 100, out, n_threads=2)
assert sorted(out) == list(range(100))
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", source], check=True, timeout=600)


def test_an_exception_of_a_kernel_reaches_the_caller():
    def fail(begin: int, end: int) -> None:
        raise ZeroDivisionError(f"{begin}")

    with pytest.raises(ZeroDivisionError):
        for_each_range(fail, 100, n_threads=2)
