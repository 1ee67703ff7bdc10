# SPDX-License-Identifier: Apache-2.0
"""Photographs that ranks of a host have together: decoded once, whoever waits, fails or ends."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_captures import LENS, PINHOLE, TALL, damage_the_middle, write_capture
from threads_as_ranks import ThreadWorld, results

from gs_train import FitConfig
from gs_train.data import (
    Capture,
    KeptPhotographs,
    PhotoReader,
    load_capture,
    pixels,
    read_image,
)
from gs_train.data.pixel_file import PixelFile, file_bytes
from gs_train.data.shared.board import Known, PixelBoard, State, board_bytes
from gs_train.data.shared.memory import PixelMemory, new_memory, path_for_others
from gs_train.data.shared.photographs import SharedPhotographs, Store
from gs_train.errors import CommonError
from gs_train.options.presets import PRESETS
from gs_train.runs import disk
from gs_train.runs.folder import RunFolder
from gs_train.runs.photographs import opened
from gs_train.sizing.photographs import training_sizes

TRAIN = (1, 2, 3, 4, 5)
CAMERAS = (PINHOLE, PINHOLE, TALL, PINHOLE, LENS, TALL)
NAMES = [f"{index:02}.png" for index in range(6)]


def load(tmp_path: Path, **options: Any) -> Capture:
    data = tmp_path / "data"
    if not data.exists():
        write_capture(data, list(zip(NAMES, CAMERAS)))
    capture = load_capture(data, cache_dir=tmp_path / "cache", **options)
    assert capture.train == TRAIN
    return capture


class Counting(PhotoReader):
    """A reader that notes what it decodes."""

    def __init__(self, capture: Capture, log: list[int], **options: Any) -> None:
        super().__init__(capture, **options)
        self._log = log
        self.before: Callable[[int], object] = lambda index: None

    def decoded(self, index: int) -> np.ndarray:
        self._log.append(index)
        self.before(index)
        return super().decoded(index)


class Bell(PixelBoard):
    """A board that rings when somebody is about to wait for a turn."""

    def __init__(self, path: str) -> None:
        self.asked = threading.Event()
        super().__init__(path)
        self.asked.clear()

    def turn(self, index: int) -> contextlib.AbstractContextManager[None]:
        self.asked.set()
        return super().turn(index)


class Host:
    """Ranks of one process, each with a view of its own of the memory and the file.

    Attributes:
        log: photographs that were decoded, by whichever rank.
    """

    def __init__(self, capture: Capture, n_in_memory: int, folder: Path, **options: Any) -> None:
        self.capture, self.log = capture, list[int]()
        self._options = options
        sizes = training_sizes(capture)
        self.in_memory = dict(list(sizes.items())[:n_in_memory])
        self.beyond = dict(list(sizes.items())[n_in_memory:])
        self._held = contextlib.ExitStack()
        self.board_path = self._memory(board_bytes(len(capture.views)))
        self._pixels = self._memory(max(1, file_bytes(self.in_memory.values())))
        file = self._held.enter_context((folder / "pixels").open("w+b"))
        self._file = path_for_others(file.fileno())

    def rank(self) -> tuple[SharedPhotographs, Counting, Bell]:
        reader = Counting(self.capture, self.log, **self._options)
        stores: dict[int, Store] = {}
        if self.in_memory:
            stores.update(dict.fromkeys(self.in_memory, PixelMemory(self._pixels, self.in_memory)))
        if self.beyond:
            file = self._held.enter_context(PixelFile.shared(self._file, self.beyond))
            stores.update(dict.fromkeys(self.beyond, file))
        board = Bell(self.board_path)
        photographs = SharedPhotographs(reader, board, stores)
        return self._held.enter_context(photographs), reader, board

    def close(self) -> None:
        self._held.close()

    def _memory(self, n_bytes: int) -> str:
        descriptor = new_memory(n_bytes)
        self._held.callback(os.close, descriptor)
        return path_for_others(descriptor)


@contextlib.contextmanager
def hosted(
    capture: Capture, folder: Path, n_in_memory: int = len(TRAIN), **options: Any
) -> Iterator[Host]:
    host = Host(capture, n_in_memory, folder, **options)
    with contextlib.closing(host):
        yield host


def assert_right(photographs: SharedPhotographs, capture: Capture, index: int) -> None:
    np.testing.assert_array_equal(photographs.load(index), read_image(capture.views[index]))


@pytest.mark.parametrize("n_in_memory", [5, 2, 0])
def test_each_photograph_is_decoded_once_for_all(n_in_memory: int, tmp_path: Path) -> None:
    capture = load(tmp_path)
    with hosted(capture, tmp_path, n_in_memory) as host:
        ranks = [host.rank() for _ in range(3)]
        for photographs, _, _ in ranks:
            for index in (3, 1, 5, 3, 2, 4):
                assert_right(photographs, capture, index)
            assert photographs.news() == []
        assert sorted(host.log) == list(TRAIN)
        for _, reader, _ in ranks[1:]:  # who has decoded nothing knows the same of the data
            assert reader.fingerprint() == ranks[0][1].fingerprint()
        assert all(ranks[0][1].crc(index) is not None for index in TRAIN)


def test_memory_is_that_of_all_ranks(tmp_path: Path) -> None:
    with hosted(load(tmp_path), tmp_path) as host:
        (one, _, _), (other, _, _) = (host.rank() for _ in range(2))
        pixels, same = one.load(3), other.load(3)
        pixels[5, 6, 1] ^= 255
        assert same[5, 6, 1] == pixels[5, 6, 1]


def test_who_needs_a_photograph_that_is_being_decoded_waits_for_it(tmp_path: Path) -> None:
    capture = load(tmp_path)
    with hosted(capture, tmp_path) as host, ThreadPoolExecutor(2) as pool:
        (one, decoder, _), (other, _, bell) = (host.rank() for _ in range(2))
        begun = threading.Event()

        def hold(index: int) -> None:
            begun.set()
            assert bell.asked.wait(60)

        decoder.before = hold
        first = pool.submit(one.load, 3)
        assert begun.wait(60)
        second = pool.submit(other.load, 3)
        np.testing.assert_array_equal(first.result(), second.result())
        assert host.log == [3]


def test_who_waits_for_a_process_that_is_killed_decodes(tmp_path: Path) -> None:
    capture = load(tmp_path)
    takes_the_turn = (
        "import sys, time; from gs_train.data.shared.board import PixelBoard\n"
        "with PixelBoard(sys.argv[1]).turn(3): print('mine', flush=True); sys.stdin.read()"
    )
    with hosted(capture, tmp_path) as host, ThreadPoolExecutor(1) as pool:
        photographs, _, bell = host.rank()
        command = [sys.executable, "-c", takes_the_turn, host.board_path]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
            assert process.stdout.readline() == b"mine\n"
            waiting = pool.submit(photographs.load, 3)
            assert bell.asked.wait(60)
            assert host.log == []
            process.kill()
        np.testing.assert_array_equal(waiting.result(), read_image(capture.views[3]))
        assert host.log == [3]


def test_all_ranks_meet_the_error_of_the_decoder(tmp_path: Path) -> None:
    capture = load(tmp_path)
    path = tmp_path / "data/images" / NAMES[3]
    damage_the_middle(path)
    said = []
    with hosted(capture, tmp_path) as host:
        for photographs, _, _ in [host.rank() for _ in range(2)]:
            for _ in range(2):
                with pytest.raises(CommonError) as raised:
                    photographs.load(3)
                said.append(str(raised.value))
        assert host.log == [3]
    assert len(set(said)) == 1
    assert said[0].startswith(f"{path} must be a readable image, got: ")
    assert said[0].endswith("; --skip-broken goes on without it")


def test_an_error_of_the_system_is_the_same_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = load(tmp_path)

    def fails(path: Path) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(pixels, "open_file", fails)
    with hosted(capture, tmp_path, skip_broken=True) as host:
        for photographs, _, _ in [host.rank() for _ in range(2)]:
            with pytest.raises(CommonError, match="Input/output error; go on with --resume when"):
                photographs.load(3)
        assert host.log == [3]


def test_the_same_view_stands_in_on_all_ranks(tmp_path: Path) -> None:
    capture = load(tmp_path)
    damage_the_middle(tmp_path / "data/images" / NAMES[3])
    with hosted(capture, tmp_path, 2, skip_broken=True) as host:
        for photographs, reader, _ in [host.rank() for _ in range(2)]:
            right = read_image(capture.views[4])
            np.testing.assert_array_equal(photographs.load(3), right)
            assert photographs.shown(3) == 4
            (line,) = photographs.news()
            assert line.startswith("--skip-broken: ")
            assert reader.fingerprint()["skipped"] == [3]
        assert host.log == [3, 4]


def test_a_full_disk_is_told_by_all_and_each_decodes_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = load(tmp_path)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", full)
    with hosted(capture, tmp_path, 3) as host:
        for photographs, reader, _ in [host.rank() for _ in range(2)]:
            for index in (*TRAIN, *TRAIN):
                assert_right(photographs, capture, index)
            (line,) = photographs.news()
            assert "cannot be written (No space left on device)" in line
            assert None not in [reader.crc(index) for index in TRAIN]
        assert sorted(host.log) == [1, 2, 3, 4, 4, 4, 4, 5, 5, 5, 5]


def test_photographs_are_decoded_ahead_and_not_again(tmp_path: Path) -> None:
    capture = load(tmp_path)
    damage_the_middle(tmp_path / "data/images" / NAMES[5])
    with hosted(capture, tmp_path, 2) as host:
        (ahead, reader, _), (photographs, _, _) = (host.rank() for _ in range(2))
        begun = threading.Semaphore(0)
        reader.before = lambda _: begun.release()
        ahead.decode_ahead([5, 4, 3, 2, 1], n_threads=2)
        for _ in TRAIN:
            assert begun.acquire(timeout=60)
        for index in TRAIN[:-1]:
            assert_right(photographs, capture, index)
        with pytest.raises(CommonError):
            photographs.load(5)
        assert sorted(host.log) == list(TRAIN)


def test_a_long_reason_is_cut_and_none_is_lost(tmp_path: Path) -> None:
    descriptor = new_memory(board_bytes(3))
    board = PixelBoard(path_for_others(descriptor))
    os.close(descriptor)
    board.note(1, Known(State.BROKEN, 0, "ä" * 600, errno.EIO))
    board.note(2, Known(State.HELD, 2**32 - 1))
    assert board.known(0) == Known(State.NEW)
    state, crc, reason, number = board.known(1)
    assert (state, crc, number) == (State.BROKEN, 0, errno.EIO)
    assert reason == "ä" * 496
    assert board.known(2) == Known(State.HELD, 2**32 - 1)
    board.close()


# ------------------------------------------------------------------------- opened by all ranks


@contextlib.contextmanager
def run_of(
    world: ThreadWorld,
    capture: Capture,
    out: Path,
    log: list[int],
    image_cache: int,
    before: Callable[[int], object] = lambda index: None,
) -> Iterator[Any]:
    config = FitConfig(Path("data"), out, image_cache=str(image_cache), batch_size=2, steps=20)
    model = SimpleNamespace(sh_degree=3, n_rows=10, expected=10)
    trainer: Any = SimpleNamespace(
        config=config, step=0, model=model, n_rows=10, n_ranks=2, preset=PRESETS["none"]
    )
    reader = Counting(capture, log)
    reader.before = before
    order = [3, 1, 5, 4, 2, *TRAIN]
    with opened(trainer, capture, RunFolder(out), reader, order, world) as photographs:  # type: ignore[arg-type]
        yield photographs
        world.barrier()


@pytest.mark.parametrize("image_cache", [10**6, 30_000, 1])
def test_ranks_of_a_host_open_their_photographs_together(
    image_cache: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture, log, out = load(tmp_path), list[int](), tmp_path / "out"
    out.mkdir()

    def run(world: ThreadWorld) -> int:
        with run_of(world, capture, out, log, image_cache) as (photographs, cache_bytes):
            assert isinstance(photographs, SharedPhotographs)
            for index in (3, 1, 5, 4, 2, *TRAIN):
                assert_right(photographs, capture, index)
            assert not list(out.iterdir())
            return cache_bytes

    cache_bytes = results(2, run)
    assert sorted(log) == list(TRAIN)
    assert cache_bytes == [{10**6: 10**6, 30_000: 3_750, 1: 1}[image_cache]] * 2
    said = capsys.readouterr().err
    assert said.count("is decoded once, into a file of") == (0 if image_cache == 10**6 else 2)


def test_each_rank_decodes_its_part_before_anybody_asks(tmp_path: Path) -> None:
    capture, out = load(tmp_path), tmp_path / "out"
    out.mkdir()

    def run(world: ThreadWorld) -> list[int]:
        log: list[int] = []
        n_own, begun = len(TRAIN[world.rank :: 2]), threading.Semaphore(0)
        with run_of(world, capture, out, log, 10**6, lambda _: begun.release()):
            for _ in range(n_own):
                assert begun.acquire(timeout=60)
        return sorted(log)

    assert results(2, run) == [[1, 3, 5], [2, 4]]


@pytest.mark.parametrize("failing", ["memfd_create", "open"])
def test_ranks_that_cannot_share_decode_for_themselves(
    failing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capture, log, out = load(tmp_path), list[int](), tmp_path / "out"
    out.mkdir()
    real = os.open

    def refused(*_: Any, **__: Any) -> int:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    def refused_to_one(path: Any, *arguments: Any, **options: Any) -> int:
        if "/fd/" in str(path) and threading.current_thread().name.endswith("_1"):
            return refused()
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, failing, refused if failing == "memfd_create" else refused_to_one)

    def run(world: ThreadWorld) -> int:
        with run_of(world, capture, out, log, 10**6) as (photographs, cache_bytes):
            assert isinstance(photographs, KeptPhotographs)
            for index in TRAIN:
                np.testing.assert_array_equal(
                    photographs.load(index), read_image(capture.views[index])
                )
            return cache_bytes

    assert results(2, run) == [500_000] * 2
    assert sorted(log) == sorted([*TRAIN, *TRAIN])
    assert "each rank decodes all photographs for itself (rank " in capsys.readouterr().err


def test_a_disk_without_room_leaves_memory_to_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capture, log, out = load(tmp_path), list[int](), tmp_path / "out"
    out.mkdir()
    usage = disk.shutil._ntuple_diskusage(10, 10, 0)  # type: ignore[attr-defined]
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: usage)  # type: ignore[attr-defined]

    def run(world: ThreadWorld) -> None:
        with run_of(world, capture, out, log, 30_000) as (photographs, _):
            for index in TRAIN:
                assert_right(photographs, capture, index)

    results(2, run)
    assert sorted(log) == [1, 2, 3, 3, 4, 4, 5, 5]
    assert "so that photographs are decoded again and again" in capsys.readouterr().err
