# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's manifest as a file: JSON with its own checksum, of either format version."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gs_train.errors import InputError
from gs_train.files.small_files import read_small

FORMAT = "gs-train checkpoint"
VERSION = 2
OLD_VERSION = 1
MANIFEST = "manifest.json"

_SHARD = re.compile(r"\d{5,10}\.safetensors")  # beside the manifest, never ../ or elsewhere
_CHECKSUM = re.compile(rb' "crc32": (\d{1,10})\n}\n\Z')
_MOST_BYTES = 64 << 20


def damaged_checkpoint(file: Path, *, why: str = "") -> InputError:
    """The error that names a file of a checkpoint which is not as it was written."""
    reason = f": {why}" if why else ""
    return InputError(
        f"{file} is damaged{reason}; remove its folder and resume from an earlier one"
    )


def shard_name(index: int) -> str:
    """The file of a checkpoint's shard."""
    return f"{index:05d}.safetensors"


def rank_shard_name(rank: int, index: int) -> str:
    """The file of a shard that one of several ranks writes: rank and index in five digits each."""
    return require_shard_name(f"{rank:05d}{index:05d}.safetensors")


def require_shard_name(name: Any) -> str:
    """``name``, which must be one that :func:`shard_name` or :func:`rank_shard_name` gives.

    Raises:
        TypeError, ValueError: it is not.
    """
    if not _SHARD.fullmatch(name):
        raise ValueError("a shard must lie beside the manifest")
    return str(name)


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Write a new manifest of format 2 into ``folder``, with its checksum, and sync the file."""
    plain = {"format": FORMAT, "version": VERSION, **content, "crc32": 0}
    text = json.dumps(plain, indent=1).encode()
    body = text[: text.rindex(b' "crc32": ')]
    with open(folder / MANIFEST, "xb") as out:
        out.write(body + b' "crc32": %d\n}\n' % zlib.crc32(body))
        out.flush()
        os.fsync(out.fileno())


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest in a folder, whose checksum is right; of its content only format and version are
    known.

    Raises:
        InputError: there is none, of another format version, or it is damaged; the file is named.
    """
    file = folder / MANIFEST
    damaged = damaged_checkpoint(file)
    try:
        data = read_small(file, most_bytes=_MOST_BYTES)
        manifest = json.loads(data)
    except OSError as error:
        raise InputError(
            f"{folder} must be a checkpoint folder: {file}: {error.strerror}"
        ) from error
    except (ValueError, RecursionError):  # no JSON, no UTF-8, brackets without end
        raise damaged from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(f"{file} must have the format {FORMAT!r}, it has another")
    version = manifest.get("version")
    if type(version) is not int or version not in (OLD_VERSION, VERSION):
        raise InputError(
            f"{folder} must have checkpoint format version {OLD_VERSION} or {VERSION}, got version "
            f"{version!r:.40}; use the gs-train that wrote it, or start a new run"
        )
    # Checked after the version: another one may count its checksum differently.
    try:
        is_right = _is_right_1(manifest) if version == OLD_VERSION else _is_right_2(data)
    except (TypeError, ValueError, RecursionError):
        raise damaged from None
    if not is_right:
        raise damaged
    return manifest


def _is_right_1(manifest: dict[str, Any]) -> bool:
    """Format 1 has the checksum of the content without it, as Python writes it with sorted keys."""
    crc = manifest.pop("crc32", None)
    return bool(crc == zlib.crc32(json.dumps(manifest, sort_keys=True).encode()))


def _is_right_2(data: bytes) -> bool:
    """Format 2 has the checksum of the bytes before it."""
    found = _CHECKSUM.search(data)
    return found is not None and int(found[1]) == zlib.crc32(data[: found.start()])
