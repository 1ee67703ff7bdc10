# SPDX-License-Identifier: Apache-2.0
"""The file of raw pixels: fixed places, memory that serves again, disks that fail."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_captures import LENS, PINHOLE, TALL, damage_the_middle, write_capture

from gs_train.data import Capture, KeptPhotographs, PhotoReader, load_capture, read_image
from gs_train.data.pixel_file import PAGE, PixelFile, file_bytes
from gs_train.sizing.photographs import training_sizes

# One page exactly, one pixel more than a page, less than a page, several pages.
SIZES = {3: (64, 64), 0: (1, 1366), 7: (5, 7), 1: (90, 120), 4: (64, 64)}


def photograph(index: int, size: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(index).integers(0, 256, (*size, 3), dtype=np.uint8)


PHOTOGRAPHS = {index: photograph(index, size) for index, size in SIZES.items()}


@pytest.fixture(params=["direct where the disk can", "through the page cache"])
def scratch(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    if request.param == "through the page cache":
        monkeypatch.delattr(os, "O_DIRECT", raising=False)
    return tmp_path


@pytest.fixture
def file(scratch: Path) -> Iterator[PixelFile]:
    with PixelFile(scratch, SIZES) as file:
        yield file


def test_each_photograph_comes_back_whatever_is_written_beside_it(file: PixelFile) -> None:
    for index in (7, 1, 0, 4, 3):
        assert not file.holds(index)
        file.write(index, PHOTOGRAPHS[index])
        assert file.holds(index)
    for index in (*SIZES, *SIZES):
        np.testing.assert_array_equal(file.read(index), PHOTOGRAPHS[index])


def test_read_only_and_strided_photographs_are_written(file: PixelFile) -> None:
    pixels = PHOTOGRAPHS[3].transpose(1, 0, 2)
    pixels.setflags(write=False)
    file.write(3, pixels)
    np.testing.assert_array_equal(file.read(3), pixels)


def test_it_has_no_name_and_takes_the_bytes_that_were_foretold(scratch: Path) -> None:
    with PixelFile(scratch, SIZES) as file:
        for index, pixels in PHOTOGRAPHS.items():
            file.write(index, pixels)
        assert not list(scratch.iterdir())
        found = [os.stat(f"/proc/self/fd/{name}").st_size for name in _open_for(scratch)]
        assert found == [file_bytes(SIZES.values())]
    assert _open_for(scratch) == []
    file.close()  # again
    assert file_bytes([(64, 64), (1, 1366), (5, 7)]) == 3 * PAGE + 2 * PAGE + PAGE


def _open_for(folder: Path) -> list[str]:
    """Descriptors of this process that lead to a file without a name in the folder."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            where = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # of the listing itself
            continue
        if where.startswith(f"{folder}/") and where.endswith(" (deleted)"):
            found.append(name)
    return found


def test_two_files_in_one_folder_do_not_meet(scratch: Path) -> None:
    with PixelFile(scratch, {0: (8, 8)}) as one, PixelFile(scratch, {0: (8, 8)}) as other:
        one.write(0, photograph(1, (8, 8)))
        assert not other.holds(0)
        other.write(0, photograph(2, (8, 8)))
        np.testing.assert_array_equal(one.read(0), photograph(1, (8, 8)))
        np.testing.assert_array_equal(other.read(0), photograph(2, (8, 8)))


def test_many_threads_write_and_read_at_once(file: PixelFile) -> None:
    together = threading.Barrier(4)

    def work(_: int) -> list[np.ndarray]:
        together.wait()
        for index, pixels in PHOTOGRAPHS.items():
            file.write(index, pixels)
        return [file.read(index).copy() for index in SIZES]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(work, range(4)):
            for pixels, expected in zip(found, PHOTOGRAPHS.values()):
                np.testing.assert_array_equal(pixels, expected)


def test_memory_serves_again_once_nobody_has_a_view_of_it(file: PixelFile) -> None:
    for index in (3, 4):
        file.write(index, PHOTOGRAPHS[index])
    row = file.read(3)[5]  # keeps the memory of all
    address = row.ctypes.data - 5 * row.nbytes
    later = [file.read(4) for _ in range(20)]
    assert address not in [pixels.ctypes.data for pixels in later]
    np.testing.assert_array_equal(row, PHOTOGRAPHS[3][5])
    later.clear()
    del row
    assert file.read(4).ctypes.data == address


@pytest.mark.parametrize("wrong", [np.zeros((64, 63, 3), np.uint8), np.zeros((64, 64, 3))])
def test_pixels_of_another_kind_are_refused(file: PixelFile, wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"pixels must be uint8 of shape \(64, 64, 3\), got"):
        file.write(3, wrong)
    assert not file.holds(3)


def test_a_system_that_moves_a_page_at_a_time_gives_the_same(
    file: PixelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("preadv", "pwritev"):
        monkeypatch.setattr(os, name, _a_page_at_most(getattr(os, name)))
    for index, pixels in PHOTOGRAPHS.items():
        file.write(index, pixels)
        np.testing.assert_array_equal(file.read(index), pixels)


def _a_page_at_most(call: Callable[..., int]) -> Callable[..., int]:
    def moved(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        return call(descriptor, [buffers[0][:PAGE]], offset)

    return moved


def test_a_folder_that_takes_no_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        PixelFile(tmp_path / "none", SIZES)


# ------------------------------------------------------------------------ of a run's photographs


class Disk:
    """Calls of the system that work until told otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_writes = self.n_reads = 0
        self.on_write: Callable[[int], int | None] = lambda n: None
        self.on_read: Callable[[int], int | None] = lambda n: None
        write, read = os.pwritev, os.preadv

        def pwritev(*arguments: Any) -> int:
            self.n_writes += 1
            instead = self.on_write(self.n_writes)
            return write(*arguments) if instead is None else instead

        def preadv(*arguments: Any) -> int:
            self.n_reads += 1
            instead = self.on_read(self.n_reads)
            return read(*arguments) if instead is None else instead

        monkeypatch.setattr(os, "pwritev", pwritev)
        monkeypatch.setattr(os, "preadv", preadv)


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    """Of views 0 to 5, of which 0 is held out and 2 and 5 are broken; 3 is larger than 2."""
    cameras = (PINHOLE, PINHOLE, TALL, PINHOLE, LENS, TALL)
    names = [f"{index:02}.png" for index in range(6)]
    data = write_capture(tmp_path / "data", list(zip(names, cameras)))
    for index in (2, 5):
        damage_the_middle(data / "images" / names[index])
    return load_capture(data, cache_dir=tmp_path / "cache", skip_broken=True)


def expected(capture: Capture, index: int) -> np.ndarray:
    return read_image(capture.views[{2: 3, 5: 1}.get(index, index)])


def kept(
    capture: Capture, scratch: Path, *, skip_broken: bool = True
) -> tuple[KeptPhotographs, PixelFile]:
    file = PixelFile(scratch, training_sizes(capture))
    return KeptPhotographs(PhotoReader(capture, skip_broken=skip_broken), file), file


def test_a_photograph_is_decoded_once_and_stand_ins_with_their_own_size(
    capture: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    photographs, file = kept(capture, tmp_path)
    right = {index: expected(capture, index) for index in range(1, 6)}
    with file:
        for index in (2, 1, 3, 5, 4):
            np.testing.assert_array_equal(photographs.load(index), right[index])
        for path in (tmp_path / "data/images").iterdir():
            path.unlink()
        for _ in range(2):
            for index in range(1, 6):
                np.testing.assert_array_equal(photographs.load(index), right[index])
                assert photographs.shown(index) == {2: 3, 5: 1}.get(index, index)
        assert disk.n_reads == 11  # view 3 came from the file in the first round, too
    assert len([line for line in photographs.news() if "--skip-broken" in line]) == 2


def test_a_disk_that_fills_up_keeps_what_it_has_and_decodes_the_rest(
    capture: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    photographs, file = kept(capture, tmp_path)
    before = disk.n_writes

    def full(n: int) -> int | None:
        if n == before + 2:
            return PAGE  # and no more of it
        if n > before + 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return None

    disk.on_write = full
    with file:
        for _ in range(3):
            for index in (1, 3, 4):
                np.testing.assert_array_equal(photographs.load(index), expected(capture, index))
        assert [file.holds(index) for index in (1, 3, 4)] == [True, False, False]
        assert (disk.n_writes, disk.n_reads) == (before + 3, 2)
        (line,) = photographs.news()
    assert line == (
        "the file of decoded photographs cannot be written (No space left on device): photographs "
        "that it does not hold are decoded each time; --scratch names another folder"
    )


@pytest.mark.parametrize("fault", ["an error", "the end of the file"])
def test_a_disk_that_cannot_be_read_decodes_again(
    fault: str, capture: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    photographs, file = kept(capture, tmp_path)

    def fails(n: int) -> int | None:
        if n != 2:
            return None
        if fault == "an error":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return 0

    disk.on_read = fails
    with file:
        for _ in range(4):
            for index in (1, 3, 4):
                np.testing.assert_array_equal(photographs.load(index), expected(capture, index))
        assert disk.n_reads == 2
        (line,) = photographs.news()
    reason = "Input/output error" if fault == "an error" else "the file ends within a photograph"
    assert line == (
        f"the file of decoded photographs cannot be read ({reason}): photographs are decoded each "
        "time; --scratch names another folder"
    )


def test_a_broken_photograph_stays_an_error_of_the_reader(tmp_path: Path) -> None:
    data = write_capture(tmp_path / "data", [("0.png", PINHOLE), ("1.png", PINHOLE)])
    damage_the_middle(data / "images/1.png")
    whole = load_capture(data, cache_dir=tmp_path / "cache")
    photographs, file = kept(whole, tmp_path, skip_broken=False)
    with file, pytest.raises(Exception, match=r"1.png must be .*; --skip-broken goes on without"):
        photographs.load(1)
