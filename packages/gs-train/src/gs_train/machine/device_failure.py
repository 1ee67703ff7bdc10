# SPDX-License-Identifier: Apache-2.0
"""Which exceptions say that the device has failed."""

from __future__ import annotations

from gs_train.machine.out_of_memory import memory_that_ran_out

_BEGINNINGS = ("CUDA error", "Triton Error [CUDA]")


def is_device_failure(error: BaseException) -> bool:
    """Whether CUDA has failed, after which no call of this process may succeed on the device.

    The packages with kernels raise types named CudaError, torch raises AcceleratorError or a
    RuntimeError with a known beginning, and so does Triton. Memory that ran out is no such failure.
    """
    is_named = type(error).__name__ in ("CudaError", "AcceleratorError")
    is_said = isinstance(error, RuntimeError) and str(error).startswith(_BEGINNINGS)
    return (is_named or is_said) and memory_that_ran_out(error) is None
