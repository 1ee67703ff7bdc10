# SPDX-License-Identifier: Apache-2.0
"""The interpreter ends while daemon threads are inside native calls.

Up to Python 3.13 torch's own operations end such a process by an abort, so these threads call what
uses none of them.
"""

import subprocess
import sys

WAITING = """
import threading
import torch
from gs_adam import HostAdam, Worker

host = HostAdam([torch.zeros(10, 3)])
worker = Worker(host)
worker.submit(torch.arange(3), [torch.ones(3, 3)], step=host.begin_step())
worker.wait()
begun = threading.Semaphore(0)

def repeat():
    while True:
        worker.wait()
        begun.release()

for _ in range(3):
    threading.Thread(target=repeat, daemon=True).start()
for _ in range(9):
    begun.acquire()
print("end")
"""


def test_threads_that_wait_for_a_worker_do_not_stop_the_end():
    done = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
