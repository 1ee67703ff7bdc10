# SPDX-License-Identifier: Apache-2.0
"""Ways to damage a checkpoint that know its format, and checksums that are right afterwards."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from campaigns.mutations import WORDS
from gs_train.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint

_ITEM_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}
_NUMBERS = (0, 1, 2, 7, 8, -1, 2**31, 2**32, 2**62, 2**63, 10**30, 1.5, True, None, [], {}, "0")


def split_newest(run: Path) -> None:
    """Save a run's newest checkpoint again, in many shards and with keys."""
    newest = latest_checkpoint(run / "checkpoints")
    assert newest is not None
    saved = load_checkpoint(newest)
    shutil.rmtree(newest)
    n_rows = len(saved.tensors["model/means"])
    saved.tensors.setdefault("model/keys", torch.arange(n_rows, dtype=torch.int32))
    again = save_checkpoint(
        newest.parent,
        step=saved.step,
        tensors=saved.tensors,
        state=saved.state,
        max_shard_bytes=4000,
    )
    assert again == newest


def damage_checkpoint(path: Path, rng: np.random.Generator) -> tuple[str, bool]:
    """Damage a checkpoint in one of many ways.

    Returns:
        What was done; and whether its checksums tell.
    """
    shards = sorted(path.glob("*.safetensors"))
    file = (*shards, path / "manifest.json")[rng.integers(len(shards) + 1)]
    kinds = [
        "flip",
        "cut",
        "longer",
        "swap",
        "manifest",
        "manifest",
        "manifest",
        "header",
        "values",
    ]
    kind = str(rng.choice(kinds))
    if kind == "swap":
        one, two = (shards[i] for i in rng.choice(len(shards), 2, replace=False))
        data = one.read_bytes(), two.read_bytes()
        one.write_bytes(data[1]), two.write_bytes(data[0])
        told = f"{one.name} and {two.name} swapped"
        if rng.random() < 0.5:
            told += ", with their sizes"
            manifest = _manifest(path)
            for shard in manifest["shards"]:
                shard["bytes"] = os.path.getsize(path / shard["file"])
            _write(path, manifest)
        return told, data[0] != data[1]
    if kind == "manifest":
        return _edit_manifest(path, rng), False
    if kind == "header":
        return _edit_header(path, rng), False
    data = bytearray(file.read_bytes())
    if kind == "flip":
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    elif kind == "cut":
        del data[rng.integers(len(data)) :]
    elif kind == "longer":
        data += rng.bytes(int(rng.integers(1, 64)))
    else:
        file = shards[rng.integers(len(shards))]
        data = bytearray(file.read_bytes())
        (length,) = struct.unpack_from("<Q", data)
        at = int(rng.integers(8 + length, len(data)))
        data[at : at + 4] = rng.bytes(len(data[at : at + 4]))
        file.write_bytes(data)
        is_right = rng.random() < 0.5
        if is_right:
            make_right(path)
        return f"{file.name}: other values at {at}{', signed' if is_right else ''}", not is_right
    file.write_bytes(data)
    return f"{file.name}: {kind}", True


def keeps_values(said: str) -> bool:
    """Whether what :func:`damage_checkpoint` did may change no value that is read."""
    return "signed" not in said and "state" not in said and "step" not in said


def _edit_manifest(path: Path, rng: np.random.Generator) -> str:
    """Change, remove or copy a value, or a name; the checksum of the manifest is right."""
    manifest = _manifest(path)
    places = list(_places(manifest, ()))
    part = str(rng.choice(["tensors", "tensors", "shards", "shards", "any"]))
    some = [place for place in places if place[0] in (part, "rows")] if part != "any" else places
    place = some[rng.integers(len(some))]
    within, key = _at(manifest, place[:-1]), place[-1]
    kind = str(rng.choice(["number", "number", "near", "word", "remove", "copy", "name"]))
    old = within[key]
    if kind == "near" and type(old) is int:
        within[key] = old + int(rng.choice([-8, -4, -1, 1, 4, 8, 1 << 20]))
    elif kind == "word":
        within[key] = WORDS[rng.integers(len(WORDS))]
    elif kind == "remove":
        del within[key]
    elif kind == "copy":
        within[key] = _at(manifest, places[rng.integers(len(places))])
    elif kind == "name" and isinstance(within, dict):
        within[str(rng.choice([*within, "other", "model/keys", "model/strands"]))] = within.pop(key)
    else:
        within[key] = _NUMBERS[rng.integers(len(_NUMBERS))]
    _write(path, manifest)
    return f"manifest: {kind} at {'.'.join(map(str, place))}"


def _edit_header(path: Path, rng: np.random.Generator) -> str:
    """Change a value in the header of a shard; all checksums are right."""
    shards = sorted(path.glob("*.safetensors"))
    file = shards[rng.integers(len(shards))]
    data = file.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    places = list(_places(header, ()))
    place = places[rng.integers(len(places))]
    _at(header, place[:-1])[place[-1]] = _NUMBERS[rng.integers(len(_NUMBERS))]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (length - len(text))  # where there is room: offsets stay as they are
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    make_right(path)
    return f"{file.name}: header at {'.'.join(map(str, place))}, checksums made right"


def make_right(checkpoint: Path) -> None:
    """Give a checkpoint the sizes and checksums of what it holds, as far as its manifest can be
    read: not damage, but malice."""
    try:
        manifest = _manifest(checkpoint)
        for index, shard in enumerate(manifest["shards"]):
            data = (checkpoint / shard["file"]).read_bytes()
            (length,) = struct.unpack_from("<Q", data)
            shard["bytes"], shard["crc32"] = len(data), zlib.crc32(data)
            moved = 8 + min(length, len(data)) - shard["header_bytes"]
            shard["header_bytes"] += moved
            shard["header_crc32"] = zlib.crc32(data[: shard["header_bytes"]])
            for tensor in manifest["tensors"].values():
                row_bytes = _ITEM_BYTES.get(tensor["dtype"], 1) * math.prod(tensor["shape"][1:])
                for piece in tensor["pieces"]:
                    if piece["shard"] == index:
                        piece["offset"] += moved
                        n_bytes = row_bytes * (piece["rows"][1] - piece["rows"][0])
                        end = piece["offset"] + n_bytes
                        piece["crc32"] = zlib.crc32(data[piece["offset"] : end])
        _write(checkpoint, manifest)
    except (ValueError, LookupError, TypeError, AttributeError, OSError, RecursionError):
        return
    except struct.error:  # a shard that has no header any more
        return


def _manifest(path: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((path / "manifest.json").read_bytes())
    return manifest


def _write(path: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest with the checksum of the bytes before it."""
    manifest.pop("crc32", None)
    body = json.dumps(manifest, indent=1).removesuffix("\n}").encode() + b",\n"
    (path / "manifest.json").write_bytes(body + b' "crc32": %d\n}\n' % zlib.crc32(body))


def _places(plain: Any, way: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The ways to all values in a plain one, those in between included."""
    inner = plain.items() if isinstance(plain, dict) else ()
    if isinstance(plain, list):
        inner = enumerate(plain)
    found = []
    for key, value in inner:
        found += [(*way, key), *_places(value, (*way, key))]
    return found


def _at(plain: Any, way: tuple[Any, ...]) -> Any:
    for key in way:
        plain = plain[key]
    return plain
