# SPDX-License-Identifier: Apache-2.0
"""Planes whose columns repeat themselves take less of a store, and come back to the bit."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_pinned import BlockStore, Plane, StoreCorruptError, _core

KINDS = ("values", "zeros", "one value", "as before", "few values", "256 values", "257 values")
DTYPES = ("float32", "uint8", "float16", "int64", "bool")


def column(kind: str, n: int, dtype: str, before: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    draw = np.random.default_rng(n)
    if kind == "zeros":
        return np.zeros(n, dtype)
    if kind == "as before":
        return before
    size = {"one value": 1, "few values": 3, "256 values": 256, "257 values": 257}.get(kind)
    # Any bits, of floats too: negative zeros and all kinds of NaN.
    width = np.dtype(dtype).itemsize
    if dtype == "bool":
        return draw.random(n) < 0.5
    if size is None:
        return np.frombuffer(draw.bytes(n * width), dtype)
    words = draw.choice(2 ** min(8 * width, 40), min(size, 2 ** min(8 * width, 40)), False)
    values = words.astype(f"u{width}").view(dtype)
    return np.resize(values, n)[draw.permutation(n)]


def written(folder: Path, values: np.ndarray[Any, Any], block_rows: int) -> tuple[Any, int]:
    """What a store gives back, and the bytes of its records."""
    plane = Plane("a", values.shape[1], values.dtype.name)
    with BlockStore.create(folder, [plane], block_rows=block_rows, threads=1) as store:
        blocks = range(-(-len(values) // block_rows))
        store.write(blocks, {"a": values})
        assert store.verify().is_intact
        return store.read(blocks)["a"], store.stats.live_bytes


@settings(max_examples=150, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=12),
    n=st.integers(1, 700),
    dtype=st.sampled_from(DTYPES),
)
def test_any_columns_come_back(
    kinds: list[str], n: int, dtype: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    columns: list[np.ndarray[Any, Any]] = []
    for k, kind in enumerate(kinds):
        before = columns[-1] if columns else np.ones(n, dtype)
        columns.append(column(kind, n + (k if kind == "values" else 0), dtype, before)[:n])
    values = np.ascontiguousarray(np.stack(columns, 1))
    read, _ = written(tmp_path_factory.mktemp("columns") / "store", values, 256)
    assert read.dtype == values.dtype
    assert read.tobytes() == values.tobytes()


def random_columns(n: int, width: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal((n, width), np.float32)


@pytest.mark.parametrize(
    ("name", "kept"),
    [("zeros", 3), ("one value", 3), ("as before", 3), ("few values", 3 + 45 / 4)],
)
def test_columns_that_repeat_themselves_take_no_room(
    tmp_path: Path, name: str, kept: float
) -> None:
    n = 4096
    values = random_columns(n, 48)
    if name == "as before":
        values[:, 3:] = values[:, 2:3]
    elif name == "few values":
        values[:, 3:] = np.random.default_rng(1).integers(0, 9, (n, 45))
        values[:, 3] = 0.0  # tables are tried where some column repeats itself
    else:
        values[:, 3:] = 0.0 if name == "zeros" else 7.0
    read, n_bytes = written(tmp_path / "store", values, n)
    assert read.tobytes() == values.tobytes()
    page = 4096
    assert n_bytes <= kept * n * 4 + 45 * 64 + 3 * page


def test_trained_columns_are_stored_as_they_are(tmp_path: Path) -> None:
    """One column of 48 is less than what pays."""
    values = random_columns(1024, 48)
    _, plain = written(tmp_path / "plain", values, 1024)
    values[:, 7] = 0.0
    read, n_bytes = written(tmp_path / "one", values, 1024)
    assert n_bytes == plain
    assert read.tobytes() == values.tobytes()


def test_head_planes_are_read_alone(tmp_path: Path) -> None:
    planes = [Plane("head", 4, is_head=True), Plane("tail", 4)]
    values = {name: random_columns(64, 4) for name in ("head", "tail")}
    for array in values.values():
        array[:, 1:3] = 0.0
    with BlockStore.create(tmp_path / "store", planes, block_rows=64) as store:
        store.write([0], values)
        assert store.read([0], ["head"])["head"].tobytes() == values["head"].tobytes()
        assert store.read([0], ["tail"])["tail"].tobytes() == values["tail"].tobytes()


def test_negative_zeros_are_no_zeros(tmp_path: Path) -> None:
    values = random_columns(64, 4)
    values[:, 1:] = -0.0
    read, _ = written(tmp_path / "store", values, 64)
    assert np.signbit(read[:, 1:]).all()


@pytest.mark.parametrize(
    "n_forged", [300, pytest.param(10_000, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_columns_that_make_no_sense_are_found_though_checksums_hold(
    tmp_path: Path, n_forged: int
) -> None:
    values = random_columns(64, 8)
    values[:, 2:4], values[:, 4] = 0.0, values[:, 1]
    values[:, 5:] = np.resize(np.arange(5), (64, 3))
    path = tmp_path / "store"
    with BlockStore.create(path, [Plane("a", 8)], block_rows=64) as store:
        store.write([0], {"a": values})
        number = store.snapshot()
    files = path / "seg-000000", path / f"snap-{number:010}"
    segment, snapshot = (bytearray(file.read_bytes()) for file in files)
    choice, found = random.Random(0), 0
    for _ in range(n_forged):
        for file, forged in zip(files, forgery(segment, snapshot, choice), strict=True):
            file.write_bytes(forged)
        with BlockStore.open(path, read_only=True) as store:
            try:
                store.read([0])
            except StoreCorruptError as error:
                assert "makes no sense" in str(error)  # noqa: PT017
                found += 1
    assert 0 < found < n_forged


def forgery(
    segment: bytearray, snapshot: bytearray, choice: random.Random
) -> tuple[bytearray, bytearray]:
    """Files of a store of one block, with some bytes of its columns changed and all checksums
    right."""
    segment, snapshot = segment[:], snapshot[:]
    start = 4096 * int.from_bytes(snapshot[64 + 20 : 64 + 24], "little")
    record = segment[start:]
    head_end, end = (4096 * int.from_bytes(record[at : at + 4], "little") for at in (48, 52))
    # Of the plane: codes of columns, the number of values of a table, the bytes of all.
    places = [*range(head_end, head_end + 16), *range(68, 72), choice.randrange(head_end, end)]
    for _ in range(choice.randint(1, 3)):
        record[choice.choice(places)] = choice.randrange(8) if choice.random() < 0.7 else 255
    for at, part in ((56, record[512:head_end]), (60, record[head_end:end])):
        record[at : at + 4] = checksum(part)
    record[508:512] = checksum(record[:508])
    segment[start:] = record
    snapshot[64 + 28 : 64 + 32] = record[508:512]
    snapshot[56:60] = checksum(snapshot[64:])
    snapshot[60:64] = checksum(snapshot[:60])
    return segment, snapshot


def checksum(data: bytearray) -> bytes:
    return _core.crc32c(bytes(data)).to_bytes(4, "little")
