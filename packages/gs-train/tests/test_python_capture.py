# SPDX-License-Identifier: Apache-2.0
"""`gs_train.fit` with a capture from Python, of a folder or of arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from python_runs import (
    OPTIONS,
    STEPS,
    arrays_of,
    assert_same,
    state_of,
    stop_at,
    trained_plainly,
)

import gs_train
from gs_train.checkpoint import latest_checkpoint
from gs_train.cli import main
from gs_train.data import FROM_PYTHON, capture_from_arrays, load_capture, read_image
from gs_train.options.config_file import load_config
from gs_train.runs.strategies import adc


@pytest.fixture(scope="module")
def plain(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_plainly(tiny_capture, tmp_path_factory.mktemp("plain") / "run")


@pytest.fixture(scope="module")
def arrays(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return arrays_of(tiny_capture, tmp_path_factory.mktemp("cache"))


def test_arrays_train_to_the_bits_of_the_folder_that_holds_them(
    arrays: dict[str, Any], plain: Path, tmp_path: Path
) -> None:
    fitted = gs_train.fit(capture=capture_from_arrays(**arrays), out=tmp_path / "run", **OPTIONS)
    assert_same(state_of(tmp_path / "run"), state_of(plain))
    of_folder = gs_train.Fitted.open(plain).metrics
    assert fitted.metrics["images"] == of_folder["images"]


def test_a_loaded_capture_may_be_given(tiny_capture: Path, plain: Path, tmp_path: Path) -> None:
    capture = load_capture(tiny_capture, cache_dir=tmp_path / "cache")
    gs_train.fit(capture=capture, data=FROM_PYTHON, out=tmp_path / "run", **OPTIONS)
    assert load_config(tmp_path / "run/config.yml").data == FROM_PYTHON
    assert_same(state_of(tmp_path / "run"), state_of(plain))


class TestCaptureOfARun:
    """A run on arrays, stopped half-way."""

    @pytest.fixture
    def out(self, arrays: dict[str, Any], tmp_path: Path) -> Path:
        out = tmp_path / "run"
        with pytest.raises(gs_train.StopTraining):
            gs_train.fit(
                capture=capture_from_arrays(**arrays), out=out, on_step=stop_at(5), **OPTIONS
            )
        return out

    def test_it_goes_on_to_the_same_bits_when_given_again(
        self, out: Path, arrays: dict[str, Any], plain: Path
    ) -> None:
        gs_train.fit(capture=capture_from_arrays(**arrays), out=out, resume=True)
        assert_same(state_of(out), state_of(plain))
        assert "(given from Python)\n" in (out / "config.yml").read_text()

    def test_it_is_asked_for_where_it_is_absent(
        self, out: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        needed = "was trained with the capture gs_train.data.capture.Capture, given from Python: "
        with pytest.raises(gs_train.InputError, match=needed):
            gs_train.fit(out=out, resume=True)
        assert main(["fit", "--out", str(out), "--resume"]) == 2
        assert main(["eval", str(out)]) == 2
        lines = capsys.readouterr().err.splitlines()
        lines = [line for line in lines if line.startswith("gs-train: error: ")]
        assert len(lines) == 2
        assert all(needed in line and "capture=..." in line for line in lines)
        assert state_of(out, 5)

    def test_it_is_scored_and_rendered(self, out: Path, arrays: dict[str, Any]) -> None:
        stopped = gs_train.Fitted.open(out)
        assert stopped.metrics == {}
        capture = capture_from_arrays(**arrays)
        scores = stopped.evaluate(capture=capture, renderer="cpu")
        assert scores["steps"] == 5
        assert gs_train.Fitted.open(out).metrics == scores
        to = str(out / "frames")
        assert main(["render", str(out), "--frames=2", "--to", to, "--renderer=cpu"]) == 0

    def test_other_pixels_are_refused(self, out: Path, arrays: dict[str, Any]) -> None:
        others = {**arrays, "images": [255 - image for image in arrays["images"]]}
        capture = capture_from_arrays(**others)
        with pytest.raises(gs_train.InputError, match=r"must hold the photographs that .* got cha"):
            gs_train.fit(capture=capture, out=out, resume=True)
        with pytest.raises(gs_train.InputError, match=r"must hold the photographs that .* got cha"):
            gs_train.Fitted.open(out).evaluate(capture=capture, renderer="cpu")

    def test_other_views_are_refused(self, out: Path, arrays: dict[str, Any]) -> None:
        capture = capture_from_arrays(**arrays, test_every=3)
        with pytest.raises(gs_train.InputError, match="the views and the split that the run was"):
            gs_train.fit(capture=capture, out=out, resume=True)
        with pytest.raises(gs_train.InputError, match="capture must be the one that "):
            gs_train.Fitted.open(out).evaluate(capture=capture, renderer="cpu")


def test_a_part_that_the_run_began_without_is_refused(plain: Path) -> None:
    before = state_of(plain)
    with pytest.raises(gs_train.InputError, match="strategy must be given from Python only where"):
        gs_train.fit(out=plain, resume=True, steps=STEPS + 2, strategy=adc)
    assert_same(state_of(plain), before)


def test_options_of_a_folder_are_refused_beside_a_capture(
    arrays: dict[str, Any], tmp_path: Path
) -> None:
    capture = capture_from_arrays(**arrays)
    with pytest.raises(TypeError, match="test_every must be left out where capture is given"):
        gs_train.fit(capture=capture, out=tmp_path / "run", test_every=4)
    assert not (tmp_path / "run").exists()


class Stored:
    """Photographs that are there one at a time."""

    def __init__(self, images: list[Any]) -> None:
        self._images = images
        self.n_read = 0

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, i: int) -> Any:
        self.n_read += 1
        return self._images[i]


def test_photographs_are_read_when_needed(arrays: dict[str, Any], plain: Path) -> None:
    stored = Stored(arrays["images"])
    capture = capture_from_arrays(**{**arrays, "images": stored}, sizes=[(64, 48)] * len(stored))
    assert stored.n_read == 0
    assert np.array_equal(read_image(capture.views[2]), arrays["images"][2])
    assert stored.n_read == 1


def test_a_photograph_that_becomes_another_ends_the_run_with_its_steps_saved(
    arrays: dict[str, Any], tmp_path: Path
) -> None:
    images = list(arrays["images"])
    capture = capture_from_arrays(**{**arrays, "images": images})

    def spoil(report: gs_train.StepReport) -> None:
        images[:] = [image[:, :20] for image in images]

    with pytest.raises(gs_train.InputError, match=r"must be uint8 of shape \(48, 64, 3\), got uin"):
        gs_train.fit(
            capture=capture,
            out=tmp_path / "run",
            on_step=spoil,
            # Each is read anew: no room for two.
            **{**OPTIONS, "image_cache": "1", "checkpoint_every": 0},
        )
    newest = latest_checkpoint(tmp_path / "run/checkpoints")
    assert newest is not None


def test_read_only_and_strided_photographs_are_taken(arrays: dict[str, Any]) -> None:
    images = np.stack(arrays["images"])[:, :, ::-1]
    images.setflags(write=False)
    capture = capture_from_arrays(**{**arrays, "images": images})
    pixels = read_image(capture.views[0])
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    assert np.array_equal(pixels, arrays["images"][0][:, ::-1])


def test_views_are_sorted_by_name_with_their_cameras(arrays: dict[str, Any]) -> None:
    names = [f"{(7 * i) % 12:02}" for i in range(12)]
    capture = capture_from_arrays(**{**arrays, "names": names, "Ks": arrays["Ks"][0]}, test=["03"])
    assert [view.name for view in capture.views] == sorted(names)
    for view in capture.views:
        i = names.index(view.name)
        assert np.array_equal(view.world_to_camera, arrays["viewmats"][i])
        assert np.array_equal(read_image(view), arrays["images"][i])
    assert capture.test == (3,)


def test_without_points_training_starts_from_random_ones(
    arrays: dict[str, Any], tmp_path: Path
) -> None:
    given = {name: arrays[name] for name in ("images", "viewmats", "Ks")}
    first, second = (capture_from_arrays(**given) for _ in range(2))
    assert np.array_equal(first.points, second.points)
    assert first.notes == ("points are not given: training starts from 20,000 random ones",)
    fitted = gs_train.fit(capture=first, out=tmp_path / "run", steps=2, renderer="cpu")
    assert fitted.metrics["n_gaussians"] == 20_000


def _turned(viewmats: np.ndarray) -> np.ndarray:
    return viewmats * np.array([-1, 1, 1, 1])[:, None]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda a: {"images": []}, ValueError, "at least one photograph, got 0"),
        (
            lambda a: {"images": [image / 255 for image in a["images"]]},
            TypeError,
            "images must be uint8, got float64 of image 0",
        ),
        (
            lambda a: {"images": [image[..., 0] for image in a["images"]]},
            ValueError,
            r"images must be \(H, W, 3\), got \(48, 64\) of image 0",
        ),
        (lambda a: {"sizes": [(64, 48)]}, ValueError, r"sizes must be 12 pairs, .* got \(1, 2\)"),
        (
            lambda a: {"viewmats": a["viewmats"][:4]},
            ValueError,
            r"viewmats must be \(12, 4, 4\), got \(4, 4, 4\)",
        ),
        (lambda a: {"viewmats": _turned(a["viewmats"])}, ValueError, "begin with a rotation"),
        (lambda a: {"viewmats": a["viewmats"] * 2}, ValueError, "viewmats must begin with a rot"),
        (lambda a: {"Ks": a["Ks"][:, :2]}, ValueError, r"Ks must be \(12, 3, 3\), got"),
        (lambda a: {"Ks": a["Ks"] * np.nan}, ValueError, "Ks must be finite"),
        (lambda a: {"Ks": a["Ks"] + 1}, ValueError, r"Ks must be \[fx 0 cx, 0 fy cy, 0 0 1\]"),
        (lambda a: {"names": ["same"] * 12}, ValueError, "names must be different, got 'same'"),
        (lambda a: {"names": ["one"]}, ValueError, "names must be 12 texts"),
        (lambda a: {"points": a["points"][:3]}, ValueError, r"points must be \(4, 3\), got"),
        (lambda a: {"points": a["points"] + 1e30}, ValueError, "places near the cameras"),
        (lambda a: {"colors": a["colors"][:3]}, ValueError, "one for each point"),
        (lambda a: {"colors": a["colors"] / 255}, TypeError, "colors must be uint8, got float64"),
        (lambda a: {"test": ["nobody"]}, ValueError, "test must hold names of views, got 'nobod"),
        (lambda a: {"test": a["names"]}, ValueError, "test must leave a view to train on"),
        (lambda a: {"test_every": -1}, ValueError, "test_every must be 0 or more, got -1"),
        (lambda a: {"test_every": 1}, gs_train.InputError, "at least one image"),
    ],
)
def test_arrays_that_are_no_capture_are_named(
    arrays: dict[str, Any],
    change: Callable[[dict[str, Any]], dict[str, Any]],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        capture_from_arrays(**{**arrays, **change(arrays)})


def test_points_beyond_float32_are_left_out_with_a_line(arrays: dict[str, Any]) -> None:
    points = arrays["points"].copy()
    points[5] = 1e30
    capture = capture_from_arrays(**{**arrays, "points": points})
    assert len(capture.points) == len(capture.colors) == len(points) - 1
    assert "1 of " in capture.notes[0]
