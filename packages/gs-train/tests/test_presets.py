# SPDX-License-Identifier: Apache-2.0
"""Presets by name."""

from pathlib import Path

import pytest

from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.options.presets import PRESETS, preset_named


def test_every_preset_is_named_after_itself_and_an_option() -> None:
    assert list(PRESETS) == ["none", "naive", "clm", "gs-scale", "best"]
    for name, preset in PRESETS.items():
        assert preset.name == name
        assert FitConfig(Path("a"), Path("b"), offload=name).offload == name
        assert preset_named(name) is preset


def test_auto_is_no_preset() -> None:
    with pytest.raises(InputError, match=r"--offload must be auto, none, .*, got auto"):
        preset_named("auto")


def test_sparse_results_need_a_sparse_host_optimizer() -> None:
    assert PRESETS["best"].host_semantics("sparse") == "sparse"
    assert PRESETS["best"].host_semantics("dense") == "deferred"
    assert PRESETS["clm"].host_semantics("dense") == "dense"
