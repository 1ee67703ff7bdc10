# SPDX-License-Identifier: Apache-2.0
"""What lies in a capture and is not used: one line each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_captures import PINHOLE, photograph, write_capture

from gs_train.cli import main
from gs_train.data import load_capture


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_capture(tmp_path / "data", [(f"{i:02}.png", PINHOLE) for i in range(4)])


def notes(folder: Path) -> tuple[str, ...]:
    return load_capture(folder, cache_dir=folder.parent / "cache").notes


def test_a_capture_of_photographs_and_one_model_has_nothing_to_say(folder: Path) -> None:
    assert notes(folder) == ()


def _second_model(folder: Path) -> None:
    shutil.copytree(folder / "sparse/0", folder / "sparse/1")


def _alpha(folder: Path) -> None:
    Image.fromarray(photograph(PINHOLE, 0)).convert("RGBA").save(folder / "images/01.png")


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "masks": (
        lambda f: (f / "masks").mkdir(),
        "masks/ found, not used: no PNG file there has the name of a photograph; every pixel is "
        "trained on",
    ),
    "depths": (
        lambda f: (f / "depths").mkdir(),
        "depths/ found, not used: --depth-weight START:END trains on depth maps",
    ),
    "normals": (
        lambda f: [(f / name).mkdir() for name in ("normals", "depth")],
        "depth/, normals/ found, not used: training does not use them",
    ),
    "reduced": (
        lambda f: [(f / f"images_{n}").mkdir() for n in (2, 4)],
        "images_2/, images_4/ found, not used: --max-side reduces the photographs in images/",
    ),
    "transforms": (
        lambda f: (f / "transforms.json").touch(),
        "transforms.json found, not used: cameras are those of the COLMAP model; name the file in "
        "place of the folder to use it",
    ),
    "models": (
        _second_model,
        "sparse/1 (4 images) found, not used: sparse/0 is taken (4 images)",
    ),
    "text": (
        lambda f: (f / "sparse/0/cameras.txt").touch(),
        "sparse/0/cameras.txt found, not used: the .bin files are",
    ),
    "rigs": (
        lambda f: [(f / f"sparse/0/{name}.bin").touch() for name in ("rigs", "frames")],
        "sparse/0/rigs.bin, sparse/0/frames.bin found, not used: every image has its whole pose in "
        "the images file",
    ),
    "cloud": (
        lambda f: (f / "sparse/0/points3D.ply").touch(),
        "sparse/0/points3D.ply found, not used: points are those of the model; --init FILE takes "
        "others",
    ),
    "unregistered": (
        lambda f: [(f / f"images/{name}.png").touch() for name in ("zz", "0\n")],
        "images/0\\n.png found, not used: 2 files there are not in the model",
    ),
    "alpha": (
        _alpha,
        "alpha channels found in 1 photographs, not used: what is transparent is trained on as "
        "black (--mask carve or ignore uses them)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_found_and_not_used_is_one_line(name: str, folder: Path) -> None:
    make, line = CASES[name]
    make(folder)
    assert notes(folder) == (line,)


@pytest.mark.parametrize("name", CASES)
def test_check_has_the_line(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, line = CASES[name]
    make(folder)
    main(["check", str(folder), "--renderer", "cpu", "--json"])
    assert json.loads(capsys.readouterr().out)["notes"].count(line) == 1


def test_fit_and_plan_print_the_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = np.random.default_rng(0).normal([0, 0, 4], 1, (60, 3))
    images = [(f"{i:02}.png", PINHOLE) for i in range(4)]
    folder = write_capture(tmp_path / "data", images, points=points)
    (folder / "masks").mkdir()
    _, line = CASES["masks"]
    fit = ["fit", str(folder), "--out", str(tmp_path / "run"), "--renderer", "cpu"]
    assert main([*fit, "--steps", "1"]) == 0
    assert capsys.readouterr().err.splitlines().count(line) == 1
    assert main(["plan", str(folder), "--renderer", "cpu", "--json"]) == 0
    assert capsys.readouterr().err.splitlines().count(line) == 1
