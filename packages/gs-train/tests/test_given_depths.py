# SPDX-License-Identifier: Apache-2.0
"""Depth maps that a caller in Python holds, and runs of the command on depth maps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from one_thread import one_threaded
from planes import (
    HEIGHT,
    ON_CPU,
    OPTIONS,
    WIDTH,
    Stored,
    arrays_with,
    folder_with,
    has_plane,
    same,
    tensors,
)

import gs_train
from gs_train.cli import main
from gs_train.data import capture_from_arrays, load_capture, read_image
from gs_train.errors import InputError

WEIGHT = "1:0.1"


def plane(i: int) -> np.ndarray:
    """(HEIGHT, WIDTH) uint16."""
    v, u = np.mgrid[:HEIGHT, :WIDTH]
    return np.uint16(20_000 + 300 * u + 100 * v + 500 * i)


@pytest.fixture(scope="module")
def deep(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with depth maps on all photographs but every third."""
    folder = folder_with(tiny_capture, tmp_path_factory.mktemp("deep") / "c", "depths", plane)
    views = load_capture(folder, cache_dir=folder.parent / "cache").views
    params = {
        view.name.rsplit(".", 1)[0]: {"scale": 0.5 + 0.01 * i, "offset": 0.02}
        for i, view in enumerate(views)
        if has_plane(i)
    }
    (folder / "depth_params.json").write_text(json.dumps(params))
    return folder


@pytest.fixture(scope="module")
def arrays(deep: Path) -> dict[str, Any]:
    """The same capture as arguments of `capture_from_arrays`."""
    capture = load_capture(deep, cache_dir=deep.parent / "cache")
    params = [(0.5 + 0.01 * i, 0.02) for i in range(len(capture.views))]
    return {**arrays_with(capture, "depths", plane), "depth_params": params}


def fit(data: Path, out: Path, *more: str) -> int:
    return main(["fit", str(data), "--out", str(out), *ON_CPU, *more])


@one_threaded
def test_arrays_train_to_the_bits_of_the_folder_that_holds_them(
    deep: Path, arrays: dict[str, Any], tmp_path: Path
) -> None:
    options = {**OPTIONS, "steps": 4, "depth_weight": WEIGHT}
    of_folder = gs_train.fit(data=deep, out=tmp_path / "folder", **options)
    given = gs_train.fit(capture=capture_from_arrays(**arrays), out=tmp_path / "given", **options)
    assert same(tmp_path / "given", tmp_path / "folder")
    assert given.metrics["images"] == of_folder.metrics["images"]
    gs_train.fit(data=deep, out=tmp_path / "colours", **OPTIONS, steps=4)
    assert not same(tmp_path / "colours", tmp_path / "folder")


@one_threaded
def test_maps_wait_in_the_file_of_decoded_photographs(deep: Path, tmp_path: Path) -> None:
    asked = ("--depth-weight", WEIGHT, "--steps", "12")
    assert fit(deep, tmp_path / "memory", *asked) == 0
    assert fit(deep, tmp_path / "file", *asked, "--image-cache", "20000") == 0
    assert same(tmp_path / "file", tmp_path / "memory")


@one_threaded
def test_a_run_goes_on_with_its_weight_and_stays_at_its_end(deep: Path, tmp_path: Path) -> None:
    asked = ("--depth-weight", WEIGHT)
    assert fit(deep, tmp_path / "longer", *asked, "--steps", "3") == 0
    assert main(["fit", "--out", str(tmp_path / "longer"), "--more-steps", "3"]) == 0
    assert fit(deep, tmp_path / "whole", *asked, "--steps", "6", "--decay-steps", "3") == 0
    assert same(tmp_path / "longer", tmp_path / "whole")


def test_a_run_keeps_its_weight(
    deep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert fit(deep, out, "--depth-weight", WEIGHT, "--steps", "2") == 0
    said = capsys.readouterr().err
    assert said.count("depths/: depth maps of 6 of 10 training photographs; left out: 4 ") == 1
    assert fit(deep, out, "--resume", "--depth-weight", "1:1", "--steps", "4") != 0
    assert "options: depth_weight was '1:0.1', got '1:1'" in capsys.readouterr().err
    assert fit(deep, out, "--resume", "--steps", "4") == 0


@pytest.mark.long
@one_threaded
def test_ranks_read_maps_with_the_photographs_that_they_share(deep: Path, tmp_path: Path) -> None:
    asked = ("--depth-weight", WEIGHT, "--steps", "4")
    assert fit(deep, tmp_path / "one", *asked) == 0
    assert fit(deep, tmp_path / "two", *asked, "--gpus", "2", "--cut-views", "never") == 0
    ours, theirs = (tensors(tmp_path / name) for name in ("two", "one"))
    means = [left["model/means"][left["model/keys"].argsort()] for left in (ours, theirs)]
    assert torch.equal(*means)


def test_maps_may_be_read_one_at_a_time(arrays: dict[str, Any]) -> None:
    stored = Stored(list(arrays["depths"]))
    capture = capture_from_arrays(**{**arrays, "depths": stored})
    assert stored.n_read == 12
    assert not capture.in_memory
    pixels = read_image(capture.views[2])
    assert stored.n_read == 13
    assert (pixels[..., 3] + 256 * pixels[..., 4].astype(int) == plane(2)).all()
    stored.planes[2] = plane(2)[:, :20]
    with pytest.raises(InputError, match=r"depths must be uint16 of shape \(48, 64\), got u"):
        read_image(capture.views[2])


def test_one_array_and_one_scale_may_be_of_all(arrays: dict[str, Any]) -> None:
    maps = np.stack([plane(i) for i in range(12)])
    masks = np.ones((12, HEIGHT, WIDTH), bool)
    given = {**arrays, "depths": maps, "depth_params": (2, 0), "masks": masks}
    capture = capture_from_arrays(**given)
    assert capture.in_memory
    shapes = [read_image(capture.views[i]).shape for i in (0, 1)]
    assert shapes == [(HEIGHT, WIDTH, 4), (HEIGHT, WIDTH, 6)]  # the first is held out
    assert capture.views[1].depth.of == (2.0, 0.0)  # type: ignore[union-attr]


def test_maps_of_depths_have_a_unit(arrays: dict[str, Any]) -> None:
    given = {**arrays, "depth_params": None, "depth_unit": 0.001}
    capture = capture_from_arrays(**given)
    assert capture.views[2].depth.of == (0.001,)  # type: ignore[union-attr]
    assert capture.views[1].depth is None
    pixels = read_image(capture.views[2])
    assert (pixels[..., 3] + 256 * pixels[..., 4].astype(int) == plane(2)).all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            lambda a: {"depth_unit": 0.001},
            ValueError,
            "depth_params must be left out where depth_unit is given",
        ),
        (
            lambda a: {"depth_unit": 0.001, "depth_params": None, "depths": None},
            ValueError,
            "depth_unit must be left out where depths are not given",
        ),
        (
            lambda a: {"depth_unit": 0.0, "depth_params": None},
            ValueError,
            r"depth_unit must be above 0 and finite, got 0\.0",
        ),
        (
            lambda a: {"depth_unit": "mm", "depth_params": None},
            TypeError,
            "depth_unit must be a number, got str",
        ),
        (
            lambda a: {"depths": a["depths"][:-1]},
            ValueError,
            "depths must be 12, one for each image, got 11",
        ),
        (
            lambda a: {"depths": [plane(0) / 2] * 12},
            TypeError,
            "depths must be uint16, got float64 of map 0",
        ),
        (
            lambda a: {"depths": [*a["depths"][:-1], plane(0).T]},
            ValueError,
            r"depths must be \(48, 64\), got \(64, 48\) of map 11",
        ),
        (
            lambda a: {"depth_params": None},
            ValueError,
            r"depth_params must be given with depths: \(V, 2\)",
        ),
        (
            lambda a: {"depths": None},
            ValueError,
            "depth_params must be left out where depths are not given",
        ),
        (
            lambda a: {"depth_params": [(1, 0)] * 5},
            ValueError,
            r"depth_params must be \(12, 2\), got \(5, 2\)",
        ),
        (
            lambda a: {"depth_params": (0, 1)},
            ValueError,
            r"depth_params must be a scale above 0 and a finite offset, got \[0.0, 1.0\] of map 0",
        ),
        (lambda a: {"depth_params": "12"}, TypeError, "depth_params must be numbers, got <U2"),
    ],
)
def test_maps_that_are_none_are_named(
    arrays: dict[str, Any],
    change: Callable[[dict[str, Any]], dict[str, Any]],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        capture_from_arrays(**{**arrays, **change(arrays)})


def test_a_capture_with_maps_and_no_weight_says_so(
    arrays: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = capture_from_arrays(**arrays)
    gs_train.fit(capture=capture, out=tmp_path / "run", steps=1, **OPTIONS)
    line = "depth maps found, not used: --depth-weight START:END trains on depth maps"
    assert capsys.readouterr().err.splitlines().count(line) == 1


def test_a_weight_needs_maps(arrays: dict[str, Any], tmp_path: Path) -> None:
    given = {name: arrays[name] for name in ("images", "viewmats", "Ks", "points", "colors")}
    with pytest.raises(TypeError, match="depth_weight must be left out where the capture has no d"):
        gs_train.fit(
            capture=capture_from_arrays(**given),
            out=tmp_path / "run",
            depth_weight=WEIGHT,
            **OPTIONS,
        )
