# SPDX-License-Identifier: Apache-2.0
"""The image cache: order, bounds and failures, proved with latches."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_train.data.images import ImageCache

IMAGE_BYTES = 2 * 2 * 3


def picture(key: int, height: int = 2) -> np.ndarray:
    return np.full((height, 2, 3), key % 256, np.uint8)


class Latched:
    """A loader that reports each key when it begins and returns when told to."""

    def __init__(self, is_open: bool = False, heights: dict[int, int] | None = None) -> None:
        self.changed = threading.Condition()
        self.begun: list[int] = []
        self.released: set[int] = set()
        self.is_open = is_open
        self.failing: dict[int, BaseException] = {}
        self.heights = heights or {}

    def __call__(self, key: int) -> np.ndarray:
        with self.changed:
            self.begun.append(key)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.is_open or key in self.released)
        if key in self.failing:
            raise self.failing[key]
        return picture(key, self.heights.get(key, 2))

    def release(self, *keys: int) -> None:
        with self.changed:
            self.released.update(keys)
            self.changed.notify_all()

    def release_all(self) -> None:
        with self.changed:
            self.is_open = True
            self.changed.notify_all()

    def await_begun(self, *keys: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: set(keys) <= set(self.begun))


def settle(cache: ImageCache[int], condition: Callable[[], bool]) -> None:
    """Wait until what other threads do makes ``condition`` true.

    Not everything that they do is announced, so this looks again every few milliseconds; how long
    that takes decides nothing but the test's duration. A condition that never comes true hangs, and
    pytest's ``faulthandler_timeout`` ends the run.
    """
    with cache._changed:
        while not condition():
            cache._changed.wait(0.005)


def holds(cache: ImageCache[int], *keys: int) -> Callable[[], bool]:
    return lambda: set(cache._held) == set(keys) and not cache._decoding


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def test_without_a_plan_images_are_decoded_on_demand_and_kept() -> None:
    load = Latched(is_open=True)
    with ImageCache(load, capacity_bytes=10 * IMAGE_BYTES) as cache:
        for key in (3, 1, 3, 3):
            np.testing.assert_array_equal(cache.get(key), picture(key))
        stats = cache.stats
    assert load.begun == [3, 1]
    assert (stats.hits, stats.misses, stats.decoded, stats.evicted) == (2, 2, 2, 0)
    assert stats.bytes == 2 * IMAGE_BYTES


def test_after_many_uses_the_one_used_longest_ago_goes() -> None:
    load = Latched(is_open=True)
    with ImageCache(load, capacity_bytes=3 * IMAGE_BYTES, n_threads=1) as cache:
        for key in (*range(3), *range(3)) * 100:
            cache.get(key)
        for key in (1, 2, 0):
            cache.get(key)
        cache.get(3)
        assert holds(cache, 0, 2, 3)()
        cache.get(4)
        assert holds(cache, 0, 3, 4)()
        assert load.begun == [0, 1, 2, 3, 4]


def test_planned_images_are_decoded_in_the_order_of_need() -> None:
    load = Latched(is_open=True)
    with ImageCache(load, capacity_bytes=10 * IMAGE_BYTES, n_threads=1) as cache:
        cache.prefetch([5, 2, 9, 2, 5, 1])
        settle(cache, holds(cache, 5, 2, 9, 1))
        assert load.begun == [5, 2, 9, 1]
        for key in (5, 2, 9, 2, 5, 1):
            cache.get(key)
        assert (cache.stats.hits, cache.stats.misses) == (6, 0)


def test_decoding_ahead_stops_where_the_capacity_ends() -> None:
    load = Latched(is_open=True)
    with ImageCache(load, capacity_bytes=3 * IMAGE_BYTES, n_threads=2) as cache:
        cache.prefetch(range(6))
        settle(cache, holds(cache, 0, 1, 2))
        assert sorted(load.begun) == [0, 1, 2]
        cache.get(0)  # 0 is not needed again: 3 takes its place
        settle(cache, holds(cache, 1, 2, 3))
        assert (cache.stats.evicted, cache.stats.peak_bytes) == (1, 3 * IMAGE_BYTES)


def test_what_is_being_decoded_counts_against_the_capacity() -> None:
    load = Latched()
    with ImageCache(load, capacity_bytes=2 * IMAGE_BYTES, n_threads=3) as cache:
        load.release(0)
        cache.prefetch([0, 1, 2, 3])
        load.await_begun(0, 1)
        settle(cache, lambda: set(cache._held) == {0} and set(cache._decoding) == {1})
        cache.get(0)
        load.await_begun(2)  # in the place of 0, while 1 is still under way
        assert load.begun == [0, 1, 2]
        assert cache.stats.peak_bytes == 2 * IMAGE_BYTES
        load.release_all()


def test_an_image_needed_sooner_is_never_dropped_for_a_later_one() -> None:
    load = Latched(is_open=True)
    with ImageCache(load, capacity_bytes=2 * IMAGE_BYTES, n_threads=1) as cache:
        cache.prefetch([0, 1, 0, 2])
        settle(cache, holds(cache, 0, 1))
        cache.get(0)  # 0 comes again before 2: nothing may go yet
        cache.get(1)  # 1 does not
        settle(cache, holds(cache, 0, 2))
        cache.get(0)
        cache.get(2)
        assert load.begun == [0, 1, 2]
        assert (cache.stats.hits, cache.stats.decoded) == (4, 3)


def test_a_demand_drops_what_is_needed_last() -> None:
    load = Latched(is_open=True)
    with ImageCache(load, capacity_bytes=3 * IMAGE_BYTES, n_threads=1) as cache:
        cache.prefetch([0, 1, 2])
        settle(cache, holds(cache, 0, 1, 2))
        cache.get(7)  # not planned: its room comes from 2, and then 2 may have it back
        settle(cache, holds(cache, 0, 1, 2))
        assert load.begun == [0, 1, 2, 7, 2]


def test_without_a_plan_the_least_recently_used_goes_first() -> None:
    load = Latched(is_open=True)
    with ImageCache(load, capacity_bytes=2 * IMAGE_BYTES) as cache:
        for key in (0, 1, 0, 2, 0, 1):
            cache.get(key)
        assert load.begun == [0, 1, 2, 1]


def test_a_new_plan_replaces_the_old_one() -> None:
    load = Latched()
    with ImageCache(load, capacity_bytes=10 * IMAGE_BYTES, n_threads=1) as cache:
        cache.prefetch([0, 1, 2])
        load.await_begun(0)
        cache.prefetch([5, 0])
        load.release_all()
        settle(cache, holds(cache, 0, 5))
        assert load.begun == [0, 5]


def test_one_image_larger_than_the_capacity_is_allowed_alone() -> None:
    load = Latched(is_open=True)
    with ImageCache(load, capacity_bytes=1, n_threads=2) as cache:
        cache.prefetch([0, 1, 2])
        settle(cache, holds(cache, 0))
        assert load.begun == [0]
        np.testing.assert_array_equal(cache.get(0), picture(0))
        settle(cache, holds(cache, 1))
        np.testing.assert_array_equal(cache.get(2), picture(2))  # 1 gives way to what is needed now
        assert cache.stats.peak_bytes == IMAGE_BYTES


def test_an_image_larger_than_expected_does_not_push_out_sooner_ones() -> None:
    load = Latched(is_open=True, heights={2: 4})
    with ImageCache(load, capacity_bytes=3 * IMAGE_BYTES, n_threads=1) as cache:
        cache.prefetch([0, 1, 2])
        # 2 was expected to fit, does not, is dropped, and not tried again until there is room.
        settle(cache, lambda: cache.stats.decoded == 3 and not cache._decoding)
        settle(cache, holds(cache, 0, 1))
        cache.get(0)
        settle(cache, holds(cache, 1, 2))
        assert load.begun == [0, 1, 2, 2]
        assert cache.stats.bytes == 3 * IMAGE_BYTES


def test_an_image_that_was_dropped_comes_before_later_ones_once_there_is_room() -> None:
    load = Latched(heights={2: 4})
    load.release(0, 1, 3)
    with ImageCache(load, capacity_bytes=3 * IMAGE_BYTES, n_threads=2) as cache:
        cache.prefetch([0, 1, 2, 3])
        settle(cache, lambda: set(cache._decoding) == {2} and cache._next == 3)
        load.release(2)
        settle(cache, holds(cache, 0, 1))
        cache.get(0)
        settle(cache, holds(cache, 1, 2))
        assert 3 not in load.begun


def test_what_was_fetched_on_demand_is_not_decoded_again_for_its_place_in_the_plan() -> None:
    load = Latched()
    with ImageCache(load, capacity_bytes=IMAGE_BYTES, n_threads=1) as cache:
        cache.prefetch([0, 1, 2])
        load.await_begun(0)
        thread, _ = in_thread(lambda: cache.get(1))
        settle(cache, lambda: cache._n_starved == 1)
        load.release_all()
        thread.join()
        settle(cache, holds(cache, 0))
        cache.get(0)
        settle(cache, holds(cache, 2))
        assert load.begun == [0, 1, 0, 2]


def test_a_get_waits_for_a_decode_under_way_instead_of_repeating_it() -> None:
    load = Latched()
    with ImageCache(load, capacity_bytes=10 * IMAGE_BYTES) as cache:
        cache.prefetch([4])
        load.await_begun(4)
        first, outcome = in_thread(lambda: cache.get(4))
        second, other = in_thread(lambda: cache.get(4))
        settle(cache, lambda: cache._decoding[4].n_waiting == 2)
        load.release_all()
        first.join()
        second.join()
        np.testing.assert_array_equal(outcome[0], picture(4))
        assert other[0] is outcome[0]
        assert load.begun == [4]


def test_a_get_that_waits_for_room_goes_before_the_plan() -> None:
    load = Latched()
    load.release(0)
    with ImageCache(load, capacity_bytes=2 * IMAGE_BYTES, n_threads=2) as cache:
        cache.prefetch([0])
        settle(cache, holds(cache, 0))
        cache.prefetch([1, 2, 3, 4])
        load.await_begun(1, 2)  # both places are taken by decodes under way
        thread, outcome = in_thread(lambda: cache.get(9))
        settle(cache, lambda: cache._n_starved == 1)
        cache.prefetch([5, 6, 7])  # 1 is no longer wanted: its room is anybody's
        load.release(1)
        load.await_begun(9)
        assert load.begun[3] == 9
        load.release_all()
        thread.join()
        np.testing.assert_array_equal(outcome[0], picture(9))


def explode(key: int) -> np.ndarray:
    raise OSError(f"cannot decode {key}")


def test_a_failure_in_a_background_thread_surfaces_in_get_with_its_traceback() -> None:
    with ImageCache(explode, capacity_bytes=100, n_threads=1) as cache:
        cache.prefetch([1, 2])
        settle(cache, lambda: set(cache._failed) == {1, 2})
        with pytest.raises(OSError, match="cannot decode 2") as caught:
            cache.get(2)
        assert "explode" in [
            frame.name for frame in traceback.extract_tb(caught.value.__traceback__)
        ]


def test_a_failure_reaches_who_is_already_waiting_and_the_next_get_tries_again() -> None:
    load = Latched()
    load.failing[4] = ValueError("bad pixels")
    with ImageCache(load, capacity_bytes=100) as cache:
        cache.prefetch([4])
        load.await_begun(4)
        thread, outcome = in_thread(lambda: cache.get(4))
        settle(cache, lambda: cache._decoding[4].n_waiting == 1)
        load.release_all()
        thread.join()
        assert outcome == [load.failing[4]]
        load.failing.clear()
        np.testing.assert_array_equal(cache.get(4), picture(4))


def test_after_a_failure_the_next_need_in_the_plan_is_tried_again() -> None:
    load = Latched(is_open=True)
    load.failing[4] = ValueError("bad pixels")
    with ImageCache(load, capacity_bytes=100, n_threads=1) as cache:
        cache.prefetch([4, 5, 4])
        settle(cache, lambda: cache._next == 3 and 5 in cache._held)
        load.failing.clear()
        with pytest.raises(ValueError, match="bad pixels"):
            cache.get(4)
        settle(cache, holds(cache, 4, 5))


def test_a_failure_on_demand_gives_its_room_back() -> None:
    load = Latched(is_open=True)
    with ImageCache(load, capacity_bytes=2 * IMAGE_BYTES) as cache:
        cache.get(0)
        load.failing[1] = KeyError("gone")
        for _ in range(3):
            with pytest.raises(KeyError, match="gone"):
                cache.get(1)
        np.testing.assert_array_equal(cache.get(2), picture(2))
        assert (cache.stats.bytes, cache.stats.evicted) == (2 * IMAGE_BYTES, 0)


def test_images_that_are_all_there_wake_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with ImageCache(Latched(is_open=True), capacity_bytes=4 * IMAGE_BYTES) as cache:
        cache.prefetch([0, 1, 2, 0, 1, 2])
        settle(cache, lambda: cache._next == 6 and not cache._decoding)
        woken: list[None] = []
        monkeypatch.setattr(cache._changed, "notify_all", lambda: woken.append(None))
        for key in (0, 1, 2, 0, 1, 2):
            np.testing.assert_array_equal(cache.get(key), picture(key))
        assert not woken
        monkeypatch.undo()
        cache.prefetch([3, 4])
        settle(cache, lambda: {3, 4} <= set(cache._held))


@pytest.mark.parametrize(
    "wrong", [np.zeros((2, 2, 3), np.float32), np.zeros((2, 2), np.uint8), None, [1, 2]]
)
def test_something_else_than_an_image_is_a_type_error(wrong: object) -> None:
    with (
        ImageCache(lambda key: wrong, capacity_bytes=100) as cache,  # type: ignore[arg-type]
        pytest.raises(TypeError, match=r"load must return a \(H, W, 3\) uint8 array, got"),
    ):
        cache.get(0)


def test_closing_again_does_nothing_and_use_after_close_raises() -> None:
    cache = ImageCache(picture, capacity_bytes=100)
    cache.get(1)
    cache.close()
    cache.close()
    for use in (lambda: cache.get(1), lambda: cache.prefetch([1])):
        with pytest.raises(RuntimeError, match="the image cache must be open, got closed"):
            use()
    assert cache.stats.bytes == 0
    assert "closed" in repr(cache)
    assert not any(thread.is_alive() for thread in cache._threads)


def test_closing_in_the_middle_of_a_decode_wakes_who_waits_and_ends_the_threads() -> None:
    load = Latched()
    cache = ImageCache(load, capacity_bytes=100, n_threads=2)
    cache.prefetch([1, 2, 3])
    load.await_begun(1)
    getter, outcome = in_thread(lambda: cache.get(1))
    settle(cache, lambda: cache._decoding[1].n_waiting == 1)
    closer, _ = in_thread(cache.close)
    getter.join()  # although the decode is still under way
    assert isinstance(outcome[0], RuntimeError)
    assert closer.is_alive()
    load.release_all()
    closer.join()
    assert not any(thread.is_alive() for thread in cache._threads)
    assert cache.stats.bytes == 0
    assert 3 not in load.begun


def test_a_getter_that_waits_for_room_is_woken_by_close() -> None:
    load = Latched()
    cache = ImageCache(load, capacity_bytes=1, n_threads=1)
    cache.prefetch([1])
    load.await_begun(1)
    getter, outcome = in_thread(lambda: cache.get(2))
    settle(cache, lambda: cache._n_starved == 1)
    closer, _ = in_thread(cache.close)
    getter.join()
    assert isinstance(outcome[0], RuntimeError)
    load.release_all()
    closer.join()


@pytest.mark.parametrize("name", ["capacity_bytes", "n_threads"])
def test_arguments_out_of_range_are_refused(name: str) -> None:
    arguments = {"capacity_bytes": 100, "n_threads": 1, name: 0}
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        ImageCache(picture, **arguments)


@given(
    plan=st.lists(st.integers(0, 9), max_size=40),
    detours=st.lists(st.integers(0, 12), max_size=5),
    capacity=st.integers(1, 8 * IMAGE_BYTES),
    n_threads=st.integers(1, 3),
    heights=st.dictionaries(st.integers(0, 12), st.integers(1, 6), max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_any_use_gets_the_right_images_within_the_capacity(
    plan: list[int], detours: list[int], capacity: int, n_threads: int, heights: dict[int, int]
) -> None:
    sizes = [heights.get(key, 2) * 6 for key in range(13)]
    with ImageCache(
        Latched(is_open=True, heights=heights), capacity_bytes=capacity, n_threads=n_threads
    ) as cache:
        cache.prefetch(plan)
        for index, key in enumerate(plan):
            np.testing.assert_array_equal(cache.get(key), picture(key, heights.get(key, 2)))
            if index < len(detours):
                detour = detours[index]
                expected = picture(detour, heights.get(detour, 2))
                np.testing.assert_array_equal(cache.get(detour), expected)
            # What is kept obeys the bound; a single image of any size may be kept.
            assert cache.stats.bytes <= max(capacity, *sizes)


def test_gets_from_several_threads_agree() -> None:
    with ImageCache(picture, capacity_bytes=4 * IMAGE_BYTES, n_threads=2) as cache:
        cache.prefetch(list(range(12)) * 4)

        def read_all(start: int) -> int:
            wrong = 0
            for key in range(48):
                key = (key + start) % 12
                wrong += not np.array_equal(cache.get(key), picture(key))
            return wrong

        threads = [in_thread(lambda start=start: read_all(start)) for start in (0, 3, 6)]
        for thread, _ in threads:
            thread.join()
        assert [outcome for _, outcome in threads] == [[0], [0], [0]]
