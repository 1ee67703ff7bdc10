# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of a store are named, and change nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gs_pinned import BlockStore, Plane, StoreCorruptError, StoreVersionError, _core

PLANES = [
    Plane("means", 3, is_head=True),
    Plane("sh", 5, "float16"),
    Plane("key", 1, "int32", is_head=True),
    Plane("seen", 1, "bool"),
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    with BlockStore.create(tmp_path / "store", PLANES, block_rows=8) as made:
        yield made


@pytest.mark.parametrize(
    ("blocks", "counts", "change", "error", "message"),
    [
        ([0, 0], None, {}, ValueError, "blocks must be distinct, got block 0 twice"),
        ([-1, 0], None, {}, IndexError, "blocks must be a whole number of at least 0, got -1"),
        ([1 << 26, 0], None, {}, IndexError, "blocks must be a whole number of at most"),
        ([0, 1], [9, 7], {}, ValueError, "counts must be a whole number of at most 8, got 9"),
        ([0, 1], [8], {}, ValueError, "counts must be 2, one a block, got 1"),
        ([0, 1], [8, 7], {}, ValueError, "values must have 15 rows for 2 blocks, got 16"),
        ([0], None, {}, ValueError, "values must have 8 rows for 1 blocks, got 16"),
        ([0, 1], None, {"key": None}, ValueError, "values must hold every plane, got none of key"),
        ([0, 1], None, {"no": [1]}, ValueError, "values must hold planes of the store, got 'no'"),
        ([0, 1], None, {"sh": np.zeros((16, 5))}, TypeError, "sh must be float16, got float64"),
        (
            [0, 1],
            None,
            {"means": np.zeros((16, 2), "f4")},
            ValueError,
            r"plane means must have shape \(rows, 3\), got \(16, 2\)",
        ),
        (
            [0, 1],
            None,
            {"sh": np.zeros((15, 5), "f2")},
            ValueError,
            "plane sh must have 16 rows as means has, got 15",
        ),
    ],
)
def test_wrong_arguments_are_named_and_change_nothing(
    store: BlockStore,
    blocks: list[int],
    counts: list[int] | None,
    change: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    values: dict[str, Any] = {
        plane.name: np.zeros((16, plane.width), plane.dtype) for plane in PLANES
    } | change
    if "key" in change:
        del values["key"]
    with pytest.raises(error, match=message):
        store.write(blocks, values, counts)
    assert store.blocks == []


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"sh": None}, ValueError, "out must hold planes that are read, got 'sh'"),
        ({"key": None}, TypeError, "out of plane key must be int32, got object"),
        ({"key": np.zeros((8, 1), "i8")}, TypeError, "out of plane key must be int32, got int64"),
        ({"key": np.zeros((9, 1), "i4")}, ValueError, r"must have shape \(8, 1\), got \(9, 1\)"),
        ({"means": np.zeros((3, 8), "f4").T}, ValueError, "means must be in C order and writable"),
        (
            {"means": np.broadcast_to(np.float32(1), (8, 3))},
            ValueError,
            "means must be in C order and writable",
        ),
    ],
)
def test_wrong_arrays_to_read_into_are_named(
    store: BlockStore, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    store.write([0], {plane.name: np.ones((8, plane.width), plane.dtype) for plane in PLANES})
    out = {"means": np.zeros((8, 3), "f4"), "key": np.zeros((8, 1), "i4")}
    with pytest.raises(error, match=message):
        store.read([0], ["means", "key"], out=out | change)
    assert not out["means"].any()


def test_arrays_to_read_into_must_be_apart(store: BlockStore) -> None:
    store.write([0], {plane.name: np.ones((8, plane.width), plane.dtype) for plane in PLANES})
    shared = np.zeros((8, 3), "f4")
    out = {"means": shared, "key": shared.reshape(-1)[:8, None].view("i4")}
    with pytest.raises(ValueError, match="key must not share memory with another's"):
        store.read([0], ["means", "key"], out=out)
    with pytest.raises(ValueError, match="out must hold every plane that is read, got none of key"):
        store.read([0], ["means", "key"], out={"means": shared})
    assert not shared.any()


def test_wrong_layouts_are_named(tmp_path: Path) -> None:
    create = BlockStore.create
    with pytest.raises(ValueError, match="planes must have distinct names, got a twice"):
        create(tmp_path / "s", [Plane("a", 1), Plane("a", 2)])
    with pytest.raises(ValueError, match="planes must be 1 to 48, got 0"):
        create(tmp_path / "s", [])
    with pytest.raises(ValueError, match=r"segment_bytes must hold a block of 5 pages .* got 4096"):
        create(tmp_path / "s", [Plane("a", 4)], segment_bytes=4096)
    with pytest.raises(ValueError, match="a block must have at most 65535 pages of 4096 bytes"):
        create(tmp_path / "s", [Plane("a", 1 << 18)], block_rows=65535)
    with pytest.raises(ValueError, match="block_rows must be a whole number of at most 65535"):
        create(tmp_path / "s", [Plane("a", 1)], block_rows=65536)
    with pytest.raises(TypeError, match="dtype must be of integers, floats or bool, got compl"):
        Plane("a", 1, "complex64")
    with pytest.raises(ValueError, match="name must be 1 to 40 bytes long, got ''"):
        Plane("", 1)
    assert not (tmp_path / "s").exists()
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "thesis.txt").touch()
    with pytest.raises(ValueError, match=r"must be an empty folder.* which holds thesis\.txt"):
        create(tmp_path / "s", [Plane("a", 1)])
    with pytest.raises(FileNotFoundError, match="No such file"):
        BlockStore.open(tmp_path / "nowhere")
    (tmp_path / "s" / "STORE").write_bytes(bytes(4096))
    with pytest.raises(StoreCorruptError, match="STORE is no store of blocks"):
        BlockStore.open(tmp_path / "s")


def test_an_existing_store_is_not_made_anew(store: BlockStore) -> None:
    with pytest.raises(ValueError, match="path must be free for a new store"):
        BlockStore.create(store.path, PLANES)


def test_a_path_with_a_zero_byte_is_not_cut(tmp_path: Path) -> None:
    for call in (BlockStore.open, lambda path: BlockStore.create(path, PLANES)):
        with pytest.raises(ValueError, match="path must not hold a zero byte"):
            call(f"{tmp_path}/a\0b")
    assert list(tmp_path.iterdir()) == []


def test_a_store_of_another_version_is_named(store: BlockStore) -> None:
    store.close()
    file = store.path / "STORE"
    page = bytearray(file.read_bytes())
    page[8] = 2
    page[4092:] = _core.crc32c(bytes(page[:4092])).to_bytes(4, "little")
    file.write_bytes(page)
    with pytest.raises(StoreVersionError, match="STORE must have version 1, got 2"):
        BlockStore.open(store.path)


def test_a_snapshot_of_another_version_stays(store: BlockStore) -> None:
    """Though an older one can be read: who wrote the newer one would lose it."""
    store.snapshot(keep=2)
    store.snapshot(keep=2)
    store.close()
    newest = max(store.path.glob("snap-*"))
    data = bytearray(newest.read_bytes())
    data[8] = 2
    data[60:64] = _core.crc32c(bytes(data[:60])).to_bytes(4, "little")
    newest.write_bytes(data)
    for read_only in (True, False):
        with pytest.raises(StoreVersionError, match="must have version 1, got 2"):
            BlockStore.open(store.path, read_only=read_only)
    assert newest.read_bytes() == data


def test_a_version_that_has_changed_on_the_drive_is_damage(store: BlockStore) -> None:
    store.close()
    file = store.path / "STORE"
    page = bytearray(file.read_bytes())
    page[8] = 2
    file.write_bytes(page)
    with pytest.raises(StoreCorruptError, match="STORE is damaged") as caught:
        BlockStore.open(store.path)
    assert not isinstance(caught.value, StoreVersionError)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_rows": 0}, "block_rows must be 1 to 65535, got 0"),
        ({"block_rows": 1 << 16}, "block_rows must be 1 to 65535, got 65536"),
        ({"segment_pages": (1 << 31) + 1}, "segment_bytes must be at most 8796093022208, got 8796"),
        ({"planes": []}, "planes must be 1 to 48, got 0"),
        ({"planes": [("a" * 9999, "float32", 1, 4, True)] * 48}, "at most 40 and 12 bytes"),
        ({"planes": [("a", "f" * 9999, 1, 4, True)] * 48}, "at most 40 and 12 bytes"),
        ({"identity": b"short"}, "identity must have 16 bytes"),
    ],
)
def test_native_code_checks_layouts_itself(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    args: dict[str, Any] = {
        "identity": bytes(16),
        "block_rows": 8,
        "segment_pages": 100,
        "planes": [("a", "float32", 1, 4, True)],
        "hook": None,
    }
    with pytest.raises(ValueError, match=message):
        _core.BlockStore.create(str(tmp_path / "s"), **args | change)
    assert not (tmp_path / "s").exists()
