# SPDX-License-Identifier: Apache-2.0
"""Room for a view's intersections, from what was drawn before."""

from __future__ import annotations

from gs_train.engine.room import Densities, room_for


def test_a_view_gets_room_for_what_it_needed_and_an_eighth_more() -> None:
    densities = Densities()
    densities.note("a", 1000, 9_000_000)
    densities.note("b", 1000, 2_000_000)
    assert densities.room("a", 1000) == room_for(1000, 9_000_000) >= 9_000_000 * 9 // 8
    assert densities.room("b", 500) == room_for(500, 1_000_000)


def test_a_view_that_nobody_has_drawn_is_as_dense_as_the_densest_of_late() -> None:
    densities = Densities(32)
    assert densities.room("new", 1000) == room_for(1000, None)
    densities.note("dense", 1000, 9_000_000)
    densities.note("empty", 0, 0)
    for _ in range(31):
        densities.note("thin", 1000, 2_000_000)
    assert densities.room("new", 1000) == room_for(1000, 9_000_000)
    densities.note("thin", 1000, 2_000_000)
    assert densities.room("new", 1000) == room_for(1000, 2_000_000)


def test_a_view_is_not_judged_by_others_unless_that_is_asked_for() -> None:
    densities = Densities()
    densities.note("dense", 1000, 9_000_000)
    assert densities.room("new", 1000) == room_for(1000, None)


def test_what_others_have_counted_comes_before_what_other_views_needed() -> None:
    densities = Densities(32)
    densities.note("dense", 1000, 9_000_000)
    assert densities.room("new", 1000, 3_000_000) == room_for(1000, 3_000_000)
    assert densities.room("dense", 1000, 3_000_000) == room_for(1000, 9_000_000)
