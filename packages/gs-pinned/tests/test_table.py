# SPDX-License-Identifier: Apache-2.0
"""What a table is: sizes, views, their lifetime, and the errors of its arguments."""

import copy
import gc
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gs_pinned
from gs_pinned import ClosedError, CudaError, Table, device


def test_a_new_table_is_zero_and_of_exactly_the_shape_asked_for() -> None:
    table = Table(7, 48)
    assert table.shape == (7, 48)
    assert len(table) == 7
    assert table.numpy().shape == (7, 48)
    assert not table.numpy().any()


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int32", "int64"])
def test_every_element_type_has_numpy_and_torch_views_of_one_memory(dtype: str) -> None:
    table = Table(3, 5, dtype)
    table.numpy()[:] = np.arange(15).reshape(3, 5)
    assert table.torch().dtype == getattr(torch, dtype)
    assert table.torch().tolist() == np.arange(15).reshape(3, 5).tolist()
    table.torch()[1, 2] = 99
    assert table.numpy()[1, 2] == 99


def test_dtypes_of_numpy_and_torch_name_the_same_type() -> None:
    assert Table(1, 1, torch.float16).dtype == Table(1, 1, np.float16).dtype == np.float16


def test_a_row_of_48_floats_covers_exactly_three_cache_lines() -> None:
    table = Table(9, 48)
    assert all(row.ctypes.data % 64 == 0 for row in table.numpy())


def test_fields_are_views_in_their_own_shape() -> None:
    table = Table(4, 48, fields={"sh0": (1, 3), "shN": (15, 3)})
    table.numpy()[:] = np.arange(4 * 48).reshape(4, 48)
    assert table["sh0"].shape == (4, 1, 3)
    assert table["shN"].shape == (4, 15, 3)
    np.testing.assert_array_equal(table["shN"].reshape(4, 45), table.numpy()[:, 3:])
    table.torch("sh0")[2] = -1.0
    np.testing.assert_array_equal(table.numpy()[2, :4], [-1, -1, -1, 2 * 48 + 3])


def test_views_outlive_the_table() -> None:
    table = Table(1000, 48)
    view = table.numpy()
    tensor = table.torch()
    view[:] = 2.0
    table.close()
    del table, view
    gc.collect()
    assert float(tensor.sum()) == 2.0 * 48000


def test_a_closed_table_refuses_use_and_closes_again_quietly() -> None:
    with Table(2, 3) as table:
        assert not table.is_closed
    assert table.is_closed
    table.close()
    assert repr(table) == "Table(closed)"
    with pytest.raises(ClosedError, match="the table must be open, got one that was closed"):
        table.numpy()


def test_repr_names_shape_type_place_and_bytes() -> None:
    text = repr(Table(2, 48, pinned=False, fields={"sh0": 3, "shN": 45}))
    assert text == (
        "Table(rows=2, width=48, dtype=float32, pageable, 384 bytes, fields={sh0, shN})"
    )


def test_a_table_without_rows_has_empty_views() -> None:
    table = Table(0, 6_000_000, "uint8")
    assert table.numpy().shape == (0, 6_000_000)
    assert table.torch().shape == (0, 6_000_000)


def test_fields_of_a_table_without_rows_are_empty_too() -> None:
    table = Table(0, 2000, fields={"a": np.int64(1500), "b": (20, 25)}, capacity=10)
    assert table["a"].shape == (0, 1500)
    assert table["b"].shape == (0, 20, 25)


def test_large_tables_lie_in_huge_pages_where_the_kernel_has_them() -> None:
    mode = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not mode.exists() or "[never]" in mode.read_text():
        pytest.skip("the kernel has no transparent huge pages")
    table = Table(1 << 19, 48, pinned=False)
    address = f"{table.numpy().ctypes.data:x}-"
    maps = Path("/proc/self/smaps").read_text().partition(f"\n{address}")[2]
    huge = int(maps.partition("AnonHugePages:")[2].split()[0])
    assert huge > 0.9 * table.stats.used_bytes / 1024


def test_stats_count_bytes_exactly() -> None:
    stats = Table(10, 48, capacity=100, pinned=False).stats
    assert (stats.rows, stats.capacity, stats.row_bytes) == (10, 100, 192)
    assert stats.used_bytes == 1920
    assert stats.committed_bytes == 4096
    assert stats.reserved_bytes == 20480  # 100 rows, rounded up to pages
    assert stats.locked_bytes == 0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_the_resident_set_is_within_one_percent_of_what_was_asked() -> None:
    Table(1, 1).close()
    asked = 256 << 20
    before = resident_bytes()
    table = Table(asked // 192, 48)
    grown = resident_bytes() - before
    assert abs(grown - asked) <= 0.01 * asked
    del table
    gc.collect()
    assert resident_bytes() - before <= 0.01 * asked


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        ((-1, 3), {}, ValueError, "rows must be a whole number of at least 0, got -1"),
        ((1, 0), {}, ValueError, "width must be a whole number of at least 1, got 0"),
        ((1, 3, "float64"), {}, TypeError, "dtype must be one of float32, .*, got float64"),
        ((1, 3, "colour"), {}, TypeError, "dtype must be one of float32, .*, got 'colour'"),
        ((5, 3), {"capacity": 4}, ValueError, "capacity must be at least rows = 5, got 4"),
        ((5, 3), {"pinned": "yes"}, ValueError, "pinned must be 'auto', True or False, got 'yes'"),
        ((5, 3), {"fields": {"a": 2}}, ValueError, "fields must add up to the width 3, got 2"),
        ((5, 3), {"fields": {"a": 3, "b": 0}}, ValueError, r"fields\['b'\] must be a whole number"),
        ((2.5, 3), {}, ValueError, "rows must be a whole number of at least 0, got 2.5"),
        ((1 << 70, 1), {}, ValueError, "rows must be a whole number of at most 576460752303423"),
        ((0, 1 << 70), {}, ValueError, "width must be a whole number of at most 576460752303423"),
        ((1 << 59, 48), {}, ValueError, "rows must be at most 4611686018427387904 bytes, got"),
        ((1 << 50, 1), {}, MemoryError, "ask for less, of a table a smaller capacity, or raise"),
        ((1, 3), {"capacity": 2.5}, ValueError, "capacity must be a whole number of .*, got 2.5"),
        ((1, 3), {"capacity": "a"}, ValueError, "capacity must be a whole number of .*, got 'a'"),
        ((1, 3), {"capacity": float("nan")}, ValueError, "capacity must be a whole .*, got nan"),
        ((1, 3), {"fields": ["a"]}, TypeError, "fields must be a mapping from names to .*, got li"),
        ((1, 3), {"fields": {0: 3}}, TypeError, "fields must be named by str, got 0"),
        ((1, 3, ">f4"), {}, TypeError, "dtype must be one of float32, .*, got >f4"),
        ((1, 3), {"fields": {"a": 3.0}}, ValueError, r"fields\['a'\] must be a whole .*, got 3.0"),
        ((1, 3), {"fields": {"a": "x"}}, ValueError, r"fields\['a'\] must be a whole .*, got 'x'"),
        ((1, 5), {"fields": {"a": (2.5, 2)}}, ValueError, r"fields\['a'\] must .*, got 2.5"),
        ((5, 3), {"pinned": 1}, ValueError, "pinned must be 'auto', True or False, got 1"),
        ((5, 3), {"pinned": 0}, ValueError, "pinned must be 'auto', True or False, got 0"),
        (
            (5, 3),
            {"pinned": np.zeros(2)},
            ValueError,
            "pinned must be 'auto', True or False, got a",
        ),
        ((1 << 40, 1 << 20), {}, MemoryError, "bytes"),
    ],
)
def test_bad_arguments_are_named(
    arguments: Any, options: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Table(*arguments, **options)


def test_an_unknown_field_is_answered_with_the_ones_there_are() -> None:
    with pytest.raises(KeyError, match=re.escape("field must be one of the table's (a), got 'b'")):
        Table(1, 3, fields={"a": 3})["b"]


def test_counts_may_be_numpys() -> None:
    counts = np.array([2, 3, 9])
    table = Table(*counts[:2], capacity=counts[2], fields={"a": (counts[0],), "b": np.int32(1)})
    assert (table.shape, table.capacity, table["a"].shape) == ((2, 3), 9, (2, 2))
    assert not Table(2, 3, pinned=np.False_).is_pinned  # type: ignore[arg-type]


def test_a_table_is_no_sequence_of_rows() -> None:
    table = Table(2, 3, fields={"a": 3})
    with pytest.raises(TypeError, match="not iterable"):
        list(table)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="not iterable"):
        "a" in table  # type: ignore[operator]  # noqa: B015


def test_numpy_takes_a_table_for_its_rows() -> None:
    table = Table(2, 3)
    np.asarray(table)[1] = 7
    assert table.numpy()[1].tolist() == [7, 7, 7]
    assert np.asarray(table, np.float64).dtype == np.float64
    copied = np.array(table)
    copied[:] = 0
    assert table.numpy()[1, 0] == 7
    with pytest.raises(ValueError, match="dtype must be float32 where copy is False, got"):
        table.__array__(np.float64, copy=False)


@pytest.mark.skipif(device.has_device(), reason="there is a CUDA device")
def test_without_a_device_locking_is_refused_when_insisted_on_and_skipped_silently_else() -> None:
    for pinned in (True, np.True_):
        with pytest.raises(CudaError, match="pinned must be 'auto' or False where no CUDA device"):
            Table(1, 3, pinned=pinned)  # type: ignore[arg-type]
    assert not Table(1, 3, pinned="auto").is_pinned  # a warning would be an error here


def test_importing_starts_nothing_and_needs_no_torch() -> None:
    script = (
        "import sys, threading, gs_pinned; gs_pinned.Table(4, 4).numpy()[:] = 1;"
        "assert 'torch' not in sys.modules; assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def test_build_info_tells_the_version_and_the_toolkit() -> None:
    info = gs_pinned.build_info()
    assert info["version"] == gs_pinned.__version__
    assert {"compiler", "cxx_standard", "cuda_toolkit", "cuda_architectures"} <= info.keys()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_table_is_not_copied(copied: Callable[[Table], object]) -> None:
    with pytest.raises(TypeError, match="a table can't be copied: its rows have one owner; append"):
        copied(Table(1, 1))
