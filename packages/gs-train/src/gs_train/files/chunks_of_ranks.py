# SPDX-License-Identifier: Apache-2.0
"""The Gaussians of all ranks, which rank 0 gets a chunk at a time.

Ranks come one after the other. In each round all ranks say a number: rank 0 whether it goes on,
the rank whose turn it is how many rows its next chunk has, or that it has no more. Then the chunk
goes to rank 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from gs_train.errors import InputError
from gs_train.files.agreement import by_first
from gs_train.files.row_chunks import Chunk
from gs_train.world import World

_NAMES = ("means", "scales", "quats", "opacities", "sh0", "shN")
_WIDTHS = (3, 3, 4, 1, 3)  # of all but the last
_STOP, _GO_ON, _NO_MORE = 0, 1, -1

Result = TypeVar("Result")


def by_first_with_chunks(
    world: World,
    chunks: Iterable[Chunk],
    work: Callable[[Iterator[Chunk], int], Result],
    *,
    n_rows: int,
) -> Result:
    """What rank 0 got from some work with the chunks of all ranks, its own first; on all ranks. A
    collective.

    Args:
        world: of the ranks.
        chunks: of this rank's rows, at least one, which may be empty; K of ``shN`` is the same on
            all ranks.
        work: gets all chunks and the number of their rows. It takes all chunks, unless it raises
            InputError or OSError, and gives what JSON has.
        n_rows: of this rank.

    Raises:
        CommonError: the work did raise one of these; on all ranks.
        ValueError: there is no chunk; on one rank.
    """
    own = iter(chunks)
    first = next(own, None)
    if first is None:
        raise ValueError("chunks must hold at least one chunk (it may be empty), got none")
    own = itertools.chain((first,), own)
    width = _width(first)
    n_all = int(world.gather(n_rows).sum())
    if world.rank:
        _send(world, own, width)
        return by_first(world, lambda: work(iter(()), 0))  # not called here

    def by_this_one() -> Result:
        incoming = _Incoming(world, width)
        try:
            return work(itertools.chain(own, incoming.chunks()), n_all)
        except (InputError, OSError):
            incoming.stop()
            raise

    return by_first(world, by_this_one)


class _Incoming:
    """The chunks of the other ranks, as rank 0 gets them."""

    def __init__(self, world: World, width: int) -> None:
        self._world = world
        self._nothing = torch.empty(0, width)
        self._is_over = False

    def chunks(self) -> Iterator[Chunk]:
        """All of them, rank after rank."""
        for sender in range(1, self._world.size):
            while (n := int(self._world.gather(_GO_ON)[sender])) != _NO_MORE:
                yield _unpacked(_sent(self._world, sender, n, self._nothing).cpu())
        self._is_over = True

    def stop(self) -> None:
        """Let the other ranks know that no chunk is wanted any more."""
        if not self._is_over:
            self._world.gather(_STOP)


def _send(world: World, own: Iterator[Chunk], width: int) -> None:
    """Send this rank's chunks when it is its turn, and take part in the turns of others."""
    nothing = torch.empty(0, width)
    for sender in range(1, world.size):
        while True:
            chunk = next(own, None) if sender == world.rank else None
            table = nothing if chunk is None else _packed(chunk)
            said = world.gather(_NO_MORE if chunk is None else len(table))
            if said[0] == _STOP:
                return
            if said[sender] == _NO_MORE:
                break
            _sent(world, sender, int(said[sender]), table)


def _sent(world: World, sender: int, n_rows: int, table: Tensor) -> Tensor:
    """Rows of one rank on rank 0; no rows elsewhere.

    Args:
        table: (R, width) float32 of the CPU, without rows where this rank is not the sender.
    """
    send = table.to(world.device)
    n_received = n_rows if world.rank == 0 else 0
    recv = send.new_empty((n_received, table.shape[1]))
    recv_rows, send_rows = [0] * world.size, [0] * world.size
    recv_rows[sender] = n_received
    send_rows[0] = len(send)
    return world.all_to_all(recv, send, recv_rows, send_rows).wait()


def _width(chunk: Chunk) -> int:
    """Values of a row."""
    return sum(_WIDTHS) + 3 * int(chunk["shN"].shape[1])


def _packed(chunk: Chunk) -> Tensor:
    """(R, width) float32 on the CPU: all values of rows."""
    parts = [torch.as_tensor(chunk[name]).detach().to("cpu", torch.float32) for name in _NAMES]
    return torch.cat([part.flatten(1) if part.ndim > 1 else part[:, None] for part in parts], 1)


def _unpacked(table: Tensor) -> dict[str, Tensor]:
    """The rows that :func:`_packed` took; harmonics have what is left of the width."""
    n, n_rest = len(table), table.shape[1] - sum(_WIDTHS)
    means, scales, quats, opacities, sh0, rest = table.split([*_WIDTHS, n_rest], 1)
    return {
        "means": means,
        "scales": scales,
        "quats": quats,
        "opacities": opacities[:, 0],
        "sh0": sh0[:, None],
        "shN": rest.reshape(n, n_rest // 3, 3),
    }
