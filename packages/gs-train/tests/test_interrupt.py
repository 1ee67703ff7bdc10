# SPDX-License-Identifier: Apache-2.0
"""Signals that come more than once."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from gs_train.machine.interrupt import StopRequest

before: list[int] = []


@pytest.fixture(autouse=True)
def _told() -> Iterator[None]:
    """Signals reach a list, where nothing else takes them."""
    before.clear()
    handlers = {
        number: signal.signal(number, lambda got, _frame: before.append(got))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_acts_as_before(number: int) -> None:
    with StopRequest() as stop:
        signal.raise_signal(number)
        assert (stop.signal_number, before) == (number, [])
        signal.raise_signal(number)
    assert before == [number]


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_more_sigterm_are_ignored_where_that_is_asked_for(first: int) -> None:
    with StopRequest(ignores_more=True) as stop:
        for number in (first, signal.SIGTERM, signal.SIGTERM):
            signal.raise_signal(number)
        assert (stop.signal_number, before) == (first, [])
        with StopRequest() as inner:  # as while a picture is drawn
            signal.raise_signal(signal.SIGTERM)
            assert inner.signal_number == signal.SIGTERM
        signal.raise_signal(signal.SIGTERM)
        assert before == []
        signal.raise_signal(signal.SIGINT)
        assert before == [signal.SIGINT]
    signal.raise_signal(signal.SIGTERM)
    assert before == [signal.SIGINT, signal.SIGTERM]
