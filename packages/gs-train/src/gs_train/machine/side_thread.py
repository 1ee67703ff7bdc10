# SPDX-License-Identifier: Apache-2.0
"""A second thread of the host: launching kernels keeps the first one busy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


class SideThread:
    """The thread that looks ahead while the caller's thread renders.

    Most of looking ahead is waiting for the device to count; whoever waits cannot launch what the
    device could do meanwhile. Where there is next to nothing to wait for, a thread only takes
    Python's lock from the one that launches. Without CUDA rendering uses all cores, and nothing
    runs beside it.

    Args:
        device: that the calls work on.
        has_thread: None: where the device is CUDA's; else calls are done before the block begins.
    """

    def __init__(self, device: torch.device, *, has_thread: bool | None = None) -> None:
        if has_thread is None:
            has_thread = device.type == "cuda"
        self._threads = ThreadPoolExecutor(1, "gs-train") if has_thread else None
        self._device = device

    def begin(self, call: Callable[[], T]) -> Future[T]:
        """Call it on the thread, with the same current stream; at once where there is none. Calls
        run one after another.

        Raises:
            Exception: what it raised, where there is no thread; else its result raises that.
        """
        if self._threads is None:
            return _done(call)
        if self._device.type == "cuda":
            stream = torch.cuda.current_stream(self._device)
            return self._threads.submit(_on_stream, stream, call)
        return self._threads.submit(call)

    @contextmanager
    def running(self, call: Callable[[], T], *, waits: bool = True) -> Iterator[Future[T]]:
        """Call it on the thread, with the same current stream; it has returned where the block
        ends. What it changes is the block's to read only after that.

        Args:
            waits: for more than a moment; else it is called before the block begins.

        Raises:
            Exception: what it raised, where the block itself raised nothing.
        """
        task = self.begin(call) if waits else _done(call)
        try:
            yield task
        finally:
            wait((task,))
        task.result()


def _done(call: Callable[[], T]) -> Future[T]:
    task: Future[T] = Future()
    task.set_result(call())
    return task


def _on_stream(stream: torch.cuda.Stream, call: Callable[[], T]) -> T:
    with torch.cuda.stream(stream):
        return call()
