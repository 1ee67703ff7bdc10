# SPDX-License-Identifier: Apache-2.0
"""Types of tensors by the names that safetensors has for them."""

from __future__ import annotations

import torch

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
MOST_DIMENSIONS = 8

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """The name of ``dtype`` in safetensors; ValueError when it has none here."""
    if dtype not in _NAMES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype}")
    return _NAMES[dtype]
