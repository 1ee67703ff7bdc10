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

    @contextmanager
    def running(self, call: Callable[[], T], *, waits: bool = True) -> Iterator[Future[T]]:
        """Call it on the thread, with the same current stream; it has returned where the block
        ends. What it changes is the block's to read only after that.

        Args:
            waits: for more than a moment; else it is called before the block begins.

        Raises:
            Exception: what it raised, where the block itself raised nothing.
        """
        if self._threads is None or not waits:
            task: Future[T] = Future()
            task.set_result(call())
            yield task
            return
        if self._device.type == "cuda":
            stream = torch.cuda.current_stream(self._device)
            task = self._threads.submit(_on_stream, stream, call)
        else:
            task = self._threads.submit(call)
        try:
            yield task
        finally:
            wait((task,))
        task.result()


def _on_stream(stream: torch.cuda.Stream, call: Callable[[], T]) -> T:
    with torch.cuda.stream(stream):
        return call()
