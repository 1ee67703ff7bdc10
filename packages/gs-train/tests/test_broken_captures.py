# SPDX-License-Identifier: Apache-2.0
"""COLMAP captures that are broken, each in one way: one line says what, and nothing is written."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_captures import PINHOLE, photograph

from gs_train.cli import main

N_IMAGES = 4
CAMERA = "1 PINHOLE 64 48 60 61 32 24"
IMAGES = "".join(f"{i + 1} 1 0 0 0 {i} 2 3 1 {i:02}.png\n\n" for i in range(N_IMAGES))
POINTS = "".join(f"{i + 1} {i} {i % 3} 4 200 100 50 0.5\n" for i in range(12))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole capture with a model in text, to break."""
    folder = tmp_path / "data"
    (folder / "images").mkdir(parents=True)
    for i in range(N_IMAGES):
        Image.fromarray(photograph(PINHOLE, i)).save(folder / f"images/{i:02}.png")
    model = folder / "sparse/0"
    model.mkdir(parents=True)
    for part, text in (("cameras", CAMERA + "\n"), ("images", IMAGES), ("points3D", POINTS)):
        (model / f"{part}.txt").write_text(text)
    return folder


Damage = Callable[[Path], object]


def written(name: str, content: str | bytes) -> Damage:
    """Another content of a file."""

    def damage(folder: Path) -> None:
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(data)

    return damage


def edited(part: str, old: str, new: str) -> Damage:
    """Another text in a file of the model, where it occurs first."""

    def damage(folder: Path) -> None:
        path = folder / f"sparse/0/{part}.txt"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return damage


def lens(camera: str) -> Damage:
    return edited("cameras", CAMERA, camera)


def moved(old: str, new: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / new).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder / old, folder / new)

    return damage


def replaced(name: str, by: Callable[[Path], object]) -> Damage:
    """Something else in the place of a file or folder."""

    def damage(folder: Path) -> None:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        by(path)

    return damage


def reshaped(folder: Path) -> None:
    """Reduced copies alone, one of them cropped."""
    for path in (folder / "images").iterdir():
        with Image.open(path) as image:
            image.resize((32, 20 if path.stem == "02" else 24)).save(path)
    (folder / "images").rename(folder / "images_2")


NOWHERE = r"data must hold a COLMAP model .*, or a transforms.json, got none in"
PLACES: dict[str, tuple[Damage, str]] = {
    "an empty folder": (lambda f: [shutil.rmtree(p) for p in f.iterdir()], NOWHERE),
    "sparse is a file": (replaced("sparse", Path.touch), NOWHERE),
    "no points file": (
        lambda f: (f / "sparse/0/points3D.txt").unlink(),
        "sparse/0 lacks points3D$",
    ),
    "a model elsewhere": (moved("sparse/0", "reconstruction"), NOWHERE),
    "a link to nowhere": (replaced("sparse", lambda p: p.symlink_to(p.with_name("x"))), NOWHERE),
    "broken in colmap/": (
        lambda f: (lens("1 PINHOLE 64")(f), moved("sparse", "colmap/sparse")(f)),
        "colmap/sparse/0/cameras.txt",
    ),
    "no photographs": (lambda f: shutil.rmtree(f / "images"), "images, got no such folder"),
    "images is a file": (replaced("images", Path.touch), "images, got no such folder"),
}
CAMERAS: dict[str, tuple[Damage, str]] = {
    "no camera": (
        lens(""),
        r"images.txt: the camera of image 00.png .* 0 in cameras.txt, got id 1",
    ),
    "an unknown model": (
        lens("1 PINHOL 64 48 60 61 32 24"),
        "txt:1: camera model .* got 'PINHOL'",
    ),
    "a parameter less": (lens("1 PINHOLE 64 48 60 61 32"), r"must have 4 parameters, got 3"),
    "a word": (
        lens("1 PINHOLE 64 48 60 61 32 x"),
        "cameras.txt:1: line must be .* got .1 PINHOLE 64 48 60 61 32 x",
    ),
    "no size": (lens("1 PINHOLE 0 48 60 61 32 24"), "must have sides of 1 to .*, got 0x48"),
    "NaN": (lens("1 PINHOLE 64 48 nan 61 32 24"), "parameters of camera 1 must be finite"),
    "no focal length": (lens("1 PINHOLE 64 48 0 61 32 24"), "a focal length of 0.064 to 640000"),
    "the same twice": (lens(f"{CAMERA}\n{CAMERA}"), "must not repeat a camera id, got 1 twice"),
    "a panorama": (
        lens("1 EQUIRECTANGULAR 64 48 64 48"),
        r"sparse/0: image 00.png: model of .*, got EQUIRECTANGULAR; cut each panorama",
    ),
    "a lens that sees nothing": (
        lens("1 FOV 64 48 60 61 32 24 3.3"),
        r"sparse/0: image 00.png: camera 1 \(FOV\) must see a rectangle around its .*, got",
    ),
    "a wild lens": (lens("1 EUCM 64 48 60 61 32 24 1 1e9"), r"within 1e\+06, got 1e\+09"),
    "no text": (written("sparse/0/cameras.txt", b"\xff\xfe\x00\x01" * 9), "cameras.txt"),
    "binary cut short": (written("sparse/0/cameras.bin", b"\x01" + bytes(7)), "cameras.bin"),
    "binary of nothing": (written("sparse/0/cameras.bin", b""), "cameras.bin"),
}
POSES: dict[str, tuple[Damage, str]] = {
    "no image": (
        written("sparse/0/images.txt", "# none\n"),
        "at least one registered image, got 0",
    ),
    "zero quaternion": (
        edited("images", "1 1 0 0 0 0", "1 0 0 0 0 0"),
        "images.txt:1: .*quaternion",
    ),
    "infinite": (
        edited("images", " 2 3 1 01", " inf 3 1 01"),
        "pose of image '01.png' must be fin",
    ),
    "too far": (edited("images", " 2 3 1 01", " 1e12 3 1 01"), r"got 1 further out \(first 01.png"),
    "absolute name": (edited("images", "01.png", "/etc/1.png"), "a path inside the image folder"),
    "climbing name": (edited("images", "01.png", "../1.png"), "a path inside the image folder"),
    "the same twice": (edited("images", "01.png", "00.png"), "repeat an image name, got 00.png"),
    "a missing camera": (
        edited("images", "3 1 01", "3 7 01"),
        "one of the 1 in cameras.txt, got id 7",
    ),
    "a field less": (
        edited("images", "2 1 0 0 0 1", "2 1 0 0 0"),
        "images.txt:3: line must be .*CAMERA_ID NAME",
    ),
}
CLOUDS: dict[str, tuple[Damage, str]] = {
    "no point": (written("sparse/0/points3D.txt", ""), "must hold 3D points to start from, got 0"),
    "NaN": (
        edited("points3D", "2 1 1 4", "2 nan 1 4"),
        "points must be finite, got NaN or Inf in 1",
    ),
    "a word": (edited("points3D", "2 1 1 4", "2 x 1 4"), "points3D.txt:2: line must be"),
    "cut short": (
        edited("points3D", "12 11 2 4 200 100 50 0.5\n", "12 11"),
        "points3D.txt:12: line must be .* got .12 11",
    ),
}
PHOTOGRAPHS: dict[str, tuple[Damage, str]] = {
    "missing": (lambda f: (f / "images/02.png").unlink(), r"got 1 missing \(first 02.png\)"),
    "of no bytes": (written("images/02.png", ""), r"got 1 broken \(first 02.png: "),
    "a page of text": (written("images/02.png", "<html>Not Found"), r"1 broken \(first 02.png"),
    "a folder": (replaced("images/02.png", os.mkdir), r"1 broken \(first 02.png: a folder"),
    "turned": (
        lambda f: Image.fromarray(np.zeros((64, 48, 3), np.uint8)).save(f / "images/02.png"),
        r"1 of another shape than the camera \(first 02.png: 48x64, camera 1 has 64x48\)",
    ),
    "a cropped copy": (reshaped, r"images_2 must hold .* \(first 02.png: 32x20, camera 1 has 64x4"),
    "all of other names": (
        lambda f: [p.rename(p.with_suffix(".jpg")) for p in (f / "images").iterdir()],
        r"got 4 missing \(first 00.png; 01.png; 02.png; gs-train check --json names all\)",
    ),
}
ALL = {
    f"{kind}: {name}": case
    for kind, cases in (
        *(("places", PLACES), ("cameras", CAMERAS), ("poses", POSES), ("points", CLOUDS)),
        ("photographs", PHOTOGRAPHS),
    )
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", ALL)
def test_a_broken_capture_is_refused_in_one_line(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, message = ALL[name]
    damage(folder)
    out = tmp_path / "out"
    assert main(["fit", str(folder), "--out", str(out), "--renderer", "cpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gs-train: error: ")
    assert re.search(message, line)
    assert not out.exists()
    assert main(["check", str(folder), "--renderer", "cpu"]) == 2
    found = capsys.readouterr()
    assert found.err.splitlines() == [line]  # in the same words
    assert "fit would     refuse: " in found.out


def test_the_whole_capture_trains(folder: Path, tmp_path: Path) -> None:
    command = ["fit", str(folder), "--out", str(tmp_path / "out"), "--renderer", "cpu"]
    assert main([*command, "--steps", "1"]) == 0
