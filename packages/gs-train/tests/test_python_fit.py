# SPDX-License-Identifier: Apache-2.0
"""`gs_train.fit`: runs with a capture, a renderer, a strategy and a callback from Python."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import gs_train
from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.cli import main
from gs_train.data import capture_from_arrays, load_capture, read_image
from gs_train.densify import Adc, AdcConfig, Changed
from gs_train.machine.interrupt import Interrupted
from gs_train.renderers import Rect, RenderOptions, Rows, Splats, View
from gs_train.renderers.cpu import CpuRenderer
from gs_train.runs.run import Run
from gs_train.runs.strategies import StrategyStart, adc

STEPS = 8
# Refinements and re-orderings on the way.
OPTIONS: dict[str, Any] = {
    "steps": STEPS,
    "renderer": "cpu",
    "batch_size": 2,
    "seed": 3,
    "sh_every": 4,
    "resort_every": 0.01,
    "checkpoint_every": 3,
    "adc": AdcConfig(refine_start=2, refine_every=4, reset_every=12, grow_grad2d=1e-5),
}


def _state(out: Path, step: int = STEPS) -> dict[str, Tensor]:
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    checkpoint = load_checkpoint(newest)
    assert checkpoint.step == step
    return checkpoint.tensors


def _assert_same(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


@pytest.fixture(scope="module")
def plain(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from the folder, without any part from Python."""
    out = tmp_path_factory.mktemp("plain") / "run"
    gs_train.fit(data=tiny_capture, out=out, **OPTIONS)
    return out


@pytest.fixture(scope="module")
def arrays(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same capture as arguments of `capture_from_arrays`."""
    capture = load_capture(tiny_capture, cache_dir=tmp_path_factory.mktemp("cache"))
    return {
        "images": [read_image(view) for view in capture.views],
        "viewmats": np.stack([view.world_to_camera for view in capture.views]),
        "Ks": np.stack([view.K for view in capture.views]),
        "points": capture.points,
        "colors": capture.colors,
        "names": [view.name for view in capture.views],
    }


# ---------------------------------------------------------------------------- options and results


def test_the_command_and_the_function_train_to_the_same_bits(
    tiny_capture: Path, tmp_path: Path
) -> None:
    options = {"steps": 3, "renderer": "cpu", "cap": 3000}
    fitted = gs_train.fit(data=str(tiny_capture), out=str(tmp_path / "ours"), **options)
    command = [f"--{name}={value}" for name, value in options.items()]
    assert main(["fit", str(tiny_capture), "--out", str(tmp_path / "theirs"), *command]) == 0
    _assert_same(_state(tmp_path / "ours", 3), _state(tmp_path / "theirs", 3))
    assert fitted.folder == tmp_path / "ours"
    assert fitted.metrics["steps"] == fitted.step == 3


def test_options_by_name_go_over_those_of_a_config(tiny_capture: Path, tmp_path: Path) -> None:
    config = gs_train.FitConfig(tiny_capture, tmp_path / "run", steps=30_000, strategy="adc")
    fitted = gs_train.fit(config, steps=2, strategy="mcmc", renderer="cpu")
    saved = load_checkpoint(latest_checkpoint(tmp_path / "run/checkpoints"))  # type: ignore[arg-type]
    assert saved.state["recipe"]["strategy"] == "mcmc"
    assert saved.state["given"] == {}
    assert fitted.metrics["renderer"] == "cpu"


def test_rows_are_the_checkpoints_in_either_frame(plain: Path) -> None:
    fitted = gs_train.Fitted.open(plain)
    model = Run.open(plain).model(torch.device("cpu"))
    trained = fitted.rows(frame="trained")
    for name, values in trained.items():
        assert torch.equal(values, model.read(name)), name
    captured, frame = fitted.rows(), fitted.frame
    back = frame.points_in(captured["means"].double().numpy())
    np.testing.assert_allclose(back, trained["means"].double().numpy(), atol=1e-5)  # float32
    assert fitted.metrics["n_gaussians"] == len(captured["means"])
    with pytest.raises(ValueError, match="frame must be capture or trained, got 'world'"):
        fitted.rows(frame="world")  # type: ignore[arg-type]


def test_the_package_imports_without_torch() -> None:
    probe = "import sys, gs_train; print('torch' in sys.modules); gs_train.fit; gs_train.nothing"
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert run.stdout == "False\n"
    assert "AttributeError: module 'gs_train' has no attribute 'nothing'" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": {"steps": 3}}, "config must be a FitConfig, got dict"),
        ({"stepz": 3}, "options must be those of FitConfig, got stepz; did you mean steps"),
        ({}, "data and out must be given, or config"),
        ({"data": "here"}, "out must be given, or config"),
        ({"capture": "folder"}, "capture must be a gs_train.data.Capture, .* got str"),
        (
            {"renderer": 3},
            "renderer must be auto, raster, gsplat, cpu or an object .* got int without",
        ),
        ({"renderer": CpuRenderer}, "renderer must be .* got a class"),
        ({"strategy": 3}, "strategy must be adc, mcmc, fixed or a function .* got int"),
        ({"on_step": "print"}, "on_step must be a function that gets a StepReport, got str"),
    ],
)
def test_arguments_of_other_kinds_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        gs_train.fit(**arguments)


@pytest.mark.parametrize("name", ["renderer", "strategy"])
def test_a_name_that_does_not_exist_is_an_input_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(gs_train.InputError, match=f"--{name} must be .*, got other"):
        gs_train.fit(data=tmp_path, out=tmp_path / "run", **{name: "other"})


def test_a_folder_without_a_run_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(gs_train.InputError, match=r"--resume needs a checkpoint, .* holds none"):
        gs_train.fit(out=tmp_path / "run", resume=True)


# ------------------------------------------------------------------------------------- the capture


def test_arrays_train_to_the_bits_of_the_folder_that_holds_them(
    arrays: dict[str, Any], plain: Path, tmp_path: Path
) -> None:
    fitted = gs_train.fit(capture=capture_from_arrays(**arrays), out=tmp_path / "run", **OPTIONS)
    _assert_same(_state(tmp_path / "run"), _state(plain))
    of_folder = gs_train.Fitted.open(plain).metrics
    assert fitted.metrics["images"] == of_folder["images"]


def test_a_loaded_capture_may_be_given(tiny_capture: Path, plain: Path, tmp_path: Path) -> None:
    capture = load_capture(tiny_capture, cache_dir=tmp_path / "cache")
    gs_train.fit(capture=capture, out=tmp_path / "run", **OPTIONS)
    _assert_same(_state(tmp_path / "run"), _state(plain))


class TestCaptureOfARun:
    """A run on arrays, stopped half-way."""

    @pytest.fixture
    def out(self, arrays: dict[str, Any], tmp_path: Path) -> Path:
        out = tmp_path / "run"
        with pytest.raises(gs_train.StopTraining):
            gs_train.fit(
                capture=capture_from_arrays(**arrays), out=out, on_step=_stop_at(5), **OPTIONS
            )
        return out

    def test_it_goes_on_to_the_same_bits_when_given_again(
        self, out: Path, arrays: dict[str, Any], plain: Path
    ) -> None:
        gs_train.fit(capture=capture_from_arrays(**arrays), out=out, resume=True)
        _assert_same(_state(out), _state(plain))
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
        assert _state(out, 5)

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
    before = _state(plain)
    with pytest.raises(gs_train.InputError, match="strategy must be given from Python only where"):
        gs_train.fit(out=plain, resume=True, steps=STEPS + 2, strategy=adc)
    _assert_same(_state(plain), before)


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


# ------------------------------------------------------------------------------------ the renderer


class Counting:
    """The CPU renderer, which counts what it draws."""

    name = "counting"

    def __init__(self) -> None:
        self._inner = CpuRenderer(RenderOptions())
        self.device = self._inner.device
        self.options = self._inner.options
        self.blends_by_key = self._inner.blends_by_key
        self.n_drawn = 0

    def project(
        self, rows: Rows, view: View, *, sh_degree: int, keys: Tensor | None = None
    ) -> Splats:
        return self._inner.project(rows, view, sh_degree=sh_degree, keys=keys)

    def rasterize(self, splats: Splats, rect: Rect | None = None) -> tuple[Tensor, Tensor]:
        self.n_drawn += 1
        return self._inner.rasterize(splats, rect)


def test_a_renderer_is_what_draws(
    tiny_capture: Path, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, renderer = tmp_path / "run", Counting()
    options = {**OPTIONS, "renderer": renderer}
    with pytest.raises(gs_train.StopTraining):
        gs_train.fit(data=tiny_capture, out=out, on_step=_stop_at(4), **options)
    assert renderer.n_drawn >= 4 * 2
    saved = load_checkpoint(latest_checkpoint(out / "checkpoints"))  # type: ignore[arg-type]
    assert list(saved.state["given"]) == ["renderer"]
    assert saved.state["given"]["renderer"].endswith("Counting")
    with pytest.raises(gs_train.InputError, match=r"was trained with the renderer .*Counting, giv"):
        gs_train.fit(out=out, resume=True)

    fitted = gs_train.fit(out=out, resume=True, renderer=renderer)
    assert fitted.metrics["renderer"] == "counting"
    _assert_same(_state(out), _state(plain))

    capsys.readouterr()
    assert main(["eval", str(out), "--renderer", "cpu"]) == 0
    assert "Counting; cpu draws it now" in capsys.readouterr().err
    before = renderer.n_drawn
    assert fitted.evaluate(renderer=renderer)["renderer"] == "counting"
    assert renderer.n_drawn > before
    with pytest.raises(
        ValueError, match="renderer must be auto, raster, gsplat, cpu or an object, got 'o"
    ):
        fitted.evaluate(renderer="other")


# ------------------------------------------------------------------------------------ the strategy


class Dropping:
    """Drops every fifth Gaussian in every third step; its state is the number of steps."""

    def __init__(self, start: StrategyStart) -> None:
        self.start = start
        self.n_steps = torch.zeros((), dtype=torch.int64)
        self.n_views = 0

    def observe(self, ids: Tensor | None, splats: Splats, *, batch_size: int) -> None:
        self.n_views += 1

    def after_step(
        self,
        rows: Any,
        *,
        step: int,
        images_before: int,
        images_after: int,
        means_lr: float,
    ) -> Changed:
        self.n_steps += 1
        if int(self.n_steps) % 3:
            return Changed()
        dropped = torch.arange(0, rows.n_rows, 5)
        rows.replace(dropped)
        return Changed(pruned=len(dropped), rows_changed=True)

    def permute(self, order: Tensor) -> None:
        pass

    def tensors(self) -> dict[str, Tensor]:
        return {"n_steps": self.n_steps}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.n_steps = tensors["n_steps"].clone()


@pytest.mark.parametrize("offload", ["none", "best"])
def test_a_strategy_changes_the_rows_and_its_state_is_resumed(
    tiny_capture: Path, tmp_path: Path, offload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Dropping] = []

    def dropping(start: StrategyStart) -> Dropping:
        made.append(Dropping(start))
        return made[-1]

    reports: list[gs_train.StepReport] = []
    options = {**OPTIONS, "offload": offload, "strategy": dropping}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    gs_train.fit(data=tiny_capture, out=whole, on_step=reports.append, **options)
    first = made[0].start.n_rows
    assert (made[0].start.seed, made[0].start.device.type) == (3, "cpu")
    assert made[0].start.config.batch_size == 2
    assert made[0].start.scene_scale > 0
    assert made[0].n_views >= STEPS * 2
    assert [r.changed.pruned > 0 for r in reports] == [i % 3 == 2 for i in range(STEPS)]
    kept = first - -(-first // 5)
    assert reports[2].n_rows == kept
    assert reports[-1].n_rows == kept - -(-kept // 5)

    with pytest.raises(gs_train.StopTraining):
        gs_train.fit(data=tiny_capture, out=parts, on_step=_stop_at(4), **options)
    gs_train.fit(out=parts, resume=True, strategy=dropping)
    assert int(made[-1].n_steps) == STEPS
    _assert_same(_state(parts), _state(whole))

    capsys.readouterr()
    assert main(["fit", "--out", str(parts), "--resume"]) == 2
    assert "was trained with the strategy " in capsys.readouterr().err
    assert main(["inspect", str(parts)]) == 0
    assert ", from Python\n" in capsys.readouterr().out


def test_a_named_strategy_is_what_its_function_makes(
    tiny_capture: Path, plain: Path, tmp_path: Path
) -> None:
    made: list[Adc] = []

    def remembered(start: StrategyStart) -> Adc:
        made.append(adc(start))
        return made[-1]

    gs_train.fit(data=tiny_capture, out=tmp_path / "run", strategy=remembered, **OPTIONS)
    assert len(made) == 1
    _assert_same(_state(tmp_path / "run"), _state(plain))


def test_a_strategy_that_makes_no_densifier_is_named(tiny_capture: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"strategy must return a .*Densifier, got list without ob"):
        gs_train.fit(data=tiny_capture, out=tmp_path / "run", strategy=lambda start: [], **OPTIONS)
    assert not (tmp_path / "run/config.yml").exists()


def test_an_error_of_a_strategy_is_not_taken_for_a_damaged_checkpoint(
    tiny_capture: Path, tmp_path: Path
) -> None:
    class Forgetful(Dropping):
        def load(self, tensors: Mapping[str, Tensor]) -> None:
            raise ValueError("of the strategy")

    out = tmp_path / "run"
    with pytest.raises(gs_train.StopTraining):
        gs_train.fit(data=tiny_capture, out=out, strategy=Forgetful, on_step=_stop_at(1), **OPTIONS)
    with pytest.raises(ValueError, match="of the strategy"):
        gs_train.fit(out=out, resume=True, strategy=Forgetful)
    assert _state(out, 1)


# ---------------------------------------------------------------------------------- after each step


def _stop_at(step: int) -> Callable[[gs_train.StepReport], None]:
    def stop(report: gs_train.StepReport) -> None:
        if report.step == step:
            raise gs_train.StopTraining

    return stop


@pytest.mark.parametrize("offload", ["none", "best"])
def test_looking_at_every_step_changes_nothing(
    tiny_capture: Path, tmp_path: Path, offload: str
) -> None:
    seen: list[tuple[int, int, float, int]] = []
    last: dict[str, Tensor] = {}

    def look(report: gs_train.StepReport) -> None:
        rows = report.rows()
        assert len(rows["shN"]) == report.n_rows == report.model.n_rows
        seen.append((report.step, report.images_seen, report.loss.item(), report.n_rows))
        last.update(rows)

    options = {**OPTIONS, "offload": offload}
    gs_train.fit(data=tiny_capture, out=tmp_path / "unseen", **options)
    fitted = gs_train.fit(data=tiny_capture, out=tmp_path / "seen", on_step=look, **options)
    _assert_same(_state(tmp_path / "seen"), _state(tmp_path / "unseen"))
    assert [(step, images) for step, images, _, _ in seen] == [
        (i, 2 * i) for i in range(1, STEPS + 1)
    ]
    assert all(math.isfinite(loss) for _, _, loss, _ in seen)
    _assert_same(last, fitted.rows(frame="trained"))


def test_stop_training_writes_a_checkpoint_and_the_run_goes_on(
    tiny_capture: Path, plain: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(gs_train.StopTraining) as stopped:
        gs_train.fit(data=tiny_capture, out=out, on_step=_stop_at(5), **OPTIONS)
    assert stopped.value.__notes__ == [
        "training ended after step 5; go on from the checkpoint of step 5 with --resume"
    ]
    assert _state(out, 5)
    assert not (out / "metrics.json").exists()
    assert main(["fit", "--out", str(out), "--resume"]) == 0
    _assert_same(_state(out), _state(plain))


def test_a_signal_ends_a_run_of_parts_with_the_way_to_go_on(
    tiny_capture: Path, tmp_path: Path
) -> None:
    def interrupt(report: gs_train.StepReport) -> None:
        if report.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted) as stopped:
        gs_train.fit(
            data=tiny_capture, out=tmp_path / "run", strategy=adc, on_step=interrupt, **OPTIONS
        )
    assert str(stopped.value) == (
        "stopped after step 2 of 8, checkpoint written; go on with: "
        "gs_train.fit(..., resume=True) and the same strategy"
    )
    assert _state(tmp_path / "run", 2)


def test_stop_training_in_the_last_step_changes_nothing(
    tiny_capture: Path, plain: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    fitted = gs_train.fit(data=tiny_capture, out=out, on_step=_stop_at(STEPS), **OPTIONS)
    assert fitted.metrics["steps"] == STEPS
    _assert_same(_state(out), _state(plain))


def test_an_exception_of_the_callback_keeps_the_last_checkpoint(
    tiny_capture: Path, plain: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"

    def fail(report: gs_train.StepReport) -> None:
        if report.step == 5:
            raise ZeroDivisionError("of a metric")

    with pytest.raises(ZeroDivisionError, match="of a metric") as failed:
        gs_train.fit(data=tiny_capture, out=out, on_step=fail, **OPTIONS)
    assert failed.value.__notes__ == [
        "training ended after step 5; go on from the checkpoint of step 3 with --resume"
    ]
    assert _state(out, 3)
    gs_train.fit(out=out, resume=True)
    _assert_same(_state(out), _state(plain))


def test_a_second_run_on_a_folder_is_refused_inside_the_first(
    tiny_capture: Path, tmp_path: Path
) -> None:
    out, errors = tmp_path / "run", []

    def again(report: gs_train.StepReport) -> None:
        with pytest.raises(gs_train.InputError) as refused:
            gs_train.fit(data=tiny_capture, out=out, overwrite=True, **OPTIONS)
        errors.append(str(refused.value))

    gs_train.fit(data=tiny_capture, out=out, on_step=again, **{**OPTIONS, "steps": 1})
    assert len(errors) == 1
    assert str(out) in errors[0]
