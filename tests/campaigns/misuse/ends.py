# SPDX-License-Identifier: Apache-2.0
"""The interpreter ends while a daemon thread is inside a package: the process ends in order.

Calls that take torch tensors are not among these. Up to Python 3.13 torch itself ends the process
with an abort where a daemon thread comes back from one of its operations into an interpreter that
ends.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

_SECONDS = 300.0
_BUSY = """
import sys, threading
import numpy as np
begun = threading.Semaphore(0)
{made}
def repeat():
    while True:
        begun.release()
        {call}
for _ in range({n_threads}):
    threading.Thread(target=repeat, daemon=True).start()
for _ in range({n_calls}):
    begun.acquire()
sys.stderr.write("ended in the middle\\n")
"""

_CALLS = {
    "gs_cull.visible_ids": (
        "import gs_cull; m = np.random.default_rng(0).random((100_000, 3)).astype('f4'); "
        "q = np.ones((100_000, 4), 'f4'); v, K = np.eye(4), np.array([[50., 0, 32], [0, 50, 24], "
        "[0, 0, 1]])",
        "gs_cull.visible_ids(m, m, q, v, K, 64, 48)",
    ),
    "gs_cull.Visibility.and_counts": (
        "import gs_cull; mask = np.ones((100_000, 2), 'u4'); ids = np.arange(100_000, dtype='i4'); "
        "seen = gs_cull.Visibility.of_mask(ids, mask, 64, 0)",
        "seen.and_counts()",
    ),
    "gs_cull.Blocks.build": (
        "import gs_cull; m = np.random.default_rng(0).random((100_000, 3)).astype('f4'); "
        "q = np.ones((100_000, 4), 'f4')",
        "gs_cull.Blocks.build(m, m, q, 64)",
    ),
    "gs_adam.update_rows": (
        "import gs_adam; p, a, b = (np.zeros((50_000, 16), 'f4') for _ in range(3)); "
        "last = np.zeros(50_000, 'i4'); s = gs_adam.Schedule(); g = np.ones((50_000, 16), 'f4'); "
        "lock = threading.Lock()",
        "\n        with lock: s.begin(lr=.1); gs_adam.update_rows(p, a, b, last, None, g, s)",
    ),
    "gs_pinned.gather": (
        "import gs_pinned; t = gs_pinned.Table(20_000, 16); out = np.empty((20_000, 16), 'f4'); "
        "ids = np.arange(20_000)",
        "gs_pinned.gather(t, ids, out)",
    ),
    "gs_pinned.Signal.wait": (
        "import gs_pinned; s = gs_pinned.Signal(); k = iter(range(1, 10**9))",
        "s.set(next(k)); s.wait(0)",
    ),
    "gs_order.and_counts": (
        "import gs_order; mask = np.ones((100_000, 2), 'u4')",
        "gs_order.and_counts(mask)",
    ),
    "gs_raster.cpu": (
        "from gs_raster import Rect, cpu; r = np.random.default_rng(0); n = 5_000; "
        "rows = cpu.Rows(r.random((n, 3)), r.random((n, 3)) - 4, r.random((n, 4)), r.random(n), "
        "r.random((n, 1, 3)), r.random((n, 3, 3))); v = np.eye(4); v[2, 3] = 2; "
        "camera = cpu.Camera.of(v, np.array([[90., 0, 64], [0, 90, 48], [0, 0, 1]]), 128, 96); "
        "rect = Rect(0, 0, 128, 96)",
        "s = cpu.project(rows, camera, sh_degree=1, n_threads=2); cpu.blend(s, cpu.sort(s, rect))",
    ),
}


def end_in_the_middle(rng: np.random.Generator, folder: Path, say: Callable[[str], None]) -> None:
    """End an interpreter after so many calls have begun in daemon threads.

    Raises:
        AssertionError: it did not end with 0. A thread may tell of what it cannot do any more.
    """
    name = str(rng.choice(list(_CALLS)))
    made, call = _CALLS[name]
    n_threads, n_calls = int(rng.integers(1, 4)), int(rng.integers(1, 60))
    say(f"{name}: the interpreter ends after {n_calls} calls from {n_threads} threads")
    script = _BUSY.format(made=made, call=call, n_threads=n_threads, n_calls=n_calls)
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    is_good = ended.returncode == 0 and "ended in the middle\n" in ended.stderr
    assert is_good, f"ended with {ended.returncode} and {ended.stderr.strip()[-300:]!r}"
