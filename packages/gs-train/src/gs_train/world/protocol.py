# SPDX-License-Identifier: Apache-2.0
"""What ranks do together. One rank does the same with nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ints = npt.NDArray[np.int64]

Result = TypeVar("Result", covariant=True)


class Pending(Protocol[Result]):
    """A collective that has been enqueued."""

    def wait(self) -> Result:
        """The result. Collectives of the host block; for those of a CUDA device the current
        stream waits, and the host does not."""
        ...


class World(Protocol):
    """All ranks of a run, seen from one.

    Every call is a collective: all ranks make the same calls in the same order, and no rank
    decides by its own data whether to make one. All calls belong to the main thread.

    Attributes:
        rank: 0 to ``size`` - 1.
        size: the number of ranks.
        device: of this rank, with its index; the current CUDA device of the main thread.

    Raises, from every call:
        RankFailedError: another rank has ended; the main thread leaves :func:`joined` with it.
    """

    rank: int
    size: int
    device: torch.device

    def agree(self, name: str, value: Any) -> None:
        """Make sure that all ranks have the same value.

        Args:
            name: of the value, for the message.
            value: as JSON has them.

        Raises:
            DisagreementError: on all ranks, with all values.
        """
        ...

    def gather(self, values: npt.ArrayLike) -> Ints:
        """(size, ...) the integers of all ranks, by rank.

        Args:
            values: (...) integers, of one shape on all ranks.

        Raises:
            TypeError: the values are no integers.
        """
        ...

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum of a tensor of ``device`` over the ranks, in place on all of them.

        The order of additions is the backend's: floats of more than one rank must be 0 on all ranks
        but one where bits matter.
        """
        ...

    def all_to_all(
        self, recv: Tensor, send: Tensor, recv_rows: Sequence[int], send_rows: Sequence[int]
    ) -> Pending[Tensor]:
        """Send rows to every rank and receive rows from every rank.

        Args:
            recv: (sum of ``recv_rows``, width) on ``device``, contiguous: the rows of rank 0 first.
            send: (sum of ``send_rows``, width) of the same type: the rows for rank 0 first.
            recv_rows, send_rows: (size,) rows from and for each rank; 0 is allowed.

        Returns:
            ``recv``, once waited for. ``send`` must be left alone until then.

        Raises:
            ValueError: a shape, type or count does not fit.
        """
        ...

    def barrier(self) -> None:
        """Wait on the host until all ranks are here."""
        ...

    def broadcast(self, value: Any, root: int = 0) -> Any:
        """The value of rank ``root``, as JSON has them; the other ranks' is not read."""
        ...

    def broadcast_tensor(self, tensor: Tensor, root: int = 0) -> Tensor:
        """Rank ``root``'s tensor, of the host or of ``device``, into those of the others."""
        ...


def integers(values: npt.ArrayLike) -> Ints:
    """A copy of what :meth:`World.gather` takes.

    Raises:
        TypeError: the values are no integers.
    """
    found = np.asarray(values)
    if found.size and found.dtype.kind not in "iu":
        raise TypeError(f"values must be integers, got {found.dtype}")
    return np.array(found, dtype=np.int64, order="C")


def check_rows(
    size: int, recv: Tensor, send: Tensor, recv_rows: Sequence[int], send_rows: Sequence[int]
) -> None:
    """Raise ValueError where :meth:`World.all_to_all` does not allow its arguments."""
    for name, tensor, rows in (("recv", recv, recv_rows), ("send", send, send_rows)):
        if tensor.ndim != 2 or not tensor.is_contiguous():
            raise ValueError(
                f"{name} must be (R, width) and contiguous, got {tuple(tensor.shape)}"
                + ("" if tensor.is_contiguous() else " with gaps")
            )
        n = tensor.shape[0]  # which is sooner told than len()
        if len(rows) != size or min(rows) < 0 or sum(rows) != n:
            raise ValueError(
                f"{name}_rows must be {size} counts that add up to the {n} rows of {name}, "
                f"got {list(rows)}"
            )
    if recv.shape[1] != send.shape[1] or recv.dtype != send.dtype:
        raise ValueError(
            f"recv must have send's width {send.shape[1]} and type {send.dtype}, "
            f"got {recv.shape[1]} and {recv.dtype}"
        )
