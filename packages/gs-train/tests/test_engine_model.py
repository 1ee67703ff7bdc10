# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_memory import MemoryRunsOut

import gs_adam
from gs_train.rows.attributes import APPEARANCE, GEOMETRY, NAMES
from gs_train.rows.gaussians import Gaussians
from gs_train.rows.restore import InMemory, restored_gaussians, restored_tiered
from gs_train.rows.tiered import TieredGaussians

SHAPES = {"means": (3,), "scales": (3,), "quats": (4,), "opacities": (), "sh0": (1, 3)}
OPTIONS = {"betas": (0.9, 0.999), "eps": 1e-15}
RATES = {name: 0.01 * (1 + i) for i, name in enumerate(NAMES)}
K_OF = {0: 0, 1: 3}


def make_rows(n, seed=0, k=3):
    generator = torch.Generator().manual_seed(seed)
    shapes = {**SHAPES, "shN": (k, 3)}
    return {name: torch.randn(n, *shapes[name], generator=generator) for name in NAMES}


def set_rates(model):
    model.appearance.set_rates(RATES, **OPTIONS)
    for group in model.geometry.optimizer.param_groups:
        group.update(lr=RATES[group["name"]], **OPTIONS)
    return model


def make_model(n, semantics="deferred", *, k=3, device="cpu"):
    return set_rates(TieredGaussians(make_rows(n, k=k), device=device, semantics=semantics))


def restored(tensors, semantics="deferred"):
    return restored_tiered(InMemory(tensors), device=torch.device("cpu"), semantics=semantics)


def host_adam(groups):
    groups = [{**group, "lr": RATES[group["name"]]} for group in groups]
    return gs_adam.HostAdam(groups, semantics="dense", **OPTIONS)


def make_dense(n, k=3):
    return Gaussians(make_rows(n, k=k), device="cpu", make_optimizer=host_adam)


def train(models, n_steps, seed):
    for i in range(n_steps):
        generator = torch.Generator().manual_seed(seed + i)
        ids = (torch.rand(models[0].n_rows, generator=generator) < 0.2).nonzero().flatten()
        gradients = make_rows(len(ids), seed + i, K_OF[models[0].sh_degree])
        for model in models:
            if isinstance(model, TieredGaussians):
                host = [gradients[name] for name in APPEARANCE]
                step = model.appearance.begin()
                model.appearance.worker.submit(ids, host, step=step)
                model.appearance.end(step)
                device = model.device
                own = [gradients[name].to(device) for name in GEOMETRY]
                model.geometry.optimizer.step(ids.to(device), own)
            else:
                model.zero_gradients()
                for name in NAMES:
                    model.params[name].grad[ids] = gradients[name]
                model.optimizer.step()


def edit(model, operation, seed):
    n, k, device = model.n_rows, K_OF[model.sh_degree], model.device
    generator = torch.Generator().manual_seed(seed)
    ids = (torch.rand(n, generator=generator) < 0.5).nonzero().flatten().to(device)
    if operation == "add":
        model.replace(ids[:0], {m: v.to(device) for m, v in make_rows(seed % 5, seed, k).items()})
    elif operation == "remove":
        model.replace(ids)
    elif operation == "replace":
        n_new = seed % (n + 5)
        model.replace(ids, {m: v.to(device) for m, v in make_rows(n_new, seed, k).items()})
    elif operation == "permute":
        model.permute(torch.randperm(n, generator=generator).to(device))
    elif operation == "overwrite":
        new = make_rows(len(ids), seed, k)
        model.overwrite(ids, {m: new[m].to(device) for i, m in enumerate(NAMES) if seed >> i & 1})
    elif operation == "overwrite_all":
        model.overwrite(None, {"opacities": model.read("opacities") * 0.5})
    elif operation == "in_place":
        model.in_place(NAMES[seed % 4]).mul_(0.5)
    elif operation == "zero_moments":
        model.zero_moments(ids, names=[m for i, m in enumerate(NAMES) if seed >> i & 1])
    elif operation == "zero_opacities":
        model.zero_moments(names=["opacities"])
    else:
        model.zero_moments()


EDITS = ["add", "remove", "replace", "permute", "overwrite", "overwrite_all",
         "in_place", "zero_moments", "zero_opacities", "zero_all"]  # fmt: skip


def copied(tensors):
    return {name: value.clone().cpu() for name, value in tensors.items()}


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name in got:
        assert torch.equal(got[name], expected[name]), name


@given(
    n=st.integers(0, 20),
    k=st.sampled_from([0, 3]),
    operations=st.lists(
        st.tuples(st.sampled_from([*EDITS, "train", "train", "restore"]), st.integers(0, 2**20)),
        min_size=1,
        max_size=8,
    ),
)
@settings(deadline=None, max_examples=60)
def test_dense_tiers_do_bit_for_bit_what_one_model_in_one_place_does(n, k, operations):
    model, reference = make_model(n, "dense", k=k), make_dense(n, k)
    for operation, seed in operations:
        if operation == "train":
            train([model, reference], 1 + seed % 10, seed)
        elif operation == "restore":
            saved = model.tensors()
            twin = restored(saved, "dense")
            assert_same(twin.tensors(), saved)
            model.close()
            model = set_rates(twin)
        else:
            edit(model, operation, seed)
            edit(reference, operation, seed)
        assert model.n_rows == reference.n_rows
    train([model, reference], 2, 3)
    assert_same(model.tensors(), reference.tensors())
    for name in NAMES:
        assert torch.equal(model.read(name), reference.read(name))
    model.close()


@pytest.mark.parametrize("seed", range(4))
def test_deferred_tiers_stay_together_through_edits(seed):
    model, dense = make_model(40), make_model(40, "dense")
    for i, operation in enumerate(EDITS * 2):
        train([model, dense], 20, 1000 * seed + 50 * i)
        for each in (model, dense):
            edit(each, operation, 64 * seed + i)
            # Enough rows to go on with.
            each.replace(torch.arange(0), make_rows(10, i))
    everything = slice(0, model.n_rows)
    whole, expected = model.snapshot(everything), dense.snapshot(everything)
    for name in GEOMETRY:
        assert torch.equal(whole[name], expected[name])
    for name in APPEARANCE:
        # Both round each of 360 updates of values that stay below 16; a row that lost its own
        # moments or its sleep would be off by shares of a rate.
        assert (
            (whole[name] - expected[name]).abs().max() <= 360 * 16 * 2.0**-24 < RATES["sh0"] / 100
        )
    assert torch.stack([v.abs().amax() for v in expected.values()]).max() < 16


def test_training_goes_on_from_a_checkpoint_to_the_same_bits_with_rows_asleep():
    model = make_model(30)
    train([model], 40, 0)
    edit(model, "permute", 1)
    saved = copied(model.tensors())
    assert (saved["appearance.last_step"] < 40).any()
    twin = set_rates(restored(saved))
    assert_same(twin.tensors(), saved)
    for each in (model, twin):
        train([each], 10, 70)
        edit(each, "add", 4)
        edit(each, "replace", 5)
        train([each], 10, 90)
    assert_same(twin.tensors(), model.tensors())


def test_checkpoints_without_sleeping_rows_are_exchanged_with_a_model_in_one_place():
    model, reference = make_model(12, "dense"), make_dense(12)
    train([model, reference], 5, 0)
    assert set(model.tensors()) == set(reference.tensors())
    there = restored_gaussians(
        InMemory(model.tensors()), device=torch.device("cpu"), make_optimizer=host_adam
    )
    back = [set_rates(restored(there.tensors(), each)) for each in ("dense", "deferred")]
    assert_same(back[0].tensors(), model.tensors())
    every_row = torch.arange(12)
    gradients = make_rows(12, 8)
    for each in back:
        step = each.appearance.begin()
        each.appearance.worker.submit(every_row, [gradients[n] for n in APPEARANCE], step=step)
        each.appearance.end(step)
    assert torch.equal(back[0].read("shN"), back[1].read("shN"))


def test_snapshots_are_of_all_attributes_and_change_nothing():
    model = make_model(20)
    train([model], 30, 0)
    before = copied(model.tensors())
    ids = torch.tensor([2, 3, 11, 19])
    by_ids, by_slice = model.snapshot(ids), model.snapshot(slice(2, 4), device="cpu")
    assert list(by_ids) == list(NAMES)
    assert_same(copied(model.tensors()), before)
    for name in NAMES:
        assert torch.equal(by_ids[name][:2], by_slice[name])
        by_slice[name].zero_()
    assert_same(copied(model.tensors()), before)
    for name in NAMES:
        assert torch.equal(model.read(name, ids), by_ids[name])


def test_what_culling_and_the_engine_see():
    model = make_model(5, k=8)
    assert tuple(model.params) == GEOMETRY
    assert (model.sh_degree, model.n_rows, len(model), model.device.type) == (2, 5, 5, "cpu")
    assert repr(model) == "TieredGaussians(5 rows, sh_degree=2, device=cpu, deferred)"
    assert repr(model.geometry) == "Gaussians(5 rows, means, scales, quats, opacities, device=cpu)"
    with pytest.raises(KeyError, match=r"name must be one of means, scales, .*, got shN"):
        _ = model.geometry.sh_degree
    with pytest.raises(ValueError, match=r"names must be some of means, .* in this order, got"):
        Gaussians(make_rows(2), device="cpu", make_optimizer=host_adam, names=("sh0", "means"))


def test_memory_that_runs_out_on_the_host_changes_neither_tier():
    model = TieredGaussians(make_rows(4), device="cpu", semantics="dense", capacity=5)
    before = copied(set_rates(model).tensors())
    with pytest.raises(MemoryError, match="host memory is there for 5 rows, not 6"):
        model.replace(torch.tensor([2]), make_rows(3))
    assert_same(copied(model.tensors()), before)
    model.replace(torch.tensor([2]), make_rows(2))
    assert model.n_rows == model.appearance.n_rows == 5


@pytest.mark.parametrize("home", ["host", "device"])
def test_memory_that_runs_out_while_rows_grow_changes_neither_tier(home):
    """Wherever that is: each operation that takes much memory fails in turn."""
    model = TieredGaussians(make_rows(400), device="cpu", semantics="deferred", home=home)
    set_rates(model)
    if home == "host":
        train([model], 3, 0)
    else:
        ids, step = torch.arange(100, dtype=torch.int32), model.local.begin()
        model.local.wake(ids, step, None)
        model.local.update(ids, torch.ones(100, model.local.width), step, None)
        model.local.end(step)
    model.read("sh0")  # catches up all rows
    before = copied(model.tensors())
    refused = 0
    while True:
        # Of the model itself: such rows are copied before they are added.
        new = {name: model.read(name)[:300] for name in NAMES}
        keys = torch.arange(400, 700, dtype=torch.int32)
        try:
            with MemoryRunsOut(after=refused, n_bytes=300 * 4):
                model.replace(torch.tensor([5]), new, keys)
        except torch.OutOfMemoryError:
            refused += 1
            assert_same(copied(model.tensors()), before)
        else:
            break
    assert refused > len(GEOMETRY)
    assert model.n_rows == model.appearance.n_rows == 699


def test_bad_arguments_are_refused_before_either_tier_changes():
    model = make_model(5)
    train([model], 3, 0)
    before = copied(model.tensors())
    two = torch.tensor([0, 1])
    rows = make_rows(2)
    with pytest.raises(ValueError, match=r"rows must have the keys means, .*, got sh0, shN"):
        model.replace(two, {name: rows[name] for name in APPEARANCE})
    with pytest.raises(TypeError, match=r"means must be float32, got torch.float64"):
        model.replace(two, {**rows, "means": rows["means"].double()})
    with pytest.raises(ValueError, match=r"shN must be \(R, 3, 3\), got \(2, 8, 3\)"):
        model.replace(two, make_rows(2, k=8))
    with pytest.raises(ValueError, match=r"keys must have shape \(2,\), got \(1,\)"):
        model.replace(two, rows, torch.zeros(1, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"quats must be \(2, 4\), got \(3, 4\)"):
        model.overwrite(two, {"quats": make_rows(3)["quats"]})
    with pytest.raises(ValueError, match=r"rows must have equal lengths, got"):
        model.overwrite(two, {"sh0": rows["sh0"], "means": make_rows(3)["means"]})
    with pytest.raises(ValueError, match="rows must have the keys"):
        model.overwrite(None, {"colors": torch.zeros(5, 3)})
    with pytest.raises(KeyError, match=r"name must be one of means, .*, got colors"):
        model.zero_moments(names=["sh0", "colors"])
    with pytest.raises(KeyError, match=r"name must be one of means, .*, got colors"):
        model.read("colors")
    with pytest.raises(KeyError, match=r"name must be one of means, .*, got sh0"):
        model.in_place("sh0")
    with pytest.raises(IndexError, match="ids must be at least 0 and below 5, got 5"):
        model.read("means", torch.tensor([5, 0]))
    with pytest.raises(ValueError, match="order must be a permutation of 5 rows, got repeated"):
        model.permute(torch.tensor([0, 1, 2, 3, 3]))
    for ids, error, message in (
        (torch.tensor([0.0]), TypeError, "ids must be int32 or int64, got torch.float32"),
        (torch.tensor([0, 5]), IndexError, "ids must be at least 0 and below 5, got 5"),
        (torch.tensor([1, 3, 2]), ValueError, "ids must be sorted and unique, got 2 after 3"),
    ):
        for call in (
            model.replace,
            model.zero_moments,
            model.snapshot,
            lambda ids: model.overwrite(ids, make_rows(len(ids))),
        ):
            with pytest.raises(error, match=message):
                call(ids)
    assert_same(copied(model.tensors()), before)


def test_bad_states_are_refused():
    model = make_model(4)
    train([model], 2, 0)
    good = model.tensors()

    def load(changed, semantics="deferred"):
        return restored({**good, **changed}, semantics)

    with pytest.raises(ValueError, match=r"tensors must belong to .*, got colors"):
        load({"colors.exp_avg": torch.zeros(4)})
    with pytest.raises(ValueError, match="rows must have the keys means"):
        restored({name: value for name, value in good.items() if name != "means"})
    with pytest.raises(ValueError, match=r"quats.exp_avg must be \(4, 4\), got \(3, 4\)"):
        load({"quats.exp_avg": torch.zeros(3, 4)})
    with pytest.raises(ValueError, match="no sleeping rows unless semantics is deferred"):
        load({"appearance.last_step": torch.zeros(4, dtype=torch.int32)}, "dense")


@pytest.mark.gpu
@pytest.mark.parametrize("semantics", ["dense", "deferred"])
def test_cuda_tiers_equal_those_on_the_cpu(semantics):
    results = []
    for device in ("cpu", "cuda"):
        model = make_model(4000, semantics, device=device)
        for seed, operation in enumerate(EDITS):
            train([model], 5, 10 * seed)
            edit(model, operation, 8 + seed)
        read = {name: model.read(name, torch.arange(0, 300, 7, device=device)) for name in NAMES}
        snapshot = model.snapshot(slice(10, 90))
        assert all(v.device.type == device for v in (*read.values(), *snapshot.values()))
        results.append([copied(read), copied(snapshot), copied(model.tensors())])
    for got, expected in zip(*reversed(results), strict=True):
        for name in expected:
            if name.partition(".")[0] in GEOMETRY:
                # The device's kernel rounds a few operations otherwise.
                torch.testing.assert_close(got[name], expected[name], rtol=1e-5, atol=1e-6)
            else:
                assert torch.equal(got[name], expected[name]), name


@pytest.mark.parametrize("home", ["whole", "device", "host"])
@pytest.mark.parametrize("part", [slice(1, 2), slice(0, 3), slice(7, 10), slice(0, 10)])
def test_new_rows_may_be_views_of_rows_that_go_and_of_rows_that_move(home, part):
    if home == "whole":
        model = Gaussians(make_rows(10), device="cpu", make_optimizer=host_adam)
    else:
        model = TieredGaussians(make_rows(10), device="cpu", semantics="deferred", home=home)
    views = {name: model.read(name)[part] for name in NAMES}
    expected = {name: values.clone() for name, values in views.items()}
    model.replace(torch.tensor([0, 1, 2, 5]), views)
    n_new = len(expected["means"])
    assert model.n_rows == 6 + n_new
    places = [int((model.keys.values == 10 + k).nonzero()) for k in range(n_new)]
    for name in NAMES:
        assert torch.equal(model.read(name, torch.tensor(places)), expected[name]), name
