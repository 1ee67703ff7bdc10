# SPDX-License-Identifier: Apache-2.0
"""The photographs of a run on several ranks of a host: each is decoded by one of these, once."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gs_train.data.photo_reader import PhotoReader
from gs_train.data.pixels import BrokenPhotographError
from gs_train.data.shared.board import Known, PixelBoard, State
from gs_train.data.shared.memory import PixelMemory
from gs_train.errors import CommonError, InputError


class Store(Protocol):
    """Where pixels of photographs are."""

    def write(self, index: int, pixels: NDArray[np.uint8]) -> None: ...
    def read(self, index: int) -> NDArray[np.uint8]: ...


class SharedPhotographs:
    """Photographs that a rank finds decoded, or decodes for all.

    A photograph is decoded by the first that needs it. Whoever needs it meanwhile waits for its
    turn, and finds the pixels, or the decoder's error; or decodes, where the decoder's process has
    ended. With `decode_ahead` each rank decodes its own part of the photographs early.

    Args:
        reader: decodes.
        board: of all training photographs.
        stores: where the pixels of each photograph have a place. A photograph without one is
            decoded by each rank each time.

    Threads: any.
    """

    def __init__(self, reader: PhotoReader, board: PixelBoard, stores: Mapping[int, Store]) -> None:
        self._reader = reader
        self._board = board
        self._stores = dict(stores)
        self._lock = threading.Lock()
        self._news: list[str] = []
        self._said: set[str] = set()
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []

    def load(self, index: int) -> NDArray[np.uint8]:
        """As :meth:`PhotoReader.load`. The pixels may be everybody's: do not write to them.

        Raises:
            CommonError: the photograph is broken, which all ranks find.
            InputError: this rank cannot read it.
        """
        try:
            return self._reader.load(index, self._pixels)
        except InputError as error:
            if isinstance(error.__cause__, _KnownToAllError):
                raise CommonError(str(error)) from error
            raise

    def shown(self, index: int) -> int:
        """As :meth:`PhotoReader.shown`."""
        return self._reader.shown(index)

    def news(self) -> list[str]:
        """Lines about photographs found broken, or about their file, since this was asked last."""
        with self._lock:
            news, self._news = self._news, []
        return [*self._reader.news(), *news]

    def decode_ahead(self, order: Iterable[int], *, n_threads: int) -> None:
        """Begin to decode these photographs, unless somebody has.

        Asynchrony: returns at once. An error is met by who needs the photograph.
        """
        shared = _Shared(iter(order))
        self._threads += [
            threading.Thread(target=self._ahead, args=(shared,), name="gs-decode", daemon=True)
            for _ in range(n_threads)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop to decode ahead, and let go of the memory and the file. Idempotent; nobody may be
        reading.

        Asynchrony: returns when the photographs under way have been decoded.
        """
        self._closing.set()
        for thread in self._threads:
            thread.join()
        self._stores.clear()
        self._board.close()

    def __enter__(self) -> SharedPhotographs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ahead(self, order: Iterator[int]) -> None:
        for index in order:
            if self._closing.is_set():
                return
            try:
                shown = self._reader.shown(index)
                if shown in self._stores:
                    self._decoded(shown)
            except Exception:  # who needs it meets the same
                continue

    def _pixels(self, index: int) -> NDArray[np.uint8]:
        """Of this photograph and no other."""
        if index not in self._stores:
            return self._reader.decoded(index)
        pixels = self._decoded(index)
        return self._found(index) if pixels is None else pixels

    def _decoded(self, index: int) -> NDArray[np.uint8] | None:
        """Decode a photograph for all; None: somebody has."""
        if self._board.state(index) != State.NEW:
            return None
        with self._board.turn(index):
            if self._board.state(index) != State.NEW:
                return None
            try:
                pixels = self._reader.decoded(index)
            except BrokenPhotographError as error:
                cause = error.__cause__
                number = cause.errno if isinstance(cause, OSError) else None
                self._board.note(index, Known(State.BROKEN, None, error.reason, number))
                raise _KnownToAllError(error.path, error.reason) from cause
            crc, store = self._reader.crc(index), self._stores[index]
            try:
                store.write(index, pixels)
            except OSError as error:
                reason = error.strerror or str(error)
                self._board.note(index, Known(State.LOOSE, crc, reason, error.errno))
                self._say_loose(reason)
                return pixels
            self._board.note(index, Known(State.HELD, crc))
            # The decoder's own copy goes.
            return store.read(index) if isinstance(store, PixelMemory) else pixels

    def _found(self, index: int) -> NDArray[np.uint8]:
        """A photograph of which something is known."""
        known = self._board.known(index)
        if known.state == State.BROKEN:
            cause = None if known.number is None else OSError(known.number, known.reason)
            raise _KnownToAllError(self._reader.path_of(index), known.reason) from cause
        self._reader.note_crc(index, known.crc)
        if known.state == State.HELD:
            try:
                return self._stores[index].read(index)
            except OSError as error:
                self._say(
                    f"the file of decoded photographs cannot be read ({error.strerror}): "
                    "photographs are decoded each time; --scratch names another folder"
                )
        else:
            self._say_loose(known.reason)
        return self._reader.decoded(index)

    def _say_loose(self, reason: str) -> None:
        self._say(
            f"the file of decoded photographs cannot be written ({reason}): photographs that it "
            "does not hold are decoded each time; --scratch names another folder"
        )

    def _say(self, line: str) -> None:
        with self._lock:
            if line not in self._said:
                self._said.add(line)
                self._news.append(line)


class _KnownToAllError(BrokenPhotographError):
    """A photograph that every rank finds broken."""


class _Shared(Iterator[int]):
    """An iterator for several threads."""

    def __init__(self, order: Iterator[int]) -> None:
        self._order = order
        self._lock = threading.Lock()

    def __next__(self) -> int:
        with self._lock:
            return next(self._order)
