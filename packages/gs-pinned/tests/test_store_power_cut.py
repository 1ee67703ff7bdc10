# SPDX-License-Identifier: Apache-2.0
"""What a power cut may leave of a store opens at a snapshot, whole.

All calls of the system that a run makes are recorded. An image is what a drive may hold at some
point of the record: everything that was synced, and of the rest any part, by sectors of 512 bytes,
in any order; names of files likewise. In some runs the process dies meanwhile, and another goes on
with what it sees, of which a part is on no drive yet.
"""

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gs_pinned import BlockStore, Plane, StoreCorruptError

from .repeated_columns import repeated

SECTOR = 512
PLANES = [Plane("head", 2, is_head=True), Plane("tail", 40)]
BLOCK_ROWS = 32
BLOCKS = 12

Event = tuple[str, str, str, int, "bytes | int"]
Rows = dict[str, np.ndarray[Any, Any]]


@dataclass
class Cut:
    """A snapshot of a run: the events before its begin and its end. Without an end the process died
    in between, and the snapshot may be there or not."""

    begin: int
    end: int | None = None

    def ended_by(self, event: int) -> bool:
        return self.end is not None and self.end <= event


@dataclass
class Recorded:
    """A run: its calls, and which calls of the store ended before which event."""

    events: list[Event] = field(default_factory=list)
    created: int = 0
    cuts: list[Cut] = field(default_factory=list)  # the first has state 1
    contents: list[dict[int, bytes]] = field(default_factory=lambda: [{}])  # by state and block
    calls_left: int | None = None  # then the process is dead: none of its calls is made

    def hear(self, name: str, path: str, source: str, offset: int, data: bytes | int) -> int:
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                return -errno.EIO
        self.events.append((name, Path(path).name, Path(source).name, offset, data))
        return 0


def rows_of(seed: int, n: int) -> Rows:
    """Columns of odd seeds repeat themselves, so that records have two sizes."""
    values = np.random.default_rng(seed).standard_normal((n, 42), dtype="f4")
    head, tail = values[:, :2].copy(), values[:, 2:].copy()
    return {"head": head, "tail": repeated(tail, seed) if seed % 2 else tail}


def content_of(store: BlockStore) -> dict[int, bytes]:
    return {
        block: b"".join(array.tobytes() for array in store.read([block]).values())
        for block in store.blocks
    }


def record(path: Path, seed: int, snapshots: int, *, dies: bool = False) -> Recorded:
    """Write random blocks with a snapshot now and then, and record all calls. Where the process
    `dies` now and then, another goes on."""
    choice = random.Random(seed)
    run = Recorded()
    # Few pages a segment, so that files are made within the run.
    store = BlockStore.create(
        path, PLANES, block_rows=BLOCK_ROWS, segment_bytes=40 * 4096, on_call=run.hear
    )
    run.created = len(run.events)
    for number in range(snapshots):
        has_died = False
        try:
            # Few calls of a run's writes make files; a snapshot makes about ten.
            run.calls_left = choice.randint(1, 40) if dies and choice.random() < 0.3 else None
            for step in range(choice.randint(1, 3)):
                blocks = choice.sample(range(BLOCKS), choice.randint(1, BLOCKS))
                counts = [choice.choice([1, BLOCK_ROWS]) for _ in blocks]
                store.write(blocks, rows_of(100 * number + step + seed, sum(counts)), counts)
            run.calls_left = None
            run.contents.append(content_of(store))
            run.cuts.append(Cut(len(run.events)))
            run.calls_left = choice.randint(1, 12) if dies and choice.random() < 0.7 else None
            store.snapshot(str(len(run.cuts)).encode(), keep=choice.randint(1, 2))
            run.cuts[-1].end = len(run.events)
        except OSError:
            has_died = True
        run.calls_left = None
        if has_died:
            store.close()
            store = BlockStore.open(path, on_call=run.hear)
            assert content_of(store) == run.contents[int(store.state or b"0")]
    store.close()
    return run


class Disk:
    """Files as a drive holds them while calls are made: what is safe, and what is not yet."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}  # as the process sees them
        self.safe_names: dict[str, int] = {}
        self.name_changes: list[tuple[str, str, int]] = []
        self.safe: list[bytearray] = []
        self.changes: list[list[tuple[int, bytes | int]]] = []

    def make(self, event: Event) -> None:
        name, path, source, offset, data = event
        if name == "create":
            if path in self.names:  # emptied in place
                self.safe[self.names[path]] = bytearray()
                self.changes[self.names[path]].clear()
                return
            self.safe.append(bytearray())
            self.changes.append([])
            self.names[path] = len(self.safe) - 1
            self.name_changes.append(("add", path, self.names[path]))
        elif name in {"write", "allocate"}:
            self.changes[self.names[path]].append((offset, data))
        elif name == "sync":
            file = self.names[path]
            for change in self.changes[file]:
                apply(self.safe[file], *change)
            self.changes[file].clear()
        elif name == "rename":
            self.names[path] = self.names.pop(source)
            self.name_changes += [("add", path, self.names[path]), ("remove", source, -1)]
        elif name == "remove":
            del self.names[path]
            self.name_changes.append(("remove", path, -1))
        elif name == "sync_folder":
            self.safe_names = dict(self.names)
            self.name_changes.clear()

    def image(self, choice: random.Random) -> dict[str, bytes]:
        """Files after a power cut now."""
        names = dict(self.safe_names)
        likely = choice.choice([0.0, 0.5, 1.0])
        for kind, name, file in self.name_changes:
            if choice.random() >= likely:
                continue
            if kind == "add":
                names[name] = file
            else:
                names.pop(name, None)
        return {name: self._file(file, choice) for name, file in names.items()}

    def _file(self, number: int, choice: random.Random) -> bytes:
        content = bytearray(self.safe[number])
        likely = choice.choice([0.0, 0.2, 0.8, 1.0])
        for offset, data in choice.sample(self.changes[number], len(self.changes[number])):
            if isinstance(data, int):
                if choice.random() < likely:
                    apply(content, offset, data)
                continue
            for first in range(0, len(data), SECTOR):
                if choice.random() < likely:
                    apply(content, offset + first, data[first : first + SECTOR])
        return bytes(content)


def apply(content: bytearray, offset: int, data: bytes | int) -> None:
    end = offset + (data if isinstance(data, int) else len(data))
    content.extend(bytes(max(0, end - len(content))))
    if isinstance(data, bytes):
        content[offset:end] = data


def check_image(path: Path, run: Recorded, at: int, *, goes_on: bool) -> None:
    """The image opens at the last snapshot that was made before event `at`, or at one that was
    begun since."""
    done = max((i for i, cut in enumerate(run.cuts, 1) if cut.ended_by(at)), default=0)
    allowed = {done, *(i for i, cut in enumerate(run.cuts, 1) if i > done and cut.begin <= at)}
    try:
        store = BlockStore.open(path, threads=2)
    except FileNotFoundError:
        assert at < run.created, "the store is gone"
        return
    with store:
        number = int(store.state or b"0")
        assert number in allowed
        assert content_of(store) == run.contents[number]
        assert store.verify().is_intact
        if not goes_on:
            return
        # What is left is no obstacle, and what an older snapshot needs is not overwritten.
        older = store.snapshots[:-1]
        for seed in range(3):
            store.write(range(BLOCKS), rows_of(seed, BLOCKS * BLOCK_ROWS))
        for other in older:
            with BlockStore.open(path, snapshot=other, read_only=True, threads=1) as reader:
                assert content_of(reader) == run.contents[int(reader.state or b"0")]
        content = content_of(store)
        store.snapshot(b"99")
    with BlockStore.open(path, threads=2) as again:
        assert again.state == b"99"
        assert content_of(again) == content


def images(
    run: Recorded, n: int, seed: int, folder: Path, check: Callable[[Path, int, int], None]
) -> None:
    choice = random.Random(seed)
    cuts = sorted(choice.randint(0, len(run.events)) for _ in range(n))
    disk = Disk()
    made = 0
    for i, at in enumerate(cuts):
        for event in run.events[made:at]:
            disk.make(event)
        made = at
        path = folder / f"image-{seed}-{i}"
        path.mkdir()
        for name, content in disk.image(choice).items():
            (path / name).write_bytes(content)
        check(path, at, i)
        for file in path.iterdir():
            file.unlink()


def replay(folder: Path, seed: int, n: int, *, dies: bool) -> None:
    run = record(folder / f"run-{seed}", seed, snapshots=8, dies=dies)
    images(
        run,
        n,
        seed,
        folder,
        lambda path, at, i: check_image(path, run, at, goes_on=i % 4 == 0),
    )


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_leaves_a_snapshot(tmp_path: Path, seed: int, dies: bool) -> None:
    replay(tmp_path, seed, 25, dies=dies)


@pytest.mark.parametrize("calls", range(1, 9))
def test_what_a_dead_writer_removed_does_not_come_back_damaged(tmp_path: Path, calls: int) -> None:
    run = Recorded()
    path = tmp_path / "store"
    with BlockStore.create(path, PLANES, block_rows=BLOCK_ROWS, on_call=run.hear) as store:
        run.created = len(run.events)
        for seed in (1, 2):
            store.write(range(BLOCKS), rows_of(seed, BLOCKS * BLOCK_ROWS))
            run.contents.append(content_of(store))
            run.cuts.append(Cut(len(run.events)))
            run.calls_left = calls if seed == 2 else None
            with suppress(OSError):  # the second snapshot makes eight calls
                store.snapshot(str(seed).encode())
                run.cuts[-1].end = len(run.events)
    run.calls_left = None
    with BlockStore.open(path, on_call=run.hear) as store:
        for seed in (3, 4):
            store.write(range(BLOCKS), rows_of(seed, BLOCKS * BLOCK_ROWS))
    disk = Disk()
    for event in run.events:
        disk.make(event)
    choice = random.Random(calls)
    for i in range(6):
        image = tmp_path / f"image-{i}"
        image.mkdir()
        for name, content in disk.image(choice).items():
            (image / name).write_bytes(content)
        check_image(image, run, len(run.events), goes_on=True)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 140))
def test_2000_power_cuts_leave_a_snapshot(tmp_path: Path, seed: int) -> None:
    replay(tmp_path, seed, 50, dies=seed % 2 == 0)


@pytest.mark.parametrize("forgotten", ["sync", "sync_folder"])
def test_images_tell_when_a_sync_is_forgotten(tmp_path: Path, forgotten: str) -> None:
    """The images are hard enough: a store that left out one kind of sync would not pass."""
    run = record(tmp_path / "run", 1, snapshots=8)
    kept = [event[0] != forgotten for event in run.events]
    place = [sum(kept[:i]) for i in range(len(kept) + 1)]
    without = Recorded(
        [event for event, is_kept in zip(run.events, kept, strict=True) if is_kept],
        place[run.created],
        [Cut(place[cut.begin], place[cut.end or 0]) for cut in run.cuts],
        run.contents,
    )
    failures = 0

    def check(path: Path, at: int, _: int) -> None:
        nonlocal failures
        try:
            check_image(path, without, at, goes_on=False)
        except (AssertionError, StoreCorruptError, OSError, Warning):
            failures += 1

    images(without, 40, 1, tmp_path, check)
    assert failures > 0
