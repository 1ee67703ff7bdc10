# SPDX-License-Identifier: Apache-2.0
"""Whether kernels can be compiled while the program runs.

What launches them calls nothing of Triton's for its arithmetic: ``triton.cdiv`` takes microseconds
on the host. For the same reason devices are given to torch by their numbers.
"""

from __future__ import annotations

import functools
import importlib.util


@functools.cache
def has_triton() -> bool:
    """Whether Triton can be imported; torch brings it for CUDA on Linux."""
    return importlib.util.find_spec("triton") is not None
