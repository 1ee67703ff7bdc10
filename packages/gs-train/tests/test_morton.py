# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gs_train.rows import morton
from gs_train.rows.morton import central_bounds, morton_codes, morton_order


def code_by_definition(cell: tuple[int, int, int]) -> int:
    """Interleave the 21 bits of three cells, one bit at a time."""
    return sum(((cell[axis] >> i) & 1) << (3 * i + axis) for i in range(21) for axis in range(3))


@given(hnp.arrays(np.float32, st.tuples(st.integers(1, 40), st.just(3)),
                  elements=st.floats(-1000, 1000, width=32)))  # fmt: skip
@settings(deadline=None)
def test_codes_interleave_the_cells_of_the_bounding_cube(points):
    low = points.min(axis=0).astype(np.float64)
    extent = (points.max(axis=0).astype(np.float64) - low).max()
    scale = 2.0**21 / extent if extent > 0 else 0.0
    cells = np.minimum(np.floor((points - low) * scale), 2**21 - 1).astype(np.int64)
    expected = [code_by_definition(tuple(map(int, cell))) for cell in cells]
    assert morton_codes(torch.from_numpy(points)).tolist() == expected


def test_eight_corners_are_visited_in_z_order():
    corners = torch.tensor([[x, y, z] for z in (0, 1) for y in (0, 1) for x in (0, 1)]).float()
    shuffled = torch.tensor([5, 2, 7, 0, 3, 6, 1, 4])
    assert torch.equal(corners[shuffled][morton_order(corners[shuffled])], corners)


def test_sorted_rows_are_closer_to_their_neighbours():
    points = torch.rand(20_000, 3, generator=torch.Generator().manual_seed(0))
    ordered = points[morton_order(points)]
    before = (points[1:] - points[:-1]).norm(dim=1).mean()
    after = (ordered[1:] - ordered[:-1]).norm(dim=1).mean()
    assert after < before / 10


def test_equal_points_keep_their_order_and_sorting_twice_changes_nothing():
    points = torch.rand(50, 3, generator=torch.Generator().manual_seed(1)).repeat(4, 1)
    order = morton_order(points)
    assert order.dtype == torch.int64
    assert sorted(order.tolist()) == list(range(200))
    same = (points[order][1:] == points[order][:-1]).all(dim=1)
    assert (order[1:] > order[:-1])[same].all()
    assert morton_order(points[order]).tolist() == list(range(200))


@pytest.mark.parametrize("piece", [64, 1000, 2999])
def test_many_points_are_sorted_in_stretches_to_the_same_order(monkeypatch, piece):
    points = torch.rand(3000, 3, generator=torch.Generator().manual_seed(3))
    points[::5] = points[0]  # more than a stretch of equal points, which keep their order
    points[7], points[11] = torch.nan, 1e6  # almost all others in one cell of a coarse grid
    expected = torch.sort(morton_codes(points), stable=True).indices
    monkeypatch.setattr(morton, "PIECE", piece)
    assert torch.equal(morton_order(points), expected)


def test_points_astray_do_not_make_the_others_one_cell():
    points = torch.rand(5000, 3, generator=torch.Generator().manual_seed(4))
    around = morton_codes(points)
    for far in (1e6, 1e30, -1e30):
        stray = points.clone()
        stray[17] = far
        codes = morton_codes(stray)
        assert len(codes.unique()) == 5000
        order = torch.sort(codes[torch.arange(5000) != 17]).indices
        points_there = points[torch.arange(5000) != 17][order]
        gaps = (points_there[1:] - points_there[:-1]).norm(dim=1).mean()
        along = points[torch.sort(around).indices]
        assert gaps < 1.5 * (along[1:] - along[:-1]).norm(dim=1).mean()


@pytest.mark.parametrize(("far", "is_astray"), [(31.0, False), (50.0, True)])
def test_bounds_leave_out_what_is_far_from_nearly_all(far, is_astray):
    points = torch.rand(4000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    points[1] = torch.tensor([0.5, far, torch.nan])
    low, high = central_bounds(points)
    assert torch.equal(low, points[torch.arange(4000) != 1].amin(0))
    assert high[1] == far if not is_astray else 4.9 < high[1] < 5.1
    assert high[0] == points[:, 0].max()
    few = points[:499]
    assert central_bounds(few)[1][1] == far


def test_points_that_are_not_finite_do_not_widen_the_cube():
    points = torch.rand(30, 3, generator=torch.Generator().manual_seed(2))
    bad = torch.tensor([[torch.nan, 0.5, 0.5], [torch.inf, 0.5, 0.5], [-torch.inf, 0.5, 0.5]])
    codes = morton_codes(torch.cat((points, bad)))
    assert torch.equal(codes[:30], morton_codes(points))
    low = torch.cat((points, torch.tensor([[points[:, 0].min(), 0.5, 0.5]])))
    assert codes[30:].tolist() == [int(morton_codes(low)[-1])] * 3


def test_an_axis_without_finite_values_leaves_the_others():
    points = torch.rand(30, 3, generator=torch.Generator().manual_seed(3))
    flat = points.clone()
    flat[:, 1] = 0.25
    points[:, 1] = torch.nan
    assert torch.equal(morton_codes(points), morton_codes(flat))


@pytest.mark.parametrize("points", [torch.zeros(0, 3), torch.full((1, 3), 5.0), torch.ones(9, 3)])
def test_no_point_one_point_and_one_place_keep_their_order(points):
    assert morton_order(points).tolist() == list(range(len(points)))


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"means must be \(N, 3\), got \(4, 2\)"):
        morton_order(torch.zeros(4, 2))


@pytest.mark.gpu
def test_cuda_gives_the_same_order():
    points = torch.randn(100_000, 3, generator=torch.Generator().manual_seed(4))
    points[7, 1] = torch.nan
    assert torch.equal(morton_order(points.cuda()).cpu(), morton_order(points))
