# SPDX-License-Identifier: Apache-2.0
"""A store whose files were changed: the change is found, or harms nothing."""

import os
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gs_pinned import BlockStore, Plane, SnapshotWarning, StoreCorruptError

PAGE = 4096
PLANES = [
    Plane("head", 2, is_head=True),
    Plane("tail", 40),
    Plane("none", 3, "int8"),
    Plane("like", 4),
]
BLOCK_ROWS = 32
BLOCKS = 8
KINDS = ["flip", "flip", "zeros", "ones", "cut", "grow", "swap", "swap", "copy", "foreign"]
KINDS += ["lose", "pipe", "folder"]

Rows = dict[str, np.ndarray[Any, Any]]


def rows_of(seed: int) -> Rows:
    values = np.random.default_rng(seed).standard_normal((BLOCKS * BLOCK_ROWS, 42), dtype="f4")
    nothing = np.zeros((BLOCKS * BLOCK_ROWS, 3), "i1")
    like = values[:, [2, 2, 2, 2]]  # columns that equal the first
    head, tail = values[:, :2].copy(), values[:, 2:].copy()
    return {"head": head, "tail": tail, "none": nothing, "like": like}


def make(path: Path) -> dict[bytes, Rows]:
    """A store of two snapshots; their rows, by the state that they hold."""
    with BlockStore.create(path, PLANES, block_rows=BLOCK_ROWS, segment_bytes=20 * PAGE) as store:
        for seed in (1, 2):
            store.write(range(BLOCKS), rows_of(seed), step=seed)
            store.snapshot(str(seed).encode(), keep=2)
    return {b"1": rows_of(1), b"2": rows_of(2)}


def change(path: Path, other: Path, choice: random.Random) -> str:
    """Damage a file, and say how."""
    files = sorted(file for file in path.iterdir() if file.name != "LOCK")
    file = choice.choice(files)
    content = bytearray(file.read_bytes())
    pages = len(content) // PAGE
    kind = choice.choice(KINDS)
    at = choice.randrange(len(content))
    page = slice(at // PAGE * PAGE, at // PAGE * PAGE + PAGE)
    if kind == "flip":
        content[at] ^= 1 << choice.randrange(8)
    elif kind in {"zeros", "ones"}:
        n = choice.choice([1, 16, 512, PAGE, len(content)])
        end = min(len(content), at + n)
        content[at:end] = (b"\0" if kind == "zeros" else b"\xff") * (end - at)
    elif kind == "cut":
        del content[at:]
    elif kind == "grow":
        content += choice.randbytes(choice.choice([1, 100, PAGE]))
    elif kind == "swap" and pages > 1:
        one, two = (i * PAGE for i in choice.sample(range(pages), 2))
        content[one : one + PAGE], content[two : two + PAGE] = (
            content[two : two + PAGE],
            content[one : one + PAGE],
        )
    elif kind == "copy":  # a file in the place of one of its kind
        source = choice.choice(files)
        content = bytearray(source.read_bytes())
        kind += f" of {source.name}"
    elif kind == "foreign":
        theirs = (other / file.name).read_bytes()
        if choice.random() < 0.5:
            content = bytearray(theirs)
        else:
            content[page] = theirs[page]
    if kind in {"lose", "pipe", "folder"}:
        file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind != "lose":
        file.write_bytes(content)
    return f"{kind} at {at} of {file.name}"


def look(path: Path, states: dict[bytes, Rows], *, writable: bool, is_lost: bool) -> str:
    """Read all that can be read; any row that comes back must be right."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            store = BlockStore.open(path, read_only=not writable, threads=1)
        except (StoreCorruptError, OSError) as error:
            return "refused" if str(path) in str(error) else f"refused with {error}"
    found = ""
    with store:
        number = store.state
        if number == b"1":
            # A folder without the newest snapshot is the folder from before.
            assert is_lost or [warning.category for warning in seen] == [SnapshotWarning]
            found = "older"
        assert store.blocks == list(range(BLOCKS))
        damaged = 0
        named: list[bool] = []
        for block in store.blocks:
            rows = slice(block * BLOCK_ROWS, (block + 1) * BLOCK_ROWS)
            try:
                values = store.read([block])
            except (StoreCorruptError, OSError) as error:
                named.append(f"block {block} of step {number.decode()}" in str(error))
                named.append("/seg-" in str(error))
                damaged += 1
                continue
            for name, array in values.items():
                assert array.tobytes() == states[number][name][rows].tobytes()
        assert all(named)
        assert len(store.verify().problems) == damaged
        if writable:
            store.write(range(BLOCKS), rows_of(3))
            store.snapshot(b"3")
    if writable:
        with BlockStore.open(path, threads=1) as store:
            assert store.state == b"3"
            expected = rows_of(3)
            for name, array in store.read(range(BLOCKS)).items():
                assert array.tobytes() == expected[name].tobytes()
    return "damaged" if damaged else found or ("warned" if seen else "harmless")


def damage(folder: Path, n: int, seed: int) -> dict[str, int]:
    states = make(folder / "whole")
    make(folder / "other")
    choice = random.Random(seed)
    counts: dict[str, int] = {}
    for i in range(n):
        path = folder / "changed"
        shutil.copytree(folder / "whole", path)
        what = change(path, folder / "other", choice)
        try:
            result = look(path, states, writable=i % 5 == 0, is_lost=what.startswith("lose"))
        except Exception as error:
            raise AssertionError(f"{what} (number {i} of seed {seed})") from error
        counts[result] = counts.get(result, 0) + 1
        shutil.rmtree(path)
    return counts


def test_changes_are_found_or_harmless(tmp_path: Path) -> None:
    counts = damage(tmp_path, 80, 1)
    assert set(counts) >= {"refused", "damaged", "older", "harmless"}
    assert set(counts) <= {"refused", "damaged", "older", "harmless", "warned"}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_10000_changes_are_found_or_harmless(tmp_path: Path, seed: int) -> None:
    counts = damage(tmp_path, 500, 100 + seed)
    assert set(counts) <= {"refused", "damaged", "older", "harmless", "warned"}
