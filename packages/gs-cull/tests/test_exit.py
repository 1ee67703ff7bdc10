# SPDX-License-Identifier: Apache-2.0
"""The interpreter ends while daemon threads are inside native calls."""

import subprocess
import sys

CULLING = """
import threading
import numpy as np
import gs_cull

N = 2_000
means, quats, K = np.zeros((N, 3), "f4"), np.ones((N, 4), "f4"), np.eye(3)
ids, mask = np.arange(N, dtype="i4"), np.ones((N, 1), "u4")
begun = threading.Semaphore(0)

def repeat(call):
    while True:
        call()
        begun.release()

for call in (
    lambda: gs_cull.visible_ids(means, means, quats, np.eye(4), K, 64, 48),
    lambda: gs_cull.Blocks.build(means, means, quats, 32),
    lambda: gs_cull.Visibility.of_mask(ids, mask, 1, 0),
):
    threading.Thread(target=repeat, args=(call,), daemon=True).start()
for _ in range(9):
    begun.acquire()
print("end")
"""


def test_threads_that_cull_do_not_stop_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", CULLING], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
