# SPDX-License-Identifier: Apache-2.0
"""What is said where ``--renderer auto`` takes the CPU."""

import importlib.util

import pytest
import torch

from gs_train.errors import InputError
from gs_train.renderers import RenderOptions, make_renderer


@pytest.mark.parametrize(
    ("cuda", "has_device", "has_gsplat", "reason"),
    [
        (None, False, True, "a torch built for CUDA, got "),
        ("12.8", False, True, "nvidia-smi says whether there is one"),
        ("12.8", True, False, "the package gsplat (pip install 'gs-train[gpu]')"),
    ],
)
def test_it_names_what_gsplat_lacks_and_the_remedy_in_one_line(
    cuda: str | None,
    has_device: bool,
    has_gsplat: bool,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_device)
    if not has_gsplat:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert make_renderer("auto", RenderOptions()).name == "cpu"
    said = capsys.readouterr().err
    assert said.startswith("rendering on the CPU, because gsplat needs ")
    assert reason in said
    assert said.count("\n") == 1
    with pytest.raises(InputError, match=r"--renderer gsplat needs .*; --renderer cpu runs"):
        make_renderer("gsplat", RenderOptions())


def test_where_the_cpu_was_asked_for_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_renderer("cpu", RenderOptions()).name == "cpu"
    assert capsys.readouterr().err == ""
