# SPDX-License-Identifier: Apache-2.0
import io
import re
import timeit

import pytest

from gs_train.machine.memory import resident_bytes
from gs_train.machine.progress import (
    Progress,
    Stages,
    TaskProgress,
    format_seconds,
    task_progress,
)


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def stream():
    return io.StringIO()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return Terminal()


def test_a_line_comes_first_then_every_thirty_seconds_and_last(stream, clock):
    with Progress(1000, stream=stream, clock=clock) as progress:
        for step in range(1, 1001):
            clock.now += 0.125
            progress.update(step, 0.5, 10 * step)
    steps = [int(match) for match in re.findall(r"step ([\d,]+)/1,000", unpunctuated(stream))]
    assert steps == [1, 241, 481, 721, 961, 1000]


def unpunctuated(stream):
    return re.sub(r"step (\d+),(\d+)/", r"step \1\2/", stream.getvalue())


def test_a_line_tells_step_loss_gaussians_speed_memory_and_time_left(stream, clock):
    options = {"device_bytes": lambda: 3 << 29, "stream": stream, "clock": clock}
    with Progress(3000, **options) as progress:
        clock.now += 10
        progress.update(300, 0.041239, 245_750, n_images=1200)
    assert re.fullmatch(
        r"step 300/3,000  loss 0\.0412  245,750 Gaussians  120\.0 images/s  device 1\.5 GiB  "
        r"host [\d.]+ [MG]iB  ETA 0:01:30\n",
        stream.getvalue(),
    )


def test_the_loss_is_asked_for_only_when_it_is_shown(stream, clock):
    asked = []
    with Progress(1000, stream=stream, clock=clock) as progress:
        for step in range(1, 101):
            clock.now += 1
            progress.update(step, lambda step=step: asked.append(step) or 1.0, 5)
    # First, every 30 s, and on leaving.
    assert asked == [1, 31, 61, 91, 100]


def test_the_time_left_follows_the_last_minute(stream, clock):
    with Progress(10_000, stream=stream, clock=clock) as progress:
        clock.now += 100  # compiling
        for step in range(1, 301):
            clock.now += 1
            progress.update(step, 0.5, 1)
        for step in range(301, 1501):
            clock.now += 0.1
            progress.update(step, 0.5, 1)
    last = stream.getvalue().splitlines()[-1]
    assert last.startswith("step 1,500/10,000")
    assert "  10.0 images/s" in last
    assert "ETA 0:14:10" in last  # 8,500 steps at 10 a second


def test_a_resumed_run_counts_its_own_steps_for_the_speed(stream, clock):
    with Progress(1000, start=500, stream=stream, clock=clock) as progress:
        clock.now += 10
        progress.update(600, 0.5, 1, n_images=100)
    assert "10.0 images/s" in stream.getvalue()
    assert "ETA 0:00:40" in stream.getvalue()


def test_before_any_time_has_passed_the_time_left_is_not_known(stream, clock):
    with Progress(10, stream=stream, clock=clock) as progress:
        progress.update(1, 0.5, 1)
    assert "0.0 images/s" in stream.getvalue()
    assert "ETA ?" in stream.getvalue()


def test_an_update_costs_microseconds(stream):
    with Progress(10**9, stream=stream) as progress:
        progress.update(1, 0.5, 1)
        seconds = min(timeit.repeat(lambda: progress.update(2, 0.5, 1), number=2000, repeat=5))
    # One microsecond on an idle machine; twenty would still vanish beside a step.
    assert seconds / 2000 < 20e-6


def test_on_a_terminal_there_is_a_bar_that_is_redrawn_twice_a_second(terminal, clock):
    asked = []
    with Progress(100, stream=terminal, clock=clock) as progress:
        for step in range(1, 101):
            clock.now += 0.125
            progress.update(step, lambda step=step: asked.append(step) or 0.5, 7)
        progress.message("[saved] it")
    text = terminal.getvalue()
    assert asked == [*range(1, 101, 4), 100]
    assert "━" in text
    assert "step 100/100" in text
    assert "ETA 0:00:00" in text
    assert "[saved] it" in text


def test_a_dumb_terminal_gets_plain_lines(terminal, clock, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with Progress(10, stream=terminal, clock=clock) as progress:
        progress.update(1, 0.5, 1)
    assert terminal.getvalue().startswith("step 1/10  ")
    assert "\x1b" not in terminal.getvalue()


def test_messages_are_lines_of_their_own(stream, clock):
    with Progress(10, stream=stream, clock=clock) as progress:
        progress.message("checkpoint written")
    assert stream.getvalue() == "checkpoint written\n"


def test_the_bar_is_closed_when_the_run_fails(terminal, clock):
    with pytest.raises(KeyError), Progress(10, stream=terminal, clock=clock):
        raise KeyError
    assert terminal.getvalue().endswith("\x1b[?25h")  # the cursor is visible again


def test_a_task_shows_its_first_and_last_item_and_one_line_in_between_every_interval(stream, clock):
    with task_progress("Undistorting images", 100, stream=stream, clock=clock) as task:
        for _ in range(100):
            clock.now += 0.5
            task.advance()
    assert stream.getvalue().splitlines() == [
        "Undistorting images 1/100  ETA 0:00:50",
        "Undistorting images 61/100  ETA 0:00:20",
        "Undistorting images 100/100",
    ]


def test_a_task_may_learn_its_total_later_or_never(stream, clock):
    with TaskProgress("Reading", stream=stream, clock=clock) as task:
        task.advance(2)
        clock.now += 31
        task.update(5, 10)
        task.update(7)
    with TaskProgress("Nothing", stream=stream, clock=clock):
        pass
    assert stream.getvalue().splitlines() == [
        "Reading 2",
        "Reading 5/10  ETA 0:00:31",
        "Reading 7/10  ETA 0:00:13",
    ]


def test_a_task_on_a_terminal_is_a_bar(terminal, clock):
    with task_progress("Evaluating", 3, stream=terminal, clock=clock) as task:
        task.advance(3)
    assert "Evaluating 3/3" in terminal.getvalue()
    assert "━" in terminal.getvalue()


def test_seconds_are_written_as_hours_minutes_seconds():
    assert [format_seconds(s) for s in (0, 59.6, 3725, 100 * 3600, None)] == [
        "0:00:00",
        "0:01:00",
        "1:02:05",
        "100:00:00",
        "?",
    ]


def test_resident_memory_is_that_of_this_process():
    assert 10_000_000 < resident_bytes() < 1 << 44


def test_stages_say_at_once_what_begins(stream, terminal):
    for where in (stream, terminal):
        with Stages("planning", 2, stream=where) as stages:
            stages.begin("reading")
            assert "planning 1/2: reading" in where.getvalue()
            stages.begin("counting")
    assert stream.getvalue() == "planning 1/2: reading\nplanning 2/2: counting\n"
    assert "planning 2/2: counting" in terminal.getvalue()
