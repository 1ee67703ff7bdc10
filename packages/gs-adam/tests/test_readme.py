# SPDX-License-Identifier: Apache-2.0
"""The examples of the README run, and those for other trainers train."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gsplat
import pytest
import torch

README = Path(__file__).parents[1] / "README.md"
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
N = 60
SHAPES = {
    "means": (3,),
    "scales": (3,),
    "quats": (4,),
    "opacities": (),
    "sh0": (1, 3),
    "shN": (15, 3),
}


def _examples(section: str) -> list[str]:
    text = README.read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_example_runs() -> None:
    names: dict[str, Any] = {}
    (example,) = _examples("Example")
    exec(example, names)
    assert names["opt"].step_count == 2


@pytest.mark.parametrize("device", DEVICES)
def test_the_examples_of_other_storage_run(device: str) -> None:
    names: dict[str, Any] = {"torch": torch, "device": device}
    for example in _examples("On the GPU, and in storage of your own"):
        exec(example, names)
    assert names["means"].count_nonzero() == 3 * 2000
    assert names["values"].count_nonzero() == 48 * 2000
    assert (names["updated"] == 1).all()
    assert (names["table"] != 0).any(axis=1).sum() == 3
    assert (names["last_step"] == 1).all()


def _runner(device: str) -> Any:
    """What the example finds in `simple_trainer.Runner`."""
    draw = torch.Generator().manual_seed(0)
    splats = torch.nn.ParameterDict(
        {name: torch.randn(N, *shape, generator=draw).to(device) for name, shape in SHAPES.items()}
    )
    strategy = gsplat.DefaultStrategy(
        refine_start_iter=1, refine_every=2, grow_grad2d=0.1, grow_scale3d=1.0, prune_opa=0.2
    )
    targets = {name: 0.1 * torch.ones_like(values) for name, values in splats.items()}

    def render_loss(rows: dict[str, torch.Tensor], step: int) -> tuple[torch.Tensor, Any]:
        means2d = rows["means"][None, :, :2] + 0.0
        means2d.retain_grad()
        loss = ((means2d - 0.1) ** 2).sum() + rows["means"][:, 2].square().sum()
        for name in ("scales", "quats", "opacities", "sh0", "shN"):
            loss = loss + ((rows[name] - targets[name][0]) ** 2).sum()
        radii = torch.ones(1, len(rows["means"]), 2, dtype=torch.int32, device=device)
        info = {"width": 2, "height": 2, "n_cameras": 1, "gaussian_ids": None, "radii": radii}
        return loss, {**info, "means2d": means2d}

    return SimpleNamespace(
        splats=splats,
        optimizers={
            name: torch.optim.Adam([{"params": [values], "lr": 1e-2, "name": name}], eps=1e-15)
            for name, values in splats.items()
        },
        cfg=SimpleNamespace(strategy=strategy),
        strategy_state=strategy.initialize_state(),
        device=device,
        render_loss=render_loss,
    )


@pytest.mark.parametrize("device", DEVICES)
def test_simple_trainer_trains_and_refines_with_shn_in_host_memory(device: str) -> None:
    """As with all rows on the device, torch's Adam, and gradients of all rows."""
    ours, theirs = _runner(device), _runner(device)
    theirs.optimizers["shN"].param_groups[0]["lr"] = 1.25e-4
    at_first, in_each_step = _examples("In gsplat's simple_trainer")
    names = {"self": ours, "torch": torch}
    exec(at_first, names)
    sizes = set()
    for step in range(1, 9):
        n_rows = len(ours.splats["means"])
        draw = torch.Generator().manual_seed(step)
        names["ids"] = ids = (torch.rand(n_rows, generator=draw) < 0.5).nonzero().flatten()
        torch.manual_seed(step)
        exec(in_each_step, names | {"step": step})

        rows = {name: p[ids.to(device)] for name, p in theirs.splats.items()}
        loss, info = theirs.render_loss(rows, step)
        loss.backward()
        for optimizer in theirs.optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seen = ids.to(device)
        info |= {"gaussian_ids": seen, "radii": info["radii"][0], "means2d": _packed(info)}
        torch.manual_seed(step)
        theirs.cfg.strategy.step_post_backward(
            theirs.splats, theirs.optimizers, theirs.strategy_state, step, info, packed=True
        )
        sizes.add(len(ours.splats["means"]))
    ours.optimizers["shN"].flush()
    assert len(sizes) > 2
    for name, values in theirs.splats.items():
        torch.testing.assert_close(
            ours.splats[name].to(device), values, rtol=2e-5, atol=2e-6, msg=lambda m, n=name: n + m
        )


def _packed(info: dict[str, Any]) -> torch.Tensor:
    means2d = info["means2d"].detach()[0]
    means2d.grad = info["means2d"].grad[0]
    return means2d
