# SPDX-License-Identifier: Apache-2.0
"""The Gaussians of all ranks as one PLY file, which rank 0 writes a chunk at a time.

Ranks come one after the other. In each round all ranks say a number: rank 0 whether it goes on,
the rank whose turn it is how many rows its next chunk has, or that it has no more. Then the chunk
goes to rank 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gs_train.errors import InputError
from gs_train.files.agreement import Ranks, by_first
from gs_train.files.ply import Chunk, Layout, write_ply

_NAMES = ("means", "scales", "quats", "opacities", "sh0", "shN")
_WIDTHS = (3, 3, 4, 1, 3)  # of all but the last
_STOP, _GO_ON, _NO_MORE = 0, 1, -1


class Sent(Protocol):
    """Rows that are on their way."""

    def wait(self) -> Tensor:
        """Where they are, once they are there."""
        ...


class RowRanks(Ranks, Protocol):
    """A world of ranks that send rows to each other.

    Attributes:
        device: of this rank's rows on their way.
    """

    device: torch.device

    def gather(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """(size, ...) the integers of all ranks; a collective."""
        ...

    def all_to_all(
        self, recv: Tensor, send: Tensor, recv_rows: Sequence[int], send_rows: Sequence[int]
    ) -> Sent:
        """Rows to and from every rank; a collective."""
        ...


def write_ply_of_ranks(
    path: str | Path,
    chunks: Iterable[Chunk],
    *,
    ranks: RowRanks,
    n_rows: int,
    layout: Layout = "inria",
    transform: Callable[[Chunk], Chunk] | None = None,
) -> int:
    """Write the Gaussians of all ranks to a PLY file: those of rank 0 first. A collective.

    A world of one writes what :func:`~gs_train.files.ply.write_ply` does.

    Args:
        path: the file, which rank 0 writes.
        chunks: of this rank's rows, at least one, which may be empty; K of ``shN`` is the same on
            all ranks.
        ranks: the world.
        n_rows: of this rank.
        layout, transform: as for :func:`~gs_train.files.ply.write_ply`.

    Returns:
        How many rows of all ranks were left out because a value of theirs was NaN or infinite; the
        same on all ranks.

    Raises:
        CommonError: rank 0 cannot write the file, or every row would be left out; on all ranks.
        ValueError: an argument is wrong, as for :func:`~gs_train.files.ply.write_ply`; on one rank.

    Cost: memory for three chunks on rank 0, two elsewhere, one of these on the device; one pass
        over the rows. A rank makes its next chunk ready while rank 0 writes the one before.
    """
    if ranks.size == 1:
        return write_ply(path, chunks, n_rows=n_rows, layout=layout, transform=transform)
    own = iter(chunks)
    first = next(own, None)
    if first is None:
        raise ValueError("chunks must hold at least one chunk (it may be empty), got none")
    own = itertools.chain((first,), own)
    width = _width(first)
    n_all = int(ranks.gather(n_rows).sum())
    if ranks.rank:
        _send(ranks, own, width)
        return by_first(ranks, lambda: 0)

    def write() -> int:
        incoming = _Incoming(ranks, width)
        all_chunks = itertools.chain(own, incoming.chunks())
        try:
            return write_ply(path, all_chunks, n_rows=n_all, layout=layout, transform=transform)
        except (InputError, OSError):
            incoming.stop()
            raise

    return by_first(ranks, write)


class _Incoming:
    """The chunks of the other ranks, as rank 0 gets them."""

    def __init__(self, ranks: RowRanks, width: int) -> None:
        self._ranks = ranks
        self._nothing = torch.empty(0, width)
        self._is_over = False

    def chunks(self) -> Iterator[Chunk]:
        """All of them, rank after rank."""
        for sender in range(1, self._ranks.size):
            while (n := int(self._ranks.gather(_GO_ON)[sender])) != _NO_MORE:
                yield _unpacked(_sent(self._ranks, sender, n, self._nothing).cpu())
        self._is_over = True

    def stop(self) -> None:
        """Let the other ranks know that no chunk is wanted any more."""
        if not self._is_over:
            self._ranks.gather(_STOP)


def _send(ranks: RowRanks, own: Iterator[Chunk], width: int) -> None:
    """Send this rank's chunks when it is its turn, and take part in the turns of others."""
    nothing = torch.empty(0, width)
    for sender in range(1, ranks.size):
        while True:
            chunk = next(own, None) if sender == ranks.rank else None
            table = nothing if chunk is None else _packed(chunk)
            said = ranks.gather(_NO_MORE if chunk is None else len(table))
            if said[0] == _STOP:
                return
            if said[sender] == _NO_MORE:
                break
            _sent(ranks, sender, int(said[sender]), table)


def _sent(ranks: RowRanks, sender: int, n_rows: int, table: Tensor) -> Tensor:
    """Rows of one rank on rank 0; no rows elsewhere.

    Args:
        table: (R, width) float32 of the CPU, without rows where this rank is not the sender.
    """
    send = table.to(ranks.device)
    n_received = n_rows if ranks.rank == 0 else 0
    recv = send.new_empty((n_received, table.shape[1]))
    recv_rows, send_rows = [0] * ranks.size, [0] * ranks.size
    recv_rows[sender] = n_received
    send_rows[0] = len(send)
    return ranks.all_to_all(recv, send, recv_rows, send_rows).wait()


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
