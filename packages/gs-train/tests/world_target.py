# SPDX-License-Identifier: Apache-2.0
"""A program for several ranks: ``python -m world_target WHAT``, as ``gs_train`` is one."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from gs_train.errors import InputError
from gs_train.machine.interrupt import Interrupted, StopRequest
from gs_train.world import SharedStop, ToldError, World, joined


def main(what: str) -> int:
    if what == "fail before":
        return 1
    if what == "kill before":
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        with joined("cpu") as world, StopRequest() as own:
            _work(world, what, own)
    except ToldError as told:
        return told.exit_status
    except Interrupted as stopped:
        return stopped.exit_status
    return 0


def _work(world: World, what: str, own: StopRequest) -> None:
    if what == "report":
        ranks = world.gather([world.rank, world.size, os.getpgid(0)]).tolist()
        if world.rank == 0:
            print(json.dumps(ranks), flush=True)
    elif (what, world.rank) in {("fail", 1), ("fail first", 0)}:
        raise InputError("the disk is full")
    elif what == "kill" and world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "train":
        _train(world, own)
    world.barrier()


def _train(world: World, own: StopRequest) -> None:
    """Steps without an end; every rank says how many, once it is stopped."""
    stop = SharedStop(own)
    step = 0
    while stop.signal_number is None:
        step += 1
        stop.share(world)
        if step == 3 and world.rank == 0:
            print("trains", flush=True)
        time.sleep(0.001)
    print(f"stopped after {step}\n", end="", flush=True)  # at once, where nothing is buffered
    world.barrier()
    stop.check("training")


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
