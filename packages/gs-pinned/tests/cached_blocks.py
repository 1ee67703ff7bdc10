# SPDX-License-Identifier: Apache-2.0
"""A store of blocks with known rows, arrays with slots for these, and the same rows in memory; and
what holds the store's drive up."""

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gs_pinned import BlockCache, BlockStore, Plane, SnapshotTicket

B = 4  # rows of a block
PLANES = [
    Plane("means", 3, is_head=True),
    Plane("sh", 5, "float16"),
    Plane("key", 1, "int32", is_head=True),
]
Rows = dict[str, np.ndarray[Any, Any]]


class CachedBlocks:
    """Blocks behind a cache, beside the rows that they must have.

    Args:
        path: of the store, which is made.
        n_blocks: of which every third has fewer rows.
        slots, host_blocks, device: of the cache.
        options: of the store.
    """

    def __init__(
        self,
        path: Path,
        n_blocks: int,
        slots: int,
        host_blocks: int,
        device: str = "cpu",
        **options: Any,
    ) -> None:
        random = np.random.default_rng(n_blocks)
        self.counts = np.where(np.arange(n_blocks) % 3 == 2, B - 1, B)
        self.rows: list[Rows] = [
            {
                "means": random.standard_normal((n, 3), dtype="f4"),
                "sh": random.standard_normal((n, 5)).astype("f2"),
                "key": random.integers(-9, 9, (n, 1), dtype="i4"),
            }
            for n in self.counts
        ]
        self.store = BlockStore.create(path, PLANES, block_rows=B, **options)
        values = {p.name: np.concatenate([rows[p.name] for rows in self.rows]) for p in PLANES}
        self.store.write(range(n_blocks), values, self.counts)
        self.store.snapshot()
        self._saved = {b"": self.copy()}  # by state, from the last snapshot that was made
        self.arrays = {
            p.name: torch.zeros((slots * B, p.width), dtype=getattr(torch, p.dtype), device=device)
            for p in PLANES
        }
        self.stream = torch.cuda.Stream() if device == "cuda" else None
        self.cache = BlockCache(
            self.store, self.arrays, host_blocks=host_blocks, stream=self.stream
        )
        self.n_changes = 0
        self._slots: dict[int, int] = {}
        self._state = b""
        self._ticket: SnapshotTicket

    def copy(self) -> list[Rows]:
        return [{name: rows.copy() for name, rows in block.items()} for block in self.rows]

    def bring(self, blocks: Iterable[int]) -> None:
        """Bring blocks and see that their rows are right."""
        numbers = list(blocks)
        self._begin()
        slots = self.cache.bring(numbers)
        self._end()
        assert len(set(slots.tolist())) == len(numbers)
        self._slots = dict(zip(numbers, slots.tolist(), strict=True))
        for block, slot in zip(numbers, slots.tolist(), strict=True):
            for name, values in self.rows[block].items():
                found = self.arrays[name][slot * B : slot * B + len(values)].cpu().numpy()
                assert found.tobytes() == values.tobytes(), (block, name)

    def change(self, blocks: Iterable[int]) -> None:
        """Give the blocks that were brought last other rows, and end their use."""
        numbers = list(blocks)
        for block in numbers:
            self.n_changes += 1
            first = self._slots[block] * B
            for name, values in self.rows[block].items():
                values += np.array(1 + self.n_changes % 7, values.dtype)
                there = torch.from_numpy(values).to(self.arrays[name].device)
                self.arrays[name][first : first + len(values)] = there
        self.cache.release(numbers, step=self.n_changes)

    def step(self, blocks: Iterable[int]) -> None:
        """One use of blocks, all of which change."""
        numbers = list(blocks)
        self.bring(numbers)
        self.change(numbers)

    def snapshot(self) -> int:
        self.begin_snapshot()
        return self.end_snapshot()

    def begin_snapshot(self) -> None:
        self._begin()
        state = str(self.n_changes).encode()
        self._saved[state] = self.copy()
        self._ticket, self._state = self.cache.snapshot_async(state), state

    def end_snapshot(self) -> int:
        number = self._ticket.wait()
        assert self._ticket.is_done
        self._saved = {self._state: self._saved[self._state]}
        return number

    def check_saved(self) -> None:
        """What another object opens is the last snapshot, or one that failed at its very end."""
        with BlockStore.open(self.store.path, read_only=True) as reader:
            assert reader.verify().is_intact
            saved = self._saved[reader.state]
            values = reader.read(range(len(saved)))
            for name in values:
                expected = np.concatenate([block[name] for block in saved])
                assert values[name].tobytes() == expected.tobytes(), name

    def close(self) -> None:
        self.cache.close()
        self.store.close()

    def _begin(self) -> None:
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())

    def _end(self) -> None:
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)


class Gate:
    """Holds transfers of some kinds up while it is closed, at most so many."""

    def __init__(self, *names: str, most: int = 99) -> None:
        self._names = names
        self._left = most
        self._lock = threading.Lock()
        self._is_open = threading.Event()
        self._is_open.set()
        self.open, self.close = self._is_open.set, self._is_open.clear

    def hear(self, name: str, path: str, *_: object) -> int:
        if name in self._names and "/seg-" in path and not self._is_open.is_set():
            with self._lock:
                self._left -= 1
            if self._left >= 0:
                self._is_open.wait()
        return 0


def read_ahead(made: CachedBlocks, block: int) -> None:
    n_read = made.cache.stats.read
    made.cache.fetch([block])
    while made.cache.stats.read == n_read:
        made.cache.fetch([])  # takes note of what has ended
