# SPDX-License-Identifier: Apache-2.0
"""The example of gs-pinned's README trains what `SelectiveAdam` does with all rows in one place."""

import ast
import re
from pathlib import Path

import pytest
import torch

README = Path(__file__).parents[1] / "packages" / "gs-pinned" / "README.md"
LR = 0.01
IMPORTS = (ast.Import, ast.ImportFrom)

ON_GPU = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    ],
)


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
@pytest.mark.parametrize("semantics", ["sparse", "deferred"])
def test_shn_in_host_memory_trains_like_shn_on_the_device(device: str, semantics: str) -> None:
    example = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
    if semantics == "deferred":  # as the sentence behind the example says
        example = example.replace(', semantics="sparse", bias_correction="off"', "")
        example = example.replace(
            "ids in batches:\n", "ids in batches:\n    adam.flush(ids.cpu())\n"
        )
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(200, 15, 3, generator=generator)
    batches = [
        torch.randperm(200, generator=generator)[:60].sort().values.to(device) for _ in range(8)
    ]
    target = torch.randn(200, 15, 3, generator=generator).to(device)

    def render_loss(ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return ((rows - target[ids]) ** 2).sum()

    names = {
        "splats": {"shN": start.clone().to(device)},
        "batches": batches,
        "render_loss": render_loss,
        "device": device,
        "lr": LR,
    }
    exec(compile(example, str(README), "exec"), names)
    if semantics == "deferred":
        names["adam"].flush()  # type: ignore[attr-defined]

    rows, mean, square = start.double(), *(torch.zeros(200, 15, 3).double() for _ in range(2))
    for step, ids in enumerate(batch.cpu() for batch in batches):
        gradient = torch.zeros_like(rows)
        gradient[ids] = 2 * (rows[ids] - target.cpu()[ids])
        seen = ids if semantics == "sparse" else slice(None)
        mean[seen] += 0.1 * (gradient - mean)[seen]
        square[seen] += 0.001 * (gradient**2 - square)[seen]
        first, second = 1.0, 1.0
        if semantics == "deferred":
            first, second = 1 - 0.9 ** (step + 1), 1 - 0.999 ** (step + 1)
        rows[seen] -= LR * (mean / first / ((square / second).sqrt() + 1e-15))[seen]
    trained = names["table"].torch().reshape(200, 15, 3)  # type: ignore[attr-defined]
    torch.testing.assert_close(trained.double(), rows, rtol=1e-5, atol=1e-6)
    assert not torch.equal(trained, start)


def test_the_example_adds_five_statements_to_a_trainer() -> None:
    """Beside its imports, its loop and its own rendering."""
    example = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
    body = [node for node in ast.parse(example).body if not isinstance(node, IMPORTS)]
    (loop,) = (node for node in body if isinstance(node, ast.For))
    own = [node for node in loop.body if "render_loss" in ast.unparse(node)]
    assert len(body) - 1 + len(loop.body) - len(own) == 5
    assert len(own) == 1
