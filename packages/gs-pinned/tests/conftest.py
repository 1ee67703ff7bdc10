# SPDX-License-Identifier: Apache-2.0
"""Tests marked ``gpu`` are skipped without a CUDA device, unless GS_REQUIRE_GPU=1."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

# Ids are checked before each launch, so that a bad one raises in the call that passed it.
os.environ.setdefault("GS_CHECK_INDEX", "1")


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked or os.environ.get("GS_REQUIRE_GPU") == "1" or _has_cuda():
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture
def run_script() -> Callable[..., str]:
    """The output of a script in a process of its own, which must end with status 0."""

    def run(script: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
