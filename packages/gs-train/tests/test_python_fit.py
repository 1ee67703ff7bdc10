# SPDX-License-Identifier: Apache-2.0
"""`gs_train.fit`: its options and results, and a renderer from Python."""

from __future__ import annotations

import os
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from python_runs import (
    OPTIONS,
    assert_same,
    state_of,
    stop_at,
    trained_plainly,
)
from torch import Tensor

import gs_train
from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.cli import main
from gs_train.densify import AdcConfig
from gs_train.renderers import Rect, RenderOptions, Rows, Splats, View
from gs_train.renderers.cpu import CpuRenderer
from gs_train.runs.run import Run


@pytest.fixture(scope="module")
def plain(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_plainly(tiny_capture, tmp_path_factory.mktemp("plain") / "run")


def test_the_command_and_the_function_train_to_the_same_bits(
    tiny_capture: Path, tmp_path: Path
) -> None:
    options = {"steps": 3, "renderer": "cpu", "cap": 3000}
    fitted = gs_train.fit(data=str(tiny_capture), out=str(tmp_path / "ours"), **options)
    command = [f"--{name}={value}" for name, value in options.items()]
    assert main(["fit", str(tiny_capture), "--out", str(tmp_path / "theirs"), *command]) == 0
    assert_same(state_of(tmp_path / "ours", 3), state_of(tmp_path / "theirs", 3))
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


def test_a_run_is_resumed_without_what_takes_long_to_import() -> None:
    slow = ("scipy.interpolate", "scipy.sparse", "scipy.spatial", "tensorboard", "viser")
    probe = f"import sys, gs_train.runs.training; print([m for m in {slow} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert run.stdout == "[]\n"


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cap": 1e5}, r"whole number or null for cap, got 100000\.0"),
        ({"decay_steps": True}, "for decay_steps, got True"),
        ({"antialiased": 1}, "true or false for antialiased, got 1"),
        ({"overwrite": "no"}, "true or false for overwrite, got 'no'"),
        ({"host_memory": 2.0**33}, "text or null for host_memory"),
        ({"lr": 5}, "for lr, got 5"),
        ({"adc": AdcConfig(refine_every=2.5)}, "whole number for adc.refine_every"),
        ({"tide": None}, "for tide, got None"),
        ({"trace": True}, "a path or null for trace, got True"),
        ({"out": 5}, "a path for out, got 5"),
    ],
)
@pytest.mark.parametrize("is_config", [False, True])
def test_a_value_of_another_kind_costs_no_run(
    is_config: bool, options: dict[str, Any], message: str, plain: Path, tiny_capture: Path
) -> None:
    # What config.yml cannot hold could not be resumed, or opened, once it was trained.
    before = sorted(plain.rglob("*"))
    given = {"data": tiny_capture, "out": plain, "steps": 1, "overwrite": True, **options}
    if is_config:
        config = gs_train.FitConfig(tiny_capture, plain)
        for name, value in given.items():  # some kinds the configuration itself would refuse
            object.__setattr__(config, name, value)
        given = {"config": config}
    with pytest.raises(TypeError, match=message):
        gs_train.fit(**given)
    assert sorted(plain.rglob("*")) == before


def test_scalars_of_numpy_and_text_are_values(tiny_capture: Path, tmp_path: Path) -> None:
    fitted = gs_train.fit(
        data=str(tiny_capture),
        out=str(tmp_path / "run"),
        steps=np.int64(2),
        seed=np.uint32(3),
        init_opacity=np.float64(0.2),
        exposure=np.bool_(False),
        renderer="cpu",
        background=np.str_("black"),
        image_cache=1 << 30,
        cap="3k",
        adc=AdcConfig(grow_grad2d=np.float32(2e-4)),
    )
    assert fitted.step == 2
    config = gs_train.Fitted.open(tmp_path / "run").rows()
    assert len(config["means"]) <= 3000


def test_a_folder_is_where_it_was_when_the_run_began(
    tiny_capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    fitted = gs_train.fit(
        data=tiny_capture,
        out="run",
        steps=2,
        renderer="cpu",
        on_step=lambda report: os.chdir(tmp_path / "elsewhere"),
    )
    assert fitted.folder == tmp_path / "run"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["elsewhere", "run"]
    assert not list((tmp_path / "elsewhere").iterdir())
    with pytest.raises(gs_train.InputError, match="out must name a file or a folder, got ''"):
        gs_train.fit(data=tiny_capture, out="", renderer="cpu")


HINTS = typing.get_type_hints(gs_train.FitConfig)
WORDS = [name for name, hint in HINTS.items() if "Literal" in str(hint)]


@pytest.mark.parametrize("name", [name for name in WORDS if name != "max_side"])
def test_a_name_that_does_not_exist_is_an_input_error(name: str, tmp_path: Path) -> None:
    option = "--" + name.replace("_", "-")
    with pytest.raises(gs_train.InputError, match=f"{option} must be .*, got other"):
        gs_train.fit(data=tmp_path, out=tmp_path / "run", **{name: "other"})


def test_every_option_of_words_is_among_them() -> None:
    assert {"renderer", "strategy", "frame", "mask", "offload", "max_side"} <= set(WORDS)


def test_a_folder_without_a_run_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(gs_train.InputError, match=r"--resume needs a checkpoint, .* holds none"):
        gs_train.fit(out=tmp_path / "run", resume=True)


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
        gs_train.fit(data=tiny_capture, out=out, on_step=stop_at(4), **options)
    assert renderer.n_drawn >= 4 * 2
    saved = load_checkpoint(latest_checkpoint(out / "checkpoints"))  # type: ignore[arg-type]
    assert list(saved.state["given"]) == ["renderer"]
    assert saved.state["given"]["renderer"].endswith("Counting")
    with pytest.raises(gs_train.InputError, match=r"was trained with the renderer .*Counting, giv"):
        gs_train.fit(out=out, resume=True)

    fitted = gs_train.fit(out=out, resume=True, renderer=renderer)
    assert fitted.metrics["renderer"] == "counting"
    assert_same(state_of(out), state_of(plain))

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
