# SPDX-License-Identifier: Apache-2.0
"""What is forecast of a rank: bytes beside those that two ranks hold, and seconds from rates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from cloud import cloud_rows, views_along
from made_up import RATES, WORK
from photographed import photo_config
from threads_as_ranks import ThreadWorld, on_ranks

from gs_train.checkpoint.row_names import KEYS, STRANDS, row_names
from gs_train.data import load_capture
from gs_train.densify import AdcConfig
from gs_train.engine.together import Sharing
from gs_train.machine.interrupt import StopRequest
from gs_train.options.config import FitConfig
from gs_train.options.presets import PRESETS
from gs_train.ranks.first_rows import first_rows
from gs_train.renderers.cpu import CpuRenderer
from gs_train.runs.offload import choice_for, share_of, workload_of
from gs_train.runs.trainer import Trainer
from gs_train.scene.scene import Scene
from gs_train.sizes import format_bytes
from gs_train.sizing.census import measure_workload
from gs_train.sizing.forecasts import forecast_of, need, predict
from gs_train.sizing.forecasts.of_ranks import launching_s
from gs_train.sizing.workload import Workload

N = 20_000
N_VIEWS = 6
TWO = WORK.share(2)


class Held(NamedTuple):
    """What a rank holds.

    Attributes:
        n_rows: of the rank.
        n_bytes: of its rows with moments, last steps and keys.
        exchange: bytes of the buffers of exchanges.
    """

    n_rows: int
    n_bytes: int
    exchange: int


def _held(preset: str, n_ranks: int) -> list[Held]:
    """After two batches that all see the same."""
    rows, views = cloud_rows(N, 3), views_along(N_VIEWS)
    truth = torch.zeros(64, 96, 3, dtype=torch.uint8)

    def run(world: ThreadWorld) -> Held:
        config = photo_config(batch_size=N_VIEWS, resort_every=0, adc=AdcConfig(refine_start=1000))
        trainer = Trainer(
            config,
            rows,
            renderer=CpuRenderer(),
            extent=1.0,
            preset=PRESETS[preset],
            sharing=Sharing(world),  # type: ignore[arg-type]
        )
        for _ in range(2):
            trainer.train_step([(view, truth) for view in views], [views])
        together = trainer.backend.together
        assert together is not None
        tensors = trainer.tensors()
        names = row_names({name: value.shape for name, value in tensors.items()})
        n_bytes = sum(
            tensors[name].nbytes for name in names if name.startswith("model/") and name != STRANDS
        )
        held = Held(len(tensors[KEYS]), n_bytes, together.drawing.exchange_bytes)
        trainer.model.close()
        return held

    return on_ranks(n_ranks, torch.device("cpu"), run)


def _workload(n_ranks: int) -> Workload:
    batch = list(range(N_VIEWS))
    return measure_workload(
        cloud_rows(N, 3),
        views_along(N_VIEWS),
        CpuRenderer(),
        n_rows=N,
        sh_degree=1,
        batch_size=N_VIEWS,
        batches=[batch, batch],
    ).share(n_ranks)


@pytest.mark.parametrize("preset", ["none", "best"])
def test_two_ranks_hold_what_is_forecast_of_each(preset: str) -> None:
    work = _workload(2)
    of = need(PRESETS[preset], work)
    a_row = of.device["parameters"] + of.device["moments"] + of.device["keys"]
    if preset == "none":
        a_row += of.device["steps of rows"]
    else:
        a_row += of.pinned["parameters"] + of.pinned["moments"] + of.pinned["steps of rows"]
    assert a_row % work.n_rows == 0
    for held in _held(preset, 2):
        assert 0.9 * work.n_rows < held.n_rows <= work.n_rows
        assert held.n_bytes == a_row // work.n_rows * held.n_rows
        assert held.exchange <= of.device["exchange"] <= 1.15 * held.exchange


def test_one_rank_has_no_exchange() -> None:
    one = WORK.share(1)
    assert "exchange" not in need(PRESETS["none"], WORK).device
    assert predict(PRESETS["none"], WORK, RATES).exchange_s == 0
    assert (one.n_ranks, one.mean) == (1, WORK.mean)


def test_a_rank_needs_half_and_what_views_of_all_ranks_take() -> None:
    for name in ("none", "best"):
        one, two = need(PRESETS[name], WORK), need(PRESETS[name], TWO)
        for part in ("parameters", "moments", "keys", "densification"):
            assert two.device[part] == pytest.approx(0.525 * one.device[part], rel=1e-6)
        # The splats of a whole view, and rows of three rounds on their way.
        assert one.device["rendering"] < two.device["rendering"] < 3 * one.device["rendering"]
        rows = 2 * 0.525 * WORK.most.largest
        buffers = 2 * rows * (52 + 52 + 48)  # 4 views are two rounds
        assert buffers <= two.device["exchange"] <= 1.15 * buffers


def test_ranks_cut_no_views_because_of_their_rows() -> None:
    way = forecast_of(PRESETS["best"])
    assert way.least(TWO).rows == way.wanted(TWO).rows
    assert way.least(WORK).rows < way.wanted(WORK).rows


def test_a_rank_draws_half_the_views_and_updates_half_the_rows() -> None:
    slow = replace(RATES, batch_view_s=5e-3, between_gpus=200e9)  # launching is soon done
    one, two = (predict(PRESETS["none"], work, slow) for work in (WORK, TWO))
    assert one.device_s / 2 < two.device_s < 0.6 * one.device_s
    assert two.exchange_s == pytest.approx(100 * 8e5 / 2 / 2 / 200e9 + 2 * 3 * 25e-6)
    exposed = two.exchange_s / 2  # one round of two
    assert two.images_per_second == pytest.approx(4 / (two.device_s + exposed))
    assert two.bound == "device"


def test_no_batch_is_shorter_than_it_takes_to_launch() -> None:
    quick = replace(RATES, batch_view_s=1e-5, batch_row_s=1e-11, between_gpus=200e9)
    quicker = replace(RATES, batch_view_s=1e-6, batch_row_s=1e-12, between_gpus=200e9)
    rates = {}
    for n_ranks in (2, 3, 4):
        work = WORK.share(n_ranks)
        rates[n_ranks], other = (
            predict(PRESETS["none"], work, by).images_per_second for by in (quick, quicker)
        )
        assert rates[n_ranks] == other == pytest.approx(4 / launching_s(work))
    # Three ranks cut one of four views, and launch as many drawings as two.
    assert rates[3] < rates[2] < rates[4]
    assert predict(PRESETS["none"], WORK, quick).images_per_second > 1000


def test_what_travels_longer_than_drawing_takes_bounds_a_step() -> None:
    speed = predict(PRESETS["none"], TWO, replace(RATES, between_gpus=1e9))
    assert speed.bound == "exchange"
    assert speed.images_per_second == pytest.approx(4 / speed.exchange_s)
    # As through the host where nothing is measured.
    assert predict(PRESETS["none"], TWO, RATES).exchange_s == pytest.approx(
        100 * 8e5 / 4 / RATES.both + 6 * 25e-6
    )


def test_processes_of_a_cpu_share_its_cores() -> None:
    cpu = replace(RATES, device="CPU")
    one, two = (predict(PRESETS["none"], work, cpu) for work in (WORK, TWO))
    assert two.images_per_second < one.images_per_second


def test_auto_reckons_with_what_ranks_take(tiny_capture: Path, tmp_path: Path) -> None:
    """As `fit` asks on each of two ranks."""
    config = FitConfig(data=tiny_capture, out=tmp_path, renderer="cpu", cap=8000, batch_size=4)
    capture = load_capture(tiny_capture, cache_dir=tmp_path)
    scene = Scene.load(capture, torch.device("cpu"))
    renderer = CpuRenderer()
    own = first_rows(scene.initial_rows(config, StopRequest()), rank=0, n_ranks=2).rows
    choice = choice_for(config, scene, own, renderer, n_ranks=2)
    share = share_of(config, 2)
    assert share.cap == 4201
    alone = workload_of(share, scene, own, renderer).with_rows(4201)
    ours, theirs = (need(PRESETS["none"], w) for w in (replace(alone, n_ranks=2), alone))
    assert ours.device["exchange"] > 0
    said = f"all of it fits on the device ({format_bytes(ours.device_bytes)} for 4,201 Gaussians"
    assert choice.reason.startswith(said)
    assert format_bytes(theirs.device_bytes) != format_bytes(ours.device_bytes)
