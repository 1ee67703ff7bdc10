# SPDX-License-Identifier: Apache-2.0
"""Files of a capture that are no photographs, no files, too large, or may not be read."""

from __future__ import annotations

import errno
import io
import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from small_captures import PINHOLE, damage_the_middle, photograph, write_capture

from gs_train.cli import main
from gs_train.data import BrokenPhotographError, load_capture, pixels
from gs_train.data.point_ply import read_point_ply
from gs_train.errors import InputError

NAMES = [f"{i:02}.png" for i in range(6)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_capture(tmp_path / "data", [(name, PINHOLE) for name in NAMES])


def load(folder: Path, **options: object) -> object:
    return load_capture(folder, cache_dir=folder.parent / "cache", **options)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- what is no file


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(path.parent)  # a socket's path has at most 107 bytes
        listener.bind(path.name)


KINDS: dict[str, Callable[[Path], object]] = {
    "a fifo": os.mkfifo,
    "a socket": make_socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": os.mkdir,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_photograph_that_is_no_file_is_refused_before_it_is_opened(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "images/03.png").unlink()
    KINDS[kind](folder / "images/03.png")
    with pytest.raises(InputError, match=rf"got 1 broken \(first 03.png: {kind}\)"):
        load(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_test_list_or_point_cloud_that_is_no_file_is_refused(
    kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    path = tmp_path / "file"
    KINDS[kind](path)
    with pytest.raises(InputError, match=f"file must be a file, got {kind}"):
        load(folder, test_list=path)
    with pytest.raises(InputError, match=f"file must be a file, got {kind}"):
        read_point_ply(path)


def test_an_eps_file_named_jpg_starts_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (tools / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    path = folder / "images/03.png"
    path.write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 48\n%%EndComments\nshowpage\n"
    )
    with pytest.raises(InputError, match=r"03.png: no JPEG, PNG, TIFF, WEBP, BMP, PPM or JPEG2000"):
        load(folder)
    with pytest.raises(InputError, match="no JPEG, PNG"):
        pixels.decode_rgb(path)
    assert not (tmp_path / "started").exists()


# ---------------------------------------------------------------------- what may not be read


@pytest.mark.parametrize("name", ["cameras.bin", "images.bin", "points3D.bin"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_model_file_that_may_not_be_read_is_one_line(
    name: str, number: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *arguments: object, **options: object) -> io.IOBase:
        if self.name == name:
            raise OSError(number, os.strerror(number), str(self))
        return open(self, *arguments, **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=rf"{name} must be readable, got: {os.strerror(number)}"):
        load(folder)


@pytest.mark.parametrize("place", ["", "sparse", "sparse/0"])
def test_a_folder_that_may_not_be_entered_is_one_line(
    place: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    barred = folder / place
    real = Path.stat

    def refuse(self: Path, **options: bool) -> os.stat_result:
        if barred in self.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return real(self, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(InputError, match=r"data/.* must be readable, got: Permission denied"):
        load(folder)


def test_a_photograph_that_may_not_be_read_is_broken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *arguments: object, **options: object) -> io.IOBase:
        if self.name == "03.png":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return open(self, *arguments, **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=r"1 broken \(first 03.png: Permission denied\)"):
        load(folder)


# ---------------------------------------------------------------------- what is too large


def test_photographs_of_more_pixels_than_allowed_are_refused_undecoded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "images/00.png"
    path.write_bytes(path.read_bytes()[:-12])  # whose end only decoding could judge
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(
        InputError,
        match=r"at most 3,071 pixels, got 64x48 of camera 1 \(first 00.png\); .* --max-pi",
    ):
        load(folder, max_pixels=64 * 48 - 1, max_side=16)


def test_the_option_lifts_the_limit_on_pixels(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["fit", str(folder), "--out", str(tmp_path / "run"), "--renderer", "cpu"]
    assert main([*command, "--max-pixels", "3071"]) == 2
    assert "allow it with --max-pixels 3072" in capsys.readouterr().err
    load(folder, max_pixels=3072)


def test_a_photograph_exchanged_for_a_huge_one_is_not_decoded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("L", (3000, 3000)).save(folder / "images/03.png")
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(BrokenPhotographError, match="3000x3000, not 64x48 as when it was loaded"):
        pixels.decode_rgb(folder / "images/03.png", size=(64, 48))


# ---------------------------------------------------------------------- what breaks off

FORMATS: dict[str, dict[str, object]] = {
    "jpeg": {"format": "JPEG"},
    "progressive": {"format": "JPEG", "progressive": True},
    "png": {"format": "PNG"},
    "webp": {"format": "WEBP"},
    "tiff": {"format": "TIFF"},
    "lzw": {"format": "TIFF", "compression": "tiff_lzw"},
}


def as_file(path: Path, kind: str) -> bytes:
    Image.fromarray(photograph(PINHOLE, 0)).save(path, **FORMATS[kind])  # type: ignore[arg-type]
    return path.read_bytes()


@settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(kind=st.sampled_from(sorted(FORMATS)), share=st.floats(0, 1), few=st.integers(1, 40))
def test_what_cannot_be_decoded_for_its_end_is_found_by_header_and_end(
    kind: str, share: float, few: int, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    data = as_file(path, kind)
    for length in (int(share * len(data)), len(data) - few):
        path.write_bytes(data[: min(length, len(data) - 1)])
        try:
            pixels.decode_rgb(path)
        except BrokenPhotographError:
            with pytest.raises(BrokenPhotographError):
                pixels.read_header(path)
        else:
            assert pixels.read_header(path).size == (64, 48)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_whole_photograph_is_not_decoded_to_know_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = as_file(tmp_path / "a", kind)
    (tmp_path / "a").write_bytes(data + bytes(1000))
    monkeypatch.setattr(pixels, "decode_rgb", lambda path: pytest.fail("decoded"))
    assert pixels.read_header(tmp_path / "a").size == (64, 48)


def test_a_photograph_with_a_film_behind_it_is_whole(tmp_path: Path) -> None:
    data = as_file(tmp_path / "a", "jpeg")
    (tmp_path / "a").write_bytes(data + bytes(200_000))
    assert pixels.read_header(tmp_path / "a").size == (64, 48)


def test_the_end_of_a_thumbnail_is_not_the_end_of_the_photograph(tmp_path: Path) -> None:
    thumbnail = as_file(tmp_path / "t", "jpeg")
    Image.fromarray(photograph(PINHOLE, 0)).save(
        tmp_path / "a", format="JPEG", exif=b"Exif\0\0" + thumbnail
    )
    data = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(data[:-2])
    with pytest.raises(BrokenPhotographError, match="truncated"):
        pixels.read_header(tmp_path / "a")


def test_all_broken_photographs_are_counted_in_one_error_with_the_remedy(folder: Path) -> None:
    images = folder / "images"
    for name in NAMES[1:]:
        (images / name).write_bytes((images / name).read_bytes()[:-60])
    (images / NAMES[2]).write_bytes(b"")
    with pytest.raises(InputError) as caught:
        load(folder, max_side=16)
    message = str(caught.value)
    assert "got 5 broken (first 01.png: " in message
    assert message.endswith(": gs-train fit --skip-broken, with --resume where the run exists")
    assert not (folder.parent / "cache").exists()


def test_damage_within_a_photograph_is_left_to_the_decoder(folder: Path) -> None:
    damage_the_middle(folder / "images/03.png")
    assert pixels.read_header(folder / "images/03.png").size == (64, 48)
    with pytest.raises(BrokenPhotographError):
        pixels.decode_rgb(folder / "images/03.png")


def test_alpha_is_known_from_the_header(tmp_path: Path) -> None:
    for mode in ("RGBA", "LA", "RGB"):
        Image.new(mode, (4, 4)).save(tmp_path / "a.png")
        assert pixels.read_header(tmp_path / "a.png").has_alpha == (mode != "RGB")
    assert np.asarray(pixels.decode_rgb(tmp_path / "a.png")).shape == (4, 4, 3)
