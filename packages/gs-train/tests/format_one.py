# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of format 1, byte for byte as earlier versions of gs-train wrote them."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def save_format_one(
    folder: Path,
    *,
    step: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    max_shard_bytes: int = 2 << 30,
) -> Path:
    """Write ``folder/step_N``; the arguments are those of ``save_checkpoint``."""
    path = folder / f"step_{step:06d}"
    path.mkdir(parents=True)
    manifest: dict[str, Any] = {
        "format": "gs-train checkpoint",
        "version": 1,
        "step": step,
        "state": state,
        "tensors": {
            name: {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "pieces": []}
            for name, tensor in tensors.items()
        },
        "shards": [],
    }
    for index, pieces in enumerate(_planned(tensors, max_shard_bytes)):
        file = f"{index:05d}.safetensors"
        data = _shard({name: _rows(tensors[name], a, b) for name, a, b in pieces})
        (path / file).write_bytes(data)
        manifest["shards"].append({"file": file, "bytes": len(data), "crc32": zlib.crc32(data)})
        for name, start, stop in pieces:
            manifest["tensors"][name]["pieces"].append([index, start, stop])
    sign_format_one(path, manifest)
    return path


def sign_format_one(path: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest of format 1 with its checksum."""
    manifest.pop("crc32", None)
    manifest["crc32"] = zlib.crc32(json.dumps(manifest, sort_keys=True).encode())
    (path / "manifest.json").write_text(json.dumps(manifest, indent=1))


def _planned(tensors: Mapping[str, Tensor], most_bytes: int) -> list[list[tuple[str, int, int]]]:
    shards: list[list[tuple[str, int, int]]] = []
    room = -1
    for name, tensor in tensors.items():
        n = 1 if tensor.ndim == 0 else len(tensor)
        row_bytes = tensor.numel() * tensor.element_size() // n if n else 0
        start = 0
        while True:
            if room < row_bytes:
                shards.append([])
                room = most_bytes
            stop = min(n, start + max(1, room // row_bytes)) if row_bytes else n
            shards[-1].append((name, start, stop))
            room -= (stop - start) * row_bytes
            if (start := stop) == n:
                break
    return shards


def _rows(tensor: Tensor, start: int, stop: int) -> Tensor:
    return tensor if tensor.ndim == 0 else tensor[start:stop]


def _shard(tensors: Mapping[str, Tensor]) -> bytes:
    entries, data = {}, b""
    for name, tensor in tensors.items():
        values = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        entries[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(values)],
        }
        data += values
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data
