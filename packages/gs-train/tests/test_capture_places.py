# SPDX-License-Identifier: Apache-2.0
"""Places where captures have their model and their photographs."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from small_captures import PINHOLE, write_capture
from transforms_files import write_turned

from gs_train.data import Capture, load_capture

NAMES = [f"{i:02}.png" for i in range(4)]


def load(folder: Path, cache: str = "cache") -> Capture:
    return load_capture(folder, cache_dir=folder.parent / cache)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_capture(tmp_path / "data", [(name, PINHOLE) for name in NAMES])


@pytest.mark.parametrize("place", ["sparse", "colmap/sparse", "colmap/sparse/0", "."])
def test_a_model_is_found_in_every_usual_place(place: str, folder: Path) -> None:
    before = load(folder)
    shutil.move(folder / "sparse/0", folder / "model")
    (folder / "sparse").rmdir()
    to = folder / place
    to.mkdir(parents=True, exist_ok=True)
    for path in (folder / "model").iterdir():
        shutil.move(path, to)
    (folder / "model").rmdir()
    (to / "rigs.bin").touch()
    after = load(folder)
    for view, twin in zip(after.views, before.views):
        np.testing.assert_array_equal(view.world_to_camera, twin.world_to_camera)
        assert (view.name, view.path) == (twin.name, twin.path)
    np.testing.assert_array_equal(after.points, before.points)
    rigs = (to / "rigs.bin").relative_to(folder)
    why = "every image has its whole pose in the images file"
    assert after.notes == (f"{rigs} found, not used: {why}",)


def test_a_transforms_file_goes_before_the_model_that_nerfstudio_keeps_beside_it(
    folder: Path,
) -> None:
    (folder / "colmap").mkdir()
    shutil.move(folder / "sparse", folder / "colmap")
    assert len(load(folder).views) == len(NAMES)
    write_turned(folder)
    capture = load(folder)
    assert len(capture.views) == 9
    assert capture.notes[0].startswith("applied_transform of transforms.json is undone")


def test_the_usual_place_goes_before_the_others(folder: Path) -> None:
    other = write_capture(folder.parent / "other", [(NAMES[0], PINHOLE)])
    shutil.copytree(other / "sparse", folder / "colmap/sparse")
    for path in (other / "sparse/0").iterdir():
        shutil.copy(path, folder)
    assert len(load(folder).views) == len(NAMES)
