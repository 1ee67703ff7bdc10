# SPDX-License-Identifier: Apache-2.0
"""Photographs that a model names and that are not there: listed, or left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_captures import PINHOLE, write_capture

from gs_train.cli import main
from gs_train.commands.plan_capture import capture_without_photographs
from gs_train.data.readers.choose import read_source
from gs_train.errors import InputError
from gs_train.machine.interrupt import StopRequest
from gs_train.options.config import FitConfig
from gs_train.runs.captures import open_capture
from gs_train.runs.folder import RunFolder


def config_of(capture: Path, out: Path, **options: object) -> FitConfig:
    return FitConfig(data=capture, out=out, renderer="cpu", **options)  # type: ignore[arg-type]


@pytest.fixture
def gappy(tmp_path: Path) -> Path:
    """Of six images, one photograph is missing, and one is none."""
    images = [(f"{name}.png", PINHOLE) for name in "abcdef"]
    folder = write_capture(tmp_path / "gappy", images)
    (folder / "images/b.png").unlink()
    (folder / "images/d.png").write_bytes(b"no image")
    return folder


LEFT_OUT = (
    "--allow-missing: of 6 photographs 1 missing (first b.png), 1 broken (first d.png: no JPEG, "
    "PNG, TIFF, WEBP, BMP, PPM or JPEG2000 image) are left out"
)


def test_missing_photographs_are_one_list(gappy: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"got 1 missing \(first b.png\), 1 broken .*--allow-miss"):
        open_capture(config_of(gappy, tmp_path), RunFolder(tmp_path), StopRequest())


def test_every_missing_photograph_is_named(gappy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ace":
        (gappy / f"images/{name}.png").unlink()
    words = ["check", str(gappy), "--renderer", "cpu"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "4 missing (first a.png; b.png; c.png; gs-train check --json names all)" in error
    assert main([*words, "--json"]) == 2
    missing = json.loads(capsys.readouterr().out)["photographs"]["missing"]
    assert missing == {"n": 4, "names": ["a.png", "b.png", "c.png", "e.png"]}


def test_missing_photographs_are_left_out_and_counted(gappy: Path, tmp_path: Path) -> None:
    config = config_of(gappy, tmp_path, allow_missing=True, test_every=2)
    loaded = open_capture(config, RunFolder(tmp_path), StopRequest())
    assert [view.name for view in loaded.views] == ["a.png", "c.png", "e.png", "f.png"]
    assert (loaded.test, loaded.train, loaded.broken) == ((0, 2), (1, 3), frozenset())
    assert loaded.notes[0] == LEFT_OUT
    planned = capture_without_photographs(config)
    # Which opens one photograph of each camera.
    assert [view.name for view in planned.views] == [f"{name}.png" for name in "acdef"]


def test_a_list_of_test_images_may_name_missing_ones(gappy: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("b.png\ne.png\n")
    config = config_of(gappy, tmp_path, allow_missing=True, test_list=names)
    loaded = open_capture(config, RunFolder(tmp_path), StopRequest())
    assert [loaded.views[i].name for i in loaded.test] == ["e.png"]
    names.write_text("z.png\n")
    with pytest.raises(InputError, match=r"got 1 unknown \(first z.png\)"):
        open_capture(config, RunFolder(tmp_path), StopRequest())


def test_check_reports_what_is_left_out(gappy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", str(gappy), "--renderer", "cpu", "--allow-missing"]
    assert main(words) == 0
    assert LEFT_OUT in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    fit = json.loads(capsys.readouterr().out)["fit"]
    assert (fit["n_left_out"], fit["n_train"], fit["n_test"]) == (2, 3, 1)
    assert main(words[:-1]) == 2


def test_a_capture_without_any_photograph_is_refused(gappy: Path, tmp_path: Path) -> None:
    for path in (gappy / "images").iterdir():
        path.unlink()
    config = config_of(gappy, tmp_path, allow_missing=True)
    with pytest.raises(InputError, match="must hold some of the 6 images of the model, got 6 miss"):
        open_capture(config, RunFolder(tmp_path), StopRequest())
    assert len(read_source(gappy).model.images) == 6
