# SPDX-License-Identifier: Apache-2.0
"""A number that only grows: streams and host threads wait for one another by its value."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gs_pinned import _core, device
from gs_pinned.counts import limit_of, whole_number
from gs_pinned.errors import ForkedError, PoisonedError

__all__ = ["Signal"]


class Signal:
    """A 32-bit word that one side raises and the other side waits for.

    Either the device raises the signal in stream order (``set_on``) and host threads ``wait``, or
    host work raises the signal (``set``) and a stream waits (``wait_on``). When the host work
    fails, ``poison`` releases every stream and every thread, threads with the reason, so that
    nothing hangs. Values are in [0, MAX]; raise the signal in growing order, from one side.

    Other code may wait too: the uint32 at ``address`` is >= the value once the value was set, and
    2**31 - 1 once the signal is poisoned. Exception: a stream that comes to an earlier ``set_on``
    after the poisoning lowers the word again, until the next call of a method here. The word is
    page-locked where there is a CUDA device, and valid as long as this object.

    When the interpreter ends, waiting streams are released as by poison, so a process always ends.

    Without a device, and with ``stream=None``, everything is between threads.

    Asynchrony: ``set``, ``poison``, ``set_on``, ``wait_on`` return at once; ``wait`` blocks without
        the GIL. A thread that waits for a thread sleeps until woken. A thread that waits for a
        stream looks at the word at intervals that grow from about 60 us to 1.1 ms. Dropping a
        signal never blocks, and releases waiting streams.
    """

    MAX = _core.MAX_SIGNAL

    def __init__(self) -> None:
        locked = device.has_device()
        self._core = _core.Signal(locked=locked, device=device.current_device() if locked else 0)

    @property
    def address(self) -> int:
        """Where the uint32 lies."""
        return self._usable().address

    @property
    def value(self) -> int:
        """The largest value set so far; ``2**31 - 1`` when poisoned."""
        return self._usable().value

    @property
    def is_poisoned(self) -> bool:
        return self._usable().is_poisoned

    def set(self, value: int) -> None:
        """Reach ``value`` from the host. Never lowers the signal; no effect on a poisoned one."""
        self._usable().set(_checked(value))

    def set_on(self, stream: Any, value: int) -> None:
        """Reach ``value`` when the stream gets here and its work so far is visible to the host.

        Args:
            stream: as for :func:`gather`; None sets the value now.
            value: above the values set before.

        Raises:
            CudaError: the stream is not one of this process's devices.
        """
        if stream is None:
            return self.set(value)
        where = _device_of(stream)
        handle = device.stream_handle(stream, device=where)
        return self._usable().set_on(where, handle, _checked(value))

    def wait(self, value: int, timeout_s: float | None = None, *, spin_s: float = 0.0) -> None:
        """Block this thread until ``value`` is reached.

        Args:
            value: in [0, MAX].
            timeout_s: give up after this long; None waits for good.
            spin_s: look at the word without sleeping for this long first: wakes within
                microseconds at the cost of a core.

        Raises:
            TimeoutError: not reached in time.
            PoisonedError: the work that was waited for has failed.
            CudaError: the device failed before the value was reached.
        """
        core = self._usable()
        if not core.wait(_checked(value), limit_of(timeout_s), limit_of(spin_s, "spin_s")):
            raise TimeoutError(f"the signal did not reach {value} in {timeout_s} s")
        self._raise_if_poisoned()

    def wait_on(self, stream: Any, value: int) -> None:
        """Hold a stream until ``value`` is reached.

        Args:
            stream: as for :func:`gather`; None blocks this thread instead.
            value: in [0, MAX].

        Raises:
            PoisonedError: the work has already failed. If the work fails later, the stream goes on
                and the next call of a method here raises.
        """
        if stream is None:
            return self.wait(value)
        core = self._usable()
        self._raise_if_poisoned()
        where = _device_of(stream)
        handle = device.stream_handle(stream, device=where)
        _release_before_others()
        return core.wait_on(where, handle, _checked(value))

    def poison(self, reason: object) -> None:
        """Release everything that waits, now and later, because the work has failed.

        Args:
            reason: an exception or a text. The first one counts.
        """
        core = self._usable()
        try:
            core.poison(_text_of(reason))
        finally:  # the first reason counts; Ctrl-C may have come before it
            core.poison(type(reason).__name__)

    @contextmanager
    def completing(self, value: int) -> Iterator[None]:
        """Run host work in a block: the end of the block sets ``value``; an exception poisons the
        signal and propagates."""
        _checked(value)
        try:
            try:
                yield
                self.set(value)
            except BaseException as error:
                self.poison(error)
                raise
        except BaseException as error:
            if self._core.is_usable:  # poisoned already, unless Ctrl-C came in between
                self._core.poison(type(error).__name__)
            raise

    def __repr__(self) -> str:
        if not self._core.is_usable:
            return "Signal(of another process)"
        state = "poisoned" if self._core.is_poisoned else f"value={self._core.value}"
        return f"Signal({state}, address={self._core.address:#x})"

    def _raise_if_poisoned(self) -> None:
        if self._core.is_poisoned:
            raise PoisonedError(self._core.reason)

    def _usable(self) -> _core.Signal:
        if not self._core.is_usable:
            raise ForkedError(
                "a signal must be used in the process that created it, got a child process"
            )
        return self._core


def _release_streams() -> None:
    """The end: nobody raises a signal any more. Does nothing in a child process after fork."""
    _core.release_streams("the interpreter is ending", ending=True)


# Handlers run in reverse order of registration. One from the start, so that a thread which waits
# for the first time during the end finds it; one more from the first wait on, so that handlers of
# libraries imported since, which may wait for the device, run after it. Tables and tensors are
# dropped later still.
atexit.register(_release_streams)


@functools.cache
def _release_before_others() -> None:
    atexit.register(_release_streams)


def _device_of(stream: Any) -> int:
    """The device of a stream; of the default stream, the current one."""
    if problem := device.device_problem():
        raise _core.CudaError(f"stream must be None where no CUDA device can be used: {problem}")
    index = getattr(stream, "device_index", None)
    if isinstance(index, int):
        return index
    current = device.current_device()
    return _core.device_of_stream(device.stream_handle(stream, device=current), current)


def _text_of(reason: object) -> str:
    """What can be told of it. Nothing that is wrong with a reason may keep waiters waiting."""
    kind = type(reason).__name__
    try:
        text = f"{kind}: {reason}" if isinstance(reason, BaseException) else str(reason)
    except Exception:
        text = kind
    # File names may hold bytes that are no text.
    return text.encode("utf-8", "backslashreplace").decode()


def _checked(value: int) -> int:
    return whole_number(value, "value", most=Signal.MAX)
