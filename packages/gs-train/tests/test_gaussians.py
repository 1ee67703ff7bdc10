# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replaced import sources

from gs_train.rows.attributes import NAMES
from gs_train.rows.gaussians import Gaussians
from gs_train.rows.restore import InMemory, restored_gaussians

NOTHING = torch.empty(0, dtype=torch.int64)
TRAILING = {
    "means": (3,),
    "scales": (3,),
    "quats": (4,),
    "opacities": (),
    "sh0": (1, 3),
    "shN": (3, 3),
}


def adam(groups):
    return torch.optim.Adam(groups, lr=0.01, eps=1e-15)


def make_rows(n, seed=0, k=3):
    generator = torch.Generator().manual_seed(seed)
    shapes = {**TRAILING, "shN": (k, 3)}
    return {name: torch.randn(n, *shapes[name], generator=generator) for name in NAMES}


def restored(tensors, *, device="cpu", make_optimizer=adam):
    return restored_gaussians(
        InMemory(tensors), device=torch.device(device), make_optimizer=make_optimizer
    )


def make_model(n, *, steps=2, seed=0, device="cpu", make_optimizer=adam):
    model = Gaussians(make_rows(n, seed), device=device, make_optimizer=make_optimizer)
    generator = torch.Generator().manual_seed(seed + 1)
    for _ in range(steps):
        model.zero_gradients()
        for param in model.params.values():
            param.grad += torch.randn(param.shape, generator=generator).to(device)
        model.optimizer.step()
    return model


def snapshot(model):
    return {name: value.detach().cpu().numpy().copy() for name, value in model.tensors().items()}


def is_row_aligned(name):
    return not name.endswith(".step") and name != "next_key"


def assert_equal(got, expected):
    assert got.keys() == expected.keys()
    for name in got:
        np.testing.assert_array_equal(got[name], expected[name], err_msg=name)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["replace", "add", "remove", "permute", "overwrite", "overwrite_all",
             "zero_moments", "zero_all_moments"]
        ),
        st.integers(0, 2**31),
    ),
    min_size=1,
    max_size=5,
)  # fmt: skip


@given(n=st.integers(0, 12), steps=st.integers(0, 2), operations=OPERATIONS, wide_ids=st.booleans())
@settings(deadline=None, max_examples=80)
def test_row_operations_do_to_all_tensors_what_numpy_does(n, steps, operations, wide_ids):
    model = make_model(n, steps=steps)
    plain = snapshot(model)
    for operation, seed in operations:
        random = np.random.default_rng(seed)
        n = len(plain["means"])
        chosen = np.flatnonzero(random.random(n) < 0.5)
        ids = torch.from_numpy(chosen).to(torch.int64 if wide_ids else torch.int32)
        aligned = [name for name in plain if is_row_aligned(name)]
        if operation in ("replace", "add", "remove"):
            if operation == "add":
                chosen, ids = chosen[:0], ids[:0]
            n_new = 0 if operation == "remove" else int(random.integers(0, 8))
            new = make_rows(n_new, seed)
            model.replace(ids, None if operation == "remove" else new)
            born = {"keys": np.arange(n_new, dtype=np.int32) + np.int32(plain["next_key"])}
            plain["next_key"] += n_new
            places = sources(n, chosen.tolist(), n_new)
            for name in aligned:
                zero = None if name == "keys" else 0 * new[name.split(".")[0]].numpy()
                rows = {name: zero} | {k: v.numpy() for k, v in new.items()} | born
                plain[name] = np.concatenate([plain[name], rows[name]])[places]
        elif operation == "permute":
            order = random.permutation(n)
            model.permute(torch.from_numpy(order).to(ids.dtype))
            for name in aligned:
                plain[name] = plain[name][order]
        elif operation == "overwrite":
            new = make_rows(len(chosen), seed)
            new = {name: new[name] for name in NAMES if random.random() < 0.5}
            model.overwrite(ids, new)
            for name, values in new.items():
                plain[name][chosen] = values.numpy()
        elif operation == "overwrite_all":
            new = make_rows(n, seed)
            model.overwrite(None, {"opacities": new["opacities"]})
            plain["opacities"][:] = new["opacities"].numpy()
        elif operation == "zero_moments":
            names = [name for name in NAMES if random.random() < 0.5]
            model.zero_moments(ids, names=names)
            for name in aligned:
                if "." in name and name.split(".")[0] in names:
                    plain[name][chosen] = 0
        else:
            model.zero_moments()
            for name in aligned:
                if "." in name:
                    plain[name][:] = 0
    assert_equal(snapshot(model), plain)
    # The optimizer still steps, and moves exactly the rows that there are.
    model.zero_gradients()
    model.optimizer.step()
    assert all(len(param) == len(plain["means"]) for param in model.params.values())


def test_training_on_after_row_operations_equals_fresh_optimizers_on_the_same_rows():
    model = make_model(20)
    model.replace(torch.tensor([i for i in range(20) if i not in (1, 4, 5, 9, 19)]))
    model.replace(torch.tensor([2]), make_rows(3, 7))
    model.permute(torch.tensor([6, 0, 5, 1, 4, 2, 3]))
    twin = restored(model.tensors())
    for each in (model, twin):
        for step in range(3):
            each.zero_gradients()
            for name, param in each.params.items():
                param.grad += make_rows(7, 100 + step)[name]
            each.optimizer.step()
    assert_equal(snapshot(model), snapshot(twin))


def test_parameters_stay_the_same_objects_with_one_named_group_each():
    model = make_model(5)
    before = dict(model.params)
    model.replace(torch.tensor([1]), make_rows(3))
    model.replace(torch.tensor([0, 1, 2, 5]))
    model.permute(torch.tensor([2, 0, 1]))
    assert all(model.params[name] is before[name] for name in NAMES)
    assert [group["name"] for group in model.optimizer.param_groups] == list(NAMES)
    assert all(g["params"] == [before[g["name"]]] for g in model.optimizer.param_groups)


def test_rows_are_copied_in():
    rows = make_rows(4)
    model = Gaussians(rows, device="cpu", make_optimizer=adam)
    rows["means"].zero_()
    assert model.read("means").any()
    assert (len(model), model.n_rows, model.sh_degree) == (4, 4, 1)
    assert repr(model) == "Gaussians(4 rows, sh_degree=1, device=cpu)"


@pytest.mark.parametrize(("k", "degree"), [(0, 0), (3, 1), (8, 2), (15, 3)])
def test_sh_degree_follows_from_the_width_of_shn(k, degree):
    model = Gaussians(make_rows(3, k=k), device="cpu", make_optimizer=adam)
    assert model.sh_degree == degree
    model.zero_gradients()
    model.optimizer.step()
    model.replace(torch.tensor([1]), make_rows(2, k=k))
    model.replace(torch.tensor([0, 2]))
    assert model.params["shN"].shape == (2, k, 3)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_gradients_of_several_views_add_up_in_their_rows(dtype):
    model = make_model(10, steps=0)
    expected = {name: torch.zeros_like(param) for name, param in model.params.items()}
    model.zero_gradients()
    views = [torch.tensor([0, 3, 9], dtype=dtype), torch.tensor([3, 4], dtype=dtype)]
    views.append(torch.arange(10, dtype=dtype))
    for ids in views:
        leaves = model.leaves(ids)
        assert all(leaf.is_leaf and leaf.requires_grad for leaf in leaves.values())
        n = len(ids)
        # Whole numbers, so that sums are exact in any order.
        weights = {k: (10 * v).round() for k, v in make_rows(n, n).items()}
        sum((leaves[name] * weights[name]).sum() for name in NAMES).backward()
        model.add_gradients(ids, leaves)
        for name in NAMES:
            expected[name][ids.long()] += weights[name]
    for name in NAMES:
        assert torch.equal(model.params[name].grad, expected[name])
    model.zero_gradients()
    assert not any(param.grad.any() for param in model.params.values())


def test_attributes_that_a_view_does_not_use_have_zero_gradients():
    model = make_model(5, steps=0)
    ids = torch.tensor([1, 2])
    leaves = model.leaves(ids)
    leaves["means"].sum().backward()
    model.add_gradients(ids, leaves)
    assert not model.params["shN"].grad.any()
    model.optimizer.step()
    assert len(model.tensors()) == 6 * 4 + 2


def test_gradient_buffers_are_kept_between_batches_and_dropped_with_the_rows():
    model = make_model(5)
    buffer = model.params["shN"].grad
    model.zero_gradients()
    assert model.params["shN"].grad is buffer
    model.replace(NOTHING, make_rows(1))
    assert all(param.grad is None for param in model.params.values())
    model.zero_gradients()
    assert model.params["shN"].grad.shape == (6, 3, 3)


@pytest.mark.parametrize("steps", [0, 3])
def test_tensors_restore_the_model_and_its_optimizer(steps):
    model = make_model(8, steps=steps)
    flat = model.tensors()
    expected = {*NAMES, "keys", "next_key"}
    if steps:
        expected |= {f"{name}.{key}" for name in NAMES for key in ("step", "exp_avg", "exp_avg_sq")}
        assert flat["means.step"].item() == steps
    assert set(flat) == expected
    twin = restored(flat)
    assert_equal(snapshot(twin), snapshot(model))
    assert [g["lr"] for g in twin.optimizer.param_groups] == [0.01] * 6
    for name, value in twin.tensors().items():
        assert value.data_ptr() != flat[name].data_ptr(), name


def test_other_optimizers_state_follows_the_rows():
    model = make_model(
        6, make_optimizer=lambda groups: torch.optim.Adam(groups, lr=0.01, amsgrad=True)
    )
    before = snapshot(model)["quats.max_exp_avg_sq"]
    model.replace(torch.tensor([0, 2, 3, 4]))
    np.testing.assert_array_equal(snapshot(model)["quats.max_exp_avg_sq"], before[[5, 1]])


def test_bad_rows_are_refused():
    rows = make_rows(4)

    def build(**changed):
        return Gaussians({**rows, **changed}, device="cpu", make_optimizer=adam)

    with pytest.raises(ValueError, match=r"rows must have the keys means, .*, got .*, colors"):
        build(colors=torch.zeros(4, 3))
    with pytest.raises(ValueError, match="rows must have the keys"):
        Gaussians({"means": rows["means"]}, device="cpu", make_optimizer=adam)
    with pytest.raises(TypeError, match=r"means must be float32, got torch.float64"):
        build(means=rows["means"].double())
    with pytest.raises(ValueError, match=r"means must be \(N, 3\), got \(4, 2\)"):
        build(means=torch.zeros(4, 2))
    with pytest.raises(ValueError, match=r"opacities must be \(N,\), got \(4, 1\)"):
        build(opacities=torch.zeros(4, 1))
    with pytest.raises(ValueError, match=r"shN must be \(N, K, 3\) with K = 0, 3, 8 or 15, got"):
        build(shN=torch.zeros(4, 5, 3))
    with pytest.raises(ValueError, match=r"rows must have equal lengths, got .*'quats': 3"):
        build(quats=torch.zeros(3, 4))
    with pytest.raises(ValueError, match="make_optimizer must keep one group for each of means"):
        Gaussians(
            rows,
            device="cpu",
            make_optimizer=lambda groups: torch.optim.Adam(
                [p for g in groups for p in g["params"]]
            ),
        )


BAD_IDS = [
    (torch.tensor([0.0]), TypeError, "ids must be int32 or int64, got torch.float32"),
    (torch.tensor([[0]]), ValueError, r"ids must be one-dimensional, got \(1, 1\)"),
    (torch.tensor([0, 5]), IndexError, "ids must be at least 0 and below 5, got 5"),
    (torch.tensor([-1, 2]), IndexError, "ids must be at least 0 and below 5, got -1"),
    (torch.tensor([1, 3, 2]), ValueError, "ids must be sorted and unique, got 2 after 3"),
    (torch.tensor([1, 1]), ValueError, "ids must be sorted and unique, got 1 after 1"),
]


@pytest.mark.parametrize(("ids", "error", "message"), BAD_IDS)
def test_bad_ids_are_refused_and_change_nothing(ids, error, message):
    model = make_model(5)
    before = snapshot(model)
    rows = make_rows(len(ids))
    calls = [
        lambda: model.replace(ids, rows),
        lambda: model.overwrite(ids, rows),
        lambda: model.zero_moments(ids),
        lambda: model.leaves(ids),
        lambda: model.add_gradients(ids, rows),
    ]
    for call in calls:
        with pytest.raises(error, match=message):
            call()
    assert_equal(snapshot(model), before)


def test_reading_allows_any_order_and_refuses_rows_that_do_not_exist():
    model = make_model(5)
    ids = torch.tensor([3, 0, 3], dtype=torch.int32)
    assert torch.equal(model.read("sh0", ids), model.params["sh0"].detach()[[3, 0, 3]])
    assert not model.read("sh0").requires_grad
    with pytest.raises(IndexError, match="ids must be at least 0 and below 5, got 5"):
        model.read("sh0", torch.tensor([5, 0]))
    with pytest.raises(KeyError, match=r"name must be one of means, .*, got colors"):
        model.read("colors")


def test_bad_arguments_of_row_operations_are_refused_and_change_nothing():
    model = make_model(5)
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"shN must be \(R, 3, 3\), got \(2, 8, 3\)"):
        model.replace(torch.tensor([1]), make_rows(2, k=8))
    with pytest.raises(ValueError, match=r"keys must have shape \(2,\), got \(3,\)"):
        model.replace(NOTHING, make_rows(2), torch.arange(5, 8, dtype=torch.int32))
    with pytest.raises(TypeError, match=r"keys must be int32, got torch.int64"):
        model.replace(NOTHING, make_rows(2), torch.arange(5, 7))
    with pytest.raises(ValueError, match=r"means must be \(2, 3\), got \(3, 3\)"):
        model.overwrite(torch.tensor([0, 1]), {"means": torch.zeros(3, 3)})
    with pytest.raises(ValueError, match="rows must have the keys"):
        model.overwrite(None, {"colors": torch.zeros(5, 3)})
    with pytest.raises(ValueError, match="order must be a permutation of 5 rows, got 4 ids"):
        model.permute(torch.arange(4))
    for order in ([0, 1, 2, 3, 3], [0, 1, 2, 3, 5], [-1, 1, 2, 3, 4]):
        with pytest.raises(ValueError, match="order must be a permutation of 5 rows, got repeated"):
            model.permute(torch.tensor(order))
    leaves = model.leaves(torch.tensor([0, 1, 2]))
    leaves["means"].sum().backward()
    with pytest.raises(ValueError, match="leaves must have 2 rows, got 3 of means"):
        model.add_gradients(torch.tensor([0, 1]), leaves)
    assert_equal(snapshot(model), before)


def test_more_rows_than_the_capacity_are_refused_and_change_nothing():
    model = Gaussians(make_rows(5), device="cpu", make_optimizer=adam, capacity=6)
    before = snapshot(model)
    for removed in (NOTHING, torch.tensor([3])):
        with pytest.raises(MemoryError, match="there for 6 rows, not"):
            model.replace(removed, make_rows(2 + len(removed) * 2))
    assert_equal(snapshot(model), before)
    model.replace(torch.tensor([3]), make_rows(2))
    assert model.n_rows == 6
    assert model.params["shN"].untyped_storage().nbytes() == 6 * 9 * 4


def test_a_few_rows_more_at_a_time_seldom_copy_all():
    model = make_model(1600)
    moved = 0
    for seed in range(20):
        before = model.params["means"].data_ptr()
        model.replace(torch.arange(0, 40, 2), make_rows(30, seed))
        moved += model.params["means"].data_ptr() != before
    assert moved == 2
    for name, param in model.params.items():
        state = model.optimizer.state[param]
        assert param.is_contiguous()
        assert param.shape == state["exp_avg"].shape == (1800, *TRAILING[name])


def test_bad_checkpoint_tensors_are_refused():
    flat = make_model(4).tensors()

    with pytest.raises(ValueError, match=r"tensors must belong to means, .*, got colors.exp_avg"):
        restored({**flat, "colors.exp_avg": torch.zeros(4)})
    with pytest.raises(ValueError, match="rows must have the keys"):
        restored({name: value for name, value in flat.items() if name != "means"})
    with pytest.raises(ValueError, match=r"quats.exp_avg must be \(4, 4\), got \(3, 4\)"):
        restored({**flat, "quats.exp_avg": torch.zeros(3, 4)})


@pytest.mark.gpu
def test_cuda_row_operations_equal_those_on_the_cpu():
    def fused(groups):
        return torch.optim.Adam(groups, lr=0.01, eps=1e-15, fused=True)

    results = []
    for device in ("cpu", "cuda"):
        start = make_model(1000).tensors()
        model = restored(start, device=device, make_optimizer=fused if device == "cuda" else adam)
        order = torch.randperm(750, generator=torch.Generator().manual_seed(3)).to(device)
        model.replace(torch.arange(1, 1000, 2, device=device))
        model.replace(
            torch.arange(0, 50, 3, device=device),
            {name: value.to(device) for name, value in make_rows(267, 5).items()},
        )
        model.permute(order)
        ids = torch.arange(0, 750, 3, dtype=torch.int32, device=device)
        model.overwrite(ids, {"means": model.read("means", ids) * 2})
        model.zero_moments(ids, names=["means"])
        results.append(snapshot(model))
    assert_equal(results[1], results[0])


@pytest.mark.gpu
def test_cuda_training_continues_after_a_checkpoint():
    def fused(groups):
        return torch.optim.Adam(groups, lr=0.01, eps=1e-15, fused=True)

    model = make_model(100, device="cuda", make_optimizer=fused)
    flat = {name: value.cpu() for name, value in model.tensors().items()}
    twin = restored(flat, device="cuda", make_optimizer=fused)
    everything = torch.arange(100, device="cuda")
    for each in (model, twin):
        each.zero_gradients()
        leaves = each.leaves(everything)
        sum(leaf.sin().sum() for leaf in leaves.values()).backward()
        each.add_gradients(everything, leaves)
        each.optimizer.step()
    assert_equal(snapshot(twin), snapshot(model))


@pytest.mark.gpu
def test_cuda_row_operations_never_hold_the_model_twice():
    n = 200_000
    rows = {name: torch.zeros(n, *shape) for name, shape in TRAILING.items()}
    rows["shN"] = torch.zeros(n, 15, 3)
    model = Gaussians(rows, device="cuda", make_optimizer=lambda g: torch.optim.Adam(g, fused=True))
    model.zero_gradients()
    model.optimizer.step()
    removed = (torch.rand(n, device="cuda") < 0.1).nonzero().flatten()
    new = model.read_rows(removed[: len(removed) // 2])
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model.replace(removed, new)
    model.permute(torch.randperm(model.n_rows, device="cuda"))
    # The gradients, 236 bytes a row, go first, so that the second copy of shN, 180 bytes, fits in
    # their place; what comes on top are ids and the check that they are sorted.
    assert torch.cuda.max_memory_allocated() - before < n * 8 * 4
