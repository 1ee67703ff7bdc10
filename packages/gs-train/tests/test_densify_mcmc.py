# SPDX-License-Identifier: Apache-2.0
import math

import gsplat.strategy.mcmc as gsplat_mcmc
import gsplat.strategy.ops as gsplat_ops
import numpy as np
import pytest
import torch
from gsplat.cuda._torch_impl import _quat_scale_to_covar_preci
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gs_train.densify import Mcmc, McmcConfig, noise
from gs_train.densify.relocation import MOST_COPIES, draw, relocated
from gs_train.errors import InputError
from gs_train.rows import counter_random
from gs_train.rows.attributes import NAMES
from gs_train.rows.counter_random import Purpose
from gs_train.rows.gaussians import Gaussians

SEED = 23
LEARNING_RATE = 2e-3


def adam(groups):
    return torch.optim.Adam(groups, lr=LEARNING_RATE, eps=1e-15)


def make_rows(n, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    return {
        "means": normal(n, 3),
        "scales": normal(n, 3) * 0.5 - 3,
        "quats": normal(n, 4),
        "opacities": normal(n) * 3 - 2,
        "sh0": normal(n, 1, 3),
        "shN": normal(n, 3, 3),
    }


def make_model(n, *, device="cpu", seed=0):
    return Gaussians(make_rows(n, seed), device=device, make_optimizer=adam)


def optimize(step, params, step_optimizers):
    for index, name in enumerate(NAMES):
        generator = torch.Generator().manual_seed(1000 * step + index)
        gradient = torch.randn(params[name].shape, generator=generator)
        params[name].grad = gradient.to(params[name].device)
    step_optimizers()


def after_step(strategy, model, step, *, means_lr=1e-8):
    return strategy.after_step(
        model, step=step, images_before=step, images_after=step + 1, means_lr=means_lr
    )


def relocation_by_definition(opacity, n):
    """Opacity and shrinkage by equation 9 of the paper, summed as it is written."""
    new = 1.0 - (1.0 - opacity) ** (1.0 / n)
    total = sum(
        math.comb(i - 1, k) * (-1) ** k * new ** (k + 1) / math.sqrt(k + 1)
        for i in range(1, n + 1)
        for k in range(i)
    )
    return new, opacity / total


def compute_relocation_by_definition(opacities, scales, ratios, binoms):
    """What gsplat's CUDA function of this name computes, on the CPU."""
    assert binoms.shape == (MOST_COPIES, MOST_COPIES)
    pairs = [
        relocation_by_definition(float(o), min(int(n), MOST_COPIES))
        for o, n in zip(opacities, ratios)
    ]
    new, factors = (torch.tensor(values, dtype=torch.float64) for values in zip(*pairs))
    return new.float(), (scales * factors[:, None]).float()


class Oracle:
    """gsplat's own strategy on its own parameters, with the draws and noise of this package."""

    def __init__(self, config, rows, monkeypatch):
        self.strategy = gsplat_mcmc.MCMCStrategy(
            cap_max=config.cap_max,
            noise_lr=config.noise_lr,
            refine_start_iter=config.refine_start,
            refine_stop_iter=config.refine_stop,
            refine_every=config.refine_every,
            min_opacity=config.min_opacity,
        )
        self.params = {name: torch.nn.Parameter(rows[name].clone()) for name in NAMES}
        self.optimizers = {name: adam([{"params": [p]}]) for name, p in self.params.items()}
        self.state = self.strategy.initialize_state()
        self.current = (0, Purpose.RELOCATE)
        for name, purpose in (("relocate", Purpose.RELOCATE), ("sample_add", Purpose.ADD)):
            monkeypatch.setattr(
                gsplat_mcmc, name, self.announcing(getattr(gsplat_mcmc, name), purpose)
            )
        monkeypatch.setattr(gsplat_ops, "_multinomial_sample", self.sample)
        monkeypatch.setattr(gsplat_ops, "compute_relocation", compute_relocation_by_definition)
        monkeypatch.setattr(gsplat_ops, "quat_scale_to_covar_preci", _quat_scale_to_covar_preci)
        monkeypatch.setattr(torch, "randn_like", self.noise)

    def announcing(self, function, purpose):
        def call(**arguments):
            self.current = (self.current[0], purpose)
            return function(**arguments)

        return call

    def sample(self, weights, n, replacement):
        step, purpose = self.current
        drawn = draw(weights, n, seed=SEED, purpose=purpose, step=step)
        return drawn if purpose == Purpose.RELOCATE else drawn.sort().values

    def noise(self, means):
        return counter_random.normal(SEED, Purpose.NOISE, self.current[0], len(means), 3)

    def step_optimizers(self):
        for optimizer in self.optimizers.values():
            optimizer.step()

    def densify(self, step, means_lr):
        self.current = (step, Purpose.RELOCATE)
        with torch.no_grad():
            self.strategy.step_post_backward(
                self.params, self.optimizers, self.state, step, {}, lr=means_lr
            )

    def tensors(self):
        flat = {}
        for name in NAMES:
            flat[name] = self.params[name].detach()
            for key, value in self.optimizers[name].state[self.params[name]].items():
                flat[f"{name}.{key}"] = value
        return flat


@pytest.mark.parametrize("cap", [100, 170, 1000])
def test_rows_order_and_moments_equal_gsplats_over_a_training(cap, monkeypatch):
    config = McmcConfig(
        cap_max=cap, refine_start=3, refine_every=4, refine_stop=40, min_opacity=0.05
    )
    rows = make_rows(120)
    oracle = Oracle(config, rows, monkeypatch)
    model = make_model(120)
    ours = Mcmc(config, seed=SEED)
    n_relocated = 0
    for step in range(45):
        # Scripted gradients push some opacities under the limit again.
        optimize(step, model.params, model.optimizer.step)
        optimize(step, oracle.params, oracle.step_optimizers)
        n_before = len(model)
        changed = after_step(ours, model, step, means_lr=1e-6)
        oracle.densify(step, 1e-6)
        assert len(model) == len(oracle.params["means"]) == n_before + changed.grown
        assert changed.rows_changed == bool(changed.grown or changed.relocated)
        n_relocated += changed.relocated
        expected = oracle.tensors()
        for name, value in expected.items():
            # Float32 roundings of the covariance and of the relocation, carried along by Adam,
            # whose step does not depend on the size of a gradient.
            torch.testing.assert_close(model.tensors()[name], value, rtol=2e-5, atol=2e-6)
    assert n_relocated > 20
    assert len(model) == {100: 120, 170: 170, 1000: 181}[cap]


def test_no_refinement_outside_its_time_but_noise_at_every_step():
    model = make_model(30)
    strategy = Mcmc(McmcConfig(refine_start=5, refine_every=5, refine_stop=15), seed=SEED)
    refined = []
    for step in range(25):
        before = model.read("means").clone()
        if after_step(strategy, model, step).rows_changed:
            refined.append(step)
        assert not torch.equal(model.read("means")[: len(before)], before)
    assert refined == [10]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_noise_is_the_covariance_times_a_normal_for_faint_rows_only(device):
    model = make_model(200, device=device)
    model.overwrite(None, {"opacities": torch.linspace(-12, 12, 200)})
    before = {name: model.read(name).cpu().clone().double() for name in NAMES}
    Mcmc(McmcConfig(noise_lr=10.0), seed=SEED).after_step(
        model, step=7, images_before=7, images_after=8, means_lr=0.5
    )
    covariance, _ = _quat_scale_to_covar_preci(
        before["quats"], before["scales"].exp(), compute_preci=False
    )
    normal = counter_random.normal(SEED, Purpose.NOISE, 7, 200, 3).double()
    opacity = torch.sigmoid(before["opacities"])
    gate = 1 / (1 + torch.exp(-100 * ((1 - opacity) - 0.995)))
    expected = torch.einsum("nij,nj->ni", covariance, normal * gate[:, None] * 5.0)
    moved = model.read("means").cpu().double() - before["means"]
    # The means have size 1, so their float32 rounds to 1e-7.
    torch.testing.assert_close(moved, expected, rtol=1e-4, atol=3e-7)
    assert expected[0].norm() > 1e-3
    assert not moved[-1].any()
    for name in set(NAMES) - {"means"}:
        assert torch.equal(model.read(name).cpu().double(), before[name])


def test_noise_does_not_depend_on_the_parts_it_is_made_in(monkeypatch):
    models = [make_model(50), make_model(50)]
    for model, size in zip(models, (1 << 20, 7)):
        monkeypatch.setattr(noise, "_PIECE", size)
        after_step(Mcmc(McmcConfig(), seed=SEED), model, 3, means_lr=1e-4)
    assert torch.equal(models[0].read("means"), models[1].read("means"))


def test_rows_that_all_are_faint_stay_where_they_are():
    model = make_model(10)
    model.overwrite(None, {"opacities": torch.full((10,), -9.0)})
    before = model.read("sh0").clone()
    strategy = Mcmc(McmcConfig(cap_max=10, refine_start=0, refine_every=1), seed=SEED)
    changed = after_step(strategy, model, 5)
    assert (changed.relocated, changed.grown, changed.rows_changed) == (0, 0, False)
    assert torch.equal(model.read("sh0"), before)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_draws_depend_on_seed_and_step_alone(device):
    config = McmcConfig(refine_start=0, refine_every=1)
    results = []
    for seed, step in ((1, 9), (1, 9), (2, 9), (1, 10)):
        torch.manual_seed(len(results))
        model = make_model(60, device=device)
        after_step(Mcmc(config, seed=seed), model, step)
        results.append(model.read("sh0").clone())
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert not torch.equal(results[0], results[3])


@given(opacity=st.floats(2**-8, 1 - 2**-14, width=32), n=st.integers(1, 60))
@settings(deadline=None, max_examples=200)
def test_relocated_gaussians_follow_equation_9(opacity, n):
    new, scales = relocated(
        torch.tensor([opacity]), torch.tensor([[1.0, 2.0, 0.5]]), torch.tensor([n])
    )
    expected, factor = relocation_by_definition(opacity, min(n, MOST_COPIES))
    # The definition's alternating sum loses up to six digits of float64 at the largest n.
    assert new.item() == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(scales.numpy()[0] / [1, 2, 0.5], [factor] * 3, rtol=1e-5)


def test_relocated_gaussians_are_finite_up_to_full_opacity():
    opacities = torch.tensor([1e-9, 0.5, 1 - 2**-24, 1.0]).repeat_interleave(MOST_COPIES)
    ratios = torch.arange(1, MOST_COPIES + 1).repeat(4)
    new, scales = relocated(opacities, torch.ones(4 * MOST_COPIES, 3), ratios)
    assert ((new > 0) & (new <= 1)).all()
    assert torch.isfinite(scales).all()
    assert (scales > 0).all()
    # Shared by more, each is smaller; rounding in a sum of large terms would show here.
    assert (scales.view(4, MOST_COPIES, 3)[1:].diff(dim=1) < 0).all()
    assert (new.view(4, MOST_COPIES).diff(dim=1) < 0).all()
    one = ratios == 1
    torch.testing.assert_close(new[one], opacities[one], rtol=1e-6, atol=2e-7)
    torch.testing.assert_close(scales[one], torch.ones(4, 3))


def test_draws_invert_the_cumulative_distribution():
    weights = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    got = draw(weights, 5000, seed=4, purpose=Purpose.ADD, step=2)
    u = counter_random.uniform(4, Purpose.ADD, 2, 5000, 1, dtype=torch.float64)[:, 0].numpy()
    sums = np.cumsum(weights.double().numpy())
    expected = np.searchsorted(sums, u * sums[-1], side="right")
    # Weights are rounded to 2^-30, so a draw that falls within 1e-6 of a boundary may differ.
    assert (got.numpy() != expected).mean() < 1e-3


def test_draws_have_the_frequencies_of_the_weights():
    # Deterministic: a fixed key that holds at p > 1e-3, as a correct sampler does nearly always.
    weights = torch.tensor([0.1, 0.0, 0.4, 1.0, 0.0, 0.5])
    drawn = draw(weights, 20_000, seed=1, purpose=Purpose.RELOCATE, step=3)
    counts = np.bincount(drawn.numpy(), minlength=6)
    assert counts[[1, 4]].tolist() == [0, 0]
    share = weights.double().numpy()[[0, 2, 3, 5]] / 2.0
    assert stats.chisquare(counts[[0, 2, 3, 5]], 20_000 * share).pvalue > 1e-3


def test_draws_at_the_boundary_between_two_rows_take_the_second():
    # The smallest weights there are: the cumulative sums are 1, 2, 3, 4 and targets 0, 1, 2, 3.
    weights = torch.full((4,), 2.0**-30)
    drawn = draw(weights, 4000, seed=1, purpose=Purpose.ADD, step=0)
    assert np.bincount(drawn.numpy(), minlength=4).min() > 900


def test_draws_reach_rows_beyond_the_limit_of_multinomial():
    n = 2**24 + 5
    weights = torch.zeros(n)
    weights[-3:] = 1.0
    drawn = draw(weights, 300, seed=1, purpose=Purpose.ADD, step=0)
    assert set(drawn.tolist()) == {n - 3, n - 2, n - 1}


def test_there_is_no_state_to_checkpoint():
    strategy = Mcmc(McmcConfig(), seed=0)
    assert strategy.tensors() == {}
    strategy.load({})
    with pytest.raises(ValueError, match=r"tensors must be empty, got \['count'\]"):
        strategy.load({"count": torch.zeros(3)})


def test_options_out_of_range_are_refused():
    with pytest.raises(InputError, match=r"--mcmc\.cap-max must be at least 1, got 0"):
        McmcConfig(cap_max=0)
    with pytest.raises(InputError, match=r"--mcmc\.refine-every must be at least 1, got 0"):
        McmcConfig(refine_every=0)
    with pytest.raises(
        InputError, match=r"--mcmc\.min-opacity must be above 0 and below 1, got 1.0"
    ):
        McmcConfig(min_opacity=1.0)
    for noise_lr in (-1.0, math.nan, math.inf):
        with pytest.raises(InputError, match=r"--mcmc\.noise-lr must be finite and not negative"):
            McmcConfig(noise_lr=noise_lr)


@pytest.mark.gpu
def test_cuda_refinement_equals_the_cpu():
    results = []
    for device in ("cpu", "cuda"):
        model = make_model(3000, device=device)
        optimize(0, model.params, model.optimizer.step)
        strategy = Mcmc(McmcConfig(refine_start=0, refine_every=1), seed=SEED)
        changed = after_step(strategy, model, 5, means_lr=1e-6)
        assert changed.relocated > 0
        results.append({name: value.cpu() for name, value in model.tensors().items()})
    for name, value in results[1].items():
        torch.testing.assert_close(value, results[0][name], rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
def test_cuda_relocation_equals_gsplats_kernel():
    from gsplat.relocation import compute_relocation

    generator = torch.Generator().manual_seed(0)
    opacities = torch.rand(5000, generator=generator).clamp(0.005, 0.9).cuda()
    scales = torch.rand(5000, 3, generator=generator).cuda()
    ratios = torch.randint(1, 12, (5000,), generator=generator).cuda()
    binoms = gsplat_mcmc.MCMCStrategy().initialize_state()["binoms"].cuda()
    expected = compute_relocation(opacities, scales, ratios.clone(), binoms)
    for got, want in zip(relocated(opacities, scales, ratios), expected):
        # The kernel sums alternating terms of up to 100 in float32.
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
