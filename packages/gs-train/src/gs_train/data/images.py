# SPDX-License-Identifier: Apache-2.0
"""A cache of decoded images: bounded in bytes, filled ahead of need by background threads."""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Key = TypeVar("Key", bound=Hashable)
Pixels = NDArray[np.uint8]

_NEVER = 1 << 62  # the time of the next need of a key that is not planned
_NOW = -1
_STALE = 64  # entries of the heap that may be of no use, beside one for each image


@dataclass(frozen=True)
class CacheStats:
    """Counters of an `ImageCache`.

    Attributes:
        hits: calls of ``get`` that found the image ready.
        misses: calls of ``get`` that had to wait or to decode.
        decoded: images decoded, by any thread.
        evicted: images dropped to make room.
        bytes: held now.
        peak_bytes: the most ever held and being decoded together.
    """

    hits: int
    misses: int
    decoded: int
    evicted: int
    bytes: int
    peak_bytes: int


class _Decoding:
    """An image on its way, handed directly to those who wait for it."""

    def __init__(self, reserved: int, *, is_ahead: bool) -> None:
        self.reserved = reserved
        self.is_ahead = is_ahead  # begun by a background thread: nobody may be there for an error
        self.n_waiting = 0
        self.image: Pixels | None = None
        self.error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self.image is not None or self.error is not None


class ImageCache(Generic[Key]):
    """Images by key, decoded once where memory allows and before they are needed where time does.

    `prefetch` says what will be needed, in order; background threads decode in that order. Room is
    made by dropping what is needed latest, and never what is needed sooner than the image that
    comes in (Belady's rule; without a plan, what was used longest ago). Images held and being
    decoded never exceed the capacity together, except that a single image always may.

    An image's bytes are known only once it was decoded; until then the largest seen so far stands
    for it, and the very first is decoded alone. Where one turns out larger than reserved and does
    not fit, it is handed to who waits for it, or dropped.

    Args:
        load: decodes a key: (H, W, channels) uint8. Called from several threads, never twice at a
            time for one key, and must always give the same image.
        capacity_bytes: at least 1.
        n_threads: background threads, at least 1; they start here.

    Raises:
        ValueError: an argument is out of range.

    Asynchrony: all methods may be called from any thread.

    >>> with ImageCache(lambda n: np.full((1, 1, 3), n, np.uint8), capacity_bytes=100) as cache:
    ...     cache.prefetch([3, 4])
    ...     cache.get(3)
    array([[[3, 3, 3]]], dtype=uint8)
    """

    def __init__(
        self, load: Callable[[Key], Pixels], *, capacity_bytes: int, n_threads: int = 2
    ) -> None:
        if capacity_bytes < 1:
            raise ValueError(f"capacity_bytes must be at least 1, got {capacity_bytes}")
        if n_threads < 1:
            raise ValueError(f"n_threads must be at least 1, got {n_threads}")
        self._load = load
        self._capacity = capacity_bytes
        self._changed = threading.Condition()  # its lock guards everything below
        self._held: dict[Key, Pixels] = {}
        self._ranks: dict[Key, tuple[int, int]] = {}  # of what is held: the lowest goes first
        self._lowest: list[tuple[int, int, Key]] = []  # a heap of them, and of some that changed
        self._uses = 0
        self._decoding: dict[Key, _Decoding] = {}
        self._failed: dict[Key, BaseException] = {}
        self._sizes: dict[Key, int] = {}
        self._largest = 0
        self._plan: list[Key] = []
        self._needs: dict[Key, deque[int]] = {}  # times (indices into the plan) still to come
        self._next = 0  # the plan before this needs no decoding
        self._n_starved = 0  # callers of get that wait for room; they go first
        self._bytes = self._reserved = self._peak = 0
        self._hits = self._misses = self._decoded = self._evicted = 0
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"gs-images-{index}", daemon=True)
            for index in range(n_threads)
        ]
        for thread in self._threads:
            thread.start()

    def prefetch(self, keys: Iterable[Key]) -> None:
        """Replace the plan: ``keys`` will be asked for in this order, repeats allowed.

        Each `get` takes its key's first occurrence off the plan. Images held stay until their room
        is wanted.

        Raises:
            RuntimeError: the cache is closed.

        Asynchrony: returns at once. A failed decode surfaces in the `get` of its key.
        """
        plan = list(keys)
        needs: dict[Key, deque[int]] = {}
        for time, key in enumerate(plan):
            needs.setdefault(key, deque()).append(time)
        with self._changed:
            self._check_open()
            self._plan, self._needs, self._next = plan, needs, 0
            self._rank_all()
            self._changed.notify_all()

    def get(self, key: Key) -> Pixels:
        """The image of ``key``: ready, waited for, or decoded here and now.

        Returns:
            (H, W, channels) uint8. It is the cache's own array: do not write to it.

        Raises:
            RuntimeError: the cache is closed, before or while waiting.
            TypeError: ``load`` returned something else than such an array.
            Exception: whatever ``load`` raised for this key, here or in the background; the next
                `get` tries again.

        Asynchrony: blocks until the image is there.
        """
        with self._changed:
            self._check_open()
            self._take_off_plan(key)
            image = self._held.get(key)
            if image is not None:
                self._hits += 1
                self._rank(key)
                if self._n_starved or self._next < len(self._plan):
                    self._changed.notify_all()  # what is needed later now may go
                return image
            self._misses += 1
            decoding, is_mine = self._find_or_begin(key)
            if not is_mine:
                return self._wait_for(decoding)
        self._decode(key, decoding)
        if decoding.image is None:
            assert decoding.error is not None
            raise decoding.error
        return decoding.image

    @property
    def stats(self) -> CacheStats:
        """The counters, consistent with one another."""
        with self._changed:
            return CacheStats(
                self._hits, self._misses, self._decoded, self._evicted, self._bytes, self._peak
            )

    def close(self) -> None:
        """Stop the threads and let go of the images. Closing again does nothing.

        Asynchrony: those who wait in `get` are woken at once; returns when the background decodes
        under way have ended, as they cannot be interrupted.
        """
        with self._changed:
            self._is_closed = True
            self._held.clear()
            self._ranks.clear()
            self._lowest.clear()
            self._failed.clear()
            self._bytes = 0
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> ImageCache[Key]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"ImageCache({len(self._held)} images, {self._bytes} of {self._capacity} bytes, "
            f"{len(self._threads)} threads{', closed' if self._is_closed else ''})"
        )

    # ---- background threads -------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                while (key := self._first_to_decode()) is None and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
                assert key is not None
                decoding = self._begin(key)
            self._decode(key, decoding)
            del decoding  # or it would keep the image alive until the next one comes

    def _decode(self, key: Key, decoding: _Decoding) -> None:
        """Run ``load`` without the lock, then book the outcome."""
        image, error = None, None
        try:
            image = self._load(key)
            _check_image(image)
        except BaseException as raised:
            image, error = None, raised
        with self._changed:
            del self._decoding[key]
            self._reserved -= decoding.reserved
            decoding.image, decoding.error = image, error
            if image is not None:
                self._decoded += 1
                self._sizes[key] = image.nbytes
                self._largest = max(self._largest, image.nbytes)
                if not self._is_closed:
                    self._keep(key, image)
            elif error is not None and decoding.is_ahead and not decoding.n_waiting:
                self._failed[key] = error
            else:
                self._look_again(key)  # who asked has the error; a later need tries again
            self._changed.notify_all()

    # ---- all below is called with the lock held -----------------------------------------------

    def _first_to_decode(self) -> Key | None:
        """The first planned key that is neither here nor on its way, once there is room for it."""
        if self._n_starved:
            return None
        while self._next < len(self._plan):
            key = self._plan[self._next]
            time = self._next_need(key)
            is_settled = key in self._held or key in self._decoding or key in self._failed
            if time > self._next or is_settled:
                self._next += 1
            elif self._make_room(self._sizes.get(key, self._largest), time):
                return key
            else:
                return None
        return None

    def _find_or_begin(self, key: Key) -> tuple[_Decoding, bool]:
        """The decode of ``key`` that is under way, or else a new one for the caller to run."""
        while True:
            if key in self._failed:
                error = self._failed.pop(key)
                self._look_again(key)
                self._changed.notify_all()
                raise error
            if key in self._decoding:
                return self._decoding[key], False
            if key in self._held:  # it came while we waited for room
                done = _Decoding(0, is_ahead=False)
                done.image = self._held[key]
                return done, False
            if self._make_room(self._sizes.get(key, self._largest), _NOW):
                return self._begin(key, is_ahead=False), True
            self._n_starved += 1
            try:
                self._changed.wait()
            finally:
                self._n_starved -= 1
            self._check_open()

    def _wait_for(self, decoding: _Decoding) -> Pixels:
        decoding.n_waiting += 1
        try:
            self._changed.wait_for(lambda: decoding.is_done or self._is_closed)
        finally:
            decoding.n_waiting -= 1
        if decoding.image is not None:
            return decoding.image
        if decoding.error is not None:
            raise decoding.error
        raise _closed()

    def _begin(self, key: Key, *, is_ahead: bool = True) -> _Decoding:
        """Reserve what the image will take; `_make_room` has said yes."""
        decoding = _Decoding(self._sizes.get(key, self._largest), is_ahead=is_ahead)
        self._decoding[key] = decoding
        self._reserved += decoding.reserved
        self._peak = max(self._peak, self._bytes + self._reserved)
        return decoding

    def _keep(self, key: Key, image: Pixels) -> None:
        """Hold a decoded image, unless it is larger than reserved and others are needed sooner."""
        if self._make_room(image.nbytes, self._next_need(key)):
            self._held[key] = image
            self._rank(key)
            self._bytes += image.nbytes
            self._peak = max(self._peak, self._bytes + self._reserved)
        else:
            self._look_again(key)

    def _make_room(self, n_bytes: int, time: int) -> bool:
        """Drop images needed no sooner than ``time``, the latest first, if that makes room.

        Without enough of them nothing is dropped. A single image always has room.
        """
        if not n_bytes:  # nothing was decoded yet, so no size is known
            return not self._decoding
        excess = self._bytes + self._reserved + n_bytes - self._capacity
        if excess <= 0:
            return True
        dropped = []
        while excess > 0 and self._lowest and -self._lowest[0][0] >= time:
            *rank, key = heapq.heappop(self._lowest)
            if self._ranks.get(key) == tuple(rank):
                dropped.append(key)
                excess -= self._held[key].nbytes
        if excess > 0 and (self._decoding or len(dropped) < len(self._held)):
            for key in dropped:
                heapq.heappush(self._lowest, (*self._ranks[key], key))
            return False
        for key in dropped:
            del self._ranks[key]
            self._bytes -= self._held.pop(key).nbytes
            self._evicted += 1
            self._look_again(key)
        return True

    def _rank(self, key: Key) -> None:
        """Rank an image that is held by its next need, and by this use among equals."""
        self._uses += 1
        self._ranks[key] = rank = -self._next_need(key), self._uses
        heapq.heappush(self._lowest, (*rank, key))
        if len(self._lowest) > 2 * len(self._held) + _STALE:
            self._heap_up()

    def _rank_all(self) -> None:
        """Rank what is held by a new plan."""
        self._ranks = {key: (-self._next_need(key), use) for key, (_, use) in self._ranks.items()}
        self._heap_up()

    def _heap_up(self) -> None:
        self._lowest = [(*rank, key) for key, rank in self._ranks.items()]
        heapq.heapify(self._lowest)

    def _next_need(self, key: Key) -> int:
        needs = self._needs.get(key)
        return needs[0] if needs else _NEVER

    def _take_off_plan(self, key: Key) -> None:
        needs = self._needs.get(key)
        if needs:
            needs.popleft()

    def _look_again(self, key: Key) -> None:
        """The threads had passed over ``key`` as settled; it is not any more."""
        self._next = min(self._next, self._next_need(key))

    def _check_open(self) -> None:
        if self._is_closed:
            raise _closed()


def _check_image(image: Pixels) -> None:
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3:
        got = getattr(image, "dtype", type(image).__name__), getattr(image, "shape", None)
        raise TypeError(f"load must return a (H, W, 3) uint8 array, got {got[0]} {got[1]}")


def _closed() -> RuntimeError:
    return RuntimeError("the image cache must be open, got closed")
