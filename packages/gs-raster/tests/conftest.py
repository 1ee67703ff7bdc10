# SPDX-License-Identifier: Apache-2.0
"""Tests marked ``gpu`` are skipped without a CUDA device, unless GS_REQUIRE_GPU=1."""

import os
import sys
from pathlib import Path

import pytest

# What tests share lies beside them, whether all are run or one file.
sys.path.insert(0, str(Path(__file__).parent))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked or os.environ.get("GS_REQUIRE_GPU") == "1" or _has_cuda():
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason="no CUDA device"))
