# SPDX-License-Identifier: Apache-2.0
"""The examples of the README run."""

import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[1] / "README.md"


EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def _run(first: str, *others: str) -> dict[str, Any]:
    """Names that the examples with these words leave, run one after the other."""
    names: dict[str, Any] = {}
    for words in (first, *others):
        (example,) = (example for example in EXAMPLES if words in example)
        exec(example, names)
    return names


def test_the_stages_on_the_cpu_run() -> None:
    names = _run("cpu.project(")
    assert names["blended"].image.max() > 0.5
    for name, grad in names["of_rows"]._asdict().items():
        assert grad.shape == getattr(names["rows"], name).shape
        assert name == "shN" or grad.any(), name


@pytest.mark.gpu
def test_one_call_each_way_gives_the_gradients_of_autograd() -> None:
    import torch

    try:
        names = _run("rasterize(splats)", "draw_backward(")
    finally:
        torch.set_default_device(None)
    for name, sums in names["sums"].columns.items():
        torch.testing.assert_close(sums, names["rows"][name].grad, rtol=0, atol=0)
    assert names["control"].count.any()
