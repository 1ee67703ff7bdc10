# SPDX-License-Identifier: Apache-2.0
"""The report that people paste into issues."""

import re
import subprocess
import sys

import pytest

import gs_pinned


def lines() -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "gs_pinned", "--bytes", str(1 << 22)],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()


def test_the_report_names_build_machine_and_rates() -> None:
    report = lines()
    assert report[0].startswith(f"gs-pinned {gs_pinned.__version__}: ")
    begins = ["gs-pinned", "python", "host:", "pages:", "driver:", "table:", "host, "]
    assert re.search(r"5 % sorted [\d.]+ GB/s, in random order [\d.]+ GB/s, memcpy", report[6])
    assert [line.startswith(begin) for line, begin in zip(report, begins)] == [True] * 7


@pytest.mark.gpu
def test_on_a_device_the_report_measures_the_link() -> None:
    report = "\n".join(lines())
    assert "both at once, each" in report
    assert "5 % in random order" in report
