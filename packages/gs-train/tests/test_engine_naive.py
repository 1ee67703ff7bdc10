# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gs_adam
from gs_train.rows import mirror_adam
from gs_train.rows.attributes import NAMES
from gs_train.rows.gaussians import Gaussians
from gs_train.rows.mirror_adam import HostMirrorAdam
from gs_train.rows.restore import InMemory, restored_gaussians

SHAPES = {"means": (3,), "scales": (3,), "quats": (4,), "opacities": (), "sh0": (1, 3)}


def make_rows(n, seed=0, k=3):
    generator = torch.Generator().manual_seed(seed)
    shapes = {**SHAPES, "shN": (k, 3)}
    return {name: torch.randn(n, *shapes[name], generator=generator) for name in NAMES}


def rated(groups):
    return [{**group, "lr": 0.01 * (1 + i)} for i, group in enumerate(groups)]


def mirror(groups):
    return HostMirrorAdam(rated(groups), eps=1e-15)


def host(groups):
    return gs_adam.HostAdam(rated(groups), eps=1e-15, semantics="dense")


def plain(groups):
    return torch.optim.Adam(rated(groups), eps=1e-15)


def make_models(n, *makers, k=3):
    return [Gaussians(make_rows(n, k=k), device="cpu", make_optimizer=make) for make in makers]


def restored(model, make_optimizer):
    return restored_gaussians(
        InMemory(model.tensors()), device=model.device, make_optimizer=make_optimizer
    )


def train(models, n_steps, seed):
    for i in range(n_steps):
        gradients = make_rows(models[0].n_rows, seed + i, models[0].params["shN"].shape[1])
        for model in models:
            model.zero_gradients()
            for name, param in model.params.items():
                param.grad += gradients[name].to(param.device)
            for group in model.optimizer.param_groups:
                group["lr"] *= 0.99
            model.optimizer.step()


def set_rates_of(model, other):
    """Rates are no state: a model made from another's tensors begins with those of its maker."""
    for group, its in zip(model.optimizer.param_groups, other.optimizer.param_groups, strict=True):
        group["lr"] = its["lr"]


def edit(model, operation, seed):
    n, k = model.n_rows, model.params["shN"].shape[1]
    generator = torch.Generator().manual_seed(seed)
    ids = (torch.rand(n, generator=generator) < 0.5).nonzero().flatten().to(model.device)
    if operation == "add":
        model.replace(ids[:0], make_rows(1 + seed % 4, seed, k))
    elif operation == "remove":
        model.replace(ids)
    elif operation == "replace":
        # As many rows as before, in their memory.
        model.replace(ids, make_rows(len(ids), seed, k))
    elif operation == "permute":
        for _ in range(1 + seed % 3):
            model.permute(torch.randperm(n, generator=generator).to(model.device))
    elif operation == "overwrite":
        model.overwrite(ids, {"quats": make_rows(len(ids), seed, k)["quats"]})
    elif operation == "overwrite_all":
        model.overwrite(None, {"opacities": model.read("opacities").clamp(max=0.1)})
    elif operation == "in_place":
        model.in_place("means").add_(0.25)
    else:
        model.zero_moments(ids)


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name in got:
        assert torch.equal(got[name].cpu(), expected[name].cpu()), name


EDITS = ["add", "remove", "replace", "permute", "overwrite", "overwrite_all", "in_place",
         "zero_moments"]  # fmt: skip


@given(
    n=st.integers(0, 20),
    k=st.sampled_from([0, 3]),
    operations=st.lists(
        st.tuples(st.sampled_from([*EDITS, "train", "train"]), st.integers(0, 2**20)),
        min_size=1,
        max_size=8,
    ),
)
@settings(deadline=None, max_examples=60)
def test_steps_between_any_edits_equal_host_adam_bit_for_bit(n, k, operations):
    models = make_models(n, mirror, host, k=k)
    train(models, 2, 5)
    for operation, seed in operations:
        if operation == "train":
            train(models, 1 + seed % 4, seed)
        else:
            for model in models:
                edit(model, operation, seed)
    train(models, 2, 9)
    assert_same(models[0].tensors(), models[1].tensors())


def test_steps_equal_torch_adam_to_rounding():
    models = make_models(40, mirror, plain)
    for seed in range(6):
        train(models, 20, 100 * seed)
        for model in models:
            edit(model, EDITS[seed], seed)
    for name in NAMES:
        got, expected = (model.read(name) for model in models)
        # Both round each of 120 updates of a value that may have been as large as 4.
        assert (got - expected).abs().max() <= 120 * 4 * 2.0**-24, name


def test_state_is_as_torch_adams_and_in_host_memory():
    model, other = make_models(6, mirror, plain)
    train([model, other], 3, 0)
    assert set(model.tensors()) == set(other.tensors())
    for param in model.params.values():
        state = model.optimizer.state[param]
        assert set(state) == {"step", "exp_avg", "exp_avg_sq"}
        assert state["step"].item() == 3
        assert all(value.device.type == "cpu" for value in state.values())
        assert state["exp_avg"].shape == param.shape


def test_a_restored_model_trains_on_to_the_same_bits():
    (model,) = make_models(12, mirror)
    train([model], 4, 0)
    for from_plain in (False, True):
        start = model
        if from_plain:
            (start,) = make_models(12, plain)
            train([start], 4, 0)
        twins = [restored(start, make) for make in (mirror, host)]
        assert_same(twins[0].tensors(), start.tensors())
        train(twins, 5, 50)
        assert_same(twins[0].tensors(), twins[1].tensors())
    state_dict = model.optimizer.state_dict()
    with pytest.raises(ValueError, match="different number of parameter groups"):
        HostMirrorAdam([torch.zeros(3, requires_grad=True)]).load_state_dict(state_dict)


def test_values_written_or_replaced_between_steps_are_not_lost():
    models = make_models(5, mirror, host)
    train(models, 2, 0)
    with torch.no_grad():
        for model in models:
            model.params["means"][3] += 1.0
            model.params["scales"].detach().mul_(0.5)
            # As others' densification does it, which torch does not count as a change.
            model.params["quats"].data = model.params["quats"].detach() + 2.0
    train(models, 1, 7)
    assert_same(models[0].tensors(), models[1].tensors())


def test_unedited_parameters_are_not_copied_to_the_host_again(monkeypatch):
    (model,) = make_models(5, mirror)
    train([model], 2, 0)
    model.overwrite(None, {"quats": model.read("quats") * 2})
    sources = []
    stored = mirror_adam._Mirror._stored

    def noted(self, source, table):
        sources.append(source.data_ptr())
        return stored(self, source, table)

    monkeypatch.setattr(mirror_adam._Mirror, "_stored", noted)
    model.zero_gradients()
    model.optimizer.step()
    copied = [name for name in NAMES if model.params[name].data_ptr() in sources]
    assert copied == ["quats"]
    assert len(sources) == 7  # six gradients and that one


def test_bad_arguments_are_refused_and_change_nothing():
    (model,) = make_models(5, mirror)
    train([model], 2, 0)
    before = {name: value.clone() for name, value in model.tensors().items()}
    model.params["scales"].grad = None
    with pytest.raises(ValueError, match=r"params\[1\].grad must be set before a step, got None"):
        model.optimizer.step()
    model.zero_gradients()
    model.optimizer.param_groups[0]["lr"] = -1.0
    with pytest.raises(ValueError, match="lr must be at least 0 and finite, got -1"):
        model.optimizer.step()
    model.optimizer.param_groups[0]["lr"] = 0.1
    assert_same(model.tensors(), before)
    model.optimizer.state[model.params["quats"]]["exp_avg"] = torch.zeros(4, 4)
    with pytest.raises(ValueError, match=r"exp_avg of params\[2\] must have shape \(5, 4\)"):
        model.optimizer.step()


@pytest.mark.gpu
def test_cuda_models_equal_those_on_the_cpu_bit_for_bit():
    results = []
    for device in ("cpu", "cuda"):
        model = Gaussians(make_rows(5000), device=device, make_optimizer=mirror)
        for seed, operation in enumerate(EDITS):
            train([model], 3, 10 * seed)
            edit(model, operation, seed)
        train([model], 2, 99)
        twin = restored(model, mirror)
        assert_same(twin.tensors(), model.tensors())
        set_rates_of(twin, model)
        train([model, twin], 2, 200)
        assert_same(twin.tensors(), model.tensors())
        assert model.params["means"].device.type == device
        results.append(model.tensors())
    assert_same(results[1], results[0])


@pytest.mark.gpu
def test_a_step_takes_no_memory_on_the_device_and_locks_what_crosses_the_link():
    model = Gaussians(make_rows(1_000_000), device="cuda", make_optimizer=mirror)
    model.zero_gradients()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model.optimizer.step()
    model.optimizer.step()
    assert torch.cuda.max_memory_allocated() - before <= 1 << 20
    for m in model.optimizer._mirrors.values():
        assert m._values.is_pinned
        assert m._gradients.is_pinned
