# SPDX-License-Identifier: Apache-2.0
"""Depth maps that a transforms.json names: their units, what they do not know, what is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_captures import LENS as WIDE
from transforms_files import LENS, NAMES, frames, write_photographs, write_points, write_transforms

from gs_train.cli import main
from gs_train.commands.plan import PlanConfig
from gs_train.commands.plan_capture import capture_without_photographs
from gs_train.data import Capture, load_capture, read_image
from gs_train.data.frame import Frame
from gs_train.errors import InputError
from gs_train.scene.scene import Scene

N = 4


def values(width: int = 64, height: int = 48, seed: int = 0) -> np.ndarray:
    """(height, width) uint16 millimetres, smooth, with a hole."""
    v, u = np.mgrid[:height, :width] / max(width, height)
    depths = np.uint16(4000 + 1500 * np.sin(3 * u + seed) + 900 * v)
    depths[: height // 4, : width // 4] = 0
    return depths


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def capture_of(folder: Path, *, key: str = "depth_file_path", **top: Any) -> Path:
    """Four frames, each with a map."""
    written = frames([f"images/{name}" for name in NAMES[:N]])
    for i, frame in enumerate(written):
        frame[key] = f"depth/{i}.png"
        save(folder / "data/depth" / f"{i}.png", values(seed=i))
    made = folder / "data"
    write_photographs(made / "images", NAMES[:N])
    write_points(made / "p.ply")
    whole = {**LENS, "ply_file_path": "p.ply", "frames": written, **top}
    write_transforms(made / "transforms.json", whole)
    return made


def load(folder: Path, **options: Any) -> Capture:
    chosen: dict[str, Any] = {"test_every": 0, "depths": True, **options}
    return load_capture(folder, cache_dir=folder.parent / "cache", **chosen)


def changed(folder: Path, change: Any) -> None:
    """Change the transforms file."""
    path = folder / "transforms.json"
    top = json.loads(path.read_text())
    change(top)
    path.write_text(json.dumps(top))


def map_of(pixels: np.ndarray) -> np.ndarray:
    return pixels[..., -2].astype(np.uint16) + 256 * pixels[..., -1].astype(np.uint16)


def test_maps_are_millimetres_and_are_read_with_their_photographs(tmp_path: Path) -> None:
    capture = load(capture_of(tmp_path))
    assert capture.notes == (
        "depth_file_path: depth maps of 4 of 4 training photographs, in units of 0.001 "
        "(--depth-weight)",
    )
    for i, view in enumerate(capture.views):
        pixels = read_image(view)
        assert (*pixels.shape,) == view.pixel_size == (48, 64, 5)
        np.testing.assert_array_equal(map_of(pixels), values(seed=i))  # nothing is rounded
    frame = Frame((1.0, 2.0, 3.0), 0.25, 1.0)  # where lengths are a quarter
    scene = Scene.load(capture, torch.device("cpu"), frame)
    assert [view.inverse_depth for view in scene.views] == [(0.00025,)] * N


@pytest.mark.parametrize(
    ("key", "top", "unit"),
    [
        ("depth_file_path", {"depth_unit_scale_factor": 0.01}, 0.01),
        ("depth_file_path", {"integer_depth_scale": 0.002}, 0.002),
        ("depth_path", {"integer_depth_scale": 0.002}, 0.002),
        ("depth_path", {"depth_unit_scale_factor": 0.01, "integer_depth_scale": 0.002}, 0.01),
    ],
)
def test_the_file_gives_the_unit(
    key: str, top: dict[str, float], unit: float, tmp_path: Path
) -> None:
    capture = load(capture_of(tmp_path, key=key, **top))
    assert capture.notes[0].startswith(f"{key}: depth maps of 4 of 4 ")
    assert f"in units of {unit:g} (" in capture.notes[0]
    assert [view.depth and view.depth.of for view in capture.views] == [(unit,)] * N


def test_a_frame_goes_before_the_file(tmp_path: Path) -> None:
    folder = capture_of(tmp_path, depth_unit_scale_factor=0.01)
    changed(folder, lambda top: top["frames"][1].update(depth_unit_scale_factor=0.02))
    changed(folder, lambda top: top["frames"][2].update(depth_path="none.png"))
    capture = load(folder)
    assert [view.depth and view.depth.of for view in capture.views] == [
        (0.01,), (0.02,), (0.01,), (0.01,)
    ]  # fmt: skip
    assert "in units of 0.01, 0.02 (" in capture.notes[0]


def test_units_are_those_of_the_world_before_it_was_scaled_or_of_written_poses(
    tmp_path: Path,
) -> None:
    """nerfstudio multiplies depths by ``applied_scale`` too, instant-ngp knows no such key."""
    moved = {"applied_scale": 4.0}
    capture = load(capture_of(tmp_path / "a", **moved))
    assert capture.views[0].depth is not None
    assert capture.views[0].depth.of == (0.001,)
    capture = load(capture_of(tmp_path / "b", integer_depth_scale=0.002, **moved))
    assert capture.views[0].depth is not None
    assert capture.views[0].depth.of == (0.0005,)


def test_a_frame_without_a_map_goes_without_and_held_out_ones_need_none(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    changed(folder, lambda top: top["frames"][1].pop("depth_file_path"))
    (folder / "depth/0.png").unlink()
    capture = load(folder, test_every=8)
    assert [view.depth is None for view in capture.views] == [True, True, False, False]
    assert (
        "maps of 2 of 3 training photographs, in units of 0.001; left out: 1 without a map"
        in (capture.notes[0])
    )


def test_named_maps_go_before_a_folder_of_inverse_depths(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    save(folder / "depths/00.png", values())
    (folder / "depth_params.json").write_text("no JSON")
    assert load(folder).notes[0].startswith("depth_file_path: depth maps of 4 of 4 ")


def test_images_that_are_left_out_leave_their_maps(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    (folder / "images" / NAMES[0]).unlink()
    capture = load(folder, allow_missing=True)
    for i, view in enumerate(capture.views, start=1):
        np.testing.assert_array_equal(map_of(read_image(view)), values(seed=i))


# --------------------------------------------------------------------------- other sizes, lenses


def test_a_smaller_map_is_enlarged_and_its_holes_stay_holes(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    small = values()[::4, ::4]
    save(folder / "depth/0.png", small)
    found = map_of(read_image(load(folder).views[0])).astype(int)
    known = found > 0
    assert np.abs(found[known] - values().astype(int)[known])[values()[known] > 0].max() < 350
    least, most = small[small > 0].min(), small.max()
    assert least <= found[known].min()  # no depth is mixed with the 0 of a hole
    assert found.max() <= most
    assert not found[:10, :14].any()
    assert known[14:, :].all()
    assert known[:, 18:].all()


def test_maps_follow_reduced_photographs(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    wave = np.uint16(20_000 + 10_000 * (np.arange(64) % 2))  # which reducing averages out
    pixels = np.tile(wave, (48, 1))
    pixels[:, 20:30] = 0
    save(folder / "depth/0.png", pixels)
    found = map_of(read_image(load(folder, max_side=32).views[0]))
    assert found.shape == (24, 32)
    assert (found[:, 11:14] == 0).all()
    known = found[found > 0].astype(int)
    assert known.size == 24 * 27
    assert known.min() > 19_999  # next to the hole one of two is known
    middle = found[:, [2, 5, 20, 28]].astype(int)
    assert np.abs(middle - 25_000).max() <= 1


def test_maps_are_undistorted_with_their_photographs(tmp_path: Path) -> None:
    """A map of what the photograph shows stays one, but for its holes."""
    focal, cx, cy, k1 = WIDE.params
    lens = {"w": 80, "h": 60, "fl_x": focal, "cx": cx, "cy": cy, "k1": k1}
    written, folder = frames(NAMES[:2]), tmp_path / "data"
    for i, frame in enumerate(written):
        frame["depth_file_path"] = f"{i}.png"
    write_photographs(folder, NAMES[:2], WIDE)
    write_points(folder / "p.ply")
    top = {**lens, "ply_file_path": "p.ply", "frames": written}
    write_transforms(folder / "transforms.json", top)
    for i, name in enumerate(NAMES[:2]):
        shown = np.asarray(Image.open(folder / name))[..., 0].astype(np.uint16) * 250 + 1000
        shown[20:30, 20:40] = 0
        save(folder / f"{i}.png", shown)
    pixels = read_image(load(folder).views[0])
    found = map_of(pixels)
    known = found > 0
    assert 150 < (~known).sum() < 250
    difference = (found[known].astype(int) - 1000) / 250 - pixels[..., 0][known]
    assert np.abs(difference).mean() < 1.0  # of a JPEG
    assert found[known].min() >= 1000


# ------------------------------------------------------------------------------ what is said


def test_plan_and_check_name_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = capture_of(tmp_path)
    line = (
        "depth_file_path: depth maps of 3 of 3 training photographs, in units of 0.001 "
        "(--depth-weight)"
    )
    run = PlanConfig(folder, renderer="cpu", depth_weight="1:0.01").as_fit()
    planned, loaded = capture_without_photographs(run), load(folder, test_every=8)
    assert planned.notes == loaded.notes == (line,)
    assert [v.pixel_size for v in planned.views] == [v.pixel_size for v in loaded.views]
    asked = ("--renderer", "cpu", "--json", "--depth-weight", "1:0.01")
    assert main(["check", str(folder), *asked]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["notes"] == [line]
    assert told["fit"]["n_depths"] == 3
    assert main(["check", str(folder), "--renderer", "cpu", "--depth-weight", "1:0.01"]) == 0
    assert "compare depths with the maps of 3 images" in capsys.readouterr().out
    # Nobody asks for them: one line.
    found = (
        "depth_file_path of 4 frames found, not used: --depth-weight START:END trains on depth maps"
    )
    save(folder / "depths/00.png", values())
    assert load(folder, depths=False).notes == (found,)
    assert main(["check", str(folder), "--renderer", "cpu"]) == 0
    assert capsys.readouterr().out.count(found) == 1


REFUSED: dict[str, tuple[Any, str]] = {
    "no unit": (
        lambda top: top["frames"][2].update(depth_path="depth/2.png", depth_file_path=None),
        r"--depth-weight needs the unit of .*depth/2\.png: .* a depth_unit_scale_factor or",
    ),
    "no length": (
        lambda top: top.update(depth_unit_scale_factor=0),
        r"--depth-weight needs the unit of .*depth/0\.png: .* above 0, got none that is",
    ),
    "a text": (
        lambda top: top.update(depth_unit_scale_factor="mm"),
        r"depth_unit_scale_factor must be a number, got 'mm'",
    ),
    "no name": (
        lambda top: top["frames"][1].update(depth_file_path=3),
        r"frame 1: depth_file_path must be the name of a file, got 3",
    ),
    "no file": (
        lambda top: top["frames"][3].update(depth_file_path="depth/9.png"),
        r"depth/9\.png must be a readable image, got: no such file; put it back, or go on with",
    ),
    "colours": (
        lambda top: top["frames"][1].update(depth_file_path="images/01.png"),
        r"16 bits of grey, .* got 1 others \(first .*01\.png: not 16 bits of grey\)",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_used_is_named(kind: str, tmp_path: Path) -> None:
    change, message = REFUSED[kind]
    folder = capture_of(tmp_path)
    changed(folder, change)
    with pytest.raises(InputError, match=message):
        load(folder)
    if kind in ("no unit", "no length", "no file", "colours"):
        assert not load(folder, depths=False).has_depths  # and is in nobody's way


def test_frames_that_all_go_without_are_named(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    changed(folder, lambda top: [f.pop("depth_file_path") for f in top["frames"][1:]])
    with pytest.raises(InputError, match=r"needs depth maps that can be used, got .* maps of 0 of"):
        load(folder, test_every=8)
    shutil.rmtree(folder / "depth")
    changed(folder, lambda top: top["frames"][0].pop("depth_file_path"))
    with pytest.raises(InputError, match=r"depths, or a depth_file_path of each .* got neither$"):
        load(folder)
