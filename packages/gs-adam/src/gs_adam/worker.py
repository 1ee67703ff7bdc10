# SPDX-License-Identifier: Apache-2.0
"""A host optimizer's updates in the background."""

from __future__ import annotations

import atexit
import sys
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from gs_adam import _core
from gs_adam._arguments import flag, of_kind, whole
from gs_adam._host_base import made
from gs_adam._tensors import all_native, as_ids, as_native, pending_parts
from gs_adam.host import HostAdam

Ready = tuple[int, int] | Callable[[], object] | None
"""When a task may start. None: at once. (address, value): when the uint32 at that host address is
at least the value. A callable: when it returns None or something true; it is called on the worker's
thread, again and again while it returns anything else, and may block."""


class Span(NamedTuple):
    """When a task ran: seconds of `time.monotonic`; ``rows`` is their number, 0 where unknown."""

    step: int
    is_update: bool
    rows: int
    start: float
    end: float


class Worker:
    """A native thread that runs updates of one `HostAdam` without the GIL.

    A row's task of one step runs before any of its tasks of the next; tasks that share no row may
    overtake each other: the lowest step first, within a step the highest priority, then the order
    of submission. A flush or lookahead keeps its place among the tasks of its rows that were
    submitted before it. One task runs at a time, on all of the optimizer's threads.

    An exception in a task or in its ``ready`` drops everything queued, and every later call raises
    it again, so that nothing waits for what will not come; so do the optimizer's own calls that
    need all rows, `end_step` and `state_dict` among them.

    The thread starts with the first task. Leaving the context closes the worker: after all tasks,
    or at once when an exception passes through, to which a task's failure is added as a note. At
    interpreter exit, and where nothing refers to them any more, open workers stop after the running
    task, or are left behind, with the memory that it writes, when it takes more than two seconds; a
    failure that nobody was told goes to stderr at exit. In a child process
    after fork the queue is empty and earlier tickets are refused.

    Args:
        optimizer: any number of workers may serve it; rows must not be shared between workers.
    """

    def __init__(self, optimizer: HostAdam) -> None:
        self._optimizer = of_kind(optimizer, "optimizer", HostAdam)
        self._native = _core.Worker()
        optimizer._attach(self._native)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            return self.close()
        self._native.close(False)
        self._optimizer._detach(self._native)
        try:
            self._native.check_untold()
        except BaseException as failure:
            error.add_note(f"A task of the worker has failed as well: {failure!r}")

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "idle" if self.is_idle else "busy"
        return f"Worker({state}, {self._optimizer.n_rows} rows)"

    @property
    def is_idle(self) -> bool:
        """Nothing is queued or running."""
        return self._native.is_idle

    @property
    def is_closed(self) -> bool:
        """`close` has been called."""
        return self._native.is_closed

    def submit(
        self,
        rows: Any,
        grads: Sequence[Any] | None,
        *,
        step: int,
        ready: Ready = None,
        priority: int = 0,
        checked: bool = False,
    ) -> int:
        """Queue `HostAdam.update`.

        Args:
            rows: as for `HostAdam.update`; read again when the task runs, so leave it alone.
            grads: as there, and as ``rows``; need not hold gradients before ``ready``.
            step: an open step. It may end before the task has run.
            ready: when the gradients are there: at once; when the uint32 at the address is at least
                the value; when the callable returns None or something true. A uint32 of
                2^31 - 1 that is more than the value says that they will not come: the task fails.
            priority: higher goes first among tasks of one step.
            checked: the caller's word that ids are sorted, distinct and in range. They are then not
                looked at here, which for a million takes half a millisecond while the worker uses
                all cores, but only when the task runs, which fails where they are wrong.

        Returns:
            A ticket for `wait`.

        Raises:
            RuntimeError: the worker is closed.
            TypeError, ValueError, IndexError: as `HostAdam.update`; a row that is not yet due (its
                turn can be known only then) fails when the task runs.

        Asynchrony: returns before the task has run; arrays are kept alive until then.
        """
        with self._optimizer._work_in(step) as (plan, native, done):
            return self._native.submit_update(
                native,
                plan,
                as_ids(rows, native.n_rows),
                all_native(grads),
                done,
                ready,
                whole(priority, "priority"),
                flag(checked, "checked"),
                self._optimizer._storage.held,
            )

    def flush(self, rows: Any, *, ready: Ready = None, priority: int = 0) -> int:
        """Queue `HostAdam.flush` of some rows to the last step begun.

        Args:
            rows: as for `HostAdam.flush`, but None means all whatever is open.
            ready, priority: as for `submit`.

        Returns:
            A ticket: the rows may be read when it is done.

        Raises:
            RuntimeError, TypeError, ValueError, IndexError: as `submit`.
        """
        with self._optimizer._work(None) as (plan, native, _):
            ids = as_ids(rows, native.n_rows)
            held = self._optimizer._storage.held
            return self._native.submit_flush(
                native, plan, ids, ready, whole(priority, "priority"), held
            )

    def lookahead(
        self,
        rows: Any,
        *,
        out: Sequence[Any],
        step: int | None = None,
        pending: tuple[Any, Sequence[Any]] | None = None,
        ready: Ready = None,
        priority: int = 0,
        checked: bool = False,
        apart: bool = False,
        as_of: _core.StepPlan | None = None,
    ) -> int:
        """Queue `HostAdam.lookahead`.

        Args:
            rows, out, step, pending: as there; left alone until the ticket is done.
            ready, priority, checked: as for `submit`.
            apart: the caller's word that no other task that is queued before this one is done
                touches these rows. It then need not be compared with them, which for long lists of
                rows that lie between one another takes milliseconds.
            as_of: what `HostAdam.now` returned: rows as a `flush` then would have left them, where
                steps have begun since. None of these may have updated the rows.

        Returns:
            A ticket: ``out`` may be read when it is done.

        Raises:
            RuntimeError, TypeError, ValueError, IndexError: as `submit`.
        """
        pending_ids, grads = pending_parts(pending, step)
        if step is not None and as_of is not None:
            raise ValueError(f"step must be None where as_of is given, got {step}")
        with self._optimizer._work(step) as (plan, native, done):
            return self._native.submit_lookahead(
                native,
                plan if as_of is None else of_kind(as_of, "as_of", _core.StepPlan),
                step is not None,
                as_ids(rows, native.n_rows),
                as_native(pending_ids),
                all_native(grads),
                all_native(out, "out"),
                done,
                ready,
                whole(priority, "priority"),
                flag(checked, "checked"),
                flag(apart, "apart"),
                self._optimizer._storage.held,
            )

    def wait(self, ticket: int | None = None, *, rows: Any = None) -> None:
        """Return when a task is done, or all tasks that touch some rows, or all tasks.

        Args:
            ticket: what a submission returned.
            rows: (R,) sorted ids or an (N,) bool mask.

        Raises:
            ValueError, IndexError: no such ticket, both arguments given, or rows that are unsorted
                or out of range.
            RuntimeError: the worker was closed before the tasks had run.
            KeyboardInterrupt: Ctrl-C; the tasks go on.
            Exception: what a task raised, with its traceback.
        """
        if ticket is not None and rows is not None:
            raise ValueError("ticket must be None when rows are given, got both")
        if ticket is not None:
            self._native.wait(whole(ticket, "ticket", least=1, most=2**64 - 1))
        elif rows is not None:
            n_rows = self._optimizer.n_rows
            self._native.wait_rows(as_ids(rows, n_rows), n_rows)
        else:
            self._native.wait_all()

    def record(self, enabled: bool) -> None:
        """Note when tasks run, from now on or no longer."""
        self._native.record(flag(enabled, "enabled"))

    def take_spans(self) -> list[Span]:
        """The tasks that have run since this was last asked, while `record` was on."""
        return [Span(*span) for span in self._native.take_spans()]

    def close(self, *, drain: bool = True) -> None:
        """End the thread; may be called again.

        Args:
            drain: run what is queued first, waiting for its ``ready``; else only the running task.

        Raises:
            RuntimeError: another thread's ``close(drain=False)`` has dropped what was to be run.
            Exception: what a task raised, unless a call has raised it before and ``drain`` is off.
        """
        self._native.close(flag(drain, "drain"))
        if self._native.is_idle:  # else its own thread calls, in the middle of a task
            self._optimizer._detach(self._native)
        if drain:
            self._native.check()
        else:
            self._native.check_untold()


@atexit.register
def _close_all() -> None:
    for worker in [worker for optimizer in made for worker in optimizer._workers]:
        worker.abandon()
        try:
            worker.check_untold()
        except BaseException:
            print("A task of a gs_adam.Worker failed, and nobody asked:", file=sys.stderr)
            traceback.print_exc()
