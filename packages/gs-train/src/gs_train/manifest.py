# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's manifest: which rows of which tensor each shard holds, and the trainer's state.

A checksum finds what disks do; what somebody wrote on purpose is checked as well, so that whoever
uses a manifest can rely on its types, and on tensors no larger than the shards that hold them.
"""

from __future__ import annotations

import json
import math
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gs_train.errors import InputError
from gs_train.shards import DTYPES, MOST_DIMENSIONS
from gs_train.small_files import read_small

FORMAT = "gs-train checkpoint"
VERSION = 1
MANIFEST = "manifest.json"

_SHARD = re.compile(r"\d{5,10}\.safetensors")  # beside the manifest, never ../ or elsewhere
_MOST_BYTES = 64 << 20


def damaged_checkpoint(file: Path) -> InputError:
    """The error that names a file of a checkpoint which is not as it was written."""
    return InputError(f"{file} is damaged; remove its folder and resume from an earlier one")


def shard_name(index: int) -> str:
    """The file of a checkpoint's shard."""
    return f"{index:05d}.safetensors"


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Add the checksum to a new manifest, write it into ``folder`` and sync the file."""
    manifest["crc32"] = _crc(manifest)
    with open(folder / MANIFEST, "x", encoding="utf-8") as out:
        json.dump(manifest, out, indent=1)
        out.flush()
        os.fsync(out.fileno())


def read_manifest(folder: Path) -> dict[str, Any]:
    """What :func:`write_manifest` wrote.

    Raises:
        InputError: there is none, of another format version, or it is damaged; the file is named.
    """
    file = folder / MANIFEST
    damaged = damaged_checkpoint(file)
    try:
        manifest = json.loads(read_small(file, most_bytes=_MOST_BYTES))
    except OSError as error:
        raise InputError(
            f"{folder} must be a checkpoint folder: {file}: {error.strerror}"
        ) from error
    except (ValueError, RecursionError):  # no JSON, no UTF-8, brackets without end
        raise damaged from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(f"{file} must have the format {FORMAT!r}, it has another")
    if manifest.get("version") != VERSION:
        raise InputError(
            f"{folder} must have checkpoint format version {VERSION}, got version "
            f"{manifest.get('version')!r:.40}; use the gs-train that wrote it, or start a new run"
        )
    # Checked after the version: another one may count its checksum differently.
    try:
        if manifest.pop("crc32", None) != _crc(manifest):
            raise damaged
        _require_sound(manifest)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        raise damaged from None
    return manifest


def _crc(manifest: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())


def _require_sound(manifest: Mapping[str, Any]) -> None:
    """Raise what a wrong kind of value raises, or ValueError."""
    whole(manifest["step"])
    dict.keys(manifest["state"])
    left = []  # bytes of each shard that no tensor has taken
    for shard in manifest["shards"]:
        if not _SHARD.fullmatch(shard["file"]):
            raise ValueError("a shard must lie beside the manifest")
        whole(shard["crc32"])
        left.append(whole(shard["bytes"]))
    for entry in manifest["tensors"].values():
        item_bytes = DTYPES[entry["dtype"]].itemsize
        if len(entry["shape"]) > MOST_DIMENSIONS:
            raise ValueError("a tensor must have fewer dimensions")
        shape = [whole(n) for n in entry["shape"]]
        whole(item_bytes * math.prod(max(n, 1) for n in shape))
        n_rows, row_bytes = (shape or [1])[0], item_bytes * math.prod(shape[1:])
        done, last = 0, -1
        for index, start, stop in entry["pieces"]:
            whole(index), whole(stop)
            if not (last < index and done == start <= stop):
                raise ValueError("pieces must follow each other")
            left[index] -= (stop - start) * row_bytes
            if left[index] < 0:
                raise ValueError("a shard must hold its tensors")
            done, last = stop, index
        if done != n_rows or last < 0:
            raise ValueError("pieces must hold every row")


def whole(value: Any) -> int:
    """``value``, which must be a whole number from 0 to 2^63 - 1.

    Raises:
        ValueError: it is not.
    """
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"a number must be whole and not negative, got {value!r:.40}")
    return value
