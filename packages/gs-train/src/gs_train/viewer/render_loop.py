# SPDX-License-Identifier: Apache-2.0
"""The one thread that draws: coarse at once, fine while nobody asks for something newer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from gs_train.machine.device_failure import is_device_failure
from gs_train.viewer.pace import Pace
from gs_train.viewer.request import Picture, Request


class Draw(Protocol):
    """Draws a request at a scale; None where ``is_stale`` said so between two parts."""

    def __call__(
        self, request: Request, scale: float, is_stale: Callable[[], bool]
    ) -> Picture | None: ...


_Level = Literal["coarse", "fine"]


@dataclass(eq=False)
class _Page:
    """One page of a browser.

    Attributes:
        deliver: takes its pictures.
        tell: takes the error in place of a picture.
        request: its newest one; None: it has not asked yet, or there is no picture of what it
            asked for.
        due: the next picture of that request; None: there is none to come.
        pace: of its coarse pictures.
        has_failed: whether its last drawing, of the present scene, ended with an error.
    """

    deliver: Callable[[Picture], None]
    tell: Callable[[Exception], None]
    request: Request | None = None
    due: _Level | None = None
    pace: Pace = field(default_factory=Pace)
    has_failed: bool = False


class RenderLoop:
    """Draws the newest request of each page, in one thread.

    Each request has a coarse picture, unless a newer request of the page comes first, then a fine
    one. Coarse pictures go before fine ones, and a fine picture is abandoned between two parts when
    a coarse one is due. A page whose camera moves all the time gets one coarse picture after the
    other.

    Where a drawing fails, its page is told and its request forgotten; other pages go on. The loop
    ends where the device has failed, or where drawing the present scene has failed for every page.

    Everything that touches the scene runs in the thread that calls :meth:`step`: drawing, and the
    jobs of :meth:`run_between`. Other methods may be called from any thread.

    Args:
        draw: what draws.
        clock: seconds, for the pace.

    Attributes:
        error: what ended :meth:`run`; None: nothing has.
    """

    def __init__(self, draw: Draw, clock: Callable[[], float] = time.perf_counter) -> None:
        self.error: Exception | None = None
        self._draw = draw
        self._clock = clock
        self._changed = threading.Condition()
        self._pages: dict[int, _Page] = {}  # those that have waited longest come first
        self._jobs: list[Callable[[], None]] = []
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        """Whether :meth:`step` would wait."""
        with self._changed:
            return not self._has_work()

    def join(
        self, page: int, deliver: Callable[[Picture], None], tell: Callable[[Exception], None]
    ) -> None:
        """Have a page from now on.

        Args:
            page: its number.
            deliver: takes its pictures, in the thread that draws.
            tell: takes the error of a drawing or of ``deliver``, in the thread that draws.
        """
        with self._changed:
            self._pages[page] = _Page(deliver, tell)

    def leave(self, page: int) -> None:
        """Forget a page."""
        with self._changed:
            self._pages.pop(page, None)

    def ask(self, page: int, request: Request) -> None:
        """Want pictures of this request instead of the page's last one."""
        with self._changed:
            found = self._pages.get(page)
            if found is not None:
                found.request, found.due = request, "coarse"
                self._changed.notify_all()

    def ask_again(self) -> None:
        """Draw every page's request anew, as after a change of the scene."""
        with self._changed:
            for page in self._pages.values():
                page.has_failed = False
                if page.request is not None:
                    page.due = "coarse"
            self._changed.notify_all()

    def run_between(self, job: Callable[[], None]) -> None:
        """Run a job between two drawings, in the thread that draws."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()

    def close(self) -> None:
        """Make :meth:`step` return False, after what it is at."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def run(self) -> None:
        """Work until closed, or until an error, which is kept."""
        try:
            while self.step():
                pass
        except Exception as error:
            self.error = error

    def step(self) -> bool:
        """Wait for something to do, and do it: one job, or one picture.

        Returns:
            False where the loop is closed.
        """
        with self._changed:
            self._changed.wait_for(self._has_work)
            if self._is_closed:
                return False
            job = self._jobs.pop(0) if self._jobs else None
            due = None if job is not None else self._next_page()
        if job is not None:
            job()
        elif due is not None:
            self._draw_for(*due)
        return True

    def _has_work(self) -> bool:
        pages = self._pages.values()
        return self._is_closed or bool(self._jobs) or any(page.due for page in pages)

    def _next_page(self) -> tuple[int, _Page]:
        number = self._first_due("coarse")
        if number is None:
            number = self._first_due("fine")
        assert number is not None  # there is work, and it is no job
        page = self._pages.pop(number)
        self._pages[number] = page  # to the end of the queue
        return number, page

    def _first_due(self, level: _Level) -> int | None:
        # No generator: Python loses a Ctrl-C that comes while one ends that was left halfway.
        due = [number for number, page in self._pages.items() if page.due == level]
        return due[0] if due else None

    def _draw_for(self, number: int, page: _Page) -> None:
        with self._changed:
            request, level = page.request, page.due
            if request is None or level is None:  # it asked, and was forgotten
                return
            scale = page.pace.scale if level == "coarse" else 1.0
            page.due = "fine" if scale < 1 else None

        def is_stale() -> bool:
            with self._changed:
                if self._is_closed or number not in self._pages:
                    return True
                others = level == "fine" and self._first_due("coarse") is not None
                return others or (level == "fine" and bool(self._jobs))

        start = self._clock()
        try:
            picture = self._draw(request, scale, is_stale)
            with self._changed:
                if level == "coarse":
                    page.pace.took(self._clock() - start)
                if picture is None:
                    page.due = page.due or level
                    return
                if number not in self._pages:
                    return
                page.has_failed = False
            page.deliver(picture)
        except Exception as error:
            if is_device_failure(error) or self._fails_for_all(number, request):
                raise
            if number in self._pages:
                page.tell(error)

    def _fails_for_all(self, number: int, request: Request) -> bool:
        """Note that a page's request has failed; whether no page's last drawing went well."""
        with self._changed:
            page = self._pages.get(number)
            if page is None:  # nobody waits for the picture
                return False
            page.has_failed = True
            if page.request is request:
                page.request = page.due = None
            return all(each.has_failed for each in self._pages.values())
