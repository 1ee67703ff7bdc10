# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_order import ViewSampler
from gs_order.cameras import features


def field(n, seed=0):
    """Places on a 10 x 10 field, a little above it."""
    return np.random.default_rng(seed).random((n, 3)) * [10, 10, 1]


def tiled(places, batch_size, tile_views=None, **options):
    return ViewSampler(
        batch_size=batch_size, order="tiles", cameras=places, tile_views=tile_views, **options
    )


def spread(sampler, places, steps):
    """How far the views of a batch are from their middle, on average."""
    return np.mean([places[sampler.batch(step)].std(axis=0).sum() for step in steps])


def pairs(sampler, epoch):
    """Pairs of views that share a tile."""
    return {(a, b) for tile in sampler.tiles(epoch) for a in tile.tolist() for b in tile.tolist()}


def test_views_of_a_batch_are_neighbours():
    places = field(512)
    sampler, shuffled = tiled(places, 8, 32), ViewSampler(512, 8)
    # 32 of 512 places lie in a square of a sixteenth of the field: a quarter of its side.
    assert spread(sampler, places, range(192)) < 0.4 * spread(shuffled, places, range(192))


def test_tiles_come_in_random_order_and_views_in_random_order_inside():
    places = field(512)
    sampler = tiled(places, 8, 32)
    tiles = [tile for epoch in range(6) for tile in sampler.tiles(epoch)]
    middles = np.array([places[tile].mean(axis=0) for tile in tiles])
    jumps = np.linalg.norm(np.diff(middles, axis=0), axis=1)
    assert jumps.mean() > 3.0  # random places of a 10 x 10 field are 5.2 apart on average
    within = [np.linalg.norm(np.diff(places[tile], axis=0), axis=1).mean() for tile in tiles]
    sorted_within = [
        np.linalg.norm(np.diff(np.sort(places[tile], axis=0), axis=0), axis=1).mean()
        for tile in tiles
    ]
    assert np.mean(within) > 4 * np.mean(sorted_within)


@settings(max_examples=80, deadline=None)
@given(
    n_views=st.integers(2, 90),
    batch_size=st.integers(1, 12),
    more=st.integers(0, 20),
    epoch=st.integers(0, 5),
)
def test_a_batch_lies_within_a_tile_except_where_epochs_meet(n_views, batch_size, more, epoch):
    sampler = tiled(field(n_views), batch_size, batch_size + more, seed=7)
    tiles = sampler.tiles(epoch)
    assert np.concatenate(tiles).tolist() == sampler.epoch(epoch).tolist()
    n_first = -epoch * n_views % batch_size
    if batch_size + more >= n_views:
        assert len(tiles) == 1
        return
    if n_first:
        assert len(tiles.pop(0)) == n_first
    assert all(len(tile) <= batch_size + more for tile in tiles)
    assert all(len(tile) % batch_size == 0 for tile in tiles[:-1])
    assert sum(map(len, tiles)) == n_views - n_first


def test_each_epoch_cuts_anew():
    sampler = tiled(field(256), 4, 32)
    first, second = pairs(sampler, 0), pairs(sampler, 1)
    shared = len(first & second) / len(first)
    # Neighbours stay together often; the same cuts would keep all pairs, none would keep an eighth.
    assert 0.25 < shared < 0.75


def test_no_cut_stays_in_the_middle_of_two_tiles():
    """Places on a line, in two tiles or so: those beside the middle share a tile at times."""
    line = np.arange(64)[:, None] * [1.0, 0, 0]
    sampler = tiled(line, 1, 32)
    together = [(31, 32) in pairs(sampler, epoch) for epoch in range(40)]
    assert any(together)
    assert not all(together)


def test_every_view_comes_at_every_place():
    n_views, n_epochs = 12, 3000
    sampler = tiled(field(n_views), 2, 4, seed=9)
    seen = np.zeros((n_views, n_views))
    for epoch in range(n_epochs):
        seen[np.arange(n_views), sampler.epoch(epoch)] += 1
    expected = n_epochs / n_views
    # Not quite equally often: the last tile and the views before the first one may be smaller.
    assert seen.min() > 0.6 * expected
    assert seen.max() < 1.5 * expected


def test_few_views_are_shuffled():
    few = tiled(field(10), 2, 10, seed=5)
    shuffled = ViewSampler(10, 2, seed=5)
    assert [few.epoch(e).tolist() for e in range(4)] == [
        shuffled.epoch(e).tolist() for e in range(4)
    ]


@pytest.mark.parametrize(
    ("n_views", "batch_size", "largest"), [(4000, 4, 256), (800, 4, 100), (60, 4, 16), (60, 1, 7)]
)
def test_without_a_number_tiles_hold_an_eighth_of_the_views_within_bounds(
    n_views, batch_size, largest
):
    sampler = tiled(field(n_views), batch_size)
    assert max(len(tile) for tile in sampler.tiles(0)) == largest


def test_cameras_in_one_place_are_cut_by_direction():
    angles = np.random.default_rng(2).permutation(64) * (2 * np.pi / 64)
    viewmats = np.tile(np.eye(4), (64, 1, 1))
    viewmats[:, 2, :3] = np.c_[np.cos(angles), np.sin(angles), 0 * angles]
    sampler = tiled(viewmats, 4, 8)
    within = [viewmats[tile, 2, :3].std(axis=0).sum() for tile in sampler.tiles(0)]
    assert max(within) < 0.75  # of all directions it is 1.4


def test_cameras_that_are_all_the_same_make_tiles_that_change():
    sampler = tiled(np.full((40, 3), 1e300), 4, 8)
    assert pairs(sampler, 0) != pairs(sampler, 1)
    assert sorted(sampler.epoch(1)) == list(range(40))


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1.0, 1e200, 1.7e308])
def test_numbers_of_any_size_are_compared(scale):
    places = 2 * field(128)[:, :3] / [10, 10, 1] - 1
    points = features(places * scale, 0.5)
    assert np.isfinite(points).all()
    assert np.abs(points).max() < 4
    far = np.concatenate([places, [[1e6, 0, 0]]])
    assert np.ptp(features(far, 0.5)[:-1], axis=0).min() > 1  # one stray does not shrink all others


def test_a_move_and_a_scale_of_the_world_change_no_tile():
    places = np.floor(1024 * field(200))
    here, there = tiled(places, 4, 16), tiled(4 * (places + 512), 4, 16)
    for epoch in range(3):
        assert here.epoch(epoch).tolist() == there.epoch(epoch).tolist()
