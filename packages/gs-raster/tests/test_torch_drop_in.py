# SPDX-License-Identifier: Apache-2.0
"""``gs_raster.torch.rasterization`` against gsplat's function of that name.

Both sides compute in float32. A pixel whose closest comparison, in float64, is within 1e-3 of a
threshold may have gained or lost a splat; such pixels are left out. Gradients divide by what is
left of the light: pixels whose alpha is above 0.99 are left out too.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import raster_oracle as oracle
import torch
from raster_device import DEVICE, noise, off
from torch import Tensor

from gs_raster.torch import rasterization

gsplat = pytest.importorskip("gsplat")

gpu = pytest.mark.gpu
NAMES = ("means", "quats", "scales", "opacities", "colors")
MODES = pytest.mark.parametrize("mode", ["classic", "antialiased"])


class Scene:
    """Activated float32 rows seen by some cameras, and where pixels can be compared."""

    def __init__(self, seed: int, *, sh_degree: int | None, n_cameras: int = 1) -> None:
        views = [oracle.random_view(seed, width=150, height=101)]
        rows = oracle.random_rows(seed, views[0], n_rows=400)
        rows["opacities"] -= 2.0
        rows["scales"] -= 0.25
        for k in range(1, n_cameras):
            moved = views[0].viewmat.clone()
            moved[0, 3] += 0.3 * k
            views.append(views[0]._replace(viewmat=moved))
        self.sh_degree = sh_degree
        self.size = views[0].width, views[0].height
        self.viewmats = torch.stack([view.viewmat for view in views]).float().to(DEVICE)
        self.Ks = torch.stack([view.K for view in views]).float().to(DEVICE)
        bases = torch.cat([rows["sh0"], rows["shN"]], 1).float()
        colors = bases if sh_degree is not None else (0.5 + 0.3 * bases[:, 0])
        values = (rows["means"], rows["quats"], rows["scales"].exp(),
                  rows["opacities"].sigmoid(), colors)  # fmt: skip
        self.values = [value.float().to(DEVICE) for value in values]
        self.rows, self.views = rows, views

    def clear(self, mode: str) -> Tensor:
        """(C, h, w, 1) where pixels can be compared."""
        found = []
        for view in self.views:
            with torch.no_grad():
                splats = oracle.project(
                    self.rows, view, sh_degree=0, antialiased=mode == "antialiased"
                )
                result = oracle.composite(splats, view.width, view.height)
            found.append((result.margin > 1e-3)[..., None] & (result.alpha < 0.99))
        mask = torch.stack(found)
        assert mask.sum() > 0.15 * mask.numel()
        return mask.to(DEVICE)

    def run(
        self, function: Any, mask: Tensor, **more: Any
    ) -> tuple[Tensor, Tensor, dict[str, Any], dict[str, Tensor]]:
        """Images, alphas, info, and the gradients of a loss over the mask."""
        leaves = [value.clone().requires_grad_() for value in self.values]
        images, alphas, info = function(
            *leaves, self.viewmats, self.Ks, *self.size, sh_degree=self.sh_degree, **more
        )
        info["means2d"].retain_grad()
        loss = (images * mask * noise(*images.shape)).sum()
        loss = loss + (alphas * mask * noise(*alphas.shape, seed=1)).sum()
        loss.backward()
        grads = {
            name: leaf.grad for name, leaf in zip(NAMES, leaves, strict=True)
            if leaf.grad is not None
        }  # fmt: skip
        grads["means2d"] = info["means2d"].grad
        if more.get("absgrad"):
            grads["absgrad"] = info["means2d"].absgrad
        return images.detach(), alphas.detach(), info, grads


def assert_same(scene: Scene, mode: str, **more: Any) -> None:
    mask = scene.clear(mode)
    more = {"rasterize_mode": mode, **more}
    images, alphas, info, grads = scene.run(rasterization, mask, **more)
    # gsplat 1.5.3 refuses backgrounds of packed splats: what it draws of others is the same.
    is_refused = more.get("packed") and "backgrounds" in more
    expected = scene.run(
        gsplat.rasterization, mask, **(more | {"packed": False} if is_refused else more)
    )
    assert images.shape == expected[0].shape
    assert alphas.shape == expected[1].shape
    scale = expected[0].abs().max()
    # Expected depths divide by alpha.
    clear = mask if "E" not in more.get("render_mode", "RGB") else mask & (expected[1] > 0.01)
    assert ((images - expected[0]).abs() * clear).max() <= 5e-5 * scale
    assert ((alphas - expected[1]).abs() * mask).max() <= 5e-5
    # Where nothing depends on a value, gsplat gives no gradient, and this function may give 0.
    assert all(grads[name].count_nonzero() == 0 for name in grads.keys() - expected[3].keys())
    for name, grad in expected[3].items():
        if (
            more.get("packed")
            and name in ("means2d", "absgrad")
            and grad.shape != grads[name].shape
        ):
            continue  # a row at the edge of showing
        assert off(grads[name], grad) < 1e-3, name
    assert set(expected[2]) - set(info) == {"isect_ids"}
    for name in ("width", "height", "tile_size", "tile_width", "tile_height", "n_cameras"):
        assert info[name] == expected[2][name]
    assert info["isect_offsets"].shape == expected[2]["isect_offsets"].shape


@gpu
@MODES
@pytest.mark.parametrize("sh_degree", [None, 0, 1, 2, 3])
def test_it_draws_what_gsplat_draws(sh_degree: int | None, mode: str) -> None:
    assert_same(Scene(90, sh_degree=sh_degree), mode, packed=False, absgrad=True)


@gpu
@pytest.mark.parametrize("render_mode", ["RGB", "D", "ED", "RGB+D", "RGB+ED"])
def test_depths(render_mode: str) -> None:
    assert_same(Scene(91, sh_degree=1), "classic", packed=False, render_mode=render_mode)


@gpu
@pytest.mark.parametrize("packed", [False, True])
def test_several_cameras(packed: bool) -> None:
    assert_same(Scene(92, sh_degree=2, n_cameras=3), "classic", packed=packed, absgrad=True)


@gpu
@pytest.mark.parametrize("packed", [False, True])
def test_several_cameras_over_backgrounds(packed: bool) -> None:
    backgrounds = torch.rand(3, 3, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    scene = Scene(92, sh_degree=2, n_cameras=3)
    assert_same(scene, "antialiased", packed=packed, backgrounds=backgrounds, absgrad=True)


@gpu
def test_options_mean_the_same() -> None:
    scene = Scene(93, sh_degree=None)
    mask = torch.ones(1, 101, 150, 1, device=DEVICE)
    more = {"near_plane": 1.0, "far_plane": 5.0, "radius_clip": 4.0, "eps2d": 0.5}
    images, *_ = scene.run(rasterization, mask, packed=False, **more)
    expected, *_ = scene.run(gsplat.rasterization, mask, packed=False, **more)
    plain, *_ = scene.run(rasterization, mask, packed=False)
    # Thresholds of the changed picture are elsewhere: nearly all pixels agree.
    difference = (images - expected).abs().amax(-1) > 5e-5 * expected.max()
    assert difference.sum() < 0.01 * difference.numel()
    assert ((plain - expected).abs().amax(-1) > 1e-2).sum() > 0.1 * difference.numel()


@gpu
def test_info_of_packed_rows_names_the_rows() -> None:
    scene = Scene(94, sh_degree=0, n_cameras=2)
    mask = torch.ones(2, 101, 150, 1, device=DEVICE)
    _, _, info, _ = scene.run(rasterization, mask, packed=True)
    _, _, whole, _ = scene.run(rasterization, mask, packed=False)
    shows = (whole["radii"] > 0).all(-1)
    assert torch.equal(info["camera_ids"], shows.nonzero()[:, 0])
    assert torch.equal(info["gaussian_ids"], shows.nonzero()[:, 1])
    for name in ("radii", "means2d", "depths", "conics", "opacities"):
        assert torch.equal(info[name], whole[name][shows]), name
    assert torch.equal(info["flatten_ids"].long().unique(), torch.arange(
        len(info["gaussian_ids"]), device=DEVICE)[info["tiles_per_gauss"] > 0])  # fmt: skip


@gpu
@pytest.mark.parametrize("sh_degree", [None, 2])
@pytest.mark.parametrize("n_cameras", [1, 2])
def test_packed_rows_leave_the_same_bits(n_cameras: int, sh_degree: int | None) -> None:
    scene = Scene(97, sh_degree=sh_degree, n_cameras=n_cameras)
    mask = torch.ones(n_cameras, 101, 150, 1, device=DEVICE)
    images, alphas, info, grads = scene.run(rasterization, mask, packed=True, absgrad=True)
    *pictures, whole, expected = scene.run(rasterization, mask, packed=False, absgrad=True)
    assert torch.equal(images, pictures[0])
    assert torch.equal(alphas, pictures[1])
    shows = (whole["radii"] > 0).all(-1)
    assert len(info["means2d"]) == shows.sum() < shows.numel()
    for name in NAMES:
        assert torch.equal(grads[name], expected[name]), name
    for name in ("means2d", "absgrad"):
        assert torch.equal(grads[name], expected[name][shows]), name


@gpu
def test_opacities_of_one_and_scales_of_zero_are_drawn() -> None:
    scene = Scene(95, sh_degree=None)
    scene.values[3].fill_(1.0)
    scene.values[2][::2] = 0.0
    mask = torch.ones(1, 101, 150, 1, device=DEVICE)
    images, _, _, grads = scene.run(rasterization, mask, packed=False)
    expected, *_ = scene.run(gsplat.rasterization, mask, packed=False)
    # All pixels, some of which are near a threshold.
    difference = (images - expected).abs().amax(-1) > 1e-4 * expected.max()
    assert difference.sum() < 0.01 * difference.numel()
    assert all(grad.isfinite().all() for grad in grads.values())
    assert grads["opacities"].count_nonzero() > 0


@gpu
def test_colours_of_each_camera() -> None:
    scene = Scene(96, sh_degree=None, n_cameras=2)
    scene.values[4] = torch.stack([scene.values[4], scene.values[4].flip(0) - 0.4])
    assert_same(scene, "classic", packed=False)


def test_the_arguments_are_gsplats() -> None:
    ours = inspect.signature(rasterization).parameters
    theirs = inspect.signature(gsplat.rasterization).parameters
    assert list(ours) == list(theirs)
    for name, parameter in theirs.items():
        if name != "rolling_shutter":  # an enumeration of gsplat's, whose first value it is
            assert ours[name].default == parameter.default, name


@pytest.mark.parametrize(
    "wanted",
    [
        {"tile_size": 8},
        {"sparse_grad": True},
        {"distributed": True},
        {"camera_model": "fisheye"},
        {"covars": torch.zeros(4, 3, 3)},
        {"with_ut": True},
        {"with_eval3d": True},
        {"radial_coeffs": torch.zeros(1, 6)},
        {"tangential_coeffs": torch.zeros(1, 2)},
        {"thin_prism_coeffs": torch.zeros(1, 4)},
        {"ftheta_coeffs": object()},
        {"viewmats_rs": torch.zeros(1, 4, 4)},
        {"viewmats": torch.eye(4)[None].requires_grad_()},
        {"Ks": torch.eye(3)[None].requires_grad_()},
        {"means": torch.zeros(2, 4, 3)},
        {"colors": torch.zeros(4, 5)},
        {"sh_degree": 4},
        {"backgrounds": torch.zeros(1, 5)},
    ],
    ids=lambda wanted: next(iter(wanted)),
)
def test_what_it_cannot_draw_is_refused_by_name(wanted: dict[str, Any]) -> None:
    given: dict[str, Any] = {
        "means": torch.zeros(4, 3),
        "quats": torch.ones(4, 4),
        "scales": torch.ones(4, 3),
        "opacities": torch.ones(4),
        "colors": torch.zeros(4, 3),
        "viewmats": torch.eye(4)[None],
        "Ks": torch.eye(3)[None],
        "width": 8,
        "height": 8,
    }
    with pytest.raises(NotImplementedError, match=rf"^{next(iter(wanted))} must"):
        rasterization(**given | wanted)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"render_mode": "XYZ"}, "render_mode must be one of RGB, D, ED"),
        ({"rasterize_mode": "sharp"}, "rasterize_mode must be classic or antialiased, got 'sharp'"),
        ({"eps2d": 0.0}, "eps2d must be above 0"),
        ({"colors": torch.zeros(5, 3)}, r"colors must have shape \(4, 3\), got \(5, 3\)"),
        ({"viewmats": torch.eye(3)[None]}, r"viewmats must have shape \(C, 4, 4\)"),
    ],
)
def test_bad_values_are_refused(wanted: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "means": torch.zeros(4, 3),
        "quats": torch.ones(4, 4),
        "scales": torch.ones(4, 3),
        "opacities": torch.ones(4),
        "colors": torch.zeros(4, 3),
        "viewmats": torch.eye(4)[None],
        "Ks": torch.eye(3)[None],
        "width": 8,
        "height": 8,
    }
    with pytest.raises(ValueError, match=message):
        rasterization(**given | wanted)
