# SPDX-License-Identifier: Apache-2.0
"""gs_train: good calls of what its documentation names for use from Python."""

from __future__ import annotations

from pathlib import Path

import gs_train
from campaigns.misuse.calls import Call, Entry, Room
from gs_train.config import FitConfig


def _config(room: Room) -> Call:
    args = {
        "data": Path("capture"),
        "out": Path("run"),
        "steps": 10,
        "strategy": room.pick("adc", "mcmc"),
        "offload": room.pick("auto", "none", "best"),
        "batch_size": 1,
        "seed": 0,
        "sh_degree": 3,
        "ssim_lambda": 0.2,
        "cap": 1000,
        "image_cache": "1GiB",
        "init_opacity": 0.1,
    }

    def show(config: FitConfig) -> list[object]:
        return [config.steps, config.strategy, config.offload, config.recipe]

    return Call(FitConfig, args, show=show, raises=(gs_train.InputError,))


ENTRIES = (
    Entry("gs_train.build_info", lambda room: Call(gs_train.build_info, {})),
    Entry("gs_train.FitConfig", _config),
)
