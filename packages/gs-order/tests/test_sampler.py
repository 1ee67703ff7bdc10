# SPDX-License-Identifier: Apache-2.0
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_order import ViewSampler


def cameras(n, seed=0):
    return np.random.default_rng(seed).random((n, 3)) * [10, 10, 1]


def sampler_of(order, n_views, batch_size, **options):
    places = cameras(n_views) if order == "tiles" else None
    return ViewSampler(n_views, batch_size, order=order, cameras=places, **options)


@settings(max_examples=60, deadline=None)
@given(
    order=st.sampled_from(["shuffle", "tiles"]),
    n_views=st.integers(1, 40),
    batch_size=st.integers(1, 50),
    more=st.one_of(st.none(), st.integers(0, 12)),
    seed=st.integers(0, 2**64 - 1),
)
def test_every_view_comes_once_an_epoch(order, n_views, batch_size, more, seed):
    tile_views = None if more is None or order == "shuffle" else batch_size + more
    sampler = sampler_of(order, n_views, batch_size, tile_views=tile_views, seed=seed)
    n_epochs = 5
    n_steps = -(-n_epochs * n_views // batch_size)
    sequence = np.concatenate([sampler.batch(step) for step in range(n_steps)])
    for epoch in range(n_epochs):
        views = sequence[epoch * n_views : (epoch + 1) * n_views]
        assert sorted(views) == list(range(n_views))
        assert (views == sampler.epoch(epoch)).all()


@pytest.mark.parametrize("order", ["shuffle", "tiles"])
def test_a_step_does_not_depend_on_which_steps_were_asked_before(order):
    in_order = sampler_of(order, 23, 4, seed=5)
    wanted = [in_order.batch(step).tolist() for step in range(60)]
    backwards = sampler_of(order, 23, 4, seed=5)
    assert [backwards.batch(step).tolist() for step in reversed(range(60))] == wanted[::-1]
    assert sampler_of(order, 23, 4, seed=5).batch(41).tolist() == wanted[41]
    resumed = sampler_of(order, 23, 4, seed=5, first_step=17, n_steps=43)
    assert list(resumed) == wanted[17:]
    assert len(resumed) == 43
    assert pickle.loads(pickle.dumps(in_order)).batch(7).tolist() == wanted[7]


def test_the_sequence_is_the_same_in_every_version_and_on_every_machine():
    # Resuming a run must not change its views; a change here breaks every checkpoint.
    assert ViewSampler(10, 4, seed=3).batch(1).tolist() == [2, 7, 9, 4]
    viewmats = np.tile(np.eye(4), (12, 1, 1))
    viewmats[:, :3, 3] = [[k * k % 7, k % 5, k % 2] for k in range(12)]
    viewmats[::3, :3, :3] = [[0, 0, -1], [0, 1, 0], [1, 0, 0]]
    tiles = ViewSampler(batch_size=2, seed=3, order="tiles", cameras=viewmats, tile_views=4)
    assert tiles.epoch(1).tolist() == [8, 1, 7, 0, 11, 2, 5, 10, 6, 4, 9, 3]


def test_epochs_and_seeds_differ():
    sampler = ViewSampler(100, 1, seed=1)
    other = ViewSampler(100, 1, seed=2)
    assert (sampler.epoch(0) != sampler.epoch(1)).any()
    assert (sampler.epoch(0) != other.epoch(0)).any()


def test_every_view_is_equally_likely_at_every_place():
    n_views, n_epochs = 12, 6000
    seen = np.zeros((n_views, n_views))
    sampler = ViewSampler(n_views, 3, seed=9)
    for epoch in range(n_epochs):
        seen[np.arange(n_views), sampler.epoch(epoch)] += 1
    # Binomial with mean 500 and deviation 21.4: six deviations fail once in 5e8 draws.
    assert np.abs(seen - n_epochs / n_views).max() < 6 * 21.4


def test_a_dataloader_takes_it_as_its_batch_sampler():
    sampler = ViewSampler(7, 3, seed=2, first_step=4, n_steps=5)
    loader = torch.utils.data.DataLoader(torch.arange(7) * 10, batch_sampler=sampler)
    assert len(loader) == 5
    assert [b.tolist() for b in loader] == [(sampler.batch(t) * 10).tolist() for t in range(4, 9)]
    endless = ViewSampler(7, 3, seed=2)
    steps = iter(torch.utils.data.DataLoader(torch.arange(7), batch_sampler=endless))
    assert [next(steps).tolist() for _ in range(9)][8] == endless.batch(8).tolist()
    with pytest.raises(TypeError, match="n_steps must be given for a sampler with a length"):
        len(endless)


def test_the_remembered_epochs_cannot_be_written_through():
    sampler = ViewSampler(6, 2, seed=0)
    sampler.epoch(0)[:] = 0
    sampler.batch(0)[:] = 0
    assert sorted(sampler.epoch(0)) == list(range(6))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_views": 0}, "n_views must be at least 1, got 0"),
        ({"n_views": 4, "batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"n_views": 4, "seed": -1}, "seed must be at least 0, got -1"),
        ({"n_views": 4, "seed": 2**64}, "seed must be at most 18446744073709551615, got"),
        ({"n_views": 4, "n_steps": -1}, "n_steps must be at least 0, got -1"),
        ({"n_views": 4, "first_step": -1}, "first_step must be at least 0, got -1"),
        ({"n_views": 4, "order": "near"}, "order must be one of shuffle, tiles, got 'near'"),
        ({"n_views": 4, "order": "tiles"}, "cameras must be given for order 'tiles'"),
        ({"n_views": 4, "tile_views": 2}, "tile_views must be left out for order 'shuffle', got 2"),
        (
            {"cameras": np.zeros((9, 3)), "batch_size": 4, "order": "tiles", "tile_views": 3},
            "tile_views must be at least 4, got 3",
        ),
        ({}, "n_views must be given for order 'shuffle'"),
        ({"n_views": 4, "cameras": np.zeros((3, 3))}, "cameras must be one for each of 4 views"),
        ({"order": "tiles", "cameras": np.zeros((3, 2))}, "cameras must be .*got shape"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        ViewSampler(**arguments)


def test_negative_steps_and_epochs_are_refused():
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        ViewSampler(4).batch(-1)
    with pytest.raises(ValueError, match="epoch must be at least 0, got -2"):
        ViewSampler(4).epoch(-2)
