# SPDX-License-Identifier: Apache-2.0
"""Where torch is not installed: the plain form works, the other names say what to install."""

import subprocess
import sys

import pytest

_NO_TORCH = """
import sys
sys.modules["torch"] = None  # as if it were not installed
"""


def run_without_torch(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _NO_TORCH + code], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "name", ["DeviceAdam", "DeviceRows", "HostAdam", "RowSchedule", "Worker", "follow"]
)
def test_what_needs_torch_says_so_with_the_remedy(name: str) -> None:
    done = run_without_torch(f"from gs_adam import {name}")
    assert done.returncode == 1
    assert done.stderr.endswith(
        f"ModuleNotFoundError: gs_adam.{name} needs torch, which is not installed: "
        "pip install gs-adam[torch]\n"
    )


def test_the_plain_form_works() -> None:
    done = run_without_torch("""
import doctest
from gs_adam import plain
results = doctest.testmod(plain)
sys.exit(results.failed or not results.attempted)
""")
    assert done.returncode == 0, done.stdout + done.stderr
