# SPDX-License-Identifier: Apache-2.0
"""Depth maps of captures: where they are found, what they mean, and what is said of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_captures import LENS, PINHOLE, damage_the_middle, write_capture
from transforms_files import LENS as TRANSFORMS_LENS
from transforms_files import NAMES, frames, write

from gs_train.cli import main
from gs_train.commands.plan import PlanConfig
from gs_train.commands.plan_capture import capture_without_photographs
from gs_train.data import BrokenPhotographError, Capture, load_capture, read_image
from gs_train.data.fingerprint import changes, stamps
from gs_train.data.frame import Frame
from gs_train.data.photo_reader import PhotoReader
from gs_train.errors import InputError
from gs_train.machine.interrupt import StopRequest
from gs_train.options.config import FitConfig
from gs_train.options.config_file import of_this_version
from gs_train.runs.offload import workload_of
from gs_train.runs.renderer import renderer_for
from gs_train.scene.scene import Scene, capture_digest
from gs_train.sizing.photographs import decoded_bytes

IMAGES = ("a.png", "b.png", "in/c.jpg")
NOT_USED = "depths/ found, not used: --depth-weight START:END trains on depth maps"


def values(width: int = 64, height: int = 48, seed: int = 0) -> np.ndarray:
    """(height, width) uint16, smooth, of high and low bytes that differ."""
    v, u = np.mgrid[:height, :width] / max(width, height)
    return np.uint16(30_000 + 20_000 * np.sin(3 * u + seed) + 9_000 * v)


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def save_params(folder: Path, params: Any, *, place: str = "sparse/0") -> None:
    (folder / place / "depth_params.json").write_text(json.dumps(params))


def params(**scales: float) -> dict[str, Any]:
    """For the three images, of scale 1 unless said."""
    scales = {
        "a": 1.0,
        "b": 1.0,
        "in/c": 1.0,
        **{k.replace("_", "/"): v for k, v in scales.items()},
    }
    return {name: {"scale": scale, "offset": -0.125} for name, scale in scales.items()}


def capture_of(folder: Path, names: tuple[str, ...] = IMAGES) -> Path:
    """With depth maps on all photographs."""
    made = write_capture(folder / "data", [(name, PINHOLE) for name in names])
    for i, name in enumerate(names):
        save((made / "depths" / name).with_suffix(".png"), values(seed=i))
    save_params(made, params())
    return made


def load(folder: Path, **options: Any) -> Capture:
    chosen: dict[str, Any] = {"test_every": 0, "depths": True, **options}
    return load_capture(folder, cache_dir=folder.parent / "cache", **chosen)


def map_of(pixels: np.ndarray) -> np.ndarray:
    return pixels[..., -2].astype(np.uint16) + 256 * pixels[..., -1].astype(np.uint16)


def test_maps_are_read_with_their_photographs(tmp_path: Path) -> None:
    capture = load(capture_of(tmp_path))
    assert capture.has_depths
    assert capture.notes == ("depths/: depth maps of 3 of 3 training photographs (--depth-weight)",)
    for i, view in enumerate(capture.views):
        pixels = read_image(view)
        assert pixels.shape == (48, 64, 5)
        assert (*pixels.shape,) == view.pixel_size
        np.testing.assert_array_equal(map_of(pixels), values(seed=i))
        assert view.depth is not None
        assert view.depth.of == (1.0, -0.125)
    assert decoded_bytes(capture) == 3 * 5 * 64 * 48


def test_what_a_map_means_is_brought_to_the_frame_of_training(tmp_path: Path) -> None:
    frame = Frame((1.0, 2.0, 3.0), 0.25, 1.0)  # where lengths are a quarter
    scene = Scene.load(load(capture_of(tmp_path)), torch.device("cpu"), frame)
    assert [view.inverse_depth for view in scene.views] == [(4.0, -0.5)] * 3


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("a.png", "a.png"),
        ("a.png", "a.png.png"),
        ("a.jpg", "a.png"),
        ("in/a.jpg", "in/a.png"),
        ("in/a.jpg", "in/a.jpg.png"),
    ],
)
@pytest.mark.parametrize("key", ["stem", "name"])
def test_maps_and_scales_are_found_by_the_name_of_the_photograph(
    name: str, place: str, key: str, tmp_path: Path
) -> None:
    folder = write_capture(tmp_path / "data", [(name, PINHOLE), ("other.png", PINHOLE)])
    save(folder / "depths" / place, values())
    known = name if key == "name" else name.rsplit(".", 1)[0]
    save_params(folder, {known: {"scale": 2, "offset": 0}}, place=".")
    capture = load(folder)
    by_name = {view.name: view for view in capture.views}
    assert by_name[name].depth is not None
    assert by_name["other.png"].depth is None
    assert read_image(by_name["other.png"]).shape == (48, 64, 3)
    assert capture.notes == (
        "depths/: depth maps of 1 of 2 training photographs; left out: 1 without a map (first "
        "other.png) (--depth-weight)",
    )


def test_scales_beside_the_model_go_before_those_in_the_folder(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    save_params(folder, params(a=3.0), place=".")
    assert load(folder).views[0].depth.of.scale == 1.0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("scale", "is_left_out"),
    [(0.0, True), (-1.0, True), (0.19, True), (0.21, False), (4.9, False), (5.1, True)],
)
def test_a_map_of_an_implausible_scale_is_left_out(
    scale: float, is_left_out: bool, tmp_path: Path
) -> None:
    folder = capture_of(tmp_path)
    save_params(folder, params(b=scale))
    capture = load(folder)
    assert (capture.views[1].depth is None) == is_left_out
    if is_left_out:
        assert capture.notes == (
            "depths/: depth maps of 2 of 3 training photographs; left out: 1 of an implausible "
            f"scale (first b.png: {scale:.3g}, median 1) (--depth-weight)",
        )


def test_the_median_of_the_file_goes_before_that_of_its_scales(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    told = params()
    told["b"]["med_scale"] = 10.0
    save_params(folder, told)
    assert [view.depth is None for view in load(folder).views] == [False, True, False]


def test_a_photograph_that_the_file_does_not_name_goes_without(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    told = params()
    del told["b"]
    save_params(folder, told)
    capture = load(folder)
    assert [view.depth is None for view in capture.views] == [False, True, False]
    assert "left out: 1 without a scale in " in capture.notes[0]
    assert "depth_params.json (first b.png)" in capture.notes[0]


def test_held_out_photographs_need_no_map(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    (folder / "depths/a.png").unlink()
    capture = load(folder, test_every=8)
    assert [view.depth is None for view in capture.views] == [True, False, False]
    assert capture.notes[0].startswith("depths/: depth maps of 2 of 2 training")


def test_without_the_option_one_line_says_that_they_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = np.random.default_rng(0).normal([0, 0, 4], 1, (60, 3))
    folder = write_capture(tmp_path / "data", [(n, PINHOLE) for n in IMAGES], points=points)
    (folder / "depths").mkdir()
    capture = load(folder, depths=False)
    assert capture.notes == (NOT_USED,)
    assert not capture.has_depths
    out = tmp_path / "run"
    on_cpu = ("--renderer", "cpu")
    assert main(["fit", str(folder), "--out", str(out), *on_cpu, "--steps", "1"]) == 0
    assert capsys.readouterr().err.splitlines().count(NOT_USED) == 1
    assert capture_without_photographs(FitConfig(folder, out)).notes == (NOT_USED,)
    assert main(["check", str(folder), *on_cpu]) == 0
    assert capsys.readouterr().out.count(NOT_USED) == 1


def test_plan_and_check_count_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = capture_of(tmp_path)
    line = "depths/: depth maps of 2 of 2 training photographs (--depth-weight)"
    run = PlanConfig(folder, renderer="cpu", depth_weight="1:0.01").as_fit()
    planned, loaded = capture_without_photographs(run), load(folder, test_every=8)
    assert planned.notes == loaded.notes == (line,)
    assert [v.pixel_size for v in planned.views] == [v.pixel_size for v in loaded.views]
    scene, renderer = Scene.load(planned, torch.device("cpu")), renderer_for(run)
    work = workload_of(run, scene, scene.initial_rows(run, StopRequest()), renderer)
    assert (work.channels, work.depths) == (5, True)
    asked = ("--renderer", "cpu", "--json", "--depth-weight", "1:0.01")
    assert main(["check", str(folder), *asked]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["notes"] == [line]
    assert told["fit"]["n_depths"] == 2


def test_a_capture_with_transforms_has_its_maps_beside_the_file(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", {**TRANSFORMS_LENS, "frames": frames(NAMES[:3])})
    names = [view.name for view in load(folder, depths=False).views]
    for name in names:
        save((folder / "depths" / name).with_suffix(".png"), values())
    told = {name: {"scale": 1, "offset": 0} for name in names}
    save_params(folder, told, place=".")
    assert all(view.depth is not None for view in load(folder).views)


# --------------------------------------------------------------------------- other sizes, lenses


def test_a_map_of_another_size_is_scaled_as_photographs_are(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    save(folder / "depths/a.png", values().repeat(3, 0).repeat(3, 1))
    save(folder / "depths/b.png", values(32, 24, seed=1))
    maps = [map_of(read_image(view)) for view in load(folder).views]
    assert np.abs(maps[0].astype(int) - values()).max() < 300
    assert np.abs(maps[1].astype(int) - values(seed=1)).max() < 1000


def test_maps_follow_reduced_photographs(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    wave = np.uint16(20_000 + 10_000 * (np.arange(64) % 2))  # which reducing averages out
    save(folder / "depths/a.png", np.tile(wave, (48, 1)))
    pixels = read_image(load(folder, max_side=32).views[0])
    assert pixels.shape == (24, 32, 5)
    assert np.abs(map_of(pixels)[:, 1:-1].astype(int) - 25_000).max() <= 1


def test_maps_are_undistorted_with_their_photographs(tmp_path: Path) -> None:
    """A map of what the photograph shows stays one."""
    folder = write_capture(tmp_path / "data", [("a.png", LENS), ("b.png", LENS)])
    shown = np.asarray(Image.open(folder / "images/a.png"))[..., 0]
    for name in ("a", "b"):
        save(folder / f"depths/{name}.png", shown.astype(np.uint16) * 257)
    save_params(folder, {name: {"scale": 1, "offset": 0} for name in ("a", "b")})
    pixels = read_image(load(folder).views[0])
    difference = map_of(pixels) / 257 - pixels[..., 0]
    assert np.abs(difference).mean() < 1.0  # of a JPEG
    assert np.abs(difference).max() < 10


# ------------------------------------------------------------------------------ what is refused


def _refused(folder: Path, change: Callable[[Path], object], message: str) -> None:
    change(folder)
    with pytest.raises(InputError, match=message):
        load(folder)


def _without(place: str) -> Callable[[Path], object]:
    return lambda folder: shutil.rmtree(folder / place)


def _params_are(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "sparse/0/depth_params.json").write_text(text)


def _folder_at(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _no_entry(folder: Path) -> None:
    for name in IMAGES:
        (folder / "depths" / name).with_suffix(".png").unlink()


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "maps that another file names": (
        lambda f: (_without("depths")(f), (f / "transforms.json").write_text("{}")),
        r"got neither; where .*transforms\.json names maps, train on that file$",
    ),
    "no folder": (_without("depths"), r"--depth-weight needs depth maps in .*depths, or a depth_"),
    "no params": (
        lambda f: (f / "sparse/0/depth_params.json").unlink(),
        r"--depth-weight needs .*0/depth_params\.json, with a scale and an offset for each image",
    ),
    "params are a folder": (
        lambda f: _folder_at(f / "sparse/0/depth_params.json"),
        r"0/depth_params\.json cannot be read: Is a directory$",
    ),
    "no map": (
        _no_entry,
        r"--depth-weight needs depth maps that can be used, got depths/: depth maps of 0 of 3 .* "
        r"left out: 3 without a map \(first a\.png\)",
    ),
    "no scale fits": (
        lambda f: save_params(f, params(a=0, b=-1, in_c=0)),
        r"0 of 3 .* left out: 3 of an implausible scale \(first a\.png: 0, median 0\)",
    ),
    "no JSON": (_params_are("{"), r"depth_params\.json is not valid JSON: "),
    "a list": (_params_are("[]"), r"depth_params\.json must hold an object, got list"),
    "a number": (_params_are('{"a": 1}'), r"must hold a finite scale for a, got 1"),
    "a text": (
        _params_are('{"a": {"scale": "1", "offset": 0}}'),
        r"must hold a finite scale for a, got \{",
    ),
    "no offset": (_params_are('{"a": {"scale": 1}}'), r"must hold a finite offset for a, got"),
    "not a number": (
        _params_are('{"a": {"scale": NaN, "offset": 0}}'),
        r"must hold a finite scale for a, got",
    ),
    "8 bits": (
        lambda f: save(f / "depths/b.png", (values() // 256).astype(np.uint8)),
        r"depth maps must be PNG files of 16 bits .* got 1 others \(first .*b\.png: not 16 bits",
    ),
    "colours": (
        lambda f: save(f / "depths/b.png", np.zeros((48, 64, 3), np.uint8)),
        r"got 1 others \(first .*b\.png: not 16 bits of grey",
    ),
    "another shape": (
        lambda f: save(f / "depths/b.png", values(48, 64)),
        r"got 1 others \(first .*b\.png: 48x64, camera 1 has 64x48\)",
    ),
    "no image": (
        lambda f: (f / "depths/b.png").write_bytes(b"no image"),
        r"depths/b\.png must be a readable image, .*; put it back, or go on with --skip-broken",
    ),
    "cut off": (
        lambda f: (f / "depths/b.png").write_bytes((f / "depths/b.png").read_bytes()[:-200]),
        r"depths/b\.png must be a readable image",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_no_depth_map_is_named(kind: str, tmp_path: Path) -> None:
    _refused(capture_of(tmp_path), *BROKEN[kind])


def test_a_map_of_too_many_pixels_is_named(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    save(folder / "depths/b.png", values(128, 96))
    message = (
        r"depth maps must have at most 12,287 pixels, got 128x96 of .*depths/b\.png; "
        "--max-pixels 12288 allows it"
    )
    with pytest.raises(InputError, match=message):
        load(folder, max_pixels=128 * 96 - 1)
    assert load(folder, max_pixels=128 * 96).views[1].depth is not None


@pytest.mark.parametrize("kind", ["no image", "cut off"])
def test_without_a_broken_map_a_photograph_is_trained_on(kind: str, tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    BROKEN[kind][0](folder)
    capture = load(folder, skip_broken=True)
    assert not capture.broken
    assert [view.depth is None for view in capture.views] == [False, True, False]
    assert "--skip-broken: depth map left out: " in capture.notes[-1]


def test_a_map_that_breaks_later_lets_another_view_stand_in(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    save(folder / "depths/a.png", np.random.default_rng(0).integers(0, 65536, (48, 64), np.uint16))
    capture = load(folder)
    damage_the_middle(folder / "depths/a.png")
    with pytest.raises(BrokenPhotographError, match=r"depths/a\.png"):
        read_image(capture.views[0])
    reader = PhotoReader(capture, skip_broken=True)
    np.testing.assert_array_equal(map_of(reader.load(0)), values(seed=1))
    assert reader.shown(0) == 1


# ---------------------------------------------------------------------- what a run remembers


def test_a_changed_map_is_a_changed_photograph(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    reader = PhotoReader(load(folder))
    reader.load(0)
    saved = reader.fingerprint()
    save(folder / "depths/a.png", values())  # at another time
    assert changes(saved, load(folder)).photographs == ()
    other = values()
    other[-1] += 1
    save(folder / "depths/a.png", other)
    assert changes(saved, load(folder)).photographs == ("a.png",)


def test_maps_belong_to_what_a_run_is_trained_on(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    first = load(folder)
    without = load(folder, depths=False)
    save_params(folder, params(b=1.5))
    digests = {capture_digest(capture) for capture in (first, without, load(folder))}
    assert len(digests) == 3
    shutil.rmtree(folder / "depths")
    assert capture_digest(load(folder, depths=False)) == capture_digest(without)
    assert stamps(load(folder, depths=False)) == stamps(without)
    assert of_this_version({})["depth_weight"] is None


@pytest.mark.parametrize("text", ["1", "1:0", "0:1", "1:2:3", "a:b", "inf:1", "nan:1", "-1:1", ""])
def test_a_weight_is_two_numbers_above_0(text: str) -> None:
    with pytest.raises(InputError, match=r"--depth-weight must be START:END, two finite numbers"):
        FitConfig(Path("-"), Path("-"), depth_weight=text)
