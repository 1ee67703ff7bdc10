# SPDX-License-Identifier: Apache-2.0
"""The example of the README does what torch does with everything in one place."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture(autouse=True)
def _choose_to_check_sparse_tensors() -> Iterator[None]:  # not choosing is a warning of torch
    with torch.sparse.check_sparse_tensor_invariants(True):
        yield


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_shn_in_host_memory_trains_like_shn_on_the_device(device: str) -> None:
    example = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
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
        "lr": 0.01,
    }
    exec(compile(example, str(README), "exec"), names)

    everything = start.clone().to(device).requires_grad_()
    adam = torch.optim.SparseAdam([everything], lr=0.01)
    for ids in batches:
        adam.zero_grad()
        rows = everything.detach()[ids].requires_grad_()
        render_loss(ids, rows).backward()
        assert rows.grad is not None
        everything.grad = torch.sparse_coo_tensor(ids[None], rows.grad, everything.shape)
        adam.step()
    # The same arithmetic in the same order, on the CPU bit for bit; a device may fuse operations.
    tolerance = 0 if device == "cpu" else 1e-6
    trained = names["table"].torch().reshape(200, 15, 3)  # type: ignore[attr-defined]
    torch.testing.assert_close(trained, everything.detach().cpu(), rtol=tolerance, atol=tolerance)
    assert not torch.equal(trained, start)
