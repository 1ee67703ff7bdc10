# SPDX-License-Identifier: Apache-2.0
"""Rows in slots of wider tables, gradients to places of others, and what GS_CHECK_INDEX=1 sees."""

from __future__ import annotations

import pytest
import raster_oracle as oracle
import torch
from raster_device import DEVICE, assert_same_bits, bits, noise, sent, view_of
from torch import Tensor

import gs_raster
from gs_raster import RowGradients, Rows

pytestmark = pytest.mark.gpu
WIDTHS = {"means": 3, "scales": 3, "quats": 4, "opacities": 1, "sh0": 3, "shN": 45}


def scene(n_rows: int = 700) -> tuple[dict[str, Tensor], gs_raster.View]:
    view = oracle.random_view(60, width=150, height=101)
    return sent(oracle.random_rows(60, view, n_rows=n_rows)), view_of(view)


def in_table(values: dict[str, Tensor], pitch: int, first: int) -> dict[str, Tensor]:
    """The attributes as columns of one table, from column ``first`` on."""
    n = len(values["means"])
    table = torch.full((n, pitch), torch.nan, device=DEVICE)
    columns = {}
    for name, width in WIDTHS.items():
        part = table[:, first : first + width]
        columns[name] = part.unflatten(1, values[name].shape[1:]) if width > 1 else part[:, 0]
        columns[name].copy_(values[name])
        first += width
    return columns


def project_both_ways(rows: Rows, view: gs_raster.View) -> tuple[gs_raster.Splats, RowGradients]:
    splats = gs_raster.project(rows, view, sh_degree=3)
    gradients = noise(splats.n, 12)
    found = gs_raster.project_backward(rows, view, splats, gradients, sh_degree=3)
    return splats, found


@pytest.mark.parametrize(("pitch", "first"), [(59, 0), (64, 0), (64, 5), (71, 1)])
def test_columns_of_a_wider_table(pitch: int, first: int) -> None:
    rows, view = scene()
    expected, of_expected = project_both_ways(Rows.of(rows), view)
    assert expected.shows.sum() > 100
    found, of_found = project_both_ways(Rows.of(in_table(rows, pitch, first)), view)
    assert_same_bits(bits(found.records), bits(expected.records))
    assert_same_bits(bits(*of_found.columns.values()), bits(*of_expected.columns.values()))


@pytest.mark.parametrize("pitch", [None, 64])
def test_rows_in_slots(pitch: int | None) -> None:
    rows, view = scene()
    generator = torch.Generator().manual_seed(0)
    slots = torch.randperm(700, generator=generator)[:333].int().to(DEVICE)
    expected, of_expected = project_both_ways(
        Rows.of({name: values[slots.long()] for name, values in rows.items()}), view
    )
    columns = rows if pitch is None else in_table(rows, pitch, 2)
    in_slots = Rows.of(columns, slots)
    assert in_slots.n == 333
    found, of_found = project_both_ways(in_slots, view)
    assert_same_bits(bits(found.records), bits(expected.records))
    assert_same_bits(bits(*of_found.columns.values()), bits(*of_expected.columns.values()))


def test_attributes_of_different_length_by_slots() -> None:
    rows, view = scene()
    slots = torch.arange(100, dtype=torch.int32, device=DEVICE)
    shorter = {**rows, "shN": rows["shN"][:400], "sh0": rows["sh0"][:400]}
    found = gs_raster.project(Rows.of(shorter, slots), view, sh_degree=3)
    expected = gs_raster.project(Rows.of(rows, slots), view, sh_degree=3)
    assert_same_bits(bits(found.records), bits(expected.records))


@pytest.mark.parametrize("pitch", [59, 64])
def test_gradients_are_added_at_places_of_a_wider_table(pitch: int) -> None:
    rows, view = scene()
    on_device = Rows.of(rows)
    splats, alone = project_both_ways(on_device, view)
    generator = torch.Generator().manual_seed(1)
    places = torch.randperm(1500, generator=generator)[:700].int().to(DEVICE)
    before = {
        name: noise(1500, *values.shape[1:], seed=i)
        for i, (name, values) in enumerate(rows.items())
    }
    out = RowGradients(**in_table(before, pitch, 0))
    returned = gs_raster.project_backward(
        on_device, view, splats, noise(splats.n, 12), sh_degree=3, out=out, places=places
    )
    assert returned is out
    for name, gradient in alone.columns.items():
        expected = before[name].clone()
        expected[places.long()] += gradient
        assert torch.equal(out.columns[name], expected), name


def test_gradients_are_added_to_rows_of_the_same_place() -> None:
    rows, view = scene()
    on_device = Rows.of(rows)
    splats, once = project_both_ways(on_device, view)
    twice = RowGradients(**{name: values.clone() for name, values in once.columns.items()})
    gs_raster.project_backward(on_device, view, splats, noise(splats.n, 12), sh_degree=3, out=twice)
    for name, gradient in once.columns.items():
        assert torch.equal(twice.columns[name], 2 * gradient), name


@pytest.mark.parametrize(
    ("slots", "message"),
    [([0, 700], r"slots must be in \[0, 700\), got 700"), ([3, -1], r"\[0, 700\), got -1")],
)
def test_slots_out_of_range_are_seen_where_asked_for(
    slots: list[int], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, _ = scene()
    wrong = torch.tensor(slots, dtype=torch.int32, device=DEVICE)
    monkeypatch.setenv("GS_CHECK_INDEX", "1")
    with pytest.raises(IndexError, match=message):
        Rows.of(rows, wrong)


def test_places_and_keys_are_looked_at_where_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, view = scene(5)
    on_device = Rows.of(rows)
    splats, out = project_both_ways(on_device, view)
    gradients = noise(5, 12)
    monkeypatch.setenv("GS_CHECK_INDEX", "1")

    def indices(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=DEVICE)

    def add(places: Tensor) -> None:
        gs_raster.project_backward(
            on_device, view, splats, gradients, sh_degree=3, out=out, places=places
        )

    before = [values.clone() for values in out.columns.values()]
    with pytest.raises(IndexError, match=r"places must be in \[0, 5\), got 5"):
        add(indices(0, 1, 2, 3, 5))
    with pytest.raises(ValueError, match=r"places must be distinct, got 3 twice"):
        add(indices(0, 3, 1, 2, 3))
    assert_same_bits(bits(*out.columns.values()), bits(*before))
    with pytest.raises(ValueError, match=r"keys must be distinct, got 7 twice"):
        gs_raster.project(on_device, view, sh_degree=0, keys=indices(7, 1, 2, 7, 3))
    with pytest.raises(IndexError, match=r"keys must be at least 0, got -2"):
        gs_raster.project(on_device, view, sh_degree=0, keys=indices(7, 1, -2, 5, 3))
    gs_raster.project(on_device, view, sh_degree=0, keys=indices(7, 1, 2, 5, 3))
    gs_raster.Splats(splats.records, view, keys=indices(7, -1, -1, 5, 3))
    add(indices(4, 3, 2, 1, 0))
