# SPDX-License-Identifier: Apache-2.0
"""What happens when locking is refused, processes fork, threads meet, or the interpreter ends."""

import math
import os
import threading
from collections.abc import Callable

import numpy as np
import pytest

from gs_pinned import (
    ForkedError,
    Ring,
    Signal,
    Table,
    _core,
    device,
    gather,
    gather_retained,
    launch,
    scatter,
    scatter_add,
    store_compact,
    transfer,
)

Script = Callable[..., str]

# Stands for cudaHostRegister where there is no device: mlock obeys RLIMIT_MEMLOCK, which root does
# not, so the script becomes somebody else after its imports.
LOCK_WITH_MLOCK = """
import os, resource, warnings
import numpy as np
from gs_pinned import PageableWarning, Table, _core, device
device.device_problem = lambda: ""
memory = _core.Memory
_core.Memory = lambda reserved, lock, device: memory(reserved, lock=lock and "mlock")
limit = 1 << 20
resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
if os.getuid() == 0:
    os.setuid(65534)
warnings.simplefilter("error")
"""


needs_mlock = pytest.mark.unsanitized("sanitizers make mlock do nothing")


@needs_mlock
def test_a_refused_lock_makes_the_table_pageable_with_one_warning_and_keeps_its_rows(
    run_script: Script,
) -> None:
    run_script(
        LOCK_WITH_MLOCK
        + """
table = Table(1000, 48)
locked = table.stats.locked_bytes
assert locked == table.stats.committed_bytes
table.numpy()[:] = 3
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    table.append(np.ones((50_000, 48), "f4"))
    table.append(np.ones((50_000, 48), "f4"))
assert [w.category for w in caught] == [PageableWarning], caught
assert "was refused (Cannot allocate memory); the table is pageable" in str(caught[0].message)
assert not table.is_pinned
assert table.stats.locked_bytes == locked  # as before: kernels may be reading them
assert table.shape == (101_000, 48)
assert (table.numpy()[:1000] == 3).all() and (table.numpy()[1000:] == 1).all()
table.close()
assert _core.locked_bytes() == 0
"""
    )


def test_values_that_are_refused_cost_a_table_no_locks(run_script: Script) -> None:
    run_script(
        LOCK_WITH_MLOCK
        + """
table = Table(1000, 48)
before = table.stats
try:
    table.append(np.ones((50_000, 48)))  # float64, and more than may be locked
except TypeError:
    pass
assert table.stats == before, table.stats  # a warning would be an error here
"""
    )


@needs_mlock
def test_a_refused_lock_is_an_error_when_locking_was_insisted_on_and_changes_nothing(
    run_script: Script,
) -> None:
    run_script(
        LOCK_WITH_MLOCK
        + """
table = Table(1000, 48, pinned=True)
before = table.stats
try:
    table.append(np.ones((50_000, 48), "f4"))
except MemoryError as error:
    assert "page-locking" in str(error) and "bytes failed: Cannot allocate" in str(error), error
else:
    raise AssertionError("no error")
assert table.stats == before
table.append(np.ones((1, 48), "f4"))
assert table.stats.locked_bytes == table.stats.committed_bytes
"""
    )


def test_a_limit_of_our_own_refuses_like_the_platform(run_script: Script) -> None:
    run_script(
        LOCK_WITH_MLOCK
        + """
first = Table(1000, 48)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    second = Table(1000, 48)
assert "GS_PINNED_LIMIT_BYTES=200000 would be exceeded" in str(caught[0].message)
assert first.stats.locked_bytes and not second.stats.locked_bytes
first.close()
assert Table(1000, 48).stats.locked_bytes
""",
        GS_PINNED_LIMIT_BYTES="200000",
    )


@needs_mlock
def test_where_more_than_asked_for_is_refused_what_was_asked_for_is_locked(
    run_script: Script,
) -> None:
    run_script(
        LOCK_WITH_MLOCK
        + """
table = Table(2000, 48)
table.append(np.ones((100, 48), "f4"))  # growth takes 2 MiB where they are to be had
stats = table.stats
assert table.rows == 2100
assert stats.locked_bytes == stats.committed_bytes < limit, stats
assert _core.locked_bytes() == stats.locked_bytes
"""
    )


def test_a_hidden_device_is_no_device(run_script: Script) -> None:
    run_script(
        """
        import warnings
        from gs_pinned import CudaError, Table
        warnings.simplefilter("error")
        assert not Table(3, 3).is_pinned
        try:
            Table(3, 3, pinned=True)
        except CudaError as error:
            assert "pinned must be 'auto' or False" in str(error)
        else:
            raise AssertionError("no error")
        """,
        CUDA_VISIBLE_DEVICES="",
    )


def test_a_child_process_has_a_copy_of_pageable_rows_and_threads_of_its_own(
    run_script: Script,
) -> None:
    out = run_script(
        """
        import os
        import numpy as np
        from gs_pinned import ForkedError, Ring, Signal, Table, gather, raise_faults
        table = Table(100_000, 48, pinned=False)
        table.numpy()[:] = 7
        signal, ring = Signal(), Ring(4096)
        ids = np.arange(100_000)
        gather(table, ids, np.empty((100_000, 48), "f4"))  # the threads run
        child = os.fork()
        if child == 0:
            out = gather(table, ids, np.empty((100_000, 48), "f4"))
            assert (out == 7).all()
            table.numpy()[:] = 8
            try:
                signal.set(1)
            except ForkedError as error:
                assert "a signal must be used in the process that created it" in str(error)
            else:
                os._exit(3)
            try:
                ring.stats
            except ForkedError as error:
                assert "a ring must be used in the process that created it" in str(error)
            else:
                os._exit(4)
            assert repr(ring) == "Ring(of another process)"
            ring.close()
            try:
                with signal.completing(1):
                    pass
            except ForkedError:
                assert not signal._core.is_poisoned
            else:
                os._exit(5)
            raise_faults()
            Signal().set(1)
            table.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert (table.numpy() == 7).all()
        assert signal.value == 0
        print("parent done")
        """
    )
    assert out == "parent done\n"


@pytest.mark.gpu
def test_a_child_of_a_process_that_uses_a_device_works_without(run_script: Script) -> None:
    out = run_script(
        """
        import os
        import torch
        from gs_pinned import CudaError, Ring, Signal, Table, gather, raise_faults
        signal, ring, rows = Signal(), Ring(4096), Table(10, 4)  # page-locked
        gather(rows, torch.arange(5, device="cuda"), torch.empty(5, 4, device="cuda"))
        torch.cuda.synchronize()
        child = os.fork()
        if child == 0:
            raise_faults()
            assert repr(ring) == "Ring(of another process)"
            Signal().set(1)
            table, ring = Table(10, 4), Ring(4096)
            assert not table.is_pinned and not ring.is_pinned
            try:
                Table(10, 4, pinned=True)
            except CudaError as error:
                assert "forked from one that uses CUDA; start it with the spawn" in str(error)
                os._exit(0)
            os._exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), Table(10, 4).is_pinned)
        """
    )
    assert out == "0 True\n"


def test_a_child_of_a_process_whose_table_grows_can_grow_it_as_well(run_script: Script) -> None:
    out = run_script(
        """
        import os, threading, time
        import numpy as np
        from gs_pinned import Table
        table = Table(1, 48, pinned=False)
        rows = np.ones((1 << 20, 48), "f4")
        grown = threading.Thread(target=lambda: [table.append(rows) for _ in range(4)])
        grown.start()
        codes = []
        while grown.is_alive():
            child = os.fork()
            if child == 0:
                table.append(rows[:100_000])
                os._exit(0)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(len(codes) > 0, set(codes))
        """
    )
    assert out == "True {0}\n"


def test_a_table_can_grow_while_other_threads_read_it() -> None:
    table = Table(1000, 48)
    table.numpy()[:] = np.arange(1000)[:, None]
    ids = np.arange(0, 1000, 3)
    stop = threading.Event()
    failures: list[int] = []

    def read() -> None:
        out = np.empty((len(ids), 48), "f4")
        while not stop.is_set():
            gather(table, ids, out)
            if not (out[:, 5] == ids).all():
                failures.append(1)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(100):
        table.append(np.ones((2000, 48), "f4"))
    stop.set()
    for reader in readers:
        reader.join()
    assert not failures
    assert table.rows == 201_000


def test_two_threads_use_two_tables() -> None:
    outs: dict[int, np.ndarray] = {}

    def work(number: int) -> None:
        table = Table(20_000, 48)
        table.numpy()[:] = number
        for _ in range(5):
            outs[number] = gather(table, np.arange(20_000), np.empty((20_000, 48), "f4"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((outs[number] == number).all() for number in range(4))


def test_the_interpreter_ends_while_a_thread_waits_and_another_copies(run_script: Script) -> None:
    run_script(
        """
        import threading
        import numpy as np
        from gs_pinned import Ring, Signal, Table, gather, store_compact
        table, signal, ring = Table(50_000, 48), Signal(), Ring(192)
        slot = store_compact(np.zeros((1, 48), "f4"), None, ring)
        def copy():
            while True:
                started.set()
                gather(table, np.arange(50_000), np.empty((50_000, 48), "f4"))
        started = threading.Event()
        for work in (copy, lambda: signal.wait(1),
                     lambda: store_compact(np.zeros((1, 48), "f4"), None, ring)):
            threading.Thread(target=work, daemon=True).start()
        started.wait()
        """
    )


@pytest.mark.skipif(
    device.has_device() or not hasattr(_core, "use_stream_operations"),
    reason="needs a build with CUDA and a machine without",
)
def test_at_the_end_signals_that_hold_streams_are_poisoned_but_not_in_a_child(
    run_script: Script,
) -> None:
    # Without a device the stream refuses, after the signal was noted: what is noted is released.
    out = run_script(
        """
        import atexit, os
        @atexit.register
        def look():
            print([(s.is_poisoned, s.reason) for s in (held, late, idle)], flush=True)
        from gs_pinned import CudaError, _core
        held, late, idle = (_core.Signal(locked=False, device=0) for _ in range(3))
        def hold(signal):
            try:
                signal.wait_on(0, 0, 1)
            except CudaError:
                return
            raise AssertionError("no error")
        hold(held)
        child = os.fork()
        if child == 0:
            _core.release_streams("the child ends", ending=True)
            os._exit(held.is_poisoned)
        assert os.waitpid(child, 0)[1] == 0
        _core.release_streams("this is the end", ending=True)
        held.set(2)
        hold(late)
        """
    )
    assert out == "[(True, 'this is the end'), (True, 'this is the end'), (False, '')]\n"


@pytest.mark.skipif(
    device.has_device() or not hasattr(_core, "use_stream_operations"),
    reason="needs a build with CUDA and a machine without",
)
def test_the_end_of_the_interpreter_releases_streams(run_script: Script) -> None:
    out = run_script(
        """
        import atexit
        atexit.register(lambda: print(held.reason))
        from gs_pinned import CudaError, _core
        held = _core.Signal(locked=False, device=0)
        try:
            held.wait_on(0, 0, 1)
        except CudaError:
            atexit.register(lambda: print(held.is_poisoned))
        """
    )
    assert out == "False\nthe interpreter is ending\n"


def test_a_slot_in_a_forked_child_is_the_parents() -> None:
    ring = Ring(1 << 16)
    slot = store_compact(np.ones((8, 4), np.float32), None, ring)
    child = os.fork()
    if not child:
        try:
            slot.wait()
        except ForkedError:
            assert "of another process" in repr(slot)
            with pytest.raises(ForkedError):
                slot.numpy()
            slot.release()
            del slot
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert slot.wait().numpy().all()
    slot.release()
    assert ring.stats.taken_slots == 0


@pytest.mark.parametrize("seconds", [-1, -0.5, math.nan])
def test_a_time_limit_is_a_time(seconds: float) -> None:
    ring, signal = Ring(1 << 12), Signal()
    values = np.ones((1 << 12, 1), np.uint8)
    slot = store_compact(values, None, ring)
    for wait in (
        lambda: slot.wait(seconds),
        lambda: ring.take(1, slot._layout, seconds),
        lambda: store_compact(values, None, ring, timeout_s=seconds),
        lambda: signal.wait(1, seconds),
    ):
        with pytest.raises(ValueError, match=f"timeout_s must be at least 0, got {seconds}"):
            wait()
    slot.release()


def test_whatever_a_transfer_touches_stays_until_it_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = []
    for module in (launch, transfer):
        monkeypatch.setattr(module, "keep_until_passed", lambda arrays, *_: held.append(arrays))
    table, values = np.zeros((9, 4), np.float32), np.ones((2, 4), np.float32)
    ids, out = np.array([1, 3], np.int32), np.zeros((2, 4), np.float32)
    nothing = ids[:0]
    gather(table, ids, out)
    scatter(values, ids, table)
    scatter_add(values, ids, table)
    gather_retained(table, ids, None, values, nothing, nothing, out)
    assert len(held) == 4
    for arrays in held:
        assert any(array is table for array in arrays)
        assert any(array is ids for array in arrays)
