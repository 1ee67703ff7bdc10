# SPDX-License-Identifier: Apache-2.0
"""What ``--renderer auto`` takes, and what is said where that is not ``raster``."""

import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gs_raster
from gs_train.errors import InputError
from gs_train.renderers import RenderOptions, make_renderer

NO_TORCH_WITH_CUDA = "a torch built for CUDA, got "
NO_DEVICE = "nvidia-smi says whether there is one"
NO_CUDA_BUILD = "a build of gs-raster with CUDA (reinstall it where nvcc is on the PATH)"


def pretend(
    monkeypatch: pytest.MonkeyPatch,
    *,
    cuda: str | None,
    has_device: bool = True,
    gsplat: str | None = "1.5.3",
    raster: str | None = None,
) -> None:
    """A machine with these versions of CUDA, gsplat and the toolkit that gs-raster was built
    with."""
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(gs_raster, "build_info", lambda: {"cuda_toolkit": raster})
    if gsplat is None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    else:
        monkeypatch.setattr("gsplat.__version__", gsplat)


@pytest.mark.parametrize(
    ("machine", "reasons"),
    [
        ({"cuda": None, "has_device": False}, [NO_TORCH_WITH_CUDA]),
        ({"cuda": "12.8", "has_device": False}, [NO_DEVICE]),
        (
            {"cuda": "12.8", "gsplat": None},
            [NO_CUDA_BUILD, "the package gsplat (pip install 'gs-t"],
        ),
        (
            {"cuda": "12.8", "gsplat": "1.6.0"},
            [NO_CUDA_BUILD, "1.5, got 1.6.0 (pip install 'gsplat>=1.5.3,<1.6')"],
        ),
        (
            {"cuda": "12.8", "gsplat": "1.5.2"},
            [NO_CUDA_BUILD, "gsplat 1.5.3 or a later 1.5, got 1.5.2"],
        ),
    ],
)
def test_it_names_what_the_device_renderers_lack_and_the_remedy_in_one_line(
    machine: dict[str, Any],
    reasons: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pretend(monkeypatch, **machine)
    assert make_renderer("auto", RenderOptions()).name == "cpu"
    said = capsys.readouterr().err
    assert said.startswith("rendering on the CPU, because the renderer raster needs ")
    assert all(reason in said for reason in reasons)
    assert said.count("\n") == 1
    for name in ("raster", "gsplat"):
        with pytest.raises(InputError, match=rf"--renderer {name} needs .*; --renderer cpu runs"):
            make_renderer(name, RenderOptions())


def test_raster_is_taken_where_gs_raster_has_cuda(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, cuda="12.8", raster="12.8", gsplat=None)
    renderer = make_renderer("auto", RenderOptions())
    assert renderer.name == "raster"
    assert renderer.device == torch.device("cuda:0")
    assert renderer.blends_by_key
    assert capsys.readouterr().err == ""
    with pytest.raises(InputError, match=r"--renderer gsplat needs the package gsplat"):
        make_renderer("gsplat", RenderOptions())


def test_gsplat_is_taken_where_gs_raster_was_built_without_cuda(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, cuda="12.8")
    kernels = SimpleNamespace(_C=object())
    monkeypatch.setitem(sys.modules, "gsplat.cuda._backend", kernels)
    assert make_renderer("auto", RenderOptions()).name == "gsplat"
    said = capsys.readouterr().err
    assert said == f"rendering with gsplat, because the renderer raster needs {NO_CUDA_BUILD}\n"


def test_where_the_cpu_was_asked_for_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_renderer("cpu", RenderOptions()).name == "cpu"
    assert capsys.readouterr().err == ""
