# SPDX-License-Identifier: Apache-2.0
"""What looks at the store of a survey tells a record that changed, and bits that differ."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gs_pinned import BlockStore, Plane
from invented_results import FOLDER

PLANES = [Plane("w", 2, is_head=True), Plane("key", 1, "int32")]


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script that notes checksums."""
    monkeypatch.syspath_prepend(FOLDER / "tide")
    return importlib.import_module("store_records")


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script that compares bits."""
    monkeypatch.syspath_prepend(FOLDER / "tide")
    return importlib.import_module("same_stores")


def made(path: Path) -> BlockStore:
    """A store of five blocks, with a snapshot."""
    store = BlockStore.create(path, PLANES, block_rows=4)
    values = {"w": np.arange(40, dtype="f4").reshape(20, 2), "key": np.arange(20)[:, None]}
    store.write(range(5), {"w": values["w"], "key": values["key"].astype("i4")})
    store.snapshot()
    return store


def test_a_record_that_is_written_again_has_another_checksum(records: Any, tmp_path: Path) -> None:
    """Even with the same rows: the number of the write is in its header."""
    with made(tmp_path / "s") as store:
        store.write([3], store.read([3]))
        store.snapshot(keep=2)
    (blocks, before), (same, after) = (
        records.checksums(tmp_path / "s" / f"snap-{number:010d}") for number in (1, 2)
    )
    assert blocks.tolist() == same.tolist() == [0, 1, 2, 3, 4]
    assert np.flatnonzero(before != after).tolist() == [3]


def test_an_index_of_something_else_is_refused(records: Any, tmp_path: Path) -> None:
    (tmp_path / "snap").write_bytes(bytes(100))
    with pytest.raises(RuntimeError, match="must be an index of a store"):
        records.checksums(tmp_path / "snap")


def test_one_bit_of_one_block_is_found(stores: Any, tmp_path: Path) -> None:
    with made(tmp_path / "a") as ours, made(tmp_path / "b") as theirs:
        assert stores.compared(ours, theirs) == {"blocks": 5, "rows": 20, "different": 0}
        rows = theirs.read([2])
        rows["w"].view("u4")[1, 1] ^= 1
        theirs.write([2], rows)
        assert stores.compared(ours, theirs)["different"] == 1
