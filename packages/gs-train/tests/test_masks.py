# SPDX-License-Identifier: Apache-2.0
"""Masks of captures: where they are found, what they hide, and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_captures import LENS, PINHOLE, damage_the_middle, photograph, write_capture
from transforms_files import LENS as TRANSFORMS_LENS
from transforms_files import NAMES, frames, write

from gs_train.cli import main
from gs_train.commands.plan_capture import capture_without_photographs
from gs_train.data import BrokenPhotographError, Capture, load_capture, read_image
from gs_train.data.fingerprint import changes, stamps
from gs_train.data.photo_reader import PhotoReader
from gs_train.errors import InputError
from gs_train.losses.mask import CARVED, IGNORED, KEPT
from gs_train.options.config import FitConfig
from gs_train.options.config_file import of_this_version
from gs_train.scene.scene import capture_digest
from gs_train.sizing.photographs import decoded_bytes

LEFT, TOP = 20, 10
"""Columns that hide, and rows."""


def mask(width: int, height: int, *, kept: int = 255) -> np.ndarray:
    """(height, width) uint8 that hides the left columns and the top rows."""
    plane = np.full((height, width), kept, np.uint8)
    plane[:, :LEFT] = plane[:TOP] = 0
    return plane


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def capture_of(folder: Path, names: tuple[str, ...] = ("a.png", "b.png", "c.png")) -> Path:
    return write_capture(folder / "data", [(name, PINHOLE) for name in names])


def load(folder: Path, **options: Any) -> Capture:
    return load_capture(folder, cache_dir=folder.parent / "cache", test_every=0, **options)


def hides_left_and_top(pixels: np.ndarray, hidden: int = IGNORED) -> bool:
    states = pixels[..., 3]
    inside = (states[TOP:, LEFT:] == KEPT).all()
    return bool(inside and (states[:, :LEFT] == hidden).all() and (states[:TOP] == hidden).all())


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("a.png", "masks/a.png"),
        ("a.png", "masks/a.png.png"),
        ("a.jpg", "masks/a.png"),
        ("a.jpg", "masks/a.jpg.png"),
        ("in/a.jpg", "masks/in/a.png"),
        ("in/a.jpg", "mask/in/a.jpg.png"),
    ],
)
def test_a_mask_is_found_by_the_name_of_its_photograph(
    name: str, place: str, tmp_path: Path
) -> None:
    folder = capture_of(tmp_path, (name, "other.png"))
    save(folder / place, mask(64, 48))
    capture = load(folder)
    by_name = {view.name: read_image(view) for view in capture.views}
    assert hides_left_and_top(by_name[name])
    assert by_name["other.png"].shape == (48, 64, 3)
    assert capture.notes == (
        f"{place.split('/')[0]}/: masks of 1 of 2 photographs: black pixels are left out of loss "
        "and scores (--mask ignore)",
    )


def test_plan_says_the_same_and_counts_masks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = capture_of(tmp_path)
    save(folder / "masks/a.png", mask(64, 48))
    assert main(["plan", str(folder), "--renderer", "cpu", "--json", "--mask", "carve"]) == 0
    said = capsys.readouterr()
    assert said.err.splitlines().count(load(folder, mask="carve").notes[0]) == 1
    work = json.loads(said.out)["workload"]
    assert (work["channels"], work["carves"]) == (4, True)


def test_colours_are_those_without_a_mask(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    save(folder / "masks/a.png", mask(64, 48))
    masked, whole = read_image(load(folder).views[0]), read_image(load(folder, mask="off").views[0])
    assert whole.shape == (48, 64, 3)
    np.testing.assert_array_equal(masked[..., :3], whole)


ALIKE: dict[str, Callable[[np.ndarray], Image.Image]] = {
    "one and zero": lambda plane: Image.fromarray(plane // 255),
    "bits": lambda plane: Image.fromarray(plane).convert("1"),
    "colours": lambda plane: Image.fromarray(np.stack([0 * plane, plane, 0 * plane], axis=2)),
    "16 bits": lambda plane: Image.fromarray((plane // 255).astype(np.uint16)),
    "palette": lambda plane: Image.fromarray(plane).convert("P"),
    "white, transparent where hidden": lambda plane: Image.fromarray(
        np.stack([0 * plane + 255, plane], axis=2), mode="LA"
    ),
}


@pytest.mark.parametrize("kind", ALIKE)
@pytest.mark.filterwarnings("ignore:.*mode.*:DeprecationWarning")
def test_black_hides_and_all_else_keeps_in_any_kind_of_image(kind: str, tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    (folder / "masks").mkdir()
    ALIKE[kind](mask(64, 48)).save(folder / "masks/a.png")
    assert hides_left_and_top(read_image(load(folder).views[0]))


def test_carved_pixels_are_marked_and_told(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    save(folder / "masks/a.png", mask(64, 48))
    capture = load(folder, mask="carve")
    assert hides_left_and_top(read_image(capture.views[0]), CARVED)
    assert capture.notes == (
        "masks/: masks of 1 of 3 photographs: black pixels are trained to be transparent, and left "
        "out of scores (--mask carve)",
    )


def test_a_mask_of_another_size_is_scaled_and_one_of_another_shape_refused(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    save(folder / "masks/a.png", mask(64, 48).repeat(3, 0).repeat(3, 1))
    assert hides_left_and_top(read_image(load(folder).views[0]))
    save(folder / "masks/a.png", mask(64, 48)[::2, ::2])
    assert hides_left_and_top(read_image(load(folder).views[0]))
    save(folder / "masks/b.png", mask(48, 64))
    with pytest.raises(InputError, match=r"masks must have the shape .* got 1 .*b\.png: 48x64"):
        load(folder)


def test_frames_name_their_masks(tmp_path: Path) -> None:
    written = frames(NAMES[:3])
    written[1].update(mask_path="elsewhere/m.png")
    folder = write(tmp_path / "data", {**TRANSFORMS_LENS, "frames": written})
    save(folder / "elsewhere/m.png", mask(64, 48))
    save(folder / "masks/00.png", mask(64, 48))  # not asked for where frames say
    capture = load(folder)
    assert [view.mask is not None for view in capture.views] == [False, True, False]
    assert hides_left_and_top(read_image(capture.views[1]))
    assert capture.notes[-1].startswith("mask_path of 1 frames: masks of 1 of 3 photographs: black")


def test_a_named_mask_that_is_gone_is_an_error(tmp_path: Path) -> None:
    written = frames(NAMES[:3])
    written[1].update(mask_path="m.png")
    folder = write(tmp_path / "data", {**TRANSFORMS_LENS, "frames": written})
    with pytest.raises(InputError, match=r"m\.png .*no such file; put it back, or .*--mask off"):
        load(folder)
    assert load(folder, skip_broken=True).broken == {1}
    assert not load(folder, mask="off").broken


def write_alpha(folder: Path, name: str) -> None:
    alpha = mask(64, 48)
    alpha[-3:] = 254
    save(folder / "images" / name, np.dstack([photograph(PINHOLE, 0), alpha]))


def test_an_alpha_channel_is_a_mask_where_it_is_asked_for(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    write_alpha(folder, "b.png")
    for mode, hidden in (("ignore", IGNORED), ("carve", CARVED)):
        capture = load(folder, mask=mode)
        pixels = read_image(capture.views[1])
        assert hides_left_and_top(pixels[:-3], hidden)
        # What is partly transparent is neither kept nor carved.
        assert (pixels[-3:, LEFT:, 3] == IGNORED).all()
        assert capture.notes[0].startswith("alpha channels of 1 of 3 photographs: transparent")
    for mode in ("auto", "off"):
        capture = load(folder, mask=mode)
        assert read_image(capture.views[1]).shape[2] == 3
        assert capture.notes[0].startswith("alpha channels found in 1 photographs, not used")


def test_plan_takes_the_photographs_of_a_camera_to_be_alike(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    for name in ("a.png", "b.png", "c.png"):
        write_alpha(folder, name)
    for mode in ("auto", "ignore", "carve", "off"):
        planned = capture_without_photographs(FitConfig(folder, tmp_path / "run", mask=mode))
        loaded = load(folder, mask=mode)
        assert planned.mask == loaded.mask == ("off" if mode == "auto" else mode)
        sizes = [[view.pixel_size for view in capture.views] for capture in (planned, loaded)]
        assert sizes[0] == sizes[1]


def test_an_image_of_a_mask_goes_before_an_alpha_channel(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    write_alpha(folder, "b.png")
    save(folder / "masks/b.png", np.full((48, 64), 255, np.uint8))
    assert (read_image(load(folder, mask="ignore").views[1])[..., 3] == KEPT).all()


@pytest.mark.parametrize("is_alpha", [False, True])
def test_masks_follow_reduced_photographs_and_keep_no_pixel_that_saw_what_is_hidden(
    is_alpha: bool, tmp_path: Path
) -> None:
    folder = capture_of(tmp_path)
    plane = np.full((48, 64), 255, np.uint8)
    plane[:, :21] = 0  # half of a pixel at half the size
    if is_alpha:
        save(folder / "images/a.png", np.dstack([photograph(PINHOLE, 0), plane]))
    else:
        save(folder / "masks/a.png", plane)
    states = read_image(load(folder, mask="carve", max_side=32).views[0])[..., 3]
    assert states.shape == (24, 32)
    assert (states[:, :9] == CARVED).all()
    assert (states[:, 10] == IGNORED).all()
    assert (states[:, 12:] == KEPT).all()


def test_masks_are_undistorted_with_their_photographs(tmp_path: Path) -> None:
    folder = write_capture(tmp_path / "data", [("a.png", LENS), ("b.png", LENS)])
    pixels = photograph(LENS, 0)
    hidden = np.zeros((60, 80), bool)
    hidden[20:40, 10:30] = True
    pixels[hidden] = (255, 0, 255)  # a colour that the photograph has nowhere else
    save(folder / "images/a.png", pixels)
    save(folder / "masks/a.png", np.where(hidden, 0, 255).astype(np.uint8))
    undistorted = read_image(load(folder).views[0])
    kept = undistorted[..., 3] == KEPT
    of_hidden = (undistorted[..., :3].astype(int) - (255, 0, 255)).__abs__().sum(2) < 60
    assert of_hidden.sum() > 200
    assert not (kept & of_hidden).any()
    assert 0.8 * kept.size < kept.sum() < kept.size


def test_one_mask_may_serve_several_photographs(tmp_path: Path) -> None:
    written = frames(NAMES[:3])
    for frame in written:
        frame.update(mask_path="m.png")
    folder = write(tmp_path / "data", {**TRANSFORMS_LENS, "frames": written})
    save(folder / "m.png", mask(64, 48))
    capture = load(folder, max_side=32)
    assert all((read_image(view)[:, :9, 3] == IGNORED).all() for view in capture.views)


def test_a_broken_mask_breaks_its_photograph(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    save(folder / "masks/a.png", mask(64, 48))
    (folder / "masks/a.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"masks/a\.png must be a readable image"):
        load(folder)
    capture = load(folder, skip_broken=True)
    assert capture.broken == {0}
    assert "--skip-broken: " in capture.notes[-1]
    assert "masks/a.png" in capture.notes[-1]


def test_a_mask_that_breaks_later_lets_another_view_stand_in(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    draw = np.random.default_rng(0)
    save(folder / "masks/a.png", draw.integers(0, 2, (48, 64), np.uint8))
    capture = load(folder)
    damage_the_middle(folder / "masks/a.png")
    with pytest.raises(BrokenPhotographError, match=r"masks/a\.png"):
        read_image(capture.views[0])
    reader = PhotoReader(capture, skip_broken=True)
    assert reader.load(0).shape == (48, 64, 3)
    assert reader.shown(0) == 1


def test_a_changed_mask_is_a_changed_photograph(tmp_path: Path) -> None:
    """Also where neither size nor photograph says so, as of files without compression."""
    folder = capture_of(tmp_path)
    path = folder / "masks/a.png"
    path.parent.mkdir()
    Image.fromarray(mask(64, 48)).save(path, format="BMP")
    reader = PhotoReader(load(folder))
    reader.load(0)
    saved = reader.fingerprint()
    Image.fromarray(mask(64, 48)).save(path, format="BMP")  # at another time
    assert changes(saved, load(folder)).photographs == ()
    other = mask(64, 48)
    other[-1] = 0
    Image.fromarray(other).save(path, format="BMP")
    assert changes(saved, load(folder)).photographs == ("a.png",)


def test_masks_belong_to_what_a_run_is_trained_on(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    without = capture_digest(load(folder, mask="off"))
    stamped = stamps(load(folder))
    save(folder / "masks/a.png", mask(64, 48))
    assert capture_digest(load(folder, mask="off")) == without
    digests = {capture_digest(load(folder, mask=mode)) for mode in ("ignore", "carve", "off")}
    assert len(digests) == 3
    assert stamps(load(folder, mask="off")) == stamped
    assert of_this_version({})["mask"] == "off"


def test_a_mask_takes_a_byte_of_a_pixel_and_other_photographs_none(tmp_path: Path) -> None:
    folder = capture_of(tmp_path)
    save(folder / "masks/a.png", mask(64, 48))
    assert decoded_bytes(load(folder, mask="off")) == 3 * 3 * 64 * 48
    assert decoded_bytes(load(folder)) == (4 + 3 + 3) * 64 * 48
