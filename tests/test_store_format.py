# SPDX-License-Identifier: Apache-2.0
"""The page on the format of stores: a reader made from it alone reads what gs-pinned writes."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import numpy as np

from gs_pinned import BlockStore, Plane

PAGE = 4096
ROWS = 61
"""Of a block: not a multiple of 8, so that parts are padded."""

PLANES = [
    Plane("plain", 6, is_head=True),
    Plane("nothing", 3, is_head=True),
    Plane("one row", 4, "float64"),
    Plane("columns", 5, "int16"),
    Plane("bytes", 3, "uint8"),
    Plane("wide", 4, "float64", is_head=True),
]
CODECS = {"plain": 0, "nothing": 1, "one row": 2, "columns": 3, "bytes": 3, "wide": 3}


# ---------------------------------------------------------------------- the reader


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def u32(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def checked(data: bytes, magic: bytes, size: int) -> bytes:
    """A header, once its first bytes, version and checksum are as the page says."""
    assert data[:8] == magic
    assert u32(data, 8) == 1
    assert u32(data, size - 4) == crc32c(data[: size - 4])
    return data[:size]


def planes_of(page: bytes) -> list[tuple[str, np.dtype, int, bool]]:
    planes = []
    for k in range(u32(page, 36)):
        at = 64 + 64 * k
        name = page[at : at + 40].rstrip(b"\0").decode()
        dtype = np.dtype(page[at + 40 : at + 52].rstrip(b"\0").decode())
        columns, row_bytes, head = struct.unpack_from("<III", page, at + 52)
        assert row_bytes == columns * dtype.itemsize
        planes.append((name, dtype, columns, bool(head)))
    return planes


def padded(n: int) -> int:
    return -(-n // 8) * 8


def columns_of(data: bytes, n_rows: int, dtype: np.dtype, n_columns: int) -> np.ndarray:
    values, at = np.zeros((n_rows, n_columns), dtype), padded(n_columns)
    for column, kind in enumerate(data[:n_columns]):
        if kind == 0:
            values[:, column] = np.frombuffer(data, dtype, n_rows, at)
            at += padded(n_rows * dtype.itemsize)
        elif kind == 2:
            values[:, column] = np.frombuffer(data, dtype, 1, at)
            at += padded(dtype.itemsize)
        elif kind == 3:
            values[:, column] = values[:, column - 1]
        elif kind == 4:
            (n_values,) = struct.unpack_from("<Q", data, at)
            which = np.frombuffer(data, "u1", n_rows, at + 8)
            at += 8 + padded(n_rows)
            values[:, column] = np.frombuffer(data, dtype, n_values, at)[which]
            at += padded(n_values * dtype.itemsize)
        else:
            assert kind == 1
    assert at == len(data)
    return values


def decoded(codec: int, data: bytes, n_rows: int, dtype: np.dtype, n_columns: int) -> np.ndarray:
    if codec == 3:
        return columns_of(data, n_rows, dtype, n_columns)
    if codec == 1:
        assert not data
        return np.zeros((n_rows, n_columns), dtype)
    stored = np.frombuffer(data, dtype).reshape(-1, n_columns)
    assert len(stored) == {0: n_rows, 2: 1}[codec]
    return np.broadcast_to(stored, (n_rows, n_columns))


class Store:
    """The newest snapshot of a store: ``state``, and by block ``steps``, ``arrays`` and ``codecs``
    by plane; and the ``kinds`` of columns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        first = checked((folder / "STORE").read_bytes(), b"GSBLOCKS", PAGE)
        self.identity, self.planes = first[16:32], planes_of(first)
        newest = max(folder.glob("snap-??????????"))
        data = newest.read_bytes()
        checked(data, b"GSSNAPSH", 64)
        assert data[16:32] == self.identity
        assert u32(data, 12) == int(newest.name.removeprefix("snap-"))
        n, n_state = struct.unpack_from("<QQ", data, 40)
        assert u32(data, 56) == crc32c(data[64:])
        self.state = data[64 + 32 * n :]
        assert len(self.state) == n_state
        self.steps, self.arrays, self.codecs = {}, {}, {}
        self.kinds: set[int] = set()
        entries = list(struct.iter_unpack("<IIQIIHHI", data[64 : 64 + 32 * n]))
        assert entries == sorted(entries)
        for block, step, *place in entries:
            self.steps[block] = step
            self.arrays[block], self.codecs[block] = self._record(block, step, *place)

    def _record(
        self, block: int, step: int, seq: int, segment: int, page: int, n_pages: int, n_rows: int,
        header_crc: int,
    ) -> tuple[dict[str, np.ndarray], dict[str, int]]:  # fmt: skip
        file = (self.folder / f"seg-{segment:06}").read_bytes()
        header = checked(file, b"GSSEGMNT", PAGE)
        assert (u32(header, 12), header[16:32]) == (segment, self.identity)
        record = file[page * PAGE : (page + n_pages) * PAGE]
        header = checked(record, b"GSRECORD", 512)
        assert header[16:32] == self.identity
        said = struct.unpack_from("<QII", header, 32)
        assert (u32(header, 12), *said, u32(header, 52)) == (block, seq, step, n_rows, n_pages)
        assert u32(header, 508) == header_crc
        end = u32(header, 48) * PAGE
        for crc, part in ((56, record[512:end]), (60, record[end:])):
            assert u32(header, crc) == (crc32c(part) if part else 0)
        arrays, codecs = {}, {}
        for k, (name, dtype, n_columns, is_head) in enumerate(self.planes):
            place, n_bytes = struct.unpack_from("<II", header, 64 + 8 * k)
            start, codecs[name] = 64 * (place >> 8), place & 0xFF
            assert n_bytes == 0 or (start < end) == is_head
            data = record[start : start + n_bytes]
            self.kinds |= set(data[:n_columns] if codecs[name] == 3 else b"")
            arrays[name] = decoded(codecs[name], data, n_rows, dtype, n_columns)
        return arrays, codecs


# ---------------------------------------------------------------------- what it reads


def rows_of(block: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(block)
    values = {
        plane.name: draw.integers(-99, 99, (ROWS, plane.width)).astype(plane.dtype)
        for plane in PLANES
    }
    values["plain"] = draw.standard_normal((ROWS, 6), np.float32)
    values["nothing"][:] = 0
    values["one row"][:] = values["one row"][0]
    for name in ("columns", "bytes", "wide"):
        own = values[name]
        own[:, 1] = own[:, 0]  # equal to the column before
        own[:, 2] = 0
    values["columns"][:, 3] = 7  # one value
    values["columns"][:, 4] = np.resize([5, -3, 0], ROWS)  # a table
    values["wide"][:, 3] = np.resize([0.5, -0.0, np.inf], ROWS)
    return values


def test_a_reader_made_from_the_page_reads_what_was_stored(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with BlockStore.create(path, PLANES, block_rows=ROWS) as store:
        store.write([0, 7], {n: np.concatenate([rows_of(0)[n], rows_of(7)[n]]) for n in CODECS})
        store.snapshot(b"before", keep=2)
        store.write([7], rows_of(8), step=5)
        store.write([3], rows_of(3), step=9)
        store.snapshot(b"of the caller", keep=2)
    found = Store(path)
    assert found.state == b"of the caller"
    assert found.steps == {0: 0, 3: 9, 7: 5}
    assert found.kinds == {0, 1, 2, 3, 4}
    for block, drawn in ((0, 0), (3, 3), (7, 8)):
        assert found.codecs[block] == CODECS
        for name, values in rows_of(drawn).items():
            assert found.arrays[block][name].tobytes() == values.tobytes(), (block, name)


def test_a_block_of_fewer_rows_is_read(tmp_path: Path) -> None:
    few = {name: values[:5] for name, values in rows_of(1).items()}
    path = tmp_path / "store"
    with BlockStore.create(path, PLANES, block_rows=ROWS) as store:
        store.write([4], few, counts=[5])
        store.snapshot()
    found = Store(path)
    assert found.state == b""
    for name, values in few.items():
        assert found.arrays[4][name].tobytes() == values.tobytes(), name
    kinds = itertools.chain.from_iterable(found.codecs.values())
    assert set(kinds) == set(CODECS)
