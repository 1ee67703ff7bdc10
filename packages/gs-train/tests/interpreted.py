# SPDX-License-Identifier: Apache-2.0
"""Where tests run Triton kernels: on a GPU, and on the CPU with ``TRITON_INTERPRET=1`` where Triton
is installed (that of Triton 3.6 needs NumPy below 2.4)."""

from __future__ import annotations

import importlib.util
import os

import pytest

is_interpreted = bool(os.environ.get("TRITON_INTERPRET")) and bool(
    importlib.util.find_spec("triton")
)
BY_KERNELS = pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.skipif(not is_interpreted, reason="no interpreter")),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)
