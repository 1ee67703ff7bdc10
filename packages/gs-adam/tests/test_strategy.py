# SPDX-License-Identifier: Apache-2.0
"""gsplat's own strategies edit the rows of host optimizers as they edit those of torch's Adam."""

import math
from collections.abc import Iterator
from typing import Any

import gsplat
import pytest
import torch
from gsplat.strategy import ops

from gs_adam import HostAdam, follow

N, STEPS = 50, 10
SHAPES = {
    "means": (3,),
    "scales": (3,),
    "quats": (4,),
    "opacities": (),
    "sh0": (1, 3),
    "shN": (3, 3),
}
LR = {"means": 1e-3, "scales": 5e-3, "quats": 1e-3, "opacities": 5e-2, "sh0": 2.5e-3, "shN": 1e-3}

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
HOSTS = {
    "shN": [["shN"]],
    "sh0 and shN together": [["sh0", "shN"]],
    "opacities and shN together": [["opacities", "shN"]],
    "each": [[name] for name in SHAPES],
}


def _relocation(opacities: Any, scales: Any, ratios: Any, binoms: Any) -> tuple[Any, Any]:
    """Equation 9 of the MCMC paper, which gsplat computes on CUDA devices alone."""
    new = 1 - (1 - opacities) ** (1 / ratios)
    total = torch.zeros_like(opacities)
    for row, ratio in enumerate(ratios.tolist()):
        for i in range(1, ratio + 1):
            for k in range(i):
                term = binoms[i - 1, k] * (-1) ** k / math.sqrt(k + 1) * new[row] ** (k + 1)
                total[row] += term
    return new, scales * (opacities / total)[:, None]


@pytest.fixture(autouse=True)
def _gsplat_on_the_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "cuda" in request.node.name:
        return
    from gsplat.cuda import _torch_impl

    monkeypatch.setattr(ops, "compute_relocation", _relocation)
    monkeypatch.setattr(ops, "quat_scale_to_covar_preci", _torch_impl._quat_scale_to_covar_preci)


class Resets(gsplat.DefaultStrategy):
    """Resets opacities after what `DefaultStrategy` does: gsplat 1.5.3's own condition for it,
    ``step % reset_every == 0 & step > 0``, is never true."""

    def step_post_backward(
        self, params: Any, optimizers: Any, state: Any, step: int, info: Any, **options: Any
    ) -> None:
        super().step_post_backward(params, optimizers, state, step, info, **options)
        if step == 5:
            ops.reset_opa(params, optimizers, state, value=0.4)


REFINING = {"refine_start_iter": 1, "refine_every": 3}
STRATEGIES = {
    "DefaultStrategy": lambda: gsplat.DefaultStrategy(
        **REFINING, grow_grad2d=0.6, grow_scale3d=0.35, prune_opa=0.1
    ),
    "resets": lambda: Resets(**REFINING, grow_grad2d=0.8, grow_scale3d=0.35, prune_opa=0.1),
    "MCMCStrategy": lambda: gsplat.MCMCStrategy(
        **REFINING, cap_max=54, min_opacity=0.2, noise_lr=1.0
    ),
    "MCMCStrategy at its cap": lambda: gsplat.MCMCStrategy(
        **REFINING, cap_max=N, min_opacity=0.3, noise_lr=1.0
    ),
}


class Training:
    """Steps with gradients made up from a row's values, of some rows at a time."""

    def __init__(self, strategy: Any, device: str, hosts: list[list[str]], semantics: str) -> None:
        draw = torch.Generator().manual_seed(0)
        self.strategy, self.device = strategy, device
        self.params = torch.nn.ParameterDict(
            {name: torch.randn(N, *shape, generator=draw) for name, shape in SHAPES.items()}
        )
        self.params["scales"].data.mul_(0.5).sub_(1)
        owned = {name for names in hosts for name in names}
        self.optimizers: dict[str, Any] = {}
        for name, param in self.params.items():
            if name not in owned:
                self.params[name] = torch.nn.Parameter(param.detach().to(device))
                self.optimizers[name] = torch.optim.Adam(
                    [{"params": [self.params[name]], "lr": LR[name], "name": name}], eps=1e-15
                )
        for names in hosts:
            groups = [{"params": [self.params[name]], "lr": LR[name]} for name in names]
            self.optimizers[names[0]] = HostAdam(groups, eps=1e-15, semantics=semantics)
        self.hosts = [o for o in self.optimizers.values() if isinstance(o, HostAdam)]
        self.state = strategy.initialize_state()

    def step(self, step: int, *, in_part: str = "") -> None:
        draw = torch.Generator().manual_seed(step)
        n_rows = len(self.params["means"])
        ids = (torch.rand(n_rows, generator=draw) < 0.4).nonzero().flatten()
        for host in self.hosts:
            host.flush(ids)
        grads = {
            name: param.detach().cpu()[ids] + torch.randn(len(ids), *SHAPES[name], generator=draw)
            for name, param in self.params.items()
        }
        for optimizer in self.optimizers.values():
            params = [param for group in optimizer.param_groups for param in group["params"]]
            names = [name for p in params for name, param in self.params.items() if p is param]
            if isinstance(optimizer, HostAdam):
                optimizer.step(ids, [grads[name] for name in names])
                continue
            (name,), (param,) = names, params
            grad = torch.zeros(param.shape).index_copy_(0, ids, grads[name])
            param.grad = grad.to(self.device)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.refine(step, ids, torch.rand(2, n_rows, 2, generator=draw), in_part)

    def refine(self, step: int, ids: torch.Tensor, gradients: torch.Tensor, in_part: str) -> None:
        n_rows = len(self.params["means"])
        radii = torch.zeros(2, n_rows, 2, dtype=torch.int32)
        radii[0, ids] = 3
        radii[1, ids[::2]] = 2
        if in_part:
            radii, gradients = radii[:, ids], gradients[:, ids]
        gaussian_ids = None
        if in_part == "packed":
            seen = (radii > 0).all(-1)
            gaussian_ids = seen.nonzero()[:, 1].to(self.device)
            radii, gradients = radii[seen], gradients[seen]
        means2d = torch.zeros(gradients.shape, device=self.device, requires_grad=True)
        means2d.grad = gradients.to(self.device)
        info = {
            "width": 2, "height": 2, "n_cameras": 1, "gaussian_ids": gaussian_ids,
            "radii": radii.to(self.device), "means2d": means2d,
        }  # fmt: skip
        options: dict[str, Any] = {"rows": ids} if in_part else {}
        if in_part == "packed":
            options["packed"] = True
        if isinstance(self.strategy, gsplat.MCMCStrategy):
            options["lr"] = 1e-2
        torch.manual_seed(step)
        self.strategy.step_post_backward(
            self.params, self.optimizers, self.state, step, info, **options
        )

    def found(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Values and moments of all tensors."""
        for host in self.hosts:
            host.flush()
        for name, param in self.params.items():
            yield name, param.detach().cpu()
            (state,) = (o.state[param] for o in self.optimizers.values() if param in o.state)
            yield f"exp_avg of {name}", state["exp_avg"].cpu()
            yield f"exp_avg_sq of {name}", state["exp_avg_sq"].cpu()
        for name, value in self.state.items():
            if isinstance(value, torch.Tensor):
                yield name, value.cpu()


def _are_close(ours: Training, theirs: Training) -> None:
    for (name, our), (_, their) in zip(ours.found(), theirs.found(), strict=True):
        torch.testing.assert_close(
            our, their, rtol=2e-5, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("semantics", ["dense", "deferred"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rows_of_a_host_optimizer_are_edited_as_torchs_adam_has_them(
    strategy: str, semantics: str, hosts: str, device: str
) -> None:
    theirs = Training(STRATEGIES[strategy](), device, [], "dense")
    ours = Training(follow(STRATEGIES[strategy]()), device, HOSTS[hosts], semantics)
    sizes = []
    for step in range(1, STEPS):
        for training in (theirs, ours):
            training.step(step)
        sizes.append(len(ours.params["means"]))
        assert sizes[-1] == len(theirs.params["means"])
    _are_close(ours, theirs)
    assert len(set(sizes)) > 2 or strategy == "MCMCStrategy at its cap"
    assert ours.params["shN"].device.type == "cpu"
    for training in (theirs, ours):
        training.step(STEPS)
    _are_close(ours, theirs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", ["by camera", "packed"])
def test_rows_that_no_view_sees_need_not_be_rendered(form: str, device: str) -> None:
    whole, part = (
        Training(follow(STRATEGIES["DefaultStrategy"]()), device, HOSTS["shN"], "deferred")
        for _ in range(2)
    )
    for step in range(1, STEPS):
        whole.step(step)
        part.step(step, in_part=form)
    _are_close(part, whole)


def test_rows_that_sleep_sleep_on() -> None:
    training = Training(follow(STRATEGIES["DefaultStrategy"]()), "cpu", HOSTS["shN"], "deferred")
    (host,) = training.hosts
    for step in range(1, 5):
        training.step(step)
    last_step = host.state_dict()["gs_adam"]["last_step"]
    assert int(last_step.min()) < 3 < host.step_count


def test_a_follower_is_still_of_the_strategys_class_and_a_copy() -> None:
    strategy = gsplat.DefaultStrategy(verbose=True)
    follower = follow(strategy)
    assert isinstance(follower, gsplat.DefaultStrategy)
    assert type(strategy) is gsplat.DefaultStrategy
    assert follower.verbose
    assert follow(follower) is follower


@pytest.mark.parametrize("reason", ["a step is open", "its state is adopted"])
def test_a_host_optimizer_that_cannot_be_edited_is_found_before_anything_is(reason: str) -> None:
    training = Training(follow(STRATEGIES["DefaultStrategy"]()), "cpu", HOSTS["shN"], "dense")
    for step in range(1, 3):
        training.step(step)
    (host,) = training.hosts
    if reason == "a step is open":
        host.begin_step()
    else:
        (param,) = host.param_groups[0]["params"]
        state = {key: [torch.zeros_like(param)] for key in ("exp_avg", "exp_avg_sq")}
        host.rebind([param], state=state)
    before = {name: (param, param.detach().clone()) for name, param in training.params.items()}
    with pytest.raises(RuntimeError, match=r"refinement needs steps|must be edited by its owner"):
        training.refine(3, torch.arange(N), torch.ones(2, N, 2), "")
    for name, (param, values) in before.items():
        assert training.params[name] is param
        assert torch.equal(param, values)


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(TypeError, match=r"strategy must be a gsplat strategy .*, got int"):
        follow(3)
    training = Training(follow(STRATEGIES["MCMCStrategy"]()), "cpu", HOSTS["shN"], "deferred")
    training.params["shN"] = torch.nn.Parameter(torch.zeros(N, 3, 3))
    with pytest.raises(ValueError, match=r"optimizers\['shN'\] must have tensors of params"):
        training.refine(3, torch.arange(2), torch.ones(2, N, 2), "")


@pytest.mark.parametrize("semantics", ["dense", "deferred"])
def test_a_row_that_takes_the_place_of_one_that_slept_has_its_parents_values(
    semantics: str,
) -> None:
    """One row is duplicated where another, the last one, is pruned in the same refinement."""
    draw = torch.Generator().manual_seed(0)
    shapes = {"means": 3, "scales": 3, "quats": 4, "shN": 45}
    params: dict[str, Any] = {
        name: torch.nn.Parameter(torch.randn(6, width, generator=draw))
        for name, width in shapes.items()
    }
    params["scales"].data.fill_(-9.0)
    params["opacities"] = torch.nn.Parameter(torch.tensor([2.0] * 5 + [-9.0]))
    optimizers: dict[str, Any] = {
        name: torch.optim.Adam([param]) for name, param in params.items() if name != "shN"
    }
    host = optimizers["shN"] = HostAdam([params["shN"]], lr=0.1, semantics=semantics)
    host.step(None, [torch.randn(6, 45, generator=draw)])
    for _ in range(5):
        host.step(torch.tensor([0, 1]), [torch.randn(2, 45, generator=draw)])
    wanted = params["shN"].detach()[0].clone()
    strategy = follow(gsplat.DefaultStrategy(refine_start_iter=1, refine_every=3))
    means2d = torch.zeros(1, 6, 2, requires_grad=True)
    means2d.grad = torch.zeros(1, 6, 2)
    means2d.grad[0, 0] = 9.0
    info = {
        "width": 2, "height": 2, "n_cameras": 1, "gaussian_ids": None,
        "radii": torch.ones(1, 6, 2, dtype=torch.int32), "means2d": means2d,
    }  # fmt: skip
    strategy.step_post_backward(params, optimizers, strategy.initialize_state(), 303, info)
    host.flush()
    assert len(params["shN"]) == 6
    assert torch.equal(params["shN"].detach()[5], wanted)
