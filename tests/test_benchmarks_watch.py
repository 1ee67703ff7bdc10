# SPDX-License-Identifier: Apache-2.0
"""A process that a benchmark watches while it trains."""

import importlib
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from invented_results import (
    FOLDER,
)

RUN = """
import os, sys, time
from pathlib import Path
run = Path(sys.argv[1])
def wait_for(name):
    while not (run / name).exists():
        time.sleep(0.01)
print("7 training and 1 test images, 1,000 Gaussians after 0 steps; rendering with cpu on cpu")
print("step 1/40  loss 0.1306", flush=True)
os.mkdir(run / "checkpoints" / "step_000010.tmp")
wait_for("the writing was seen")
os.rename(run / "checkpoints" / "step_000010.tmp", run / "checkpoints" / "step_000010")
(run / "log.csv").write_text("step,loss,n_gaussians\\n20,0.125,1200.0\\n40,0.1")
wait_for("nothing")
"""


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(FOLDER / "train")
    return importlib.import_module("watched")


def test_a_watched_process_is_killed_once_it_has_written_a_checkpoint(
    watched: Any, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints" / "step_000005").mkdir(parents=True)  # was there before

    def has_saved(seen: Any) -> bool:
        if seen.busy:
            (tmp_path / "the writing was seen").touch()
        return bool(seen.log) and bool(seen.saved)

    command = [sys.executable, "-c", RUN, str(tmp_path)]
    seen = watched.watch(command, tmp_path / "output", run=tmp_path, until=has_saved)
    assert seen.status == -signal.SIGKILL
    assert seen.ready[1:] == (1000, 0)
    assert seen.saved.keys() == {10}
    assert [row for _, *row in seen.log] == [[20, 1200]]
    assert seen.started < seen.ready[0] <= seen.first_step <= seen.saved[10] <= seen.ended
    ((start, stop),) = seen.busy
    assert seen.busy_between(seen.started, seen.ended) == stop - start > 0
    assert seen.busy_between(stop, seen.ended) == 0
    assert seen.peak_host_bytes > 0


def test_the_last_words_of_a_watched_process_that_fails_are_told(
    watched: Any, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no room')"]
    with pytest.raises(RuntimeError, match="ended with status 1:\nno room"):
        watched.watch(command, tmp_path / "output")
