# SPDX-License-Identifier: Apache-2.0
"""What is said where ``--renderer auto`` takes the CPU."""

import importlib.util

import pytest
import torch

from gs_train.errors import InputError
from gs_train.renderers import RenderOptions, make_renderer


@pytest.mark.parametrize(
    ("cuda", "has_device", "gsplat", "reason"),
    [
        (None, False, "1.5.3", "a torch built for CUDA, got "),
        ("12.8", False, "1.5.3", "nvidia-smi says whether there is one"),
        ("12.8", True, None, "the package gsplat (pip install 'gs-train[gpu]')"),
        ("12.8", True, "1.6.0", "1.5, got 1.6.0 (pip install 'gsplat>=1.5.3,<1.6')"),
        ("12.8", True, "1.5.2", "gsplat 1.5.3 or a later 1.5, got 1.5.2"),
    ],
)
def test_it_names_what_gsplat_lacks_and_the_remedy_in_one_line(
    cuda: str | None,
    has_device: bool,
    gsplat: str | None,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_device)
    if gsplat is None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    else:
        monkeypatch.setattr("gsplat.__version__", gsplat)
    assert make_renderer("auto", RenderOptions()).name == "cpu"
    said = capsys.readouterr().err
    assert said.startswith("rendering on the CPU, because the renderer gsplat needs ")
    assert reason in said
    assert said.count("\n") == 1
    with pytest.raises(InputError, match=r"--renderer gsplat needs .*; --renderer cpu runs"):
        make_renderer("gsplat", RenderOptions())


def test_where_the_cpu_was_asked_for_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_renderer("cpu", RenderOptions()).name == "cpu"
    assert capsys.readouterr().err == ""
