# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from gsplat.strategy import DefaultStrategy

from gs_train.densify.statistics import Statistics
from gs_train.renderers.protocol import Splats, View

WIDTH, HEIGHT = 64, 48


def make_splats(gradient, radii, absgrad=None):
    n = len(gradient)
    means2d = torch.zeros(n, 2, device=gradient.device, requires_grad=True)
    means2d.grad = gradient
    shifted = []
    for part in [] if absgrad is None else absgrad:
        crop = means2d + 0.0
        crop.absgrad = part
        shifted.append(crop)
    zeros = torch.zeros(n, device=gradient.device)
    return Splats(
        means2d=means2d,
        conics=torch.zeros(n, 3),
        depths=zeros,
        radii=radii,
        opacities=zeros,
        colors=torch.zeros(n, 3),
        view=View("a", torch.eye(4), torch.eye(3), WIDTH, HEIGHT),
        shifted=shifted,
    )


def random_view(n, seed, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.randn(n, 2, generator=generator)
    radii = torch.randint(0, 4, (n, 2), generator=generator, dtype=torch.int32)
    return gradient.to(device), radii.to(device)


@pytest.mark.parametrize("absgrad", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_statistics_equal_gsplats(absgrad, batch_size):
    n = 50
    ours = Statistics(n, device="cpu", absgrad=absgrad, radii=True)
    strategy = DefaultStrategy(absgrad=absgrad, refine_scale2d_stop_iter=10)
    theirs = strategy.initialize_state()
    for seed in range(6):
        gradient, radii = random_view(n, seed)
        # As gsplat takes it: one camera axis, all rows; n_cameras undoes the mean over them.
        means2d = torch.zeros(1, n, 2)
        means2d.grad = gradient[None]
        means2d.absgrad = gradient.abs()[None]
        info = {"means2d": means2d, "radii": radii[None], "gaussian_ids": None,
                "width": WIDTH, "height": HEIGHT, "n_cameras": batch_size}  # fmt: skip
        strategy._update_state({"means": torch.zeros(n, 3)}, theirs, info)
        # As ours may take it: only some rows, and the rest did not show.
        splats = make_splats(gradient, radii, [gradient.abs()])
        ids = None
        if seed % 2:
            ids = (radii > 0).all(dim=1).nonzero().flatten().int()
            splats = make_splats(gradient[ids], radii[ids], [gradient.abs()[ids]])
        ours.observe(ids, splats, batch_size=batch_size)
    for name, value in ours.tensors().items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-6, atol=0)
    expected = theirs["grad2d"] / theirs["count"].clamp_min(1)
    torch.testing.assert_close(ours.average_gradient(), expected, rtol=1e-6, atol=0)


def test_crops_of_a_view_add_before_the_norm_and_count_once():
    whole, radii = random_view(9, 0)
    radii.clamp_(min=1)
    parts = [whole.abs() * 0.25, whole.abs() * 0.75]
    statistics = Statistics(9, device="cpu", absgrad=True, radii=False)
    statistics.observe(None, make_splats(whole, radii, parts), batch_size=1)
    scale = torch.tensor([WIDTH / 2, HEIGHT / 2])
    torch.testing.assert_close(statistics.grad2d, (whole.abs() * scale).norm(dim=1))
    assert torch.equal(statistics.count, torch.ones(9))
    assert statistics.radii is None


def test_rows_that_do_not_show_add_nothing_whatever_their_gradient():
    gradient = torch.full((4, 2), torch.nan)
    gradient[0] = 1.0
    radii = torch.tensor([[1, 1], [0, 0], [2, 0], [0, 3]], dtype=torch.int32)
    statistics = Statistics(4, device="cpu", absgrad=False, radii=True)
    statistics.observe(torch.arange(4), make_splats(gradient, radii), batch_size=1)
    np.testing.assert_allclose(statistics.grad2d.numpy(), [np.hypot(32, 24), 0, 0, 0], rtol=1e-6)
    assert statistics.count.tolist() == [1, 0, 0, 0]
    np.testing.assert_allclose(statistics.radii.numpy(), [1 / 64, 0, 0, 0])


def test_statistics_follow_a_permutation_and_a_checkpoint():
    statistics = Statistics(7, device="cpu", absgrad=False, radii=True)
    statistics.observe(None, make_splats(*random_view(7, 1)), batch_size=1)
    before = {name: value.clone() for name, value in statistics.tensors().items()}
    order = torch.tensor([3, 1, 6, 0, 2, 5, 4])
    statistics.permute(order)
    for name, value in statistics.tensors().items():
        assert torch.equal(value, before[name][order])
    other = Statistics(2, device="cpu", absgrad=False, radii=True)
    other.load(statistics.tensors())
    assert other.n_rows == 7
    other.observe(None, make_splats(*random_view(7, 2)), batch_size=1)
    assert not torch.equal(other.grad2d, statistics.grad2d)
    statistics.observe(None, make_splats(*random_view(7, 2)), batch_size=1)
    for name, value in statistics.tensors().items():
        assert torch.equal(value, other.tensors()[name])
    statistics.reset(3)
    assert all(not value.any() and len(value) == 3 for value in statistics.tensors().values())


def test_what_cannot_be_observed_is_refused():
    statistics = Statistics(5, device="cpu", absgrad=False, radii=False)
    gradient, radii = random_view(4, 0)
    with pytest.raises(ValueError, match="splats must have 5 rows, got 4"):
        statistics.observe(None, make_splats(gradient, radii), batch_size=1)
    with pytest.raises(ValueError, match="splats must have 3 rows, got 4"):
        statistics.observe(torch.arange(3), make_splats(gradient, radii), batch_size=1)
    splats = make_splats(gradient, radii)
    splats.means2d.grad = None
    with pytest.raises(ValueError, match=r"splats.means2d must have a gradient, .*retain_grad\(\)"):
        statistics.observe(torch.arange(4), splats, batch_size=1)
    wants_absgrad = Statistics(4, device="cpu", absgrad=True, radii=False)
    with pytest.raises(ValueError, match="absgrad must be enabled in the renderer"):
        wants_absgrad.observe(None, make_splats(gradient, radii), batch_size=1)


def test_checkpoints_of_other_statistics_are_refused():
    statistics = Statistics(5, device="cpu", absgrad=False, radii=False)
    with pytest.raises(ValueError, match=r"tensors must be \['count', 'grad2d'\], got \['count'\]"):
        statistics.load({"count": torch.zeros(5)})
    with pytest.raises(ValueError, match=r"tensors must have one shape \(N,\), got"):
        statistics.load({"count": torch.zeros(5), "grad2d": torch.zeros(4)})


@pytest.mark.gpu
# torch says once that this mode is a prototype.
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("some_rows", [False, True])
def test_cuda_observation_does_not_wait_and_equals_the_cpu(some_rows):
    on_cpu = Statistics(1000, device="cpu", absgrad=False, radii=True)
    on_gpu = Statistics(1000, device="cuda", absgrad=False, radii=True)
    ids = torch.arange(0, 1000, 2, dtype=torch.int32) if some_rows else None
    gradient, radii = random_view(500 if some_rows else 1000, 3)
    on_cpu.observe(ids, make_splats(gradient, radii), batch_size=2)
    splats = make_splats(gradient.cuda(), radii.cuda())
    gpu_ids = None if ids is None else ids.cuda()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        on_gpu.observe(gpu_ids, splats, batch_size=2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for name, value in on_gpu.tensors().items():
        torch.testing.assert_close(value.cpu(), on_cpu.tensors()[name], rtol=1e-6, atol=0)
