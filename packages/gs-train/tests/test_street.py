# SPDX-License-Identifier: Apache-2.0
"""The scripted street is one of the scenes that offloading is for."""

from __future__ import annotations

from scripted import ScriptedRenderer
from scripted_runs import rows, script, views
from street import N_ROWS, N_VIEWS, NOTHING

from gs_train.engine.microbatches import look


def test_every_view_sees_a_tenth_of_the_rows_at_most() -> None:
    counts = look(rows(), views(), ScriptedRenderer(script())).counts
    assert len(counts) == N_VIEWS
    assert counts[NOTHING] == 0
    assert max(counts) <= 0.1 * N_ROWS
    assert all(count > 0 for view, count in enumerate(counts) if view != NOTHING)
