# SPDX-License-Identifier: Apache-2.0
"""Tests marked ``gpu`` are skipped without a CUDA device, unless GS_REQUIRE_GPU=1; those marked
``gpu2`` without two, unless GS_REQUIRE_GPU2=1."""

import os
import sys
from pathlib import Path

import pytest

# What tests share lies beside them, whether all are run or one file.
sys.path.insert(0, str(Path(__file__).parent))


def _n_devices() -> int:
    import torch

    return torch.cuda.device_count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for marker, needed, reason in (
        ("gpu", 1, "no CUDA device"),
        ("gpu2", 2, "fewer than two CUDA devices"),
    ):
        marked = [item for item in items if item.get_closest_marker(marker)]
        required = os.environ.get(f"GS_REQUIRE_{marker.upper()}") == "1"
        if not marked or required or _n_devices() >= needed:
            continue
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def tiny_capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up capture of 12 views, 64 x 48 pixels; not to be written to."""
    from gs_train.data import write_demo_capture

    return write_demo_capture(tmp_path_factory.mktemp("capture"), n_views=12, width=64, height=48)
