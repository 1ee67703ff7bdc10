# SPDX-License-Identifier: Apache-2.0
"""Tests marked ``gpu`` are skipped without a CUDA device, unless GS_REQUIRE_GPU=1.

None of them waits for ever: what a stream waits for is released after RELEASE_S, which fails the
test, and a test that does not even end then ends the run with a traceback of every thread.
"""

import faulthandler
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest

# Only what hangs reaches these. Most tests take milliseconds, but a script imports torch: minutes
# where torch is compiled anew on a machine with much other work.
RELEASE_S, END_S = 640.0, 700.0  # of a test
SCRIPT_S = 600.0  # of a script, which then says where it is
SCRIPT_END_S = 620.0  # of its process, when it did not even end then

# Ids are checked before each launch, so that a bad one raises in the call that passed it.
os.environ.setdefault("GS_CHECK_INDEX", "1")


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked or os.environ.get("GS_REQUIRE_GPU") == "1" or _has_cuda():
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def _real_stderr(request: pytest.FixtureRequest) -> Iterator[TextIO]:
    """Standard error as it was before pytest captured it: what is captured is lost with the run."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        copy = os.dup(2)
    with os.fdopen(copy, "w") as stream:
        yield stream


@pytest.fixture(autouse=True)
def _bounded(request: pytest.FixtureRequest, _real_stderr: TextIO) -> Iterator[None]:
    if request.node.get_closest_marker("gpu") is None:
        yield
        return
    import torch

    from gs_pinned import _core

    is_late = threading.Event()

    def release() -> None:
        is_late.set()
        _core.release_streams("the test takes too long", ending=False)

    timer = threading.Timer(RELEASE_S, release)
    timer.daemon = True
    timer.start()
    faulthandler.dump_traceback_later(END_S, exit=True, file=_real_stderr)
    yield
    # Signals of a test that failed are still alive, in its traceback.
    _core.release_streams("the test is over", ending=False)
    torch.cuda.synchronize()
    faulthandler.cancel_dump_traceback_later()
    timer.cancel()
    assert not is_late.is_set(), f"streams had to be released after {RELEASE_S} s"


# Ahead of every script. The first handler registered is the last to run.
PROLOGUE = f"""
import atexit, faulthandler, sys
faulthandler.dump_traceback_later({SCRIPT_S}, exit=True)
atexit.register(print, "script: handlers of the end have run", file=sys.stderr, flush=True)
"""
EPILOGUE = """
print("script: its last line has run", file=sys.stderr, flush=True)
"""


def threads_of(pid: int) -> str:
    """Name, state and place in the kernel of each thread of a process."""
    lines = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        state = (task / "stat").read_text().rpartition(")")[2].split()[0]
        lines.append(f"{task.name} {name}: {state} in {(task / 'wchan').read_text() or '?'}")
    return "\n".join(lines)


@pytest.fixture
def run_script() -> Callable[..., str]:
    """The output of a script in a process of its own, which must end with a status in time."""

    def run(script: str, *, statuses: tuple[int, ...] = (0,), **environment: str) -> str:
        with subprocess.Popen(
            [sys.executable, "-c", PROLOGUE + textwrap.dedent(script) + EPILOGUE],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # its children end with it
        ) as process:
            try:
                out, errors = process.communicate(timeout=SCRIPT_END_S)
            except subprocess.TimeoutExpired:
                threads = threads_of(process.pid)
                os.killpg(process.pid, signal.SIGKILL)
                out, errors = process.communicate()
                pytest.fail(f"the process did not end\n{out}\n{errors}\n{threads}")
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # leaving the block waits for it
                raise
        assert process.returncode in statuses, errors
        return out

    return run
