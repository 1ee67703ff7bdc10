# SPDX-License-Identifier: Apache-2.0
"""The limit on the resolution of photographs, said in a line and lifted by a word."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_captures import write_capture

from gs_train.cli import main
from gs_train.commands.plan_capture import capture_without_photographs
from gs_train.data.colmap_records import Camera
from gs_train.errors import InputError
from gs_train.machine.interrupt import StopRequest
from gs_train.options.config import FitConfig
from gs_train.options.config_file import load_config, of_this_version, save_config
from gs_train.runs.captures import open_capture
from gs_train.runs.folder import RunFolder, require_same_options

LARGE = Camera(1, "PINHOLE", 1700, 850, (900.0, 900.0, 850.0, 425.0))
SMALL = Camera(2, "PINHOLE", 64, 48, (60.0, 61.0, 32.0, 24.0))
LINE = (
    "1 of 3 photographs are made smaller, 1700x850 to 1600x800 (--max-side 1600; --max-side off "
    "keeps their size)"
)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("capture")
    return write_capture(folder, [("a.png", LARGE), ("b.png", SMALL), ("c.png", SMALL)])


def config_of(capture: Path, out: Path, **options: object) -> FitConfig:
    return FitConfig(data=capture, out=out, renderer="cpu", **options)  # type: ignore[arg-type]


def test_large_photographs_are_made_smaller_and_said_to_be(capture: Path, tmp_path: Path) -> None:
    mask = capture / "masks/a.png"
    mask.parent.mkdir(exist_ok=True)
    plane = np.full((850, 1700), 255, np.uint8)
    plane[:, :850] = 0
    Image.fromarray(plane).save(mask)
    loaded = open_capture(config_of(capture, tmp_path), RunFolder(tmp_path), StopRequest())
    first, *others = loaded.views
    assert first.pixel_size == (800, 1600, 4)
    assert first.K[0, 0] == pytest.approx(900 * 1600 / 1700)
    assert [view.pixel_size for view in others] == [(48, 64)] * 2
    assert loaded.notes[0] == LINE
    assert capture_without_photographs(config_of(capture, tmp_path)).notes[0] == LINE


def test_off_keeps_their_size(capture: Path, tmp_path: Path) -> None:
    config = config_of(capture, tmp_path, max_side="off", mask="off")
    loaded = open_capture(config, RunFolder(tmp_path), StopRequest())
    assert loaded.views[0].pixel_size == (850, 1700)
    assert not any("made smaller" in note for note in loaded.notes)
    assert capture_without_photographs(config).views[0].pixel_size == (850, 1700)


@pytest.mark.parametrize(("option", "largest"), [("1600", [1600, 800]), ("off", [1700, 850])])
def test_check_says_what_fit_would_do(
    capture: Path, capsys: pytest.CaptureFixture[str], option: str, largest: list[int]
) -> None:
    words = ["check", str(capture), "--renderer", "cpu", "--json", "--max-side", option]
    assert main(words) == 0
    fit = json.loads(capsys.readouterr().out)["fit"]
    assert fit["largest"] == largest
    assert fit["changed"] == ([LINE] if option == "1600" else [])


def test_runs_of_earlier_versions_keep_the_size_of_their_photographs(tmp_path: Path) -> None:
    save_config(tmp_path / "config.yml", config_of(tmp_path, tmp_path, max_side="off"))
    text = (tmp_path / "config.yml").read_text()
    assert "max_side: 'off'" in text
    for earlier in ("max_side: null", "max_side: off"):  # YAML takes off for false
        (tmp_path / "config.yml").write_text(text.replace("max_side: 'off'", earlier))
        now = load_config(tmp_path / "config.yml")
        assert now.max_side == "off"
        assert now.longest_side is None
        require_same_options(of_this_version(now.recipe | {"max_side": None}), now.recipe)
    with pytest.raises(InputError, match="max_side was 'off', got 1600"):
        require_same_options(
            of_this_version(now.recipe | {"max_side": None}), config_of(tmp_path, tmp_path).recipe
        )
    (tmp_path / "config.yml").write_text(text.replace("max_side: 'off'", "max_side: big"))
    with pytest.raises(InputError, match="must hold a whole number or off for max_side"):
        load_config(tmp_path / "config.yml")
