# SPDX-License-Identifier: Apache-2.0
"""Splats of thousands of tiles beside splats of few and of none: lists, and sums over tiles.

A conic of zeros has no ellipse: such a splat is listed in its whole box, and each pixel there has
the splat's opacity as its alpha. So lists are known exactly, and pixels of one tile are all alike.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from raster_device import DEVICE, assert_same_bits, bits, draw, noise

import gs_raster
from gs_raster import Rect, Splats, View

pytestmark = pytest.mark.gpu

COLUMNS, ROWS = 128, 26
VIEW = Rect(0, 0, 16 * COLUMNS - 3, 16 * ROWS - 5)
# Columns and rows of boxes: counts around a warp, around a share of the lists, and around what one
# group of lanes sums alone; then the whole grid.
SIZES = [
    *((1, 1), (31, 1), (16, 2), (11, 3), (51, 5), (64, 4), (128, 2), (1, 26)),
    *((127, 1), (32, 4), (43, 3), (13, 10), (15, 9), (12, 12), (29, 5)),
    *((93, 11), (64, 16), (41, 25), (COLUMNS, ROWS)),
]


def boxes_of(sizes: list[tuple[int, int]], seed: int) -> np.ndarray:
    """(n, 4) first column, first row, end column, end row, somewhere in the grid."""
    random = np.random.default_rng(seed)
    size = np.array(sizes, np.int64).reshape(-1, 2)
    first = random.integers(0, np.array([COLUMNS, ROWS]) - size + 1)
    return np.concatenate([first, first + size], 1)


def splats_of(boxes: np.ndarray, depths: np.ndarray) -> Splats:
    """Splats of opacity 1/2 that fill their boxes; those of no tile do not show."""
    records = np.zeros((len(boxes), 12), np.float32)
    words = records.view(np.uint32)
    shows = (boxes[:, 2:] > boxes[:, :2]).all(1)
    records[:, 2], records[:, 3] = 0.5, depths
    records[:, 8:11] = np.random.default_rng(0).random((len(boxes), 3))
    words[:, 7] = boxes[:, 0] | boxes[:, 2] << 16
    words[:, 11] = boxes[:, 1] | boxes[:, 3] << 16
    records[~shows] = 0
    view = View(torch.eye(4, device=DEVICE), torch.eye(3, device=DEVICE), VIEW.width, VIEW.height)
    return Splats(torch.from_numpy(records.view(np.int32)).to(DEVICE), view)


def mixed(seed: int, n_small: int, repeats: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Boxes and depths: SIZES, among small splats and some that do not show, in any order."""
    random = np.random.default_rng(seed)
    small = [(int(w), int(h)) for w, h in random.integers(1, 4, (n_small, 2))]
    boxes = boxes_of(SIZES * repeats + small + [(0, 0)] * (n_small // 4), seed)
    boxes = random.permutation(boxes)
    return boxes, 1.0 + random.permutation(len(boxes))


def assert_lists(boxes: np.ndarray, depths: np.ndarray, rect: Rect) -> None:
    """The lists of a rectangle are those of the boxes, and slots number them splat by splat."""
    lists = gs_raster.sort(splats_of(boxes, depths), rect)
    low = np.array([rect.x0 // 16, rect.y0 // 16])
    high = np.array([-(-rect.x1 // 16), -(-rect.y1 // 16)])
    width, height = high - low
    begin = np.clip(boxes[:, :2], low, high) - low
    end = np.maximum(np.clip(boxes[:, 2:], low, high) - low, begin)
    counts = (end - begin).prod(1)
    shows = (boxes[:, 2:] > boxes[:, :2]).all(1)
    order = np.lexsort((np.arange(len(boxes)), depths, ~shows))
    firsts = np.empty(len(boxes), np.int64)
    firsts[order] = np.cumsum(counts[order]) - counts[order]
    tiles, ids = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for i in order:
        columns, rows = (np.arange(begin[i, axis], end[i, axis]) for axis in (0, 1))
        tiles.append((rows[:, None] * width + columns).ravel())
        ids.append(np.full(counts[i], i))
    tile, splat = np.concatenate(tiles), np.concatenate(ids)
    slots = np.argsort(tile, kind="stable")
    expected = {
        "begins": np.searchsorted(tile[slots], np.arange(width * height + 1)),
        "splats": splat[slots],
        "slots": slots,
        "firsts": firsts,
        "counts": counts,
    }
    for name, values in expected.items():
        assert (getattr(lists, name).cpu().numpy() == values).all(), name


@pytest.mark.parametrize("rect", [VIEW, Rect(403, 90, 1104, 301), Rect(0, 400, 2045, 411)])
@pytest.mark.parametrize("n_small", [0, 3000])
def test_lists_hold_the_boxes_of_large_and_small_splats(n_small: int, rect: Rect) -> None:
    assert_lists(*mixed(1, n_small), rect)


@pytest.mark.parametrize("n", [1, 2, 127, 128, 129, 255, 256, 257, 4096])
@pytest.mark.parametrize("n_tiles", [0, 1, 31, 127])
def test_lists_of_many_splats_of_one_size(n: int, n_tiles: int) -> None:
    # With the splats themselves, n_tiles + 1 divides shares of the lists without rest.
    boxes = boxes_of([(n_tiles, 1)] * n, 2)
    assert_lists(boxes, np.arange(1.0, n + 1), VIEW)


@pytest.mark.parametrize("n_before", [0, 254, 255, 256])
def test_lists_where_few_splats_have_all_tiles(n_before: int) -> None:
    # In front, behind and between, splats have no tile of the rectangle.
    beside = [(1, 1)] * 3000
    boxes = boxes_of(beside[:n_before] + [(COLUMNS, ROWS)] * 3 + beside + [(COLUMNS, ROWS)], 3)
    small = boxes[:, 2] - boxes[:, 0] == 1
    boxes[small] = [0, 0, 1, 1]
    assert_lists(boxes, np.arange(1.0, len(boxes) + 1), Rect(16, 16, VIEW.x1, VIEW.y1))


def weights_by_tile(boxes: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """(n, ROWS, COLUMNS) blending weight of each splat in the pixels of each tile."""
    weights = np.zeros((len(boxes), ROWS, COLUMNS))
    left = np.ones((ROWS, COLUMNS))
    ended = np.zeros((ROWS, COLUMNS), bool)
    for i in np.argsort(depths):
        x0, y0, x1, y1 = boxes[i]
        inside = np.zeros((ROWS, COLUMNS), bool)
        inside[y0:y1, x0:x1] = True
        ended |= inside & (left * 0.5 <= 1e-4)
        drawn = inside & ~ended
        weights[i][drawn] = 0.5 * left[drawn]
        left[drawn] *= 0.5
    return weights


@pytest.mark.parametrize("absgrad", [False, True])
@pytest.mark.parametrize("depth", [False, True])
def test_gradients_are_sums_over_all_tiles_of_a_splat(depth: bool, absgrad: bool) -> None:
    boxes, depths = mixed(4, 200)
    splats = splats_of(boxes, depths)
    # Whole numbers, different from tile to tile, each in one pixel of the tile.
    by_tile = np.random.default_rng(5).integers(1, 9, (ROWS, COLUMNS, 4)).astype(np.float32)
    grads = torch.zeros(VIEW.height, VIEW.width, 4, device=DEVICE)
    grads[5::16, 7::16] = torch.from_numpy(by_tile).to(DEVICE)
    of_image, of_depth = grads[..., :3].contiguous(), grads[..., 3].contiguous()
    lists, pixels = draw(splats, depth=depth)
    found = gs_raster.blend_backward(
        splats, lists, pixels, of_image, None, of_depth if depth else None, absgrad=absgrad
    )
    weights = weights_by_tile(boxes, depths)
    assert (weights.any((1, 2)) == (lists.counts.cpu().numpy() > 0)).mean() > 0.9
    expected = np.einsum("nyx,yxc->nc", weights, by_tile.astype(np.float64))
    columns = [6, 7, 8, 9] if depth else [6, 7, 8]
    # Chains of some 40 additions in float32, behind up to 13 divisions.
    np.testing.assert_allclose(
        found[:, columns].double().cpu().numpy(), expected[:, : len(columns)], rtol=4e-6, atol=0
    )


def test_sums_of_a_splat_depend_on_its_own_tiles_alone() -> None:
    # Splats elsewhere move its slots, and its place among the rows.
    boxes = boxes_of([(w, min(h, ROWS - 4)) for w, h in SIZES], 6)
    boxes[:, [1, 3]] -= np.maximum(boxes[:, 3] - (ROWS - 4), 0)[:, None]
    depths = 10.0 + np.arange(len(boxes))
    elsewhere = np.array([[c % COLUMNS, ROWS - 3, c % COLUMNS + 1, ROWS] for c in range(300)])
    of_image = noise(VIEW.height, VIEW.width, 3)

    def gradients(boxes: np.ndarray, depths: np.ndarray) -> torch.Tensor:
        splats = splats_of(boxes, depths)
        # Of one colour, whatever the number of splats.
        splats.records.view(torch.float32)[:, 8:11] = 0.25
        lists, pixels = draw(splats)
        return gs_raster.blend_backward(splats, lists, pixels, of_image)

    alone = gradients(boxes, depths)
    assert (alone[:, 6] != 0).all()
    together = gradients(
        np.concatenate([elsewhere, boxes]), np.concatenate([np.linspace(1, 99, 300), depths])
    )
    assert_same_bits(bits(together[300:]), bits(alone))
    assert_same_bits(bits(gradients(boxes, depths)), bits(alone))
