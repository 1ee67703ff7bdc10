# SPDX-License-Identifier: Apache-2.0
"""Processes that fork, or end, while a device uses their memory.

Checked mode would wait for the stream before each transfer: for ever, where the stream waits for
the script's next line. So it is off.
"""

import signal
import sys
from collections.abc import Callable

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.asynchrony]


Script = Callable[..., str]

# A gather behind a wait that nobody ends, by stream memory operations or by kernels.
HELD = """
import os
import torch
from gs_pinned import Signal, Table, _core, gather
_core.use_stream_operations(os.environ["WAY"] == "operations")
table, signal, stream = Table(1000, 48), Signal(), torch.cuda.Stream()
ids, out = torch.arange(1000, device="cuda"), torch.empty(1000, 48, device="cuda")
torch.cuda.synchronize()
def hold(value=1):
    signal.wait_on(stream, value)
    gather(table, ids, out, stream=stream)
"""
HOLD = HELD + "hold()\n"


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GS_CHECK_INDEX", "0")


@pytest.fixture(params=["operations", "kernels"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_interpreter_ends_in_the_middle_of_copies(run_script: Script) -> None:
    run_script(
        """
        import torch
        from gs_pinned import Ring, Signal, Table, gather, scatter, store_compact
        table, pageable = Table(2_000_000, 48), Table(1_000_000, 48, pinned=False)
        ids = torch.arange(1_000_000, device="cuda")
        out = torch.empty(1_000_000, 48, device="cuda")
        ring, signal, stream = Ring(1 << 28), Signal(), torch.cuda.Stream()
        torch.cuda.synchronize()
        for _ in range(20):
            gather(table, ids, out, stream=stream)
            scatter(out, ids, table, stream=stream)
            gather(pageable, ids, out, stream=stream)
        slot = store_compact(out, None, ring, stream=stream)
        signal.set_on(stream, 1)
        """
    )


def test_the_interpreter_ends_after_poison(run_script: Script, way: str) -> None:
    run_script(HOLD + 'assert not stream.query()\nsignal.poison("ending")\n', WAY=way)


def test_the_interpreter_ends_while_a_stream_waits_for_it(run_script: Script, way: str) -> None:
    run_script(HOLD + "assert not stream.query()\n", WAY=way)


def test_handlers_of_the_end_may_wait_for_the_device(run_script: Script, way: str) -> None:
    out = run_script(
        HELD
        + """
import atexit
from gs_pinned import PoisonedError
@atexit.register
def finish():
    torch.cuda.synchronize()
    try:
        signal.wait(1)
    except PoisonedError as error:
        print(error)
hold()
""",
        WAY=way,
    )
    assert out == "the interpreter is ending\n"


def test_what_is_referred_to_from_everywhere_ends_too(run_script: Script, way: str) -> None:
    run_script(
        HOLD
        + """
import builtins, sys
builtins.kept = sys.modules["os"].kept = [table, signal, stream, out]
cycle = [signal, table]
cycle.append(cycle)
""",
        WAY=way,
    )


def test_a_thread_that_goes_on_holding_streams_does_not_stop_the_end(
    run_script: Script, way: str
) -> None:
    # Before 3.14 an ending Python unwinds a daemon thread that comes back from native code, torch's
    # included, and C++ aborts where a destructor is on its stack. What must not be is a hang.
    statuses = (0,) if sys.version_info >= (3, 14) else (0, -signal.SIGABRT)
    run_script(
        HELD
        + """
import threading
from gs_pinned import PoisonedError
held = threading.Event()
def work():
    global signal
    while True:
        try:
            hold()
        except PoisonedError:
            signal = Signal()
        held.set()
threading.Thread(target=work, daemon=True).start()
held.wait()
""",
        statuses=statuses,
        WAY=way,
    )


def test_exit_in_a_forked_child_leaves_the_parents_streams_alone(
    run_script: Script, way: str
) -> None:
    out = run_script(
        HOLD
        + """
import sys
child = os.fork()
if child == 0:
    import atexit
    atexit._run_exitfuncs()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert not stream.query() and not signal.is_poisoned
signal.set(1)
stream.synchronize()
print("parent done")
""",
        WAY=way,
    )
    assert out == "parent done\n"


def test_a_child_process_is_told_that_it_has_no_locked_memory(run_script: Script) -> None:
    out = run_script(
        """
        import os
        import numpy as np
        import torch
        from gs_pinned import ForkedError, Ring, Signal, Table, gather, store_compact
        table, ring, signal = Table(100_000, 48), Ring(1 << 20), Signal()
        table.numpy()[:] = 7
        out = torch.empty(100_000, 48, device="cuda")
        ids = torch.arange(100_000, device="cuda")
        child = os.fork()
        if child == 0:
            attempts = (
                table.numpy,
                table.wait,
                lambda: table.append(np.zeros((1, 48), "f4")),
                lambda: store_compact(np.zeros((1, 48), "f4"), None, ring),
                lambda: signal.value,
            )
            for attempt in attempts:
                try:
                    attempt()
                except ForkedError:
                    continue
                os._exit(3)
            table.close()
            del table, ring, signal
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        gather(table, ids, out)
        assert (out == 7).all()
        signal.set(1)
        print("parent done")
        """
    )
    assert out == "parent done\n"


def test_growing_after_a_fork_leaves_the_rows_where_the_device_sees_them(
    run_script: Script,
) -> None:
    run_script(
        """
        import os
        import numpy as np
        import torch
        from gs_pinned import Table, gather
        table = Table(100_000, 48)
        child = os.fork()
        if child == 0:
            os._exit(0)
        # Were the pages shared, these writes would go to copies of which the device knows nothing.
        table.numpy()[:] = 3
        os.waitpid(child, 0)
        table.append(np.full((100_000, 48), 4, "f4"))
        out = torch.empty(200_000, 48, device="cuda")
        gather(table, torch.arange(200_000, device="cuda"), out)
        assert (out[:100_000] == 3).all() and (out[100_000:] == 4).all()
        """
    )


@pytest.mark.parametrize("pinned", ["yes", "no"])
def test_one_handle_is_a_stream_of_each_thread(run_script: Script, pinned: str) -> None:
    """In a process with few streams: of many, one that is held may keep others of the same queue
    of the device waiting."""
    run_script(
        """
        import os
        import threading
        import numpy as np
        import torch
        from gs_pinned import Signal, Table, gather
        pinned, per_thread = os.environ["PINNED"] == "yes", 2  # cudaStreamPerThread
        table = Table(1000, 48, pinned=pinned)
        table.numpy()[:] = np.arange(1000, dtype="f4")[:, None]
        latch, done, may_end = Signal(), Signal(), threading.Event()
        chosen = torch.tensor([0, 999], device="cuda")
        outs = [torch.empty(2, 48, device="cuda") for _ in range(3)]
        gather(table, chosen, outs[2])  # loads what would wait for the held stream
        torch.cuda.synchronize()

        def hold():
            latch.wait_on(per_thread, 1)
            gather(table, chosen, outs[0], stream=per_thread)
            done.set(1)
            may_end.wait()

        holding = threading.Thread(target=hold, daemon=True)
        holding.start()
        done.wait(1)
        if pinned:  # pageable ones take turns
            gather(table, chosen, outs[1], stream=per_thread)
            done.set_on(per_thread, 2)
            done.wait(2)
        # Nothing here may go to the default stream, which would wait for the held one.
        assert table._memory.is_busy
        zeros = np.zeros((1000, 48), "f4")
        editing = threading.Thread(target=lambda: table.overwrite(slice(None), zeros), daemon=True)
        editing.start()
        latch.set(1)
        editing.join()
        torch.cuda.synchronize()
        for out in outs[: 1 + pinned]:
            assert out[:, 0].tolist() == [0, 999]
        may_end.set()
        holding.join()
        """,
        PINNED=pinned,
    )
