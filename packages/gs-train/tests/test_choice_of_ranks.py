# SPDX-License-Identifier: Apache-2.0
"""Ranks share a host's memory, and take one preset whatever each of them owns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from one_thread import one_threaded
from photographed import photo_config
from threads_as_ranks import ThreadWorld, results
from torch import Tensor

from gs_train.data import load_capture
from gs_train.errors import InputError
from gs_train.machine.interrupt import StopRequest
from gs_train.options.config import FitConfig
from gs_train.options.presets import PRESETS
from gs_train.renderers import RenderOptions, make_renderer
from gs_train.runs import offload
from gs_train.runs.offload import choice_for, choice_of_ranks, workload_of
from gs_train.scene.scene import Scene
from gs_train.sizing.choice import Choice
from gs_train.sizing.forecasts import need
from gs_train.sizing.memory import Caps

RENDERER = make_renderer("cpu", RenderOptions())


@pytest.fixture
def scene(tiny_capture: Path) -> Scene:
    capture = load_capture(tiny_capture, cache_dir=tiny_capture / "none")
    return Scene.load(capture, RENDERER.device)


@pytest.fixture
def config() -> FitConfig:
    return photo_config(strategy="fixed", batch_size=2, offload="auto")


def _rows(scene: Scene, config: FitConfig, n: int, n_unseen: int = 0) -> dict[str, Tensor]:
    """So many rows of the scene, and others that no view sees."""
    some = {name: v[:n] for name, v in scene.initial_rows(config, StopRequest()).items()}
    rows = {name: v[torch.arange(n + n_unseen) % n] for name, v in some.items()}
    rows["opacities"][n:] = -20.0
    return rows


@pytest.mark.parametrize(("n_ranks", "share"), [(1, "60.0 MiB"), (2, "30.0 MiB")])
def test_each_rank_has_its_share_of_the_memory(
    scene: Scene, config: FitConfig, n_ranks: int, share: str
) -> None:
    config = replace(config, host_memory="60MiB", device_memory="60MiB")
    with pytest.raises(InputError) as raised:
        choice_for(config, scene, _rows(scene, config, 100), RENDERER, n_ranks=n_ranks)
    said = f"do not fit into --device-memory {share} and --host-memory {share}; "
    assert said in str(raised.value)


@one_threaded
def test_all_ranks_take_best_where_one_has_no_room_for_all_of_its_rows(
    scene: Scene, config: FitConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_ranks = _rows(scene, config, 300), _rows(scene, config, 300, n_unseen=20_000)
    in_place, resident = (
        [
            need(PRESETS[name], replace(workload_of(config, scene, rows, RENDERER), n_ranks=2))
            for rows in of_ranks
        ]
        for name in ("none", "best")
    )
    least, most = resident[1].device_bytes, in_place[1].device_bytes
    room = (max(in_place[0].device_bytes, least) + most) // 2
    assert in_place[0].device_bytes < room < most
    caps = Caps(room, 1 << 40, is_given=True)  # of devices, which are not shared
    monkeypatch.setattr(offload, "caps_of", lambda *_: caps)

    def run(world: ThreadWorld) -> tuple[Choice, Choice]:
        rows = of_ranks[world.rank]
        own = choice_for(config, scene, rows, RENDERER, n_ranks=2)
        return own, choice_of_ranks(config, scene, rows, RENDERER, world)

    found = results(2, run)
    assert [own.preset.name for own, _ in found] == ["none", "best"]
    for _, shared in found:
        assert shared.preset.name == "best"
        assert shared.reason == "not all ranks have room for all of their rows"
