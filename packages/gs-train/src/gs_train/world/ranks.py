# SPDX-License-Identifier: Apache-2.0
"""The world of several ranks, over torch.distributed."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from gs_train.world.failure import DisagreementError
from gs_train.world.protocol import Ints, Pending, check_rows, integers
from gs_train.world.shared_table import MOST, SharedTable, new_table
from gs_train.world.standing import Standing
from gs_train.world.watch import Watch

# Groups end nothing by themselves: a rank may work for hours while the others wait for it, and the
# watch knows whether it lives.
_FOR_EVER = timedelta(days=365)

_WORD = 8  # bytes


class Ranks:
    """A :class:`~gs_train.world.protocol.World` of processes.

    Two groups, so that no collective waits behind one of another kind: ``device`` (NCCL, or gloo
    without CUDA) and ``host`` (gloo). Integers of ranks of one host take a shorter way, see
    `gs_train.world.shared_table`.

    Args:
        place: of this process.
        device: of this rank.
        watch: notices the failures of the others.
        store: of torch.distributed, for the groups alone.
    """

    def __init__(self, place: Standing, device: torch.device, watch: Watch, store: Any) -> None:
        self.rank, self.size, self.device = place.rank, place.size, device
        self._named = _Named(watch)
        self._watch = watch
        if place.local_size == place.size:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else the host's name is looked up
        is_cuda = device.type == "cuda"
        with self._named:
            dist.init_process_group(
                "nccl" if is_cuda else "gloo",
                store=store,
                rank=place.rank,
                world_size=place.size,
                timeout=_FOR_EVER,
                device_id=device if is_cuda else None,
            )
            self._host = dist.new_group(backend="gloo", timeout=_FOR_EVER)
        self._table: SharedTable | None = None
        if place.local_size == place.size:
            self._table = self._shared_table()

    def close(self) -> None:
        """Give the groups up; all ranks have ended their work."""
        dist.destroy_process_group()

    def agree(self, name: str, value: Any) -> None:
        texts = self._gather_texts(json.dumps(value, sort_keys=True))
        if len(set(texts)) == 1:
            return
        said: dict[str, list[str]] = {}
        for rank, text in enumerate(texts):
            said.setdefault(text, []).append(str(rank))
        parts = (
            f"{text} on rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}"
            for text, ranks in said.items()
        )
        raise DisagreementError(f"{name} must be the same on all ranks, got {'; '.join(parts)}")

    def gather(self, values: npt.ArrayLike) -> Ints:
        found = integers(values)
        if self._table is not None and found.size <= MOST:
            return self._table.gather(found.reshape(-1)).reshape(self.size, *found.shape)
        own = torch.from_numpy(found)
        # A row for each rank, flat: gloo takes no tensor without dimensions.
        all_of_them = torch.empty((self.size, max(own.numel(), 1)), dtype=torch.int64)
        flat = own.reshape(-1) if own.numel() else torch.zeros(1, dtype=torch.int64)
        with self._named:
            dist.all_gather(list(all_of_them.unbind()), flat, group=self._host)
        return all_of_them[:, : own.numel()].reshape(self.size, *own.shape).numpy()

    def sum(self, tensor: Tensor) -> Tensor:
        with self._named:
            dist.all_reduce(tensor)
        return tensor

    def all_to_all(
        self, recv: Tensor, send: Tensor, recv_rows: Sequence[int], send_rows: Sequence[int]
    ) -> Pending[Tensor]:
        check_rows(self.size, recv, send, recv_rows, send_rows)
        with self._named:
            work = dist.all_to_all_single(
                recv, send, list(recv_rows), list(send_rows), async_op=True
            )
        return _Posted(work, recv, self._named)

    def barrier(self) -> None:
        with self._named:
            dist.barrier(group=self._host)

    def broadcast(self, value: Any, root: int = 0) -> Any:
        text = json.dumps(value if self.rank == root else None).encode()
        length = self.broadcast_tensor(torch.tensor([len(text)]), root)
        letters = torch.empty(int(length), dtype=torch.uint8)
        if self.rank == root:
            letters.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        return json.loads(self.broadcast_tensor(letters, root).numpy().tobytes())

    def broadcast_tensor(self, tensor: Tensor, root: int = 0) -> Tensor:
        group = self._host if tensor.device.type == "cpu" else None
        with self._named:
            dist.broadcast(tensor, root, group=group)
        return tensor

    def _shared_table(self) -> SharedTable | None:
        """None: the ranks see no memory together."""
        made, table = new_table(self.size) if self.rank == 0 else None, None
        try:
            path = self.broadcast(None if made is None else str(made))
            if path is not None:
                with contextlib.suppress(OSError):
                    table = SharedTable(Path(path), self.rank, self.size, self._watch.check)
            is_shared = self.gather(int(table is not None)).all()
        finally:
            if made is not None:
                made.unlink()
        return table if is_shared else None

    def _gather_texts(self, text: str) -> list[str]:
        letters = text.encode()
        lengths = self.gather(len(letters))
        words = -(-int(lengths.max()) // _WORD)
        padded = np.frombuffer(letters.ljust(words * _WORD), dtype=np.int64)
        return [
            row.tobytes()[:length].decode() for row, length in zip(self.gather(padded), lengths)
        ]


class _Named:
    """Entered around calls of torch, whose errors after a rank's failure become that failure."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __enter__(self) -> None:
        self._watch.check()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, RuntimeError):
            self._watch.check_named()


class _Posted(NamedTuple):
    """An exchange that torch has taken."""

    work: dist.Work
    recv: Tensor
    named: _Named

    def wait(self) -> Tensor:
        with self.named:
            self.work.wait()
        return self.recv
