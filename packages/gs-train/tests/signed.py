# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of format 2 that were changed on purpose, with checksums that are right."""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

Change = Callable[[dict[str, Any]], None]

_ITEM_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}


def change_manifest(path: Path, change: Change) -> None:
    """Change what a manifest says."""
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    sign_manifest(path, manifest)


def sign_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest with its checksum: that of the bytes before it."""
    manifest.pop("crc32", None)
    body = json.dumps(manifest, indent=1).removesuffix("\n}").encode() + b",\n"
    (path / "manifest.json").write_bytes(body + b' "crc32": %d\n}\n' % zlib.crc32(body))


def change_header(path: Path, index: int, change: Change) -> None:
    """Change the header of a shard, and nothing that the manifest says of tensors but where they
    begin."""
    file = path / f"{index:05d}.safetensors"
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    new = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(new)) + new + data[8 + length :])

    def sign(manifest: dict[str, Any]) -> None:
        for tensor in manifest["tensors"].values():
            for piece in tensor["pieces"]:
                if piece["shard"] == index:
                    piece["offset"] += len(new) - length
        sign_shard(path, manifest, index)

    change_manifest(path, sign)


def sign_shard(path: Path, manifest: dict[str, Any], index: int) -> None:
    """Give a shard the checksums of what its file holds."""
    shard = manifest["shards"][index]
    data = (path / shard["file"]).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    shard["bytes"], shard["crc32"] = len(data), zlib.crc32(data)
    shard["header_bytes"], shard["header_crc32"] = 8 + length, zlib.crc32(data[: 8 + length])
    for tensor in manifest["tensors"].values():
        for piece in tensor["pieces"]:
            if piece["shard"] == index:
                start, stop = piece["rows"]
                row_bytes = _ITEM_BYTES.get(tensor["dtype"], 1) * math.prod(tensor["shape"][1:])
                end = piece["offset"] + (stop - start) * row_bytes
                piece["crc32"] = zlib.crc32(data[piece["offset"] : end])
