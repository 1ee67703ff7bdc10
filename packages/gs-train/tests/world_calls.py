# SPDX-License-Identifier: Apache-2.0
"""What ranks do in tests; functions of a module, so that another process finds them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gs_train.errors import InputError
from gs_train.machine.interrupt import Interrupted, StopRequest
from gs_train.world import SharedStop, World


def place(world: World) -> tuple[int, int, str]:
    return world.rank, world.size, str(world.device)


def gather(world: World, shape: Sequence[int]) -> Any:
    own = np.arange(np.prod(shape, dtype=int)).reshape(shape) + 100 * world.rank
    return world.gather(own)


def gather_halves(world: World) -> str:
    """What is said of numbers that cannot be gathered."""
    try:
        world.gather([1.0, 0.5])
    except TypeError as error:
        return str(error)
    return ""


def exchange(world: World, counts: Any, width: int) -> Any:
    """Rows (from, to, number, 0, ...) to every rank, ``counts`` (W, W) of them."""
    options = {"dtype": torch.int32, "device": world.device}
    send = torch.zeros(int(counts[world.rank].sum()), width, **options)
    words = [(world.rank, to, k) for to, n in enumerate(counts[world.rank]) for k in range(n)]
    send[:, :3] = torch.tensor(words, **options).reshape(-1, 3)[:, :width]
    come = counts[:, world.rank]
    recv = torch.full((int(come.sum()), width), -1, **options)
    posted = world.all_to_all(recv, send, come.tolist(), counts[world.rank].tolist())
    return posted.wait().cpu().numpy()


def sum_of_ranks(world: World) -> Any:
    return world.sum(torch.tensor([1.0, world.rank], device=world.device)).cpu().numpy()


def broadcast(world: World, value: Any, root: int) -> Any:
    told = world.broadcast(value if world.rank == root else None, root)
    tensor = world.broadcast_tensor(torch.full((2, 3), world.rank, device=world.device), root)
    return told, tensor.cpu().numpy()


def agree(world: World, values: Sequence[Any]) -> None:
    world.agree("--steps", values[world.rank])


def threads(world: World) -> tuple[list[int], int]:
    return sorted(os.sched_getaffinity(0)), torch.get_num_threads()


def devices_in_use(world: World) -> list[int]:
    """CUDA devices on which this process has a context."""
    devices = range(torch.cuda.device_count())
    return [k for k in devices if torch._C._cuda_hasPrimaryContext(k)]


def stop_after_step(world: World, asked: int, steps: int) -> int:
    """One rank is asked to stop in step 2; each rank's last step."""
    with StopRequest() as own:
        stop = SharedStop(own)
        for step in range(steps):
            if world.rank == asked and step == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            stop.share(world)
            if stop.signal_number is not None:
                return step
    return steps


def be_interrupted(world: World) -> None:
    world.barrier()
    raise Interrupted(signal.SIGINT, f"stopped rank {world.rank}")


def be_stopped_together(world: World, latch: str) -> None:
    """Every rank is asked to stop in the same gather; rank 1 needs longer than the others to give
    back what it has: until the latch, a named pipe, is opened and closed."""
    stop = SharedStop(StopRequest())
    stop.take(world.gather([signal.SIGTERM]))
    try:
        stop.check("training")
    finally:
        if world.rank == 1:
            Path(latch).read_bytes()


# ---- failures of one rank, while the others are in a collective


def collective(world: World, name: str) -> None:
    """One of the calls, over and over: no rank leaves it of its own accord."""
    rows = [2] * world.size
    while True:
        if name == "gather":
            world.gather(1)
        elif name == "all_to_all":
            recv = torch.empty(2 * world.size, 3, device=world.device)
            world.all_to_all(recv, torch.ones_like(recv), rows, rows).wait().cpu()
        elif name == "barrier":
            world.barrier()
        else:
            raise ValueError(name)


def fail(world: World, rank: int, how: str, name: str) -> None:
    """One rank ends, the others are in a collective."""
    world.barrier()
    if world.rank != rank:
        collective(world, name)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        raise SystemExit(7)
    if how == "input":
        raise InputError("photograph 7.jpg cannot be read")
    if how == "unforeseen":
        raise ZeroDivisionError("of a bug\nand more")
    if how == "stopped":
        raise Interrupted(signal.SIGTERM, "stopped")
    os.kill(os.getpid(), signal.SIGSTOP)  # "silent"


def fail_while_busy(world: World) -> None:
    """Rank 0 fails, and the others never call torch again."""
    if world.rank == 0:
        raise InputError("no room is left")
    while True:
        threading.Event().wait(1)


def wait(world: World) -> None:
    """For a rank that never comes."""
    if world.rank == 0:
        threading.Event().wait()
    world.barrier()
