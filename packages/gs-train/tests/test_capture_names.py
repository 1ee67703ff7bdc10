# SPDX-License-Identifier: Apache-2.0
"""Names in a capture are any bytes: they work, or end in one line that a terminal only shows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from small_captures import LENS, PINHOLE, write_capture

from gs_train.cli import main
from gs_train.data import load_capture, read_image
from gs_train.data.point_ply import read_point_ply
from gs_train.errors import InputError
from gs_train.names import encoded, printable

LATIN = os.fsdecode(b"caf\xe9.png")
POINTS = np.random.default_rng(0).normal([0, 0, 4], 1, (60, 3))


@settings(deadline=None)
@given(st.binary(max_size=30))
def test_any_bytes_are_one_printable_line_and_come_back(name: bytes) -> None:
    text = os.fsdecode(name)
    assert encoded(text) == name
    assert printable(text).isprintable()
    printable(text).encode()  # into UTF-8, as files of results are


def test_text_that_a_terminal_shows_as_it_is_stays() -> None:
    assert printable("größe 写真 №7.jpg") == "größe 写真 №7.jpg"
    assert printable("a\nb\x1b[31m\x85\u202ec.jpg") == "a\\nb\\x1b[31m\\x85\\u202ec.jpg"


def test_errors_are_one_line_whatever_they_quote() -> None:
    assert str(InputError("a\nb.jpg must be \x1b[31mred")) == "a\\nb.jpg must be \\x1b[31mred"


def test_a_run_copes_with_names_that_are_not_utf8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = [(LATIN, PINHOLE), (f"d{LATIN}", PINHOLE), ("b.png", PINHOLE)]
    folder = write_capture(tmp_path / "data", images, points=POINTS)
    out = tmp_path / "run"
    command = ["fit", str(folder), "--out", str(out), "--renderer", "cpu", "--steps", "2"]
    assert main([*command, "--test-every", "2", "--checkpoint-every", "1", "--max-side", "40"]) == 0
    metrics = json.loads((out / "metrics.json").read_bytes().decode())
    assert [image["name"] for image in metrics["images"]] == ["b.png", "dcaf\\xe9.png"]
    with Image.open(out / "comparison.png") as picture:
        picture.load()
    assert main(["fit", "--out", str(out), str(folder), "--resume", "--steps", "3"]) == 0
    assert main(["export", str(out)]) == 0
    capsys.readouterr().err.encode()


def test_a_test_list_names_files_by_their_bytes(tmp_path: Path) -> None:
    folder = write_capture(
        tmp_path / "data", [(LATIN, PINHOLE), ("a\x85.png", PINHOLE), ("b.png", PINHOLE)]
    )
    names = tmp_path / "test.txt"
    names.write_bytes("a\x85.png\n".encode() + b"caf\xe9.png\n")
    capture = load_capture(folder, cache_dir=tmp_path / "cache", test_list=names)
    assert [capture.views[index].name for index in capture.test] == ["a\x85.png", LATIN]


@pytest.mark.parametrize("name", ["a\nb.png", "\x1b[31mred.png"])
def test_control_characters_of_a_missing_photograph_stay_off_the_terminal(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_capture(tmp_path / "data", [(name, PINHOLE), ("b.png", PINHOLE)])
    (folder / "images" / name).unlink()
    assert main(["fit", str(folder), "--out", str(tmp_path / "run"), "--renderer", "cpu"]) == 2
    line = capsys.readouterr().err
    assert line.endswith("\n")
    assert line[:-1].isprintable()


@pytest.mark.parametrize("letter", ["x", "é", os.fsdecode(b"\xe9")])
def test_the_longest_names_have_room_in_the_cache(letter: str, tmp_path: Path) -> None:
    length = 251 // len(encoded(letter))
    names = [letter * length + ".png", letter * (length - 1) + ".png", "short.png"]
    folder = write_capture(tmp_path / "data", [(name, LENS) for name in names])
    capture = load_capture(folder, cache_dir=tmp_path / "cache")
    assert len({view.path for view in capture.views}) == 3
    for view in capture.views:
        assert read_image(view).shape == (view.height, view.width, 3)


def test_a_cache_too_deep_for_a_name_is_one_line(tmp_path: Path) -> None:
    folder = write_capture(tmp_path / "data", [("a.png", LENS), ("b.png", LENS)])
    deep = tmp_path.joinpath(*["d" * 250] * 16)
    with pytest.raises(InputError, match="File name too long"):
        load_capture(folder, cache_dir=deep)


def test_a_folder_named_by_a_superscript_digit_is_a_model_like_any_other(tmp_path: Path) -> None:
    folder = write_capture(tmp_path / "data", [("a.png", PINHOLE), ("b.png", PINHOLE)])
    (folder / "sparse/0").rename(folder / "sparse/²")
    assert len(load_capture(folder, cache_dir=tmp_path / "cache").views) == 2


def test_a_text_ply_that_announces_more_lines_than_it_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.ply"
    path.write_text(
        "ply\nformat ascii 1.0\nelement a 99999999999999999999\nproperty int b\n"
        "element vertex 1\nproperty float x\nproperty float y\nproperty float z\nend_header\n1\n"
    )
    with pytest.raises(InputError, match=r"p.ply is truncated: its header announces 1 vertices"):
        read_point_ply(path)
