# SPDX-License-Identifier: Apache-2.0
"""Some of a view's splats, differentiably; on any device, because no kernel is needed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gs_raster import View
from gs_raster.torch.functions import FIELDS, records_of
from gs_raster.torch.rasterize import ProjectedSplats, taken

N = 11
IDS = torch.tensor([1, 4, 5, 10])


def splats_of(leaf: Tensor, *, colors: Tensor | None = None) -> ProjectedSplats:
    """Splats whose fields are views of one (N, 12) tensor, as those of a projection."""
    fields = {name: leaf[:, columns] for name, columns in FIELDS.items()}
    if colors is not None:
        fields["colors"] = colors
    view = View(torch.eye(4), torch.eye(3), 64, 48)
    keys = torch.arange(N, dtype=torch.int32) * 3
    radii = torch.arange(2 * N, dtype=torch.int32).view(N, 2)
    records = leaf.detach().view(torch.int32)
    return ProjectedSplats(**fields, records=records, view=view, keys=keys, radii=radii)


@pytest.fixture
def numbers() -> Tensor:
    return torch.randn(N, 12, generator=torch.Generator().manual_seed(0))


def test_the_fields_are_views_of_the_records_that_were_taken(numbers: Tensor) -> None:
    some = taken(splats_of(numbers), IDS)
    assert torch.equal(some.records.view(torch.float32), numbers[IDS])
    assert records_of(some.fields, some.records) is some.records
    assert some.keys is not None
    assert some.radii is not None
    assert some.keys.tolist() == [3, 12, 15, 30]
    assert some.radii[:, 0].tolist() == [2, 8, 10, 20]


def test_a_field_that_took_the_place_of_another_is_taken(numbers: Tensor) -> None:
    colors = torch.randn(N, 3, generator=torch.Generator().manual_seed(1))
    some = taken(splats_of(numbers, colors=colors), IDS)
    assert torch.equal(some.colors, colors[IDS])
    assert torch.equal(some.means2d, numbers[IDS, 0:2])
    assert records_of(some.fields, some.records) is some.records


@pytest.mark.parametrize("ids", [IDS, torch.arange(N), IDS[:0]], ids=["some", "all", "none"])
def test_gradients_go_back_to_the_rows(numbers: Tensor, ids: Tensor) -> None:
    leaf = numbers.clone().requires_grad_()
    colors = numbers[:, :3].clone().requires_grad_()
    expected = [numbers.clone().requires_grad_(), numbers[:, :3].clone().requires_grad_()]
    some = taken(splats_of(leaf, colors=colors), ids)
    plain = splats_of(expected[0], colors=expected[1])
    weights = torch.randn(N, 12, generator=torch.Generator().manual_seed(2))[ids]
    for fields in (some.fields, [field[ids] for field in plain.fields]):
        parts = zip(fields, FIELDS.values(), strict=True)
        torch.stack([(field * weights[:, at]).sum() for field, at in parts]).sum().backward()
    for found, wanted in zip((leaf, colors), expected, strict=True):
        assert wanted.grad is not None
        assert torch.equal(found.grad, wanted.grad)


def test_what_depends_on_one_field_has_no_gradient_elsewhere(numbers: Tensor) -> None:
    leaf = numbers.clone().requires_grad_()
    taken(splats_of(leaf), IDS).opacities.sum().backward()
    expected = torch.zeros(N, 12)
    expected[IDS, 2] = 1.0
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, expected)
