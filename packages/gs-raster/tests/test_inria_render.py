# SPDX-License-Identifier: Apache-2.0
"""The README's ``render`` for Inria's trainer, with objects that stand for its camera and model."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import raster_oracle as oracle
import torch
from raster_device import DEVICE, noise
from torch import Tensor

import gs_raster
from gs_raster.torch import project, rasterize

gpu = pytest.mark.gpu
README = Path(__file__).parents[1] / "README.md"
WIDTH, HEIGHT, FOV_X, FOV_Y = 150, 101, 1.1, 0.8
PIPE = SimpleNamespace(antialiasing=False, debug=False)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the example defines."""
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (example,) = (one for one in examples if "def render(" in one)
    found: dict[str, Any] = {}
    exec(example, found)
    return found


@dataclass
class Camera:
    """Row vectors are multiplied from the left there: matrices are kept transposed."""

    world_view_transform: Tensor
    FoVx: float = FOV_X
    FoVy: float = FOV_Y
    image_width: int = WIDTH
    image_height: int = HEIGHT
    image_name: str = "a photograph"
    depth_reliable: bool = False


class Model:
    """Parameters as they are stored."""

    def __init__(self, rows: dict[str, Tensor]) -> None:
        def parameter(values: Tensor) -> Tensor:
            return values.float().to(DEVICE).requires_grad_()

        self._xyz = parameter(rows["means"])
        self._scaling = parameter(rows["scales"])
        self._rotation = parameter(rows["quats"])
        self._opacity = parameter(rows["opacities"][:, None])
        self._features_dc = parameter(rows["sh0"])
        self._features_rest = parameter(rows["shN"])
        self.active_sh_degree = 2

    @property
    def parameters(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    @property
    def rows(self) -> dict[str, Tensor]:
        return {
            "means": self._xyz,
            "scales": self._scaling,
            "quats": self._rotation,
            "opacities": self._opacity.squeeze(1),
            "sh0": self._features_dc,
            "shN": self._features_rest,
        }

    def get_exposure_from_name(self, name: str) -> Tensor:
        assert name == "a photograph"
        scale = torch.diag(torch.tensor([0.5, 0.25, 0.125]))
        return torch.cat([scale, torch.full((3, 1), 0.0625)], 1).to(DEVICE)


def camera(**options: Any) -> Camera:
    return Camera(oracle.random_view(60, WIDTH, HEIGHT).viewmat.float().T, **options)


def on_device(one: Camera) -> Camera:
    one.world_view_transform = one.world_view_transform.to(DEVICE)
    return one


def model() -> Model:
    view = oracle.random_view(60, WIDTH, HEIGHT)
    rows = oracle.random_rows(60, view, n_rows=300)
    rows["opacities"] -= 2.0
    return Model(rows)


def test_a_point_is_where_inrias_matrices_put_it(names: dict[str, Any]) -> None:
    seen = camera()
    view = names["view_of"](seen)
    assert (view.width, view.height) == (WIDTH, HEIGHT)
    # The field of view spans the image, whose middle the camera looks at.
    point = torch.tensor([0.7, -0.4, 2.5, 1.0])
    x = WIDTH / 2 * (1 + 0.7 / (2.5 * math.tan(FOV_X / 2)))
    y = HEIGHT / 2 * (1 - 0.4 / (2.5 * math.tan(FOV_Y / 2)))
    in_world = point @ torch.linalg.inv(seen.world_view_transform)
    pixel = view.K @ (view.viewmat @ in_world)[:3]
    torch.testing.assert_close(pixel[:2] / pixel[2], torch.tensor([x, y]), rtol=1e-5, atol=0)


@gpu
@pytest.mark.parametrize("antialiasing", [False, True])
def test_it_draws_the_stored_rows(names: dict[str, Any], antialiasing: bool) -> None:
    ours, theirs, seen = model(), model(), on_device(camera())
    background = torch.tensor([0.2, 0.3, 0.4], device=DEVICE)
    pipe = SimpleNamespace(antialiasing=antialiasing)
    found = names["render"](seen, ours, pipe, background)
    weights = noise(3, HEIGHT, WIDTH)
    (found["render"] * weights).sum().backward()

    options = gs_raster.Options(antialiased=antialiasing, near=0.2)
    view = names["view_of"](seen)
    splats = project(theirs.rows, view, sh_degree=2, options=options, radii=True)
    splats.means2d.retain_grad()
    image = rasterize(splats, background=background).image.permute(2, 0, 1).clamp(0, 1)
    (image * weights).sum().backward()
    assert torch.equal(found["render"], image)
    for name, value in theirs.parameters.items():
        assert value.grad is not None
        assert torch.equal(ours.parameters[name].grad, value.grad), name

    assert splats.radii is not None
    assert splats.means2d.grad is not None
    shows = (splats.radii > 0).all(1)
    assert 20 < shows.sum() < 300
    assert torch.equal(found["visibility_filter"], shows)
    assert torch.equal(found["radii"], splats.radii.amax(1))
    half = torch.tensor([WIDTH / 2, HEIGHT / 2], device=DEVICE)
    gradient = found["viewspace_points"].grad
    assert gradient.shape == (300, 3)
    assert torch.equal(gradient[:, :2], splats.means2d.grad * half)
    assert gradient[~shows].count_nonzero() == 0
    assert found["depth"] is None


@gpu
def test_colours_and_sizes_can_be_others(names: dict[str, Any]) -> None:
    rows, seen, black = model(), on_device(camera()), torch.zeros(3, device=DEVICE)
    one = torch.ones(300, 3, device=DEVICE)
    plain = names["render"](seen, rows, PIPE, black)
    white = names["render"](seen, rows, PIPE, black, override_color=one)
    large = names["render"](seen, rows, PIPE, black, scaling_modifier=2.0, override_color=one)
    assert torch.equal(white["render"][0], white["render"][2])
    assert torch.equal(white["radii"], plain["radii"])
    assert large["render"].sum() > white["render"].sum()
    shows = plain["visibility_filter"]
    assert (large["radii"][shows] >= plain["radii"][shows]).all()


@gpu
def test_exposures_are_taken(names: dict[str, Any]) -> None:
    rows, seen, black = model(), on_device(camera()), torch.zeros(3, device=DEVICE)
    plain = names["render"](seen, rows, PIPE, black)["render"]
    exposed = names["render"](seen, rows, PIPE, black, use_trained_exp=True)["render"]
    is_dark = plain < 1.0
    scale = torch.tensor([0.5, 0.25, 0.125], device=DEVICE)[:, None, None]
    expected = plain * scale + 0.0625
    assert is_dark.sum() > 1000
    torch.testing.assert_close(exposed[is_dark], expected[is_dark], rtol=1e-3, atol=1e-3)


@gpu
def test_depth_is_the_sum_of_weights_by_depth(names: dict[str, Any]) -> None:
    rows = {name: values[:1] for name, values in oracle.random_rows(
        60, oracle.random_view(60, WIDTH, HEIGHT)).items()}  # fmt: skip
    rows["means"] = torch.tensor([[0.0, 0.0, 4.0]])
    rows["scales"] = torch.full((1, 3), -1.5)
    rows["opacities"] = torch.ones(1)
    one, black = Model(rows), torch.zeros(3, device=DEVICE)
    seen = on_device(Camera(torch.eye(4), depth_reliable=True))
    white = torch.ones(1, 3, device=DEVICE)
    found = names["render"](seen, one, PIPE, black, override_color=white)
    assert found["depth"].shape == (1, HEIGHT, WIDTH)
    assert found["depth"].max() > 0.01
    torch.testing.assert_close(found["depth"], found["render"][:1] / 4.0, rtol=1e-5, atol=1e-7)
    found["depth"].sum().backward()
    assert one._xyz.grad is not None
    assert one._xyz.grad[0, 2] < 0


@gpu
def test_nothing_is_asked_of_autograd_where_it_is_off(names: dict[str, Any]) -> None:
    seen, black = on_device(camera()), torch.zeros(3, device=DEVICE)
    with torch.no_grad():
        found = names["render"](seen, model(), PIPE, black)
    assert not found["render"].requires_grad
