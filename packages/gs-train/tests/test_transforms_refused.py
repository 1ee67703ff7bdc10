# SPDX-License-Identifier: Apache-2.0
"""Transforms files that are broken: each is refused in one line that says what is wrong."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transforms_files import (
    ANGLE,
    LENS,
    NAMES,
    SIZE,
    TURN,
    frames,
    load,
    write,
    write_points,
)

from gs_train.data.readers import transforms_file
from gs_train.errors import InputError


def _frame(**keys: Any) -> dict[str, Any]:
    """The keys of a file whose second frame is broken; None takes a key away."""
    written = frames(NAMES[:3])
    written[1] = {key: v for key, v in {**written[1], **keys}.items() if v is not None}
    return {**LENS, "frames": written}


MIRRORED = np.diag([1.0, 1, -1, 1]).tolist()
SKEWED = np.diag([1.0, 1.1, 1, 1]).tolist()
ASIDE = [[1, 0, 0, 1e10], [0, 1, 0, 0], [0, 0, 1, 0]]
FAR = [[1, 0, 0, 1e19], [0, 1, 0, 0], [0, 0, 1, 0]]
OTHER_LENSES: dict[str, float] = {
    **{"ftheta_p0": 0.0, "ftheta_p4": 0.1},
    **{"latlong": True, "equirectangular": True, "orthographic": True},
}
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no frames": ({"frames": []}, r"transforms.json must hold a list of frames, got \[\]"),
    "frames are a number": ({"frames": 3}, "must hold a list of frames, got 3"),
    "a frame is a text": ({"frames": ["a.png"]}, "frame 0 must have keys, got 'a.png'"),
    "no name": (_frame(file_path=None), "frame 1 must name its photograph with file_path, got no"),
    "half a number": (_frame(file_path=None, frame_index=0.5), "must name its photograph with"),
    "name is a number": (_frame(file_path=7), "file_path must be the name of a file, got 7"),
    "name is empty": (_frame(file_path=""), "file_path must be the name of a file, got ''"),
    "name has a NUL": (_frame(file_path="a\0b"), "file_path must be the name of a file, got 'a"),
    "name is half a letter": (_frame(file_path="\ud800"), "file_path must be the name of a file"),
    "name is very long": (_frame(file_path="a" * 300), "must be readable, got: File name too lo"),
    "named twice": (_frame(file_path="./00.png"), "must not repeat a photograph, got 00.png twi"),
    "no pose": (_frame(transform_matrix=None), "frame 1 must have a transform_matrix, got none"),
    "pose of two rows": (_frame(transform_matrix=[[1, 0, 0, 0]] * 2), "must be 3 or 4 rows of 4"),
    "ragged pose": (_frame(transform_matrix=[[1], [1, 2]]), "must be 3 or 4 rows of 4 finite"),
    "pose of texts": (_frame(transform_matrix=[["a"] * 4] * 3), "must be 3 or 4 rows of 4"),
    "pose with NaN": (_frame(transform_matrix=[[math.nan] * 4] * 3), "4 finite numbers"),
    "pose with a last row": (_frame(transform_matrix=[[1, 0, 0, 0]] * 4), "fourth row 0 0 0 1"),
    "pose of zeros": (_frame(transform_matrix=[[0] * 4] * 3), "must begin with a rotation, not"),
    "mirrored pose": (_frame(transform_matrix=MIRRORED), "must begin with a rotation, not mirr"),
    "skewed pose": (_frame(transform_matrix=SKEWED), "rotation, not mirrored and even to 0.005"),
    "camera too far": (_frame(transform_matrix=FAR), r"hold numbers within 1e\+18, got 1e\+19"),
    "other axes": ({**LENS, "from_mitsuba": True}, "poses with OpenGL's axes, got from_mitsuba"),
    "mirrored world": (
        {**LENS, "applied_transform": MIRRORED},
        "applied_transform must be a rotation, not mirrored, with a scale and a shift, got",
    ),
    "world of a text": ({**LENS, "applied_transform": "x"}, "applied_transform must be 3 or 4 row"),
    "scale of zero": ({**LENS, "applied_scale": 0}, "applied_scale must be 1e-09 to 1e.09, got 0"),
    "scale of a typo": ({**LENS, "applied_scale": 1e300}, "applied_scale must be 1e-09 to 1e.09"),
    "far before the scale": (
        {**_frame(transform_matrix=ASIDE), "applied_scale": 1e-9},
        r"transform_matrix must have a translation of at most 1e\+18, got",
    ),
    "no focal length": (SIZE, "frame 0 must have a focal length, fl_x in pixels, camera_angle_"),
    "focal length of zero": ({**LENS, "fl_x": 0}, "must have a focal length of 0.064 to 640000"),
    "focal length is a text": ({**LENS, "fl_x": "60"}, "fl_x must be a number, got '60'"),
    "focal length is true": ({**LENS, "fl_x": True}, "fl_x must be a number, got True"),
    "infinite": ({**LENS, "cx": math.inf}, "cx must be finite, got inf"),
    "huge": ({**LENS, "cx": 10**400}, "cx must be finite, got 1000"),
    "more degrees than half a turn": (
        {"x_fov": 180.0, **SIZE},
        "x_fov must be above 0 and below 180 degrees, got 180",
    ),
    "angle of degrees": ({"camera_angle_x": 50, **SIZE}, "above 0 and below pi radians, got 50"),
    "half a pixel": ({**LENS, "w": 64.5}, "w must be 1 to 1048576 whole pixels, got 64.5"),
    "no pixels": ({**LENS, "h": 0}, "h must be 1 to 1048576 whole pixels, got 0"),
    "panorama": (
        {**LENS, "camera_model": "EQUIRECTANGULAR"},
        "camera_model must be one of FULL_OPENCV, .*, SIMPLE_RADIAL, got 'EQUIRECTANGULAR'; und",
    ),
    **{
        f"lens with {key}": ({**LENS, key: value}, f"one of FULL_OPENCV, .*, got {key}; resample")
        for key, value in OTHER_LENSES.items()
    },
    "lens of one frame": (_frame(latlong=True), "frame 1: lens must be .*, got latlong; resample"),
    "lens without a focal length": ({**SIZE, "latlong": 1}, "frame 0: lens must be .* got latlong"),
    "model is a list": ({**LENS, "camera_model": [1]}, r"camera_model must be one of .* got \[1\]"),
    "eighth power": ({**LENS, "k4": 0.1}, "k4 of a camera that is no fisheye must be 0, got 0.1"),
    "wild lens": ({**LENS, "k1": 1e9}, r"distortion parameters within 1e\+06, got 1e\+09"),
    "split is a text": ({**LENS, "train_filenames": "a"}, "train_filenames must be a list of file"),
    "split of others": (
        {**LENS, "train_filenames": ["00.png"], "val_filenames": ["01.png", "x.png", "y.png"]},
        r"val_filenames must list photographs of its frames, got 2 unknown \(first x.png\)",
    ),
    "nobody trains": ({**LENS, "train_filenames": []}, "must name its frames in train_filenames"),
    "points are gone": ({**LENS, "ply_file_path": "p.ply"}, "p.ply must be readable, got: No such"),
    "another shape": ({**LENS, "w": 32, "h": 32}, r"of another shape than the camera \(first 00.p"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_transforms_file_is_one_line(case: str, tmp_path: Path) -> None:
    keys, message = BROKEN[case]
    folder = write(tmp_path / "a", keys)
    with pytest.raises(InputError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "cache").exists()


RAW: dict[str, tuple[Callable[[Path], object], str]] = {
    "no JSON": (lambda p: p.write_text("{'frames': 3}"), "must be JSON in UTF-8, got: Expecting"),
    "cut short": (lambda p: p.write_bytes(p.read_bytes()[:-40]), "must be JSON in UTF-8, got: "),
    "other letters": (lambda p: p.write_bytes(b'{"a": "\xff"}'), "must be JSON in UTF-8, got: "),
    "a list": (lambda p: p.write_text("[1]"), r"must hold a list of frames, got \[1\]"),
    "endless": (lambda p: p.write_text("[" * 100_000), "must be JSON in UTF-8, got: "),
    "empty points": (
        lambda p: write_points(p.parent / "p.ply", np.empty((0, 3)), np.empty((0, 3), np.uint8)),
        "p.ply must hold points to start from, got none that is finite and within 1e.09 times",
    ),
}


@pytest.mark.parametrize("case", RAW)
def test_a_file_of_other_content_is_one_line(case: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", {**LENS, "ply_file_path": "p.ply"})
    damage, message = RAW[case]
    damage(folder / "transforms.json")
    with pytest.raises(InputError, match=message):
        load(folder)


def test_a_file_that_is_too_long_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "a", LENS)
    n_bytes = (folder / "transforms.json").stat().st_size
    monkeypatch.setattr(transforms_file, "_MOST_BYTES", n_bytes)
    load(folder)
    monkeypatch.setattr(transforms_file, "_MOST_BYTES", n_bytes - 1)
    with pytest.raises(InputError, match=f"must have at most {n_bytes - 1:,} bytes, got more$"):
        load(folder)


def test_sizes_that_nothing_tells_are_one_line(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", {"camera_angle_x": ANGLE})
    for name in NAMES[:3]:
        (folder / name).unlink()
    with pytest.raises(InputError, match=r"00.png must be an image that can be read, because its"):
        load(folder, skip_broken=True)


def test_a_path_that_is_no_capture_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"sparse/0 or itself, or a transforms.json, got none in"):
        load(tmp_path)
    (tmp_path / "a.txt").touch()
    with pytest.raises(InputError, match=r"a folder, or a transforms file that ends with .json"):
        load(tmp_path / "a.txt")
    with pytest.raises(InputError, match="a folder with a COLMAP model, got no folder at"):
        load(tmp_path / "b.json")


WILD = [
    *(None, True, False, 0, -1, 2, 0.5, 1e-300, 1e308, -1e308, math.nan, math.inf, 10**400),
    *("", "x", ".", "..", "/", "a\0b", "\ud800", "00.png", "a\nb", "p" * 300, "x/" * 3000),
    *([], {}, [[]], [None], ["00.png"], [[1e308] * 4] * 3, [[1e200] * 4] * 4, [[0.0] * 4] * 3),
]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a tree of JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_value_anywhere_in_the_file_loads_or_is_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("wild")
    written = frames(NAMES[:3])
    written[0].update(LENS, mask_path="m.png", k1=0.01, camera_model="OPENCV")
    written[1].update(path=".", frame_index=1)
    top = {
        **{"w": 64, "h": 48, "camera_angle_x": ANGLE, "k1": 0.0, "is_fisheye": False},
        **{"applied_transform": TURN.tolist(), "applied_scale": 0.5, "ply_file_path": "p.ply"},
        **{"train_filenames": ["00.png", "01.png"], "val_filenames": ["02.png"], "frames": written},
    }
    for _ in range(data.draw(st.integers(1, 2), "damages")):
        places = list(_places(top))
        where, key = places[data.draw(st.integers(0, len(places) - 1), "place")]
        where[key] = copy.deepcopy(data.draw(st.sampled_from(WILD), "value"))
    write(folder, top)
    write_points(folder / "p.ply")
    try:
        capture = load(folder, skip_broken=True)
    except InputError:
        return
    for view in capture.views:
        assert np.isfinite(view.world_to_camera).all()
        assert np.isfinite(view.K).all()
    assert all("\n" not in note for note in capture.notes)
