# SPDX-License-Identifier: Apache-2.0
"""The interpreter ends while daemon threads are inside native calls."""

from collections.abc import Callable

REPEATING = """
import threading
import numpy as np
from gs_pinned import Ring, Signal, Table, gather

table, signal, ring = Table(2_000, 3, pinned=False), Signal(), Ring(1 << 16)
ids, out = np.arange(2_000), np.empty((2_000, 3), "f4")
held = ring.take(5_000, table.layout)
begun = threading.Semaphore(0)

def repeat(call):
    while True:
        try:
            call()
        except TimeoutError:
            pass
        begun.release()

for call in (
    lambda: gather(table, ids, out),
    lambda: signal.wait(1, timeout_s=0),
    lambda: ring.take(5_000, table.layout, timeout_s=0),
):
    threading.Thread(target=repeat, args=(call,), daemon=True).start()
for _ in range(9):
    begun.acquire()
"""


def test_threads_that_move_rows_or_wait_do_not_stop_the_end(
    run_script: Callable[..., str],
) -> None:
    run_script(REPEATING)
