# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that were changed on purpose, with checksums that are right: one line, at once."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from signed import Change, change_header, change_manifest, sign_shard

from gs_train.checkpoint import (
    incomplete_checkpoints,
    latest_checkpoint,
    load_checkpoint,
    open_checkpoint,
    open_latest,
    save_checkpoint,
)
from gs_train.errors import InputError


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    tensors = {
        "a": torch.ones(40, 3),
        "b": torch.arange(40),
        "none": torch.empty(0, 3),
        "model/keys": torch.arange(40, dtype=torch.int32),
        "model/means": torch.ones(40, 3),
    }
    return save_checkpoint(tmp_path, step=3, tensors=tensors, state={}, max_shard_bytes=400)


def _set(*keys: Any) -> Change:
    """Set what the keys but the last lead to, to the last."""
    *way, last, value = keys

    def change(plain: dict[str, Any]) -> None:
        for key in way:
            plain = plain[key]
        plain[last] = value

    return change


def _drop(*keys: Any) -> Change:
    *way, last = keys

    def change(plain: dict[str, Any]) -> None:
        for key in way:
            plain = plain[key]
        del plain[last]

    return change


MANIFESTS = {
    "no step": _drop("step"),
    "a step of text": _set("step", "3"),
    "a negative step": _set("step", -3),
    "a step beyond 64 bits": _set("step", 10**30),
    "a state that is a list": _set("state", []),
    "no tensors": _drop("tensors"),
    "tensors in a list": _set("tensors", []),
    "a dtype that there is not": _set("tensors", "a", "dtype", "F31"),
    "a dtype that is a list": _set("tensors", "a", "dtype", []),
    "a shape of text": _set("tensors", "a", "shape", "40"),
    "a negative shape": _set("tensors", "a", "shape", [40, -3]),
    "a shape of 2^60 rows": _set("tensors", "a", "shape", [2**60, 3]),
    "a shape of 12 TB": _set("tensors", "a", "shape", [40, 10**11]),
    "a product beyond 64 bits": _set("tensors", "none", "shape", [0, 2**40, 2**40]),
    "a hundred dimensions": _set("tensors", "a", "shape", [40] + [1] * 100),
    "no pieces": _set("tensors", "a", "pieces", []),
    "no pieces of an empty tensor": _set("tensors", "none", "pieces", []),
    "pieces that leave rows out": _drop("tensors", "a", "pieces", 0),
    "pieces that end early": _drop("tensors", "a", "pieces", -1),
    "pieces in another order": lambda m: m["tensors"]["a"]["pieces"].reverse(),
    "a piece without rows": _drop("tensors", "a", "pieces", 0, "rows"),
    "a piece of one row number": _set("tensors", "a", "pieces", 0, "rows", [0]),
    "a piece of rows backwards": _set("tensors", "a", "pieces", 0, "rows", [33, 0]),
    "a piece of a shard that there is not": _set("tensors", "b", "pieces", 0, "shard", 99),
    "a piece of a shard counted from the end": _set("tensors", "b", "pieces", 0, "shard", -1),
    "a piece that is a list": _set("tensors", "a", "pieces", 0, [0, 0, 33]),
    "an offset of text": _set("tensors", "a", "pieces", 0, "offset", "0"),
    "an offset within the header": _set("tensors", "a", "pieces", 0, "offset", 8),
    "an offset beyond the file": _set("tensors", "a", "pieces", 0, "offset", 2**62),
    "an offset that is one too large": lambda m: _add(m["tensors"]["a"]["pieces"][0], "offset", 1),
    "a checksum of 33 bits": _set("tensors", "a", "pieces", 0, "crc32", 2**32),
    "no checksum of a piece": _drop("tensors", "a", "pieces", 0, "crc32"),
    "a row more in a piece": lambda m: _move_border(m, "a", 1),
    "two tensors in the same bytes": lambda m: m["tensors"].update(twice=m["tensors"]["a"]),
    "a tensor that is left out": _drop("tensors", "b"),
    "no word of rows": _drop("tensors", "a", "by_row"),
    "a number for by row": _set("tensors", "model/means", "by_row", 1),
    "by row with other rows": _set("tensors", "none", "by_row", True),
    "a scalar by row": lambda m: m["tensors"]["a"].update(shape=[], by_row=True),
    "no number of rows": _drop("rows"),
    "another number of rows": _set("rows", 41),
    "rows that are null": _set("rows", None),
    "keys that are not by row": _set("tensors", "model/keys", "by_row", False),
    "keys of another type": _set("tensors", "model/keys", "dtype", "F32"),
    "keys of two dimensions": _set("tensors", "model/keys", "shape", [40, 1]),
    "a shard that is no mapping": _set("shards", 0, "00000.safetensors"),
    "a shard without a size": _drop("shards", 0, "bytes"),
    "a shard without a checksum": _set("shards", 0, "crc32", None),
    "a shard in another folder": _set("shards", 0, "file", "../secret.safetensors"),
    "a shard anywhere": _set("shards", 0, "file", "/etc/passwd"),
    "a shard whose name is a number": _set("shards", 0, "file", 7),
    "a shard that is there twice": _set("shards", 0, "file", "00001.safetensors"),
    "a shard that no piece needs": lambda m: m["shards"].append(
        {"file": "00099.safetensors", "bytes": 8, "crc32": 0, "header_bytes": 0, "header_crc32": 0}
    ),
    "a header without a length": _set("shards", 0, "header_bytes", 0),
    "a header of a terabyte": _set("shards", 0, "header_bytes", 2**40),
    "a header without a checksum": _drop("shards", 0, "header_crc32"),
}


def _add(plain: dict[str, Any], name: str, n: int) -> None:
    plain[name] += n


def _move_border(manifest: dict[str, Any], name: str, n: int) -> None:
    first, second = manifest["tensors"][name]["pieces"][:2]
    first["rows"][1] += n
    second["rows"][0] += n


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_does_not_fit_is_damaged(saved: Path, name: str) -> None:
    change_manifest(saved, MANIFESTS[name])
    with pytest.raises(InputError, match=r"manifest\.json is damaged; remove its folder"):
        open_checkpoint(saved)


SHARDS = {
    "one offset": _set("a", "data_offsets", [0]),
    "offsets of text": _set("a", "data_offsets", ["0", "396"]),
    "offsets that are fractions": _set("a", "data_offsets", [0.0, 396.0]),
    "offsets backwards": _set("a", "data_offsets", [396, 0]),
    "offsets beyond the file": _set("a", "data_offsets", [0, 400]),
    "another shape": _set("a", "shape", [33, 4]),
    "another dtype": _set("a", "dtype", "I32"),
    "no dtype": _drop("a", "dtype"),
    "an entry that is a list": _set("a", []),
    "a tensor of 2^60 bytes that nobody asks for": _set(
        "more", {"dtype": "U8", "shape": [2**60], "data_offsets": [396, 396 + 2**60]}
    ),
    "a negative tensor": _set("more", {"dtype": "U8", "shape": [-4], "data_offsets": [396, 392]}),
    "an empty tensor of endless shape": _set(
        "more", {"dtype": "U8", "shape": [10**4000] * 50 + [0], "data_offsets": [396, 396]}
    ),
    "a tensor that is there twice": _set(
        "more", {"dtype": "U8", "shape": [396], "data_offsets": [0, 396]}
    ),
    "another name": lambda header: header.update(c=header.pop("a")),
}


@pytest.mark.parametrize("name", SHARDS)
def test_a_header_is_checked_before_it_is_believed(saved: Path, name: str) -> None:
    change_header(saved, 0, SHARDS[name])
    with pytest.raises(InputError, match=r"00000\.safetensors is damaged; remove its folder"):
        load_checkpoint(saved)


def test_metadata_of_others_in_a_header_is_no_damage(saved: Path) -> None:
    change_header(saved, 0, _set("__metadata__", {"made by": "somebody"}))
    assert torch.equal(load_checkpoint(saved).tensors["a"], torch.ones(40, 3))


def test_a_header_whose_length_is_not_that_of_the_manifest_is_damage(saved: Path) -> None:
    file = saved / "00000.safetensors"
    data = bytearray(file.read_bytes())
    data[:8] = struct.pack("<Q", 2**62)
    file.write_bytes(data)

    def sign(manifest: dict[str, Any]) -> None:
        shard = manifest["shards"][0]
        shard["header_crc32"] = zlib.crc32(data[: shard["header_bytes"]])

    change_manifest(saved, sign)
    with pytest.raises(InputError, match=r"00000\.safetensors is damaged; remove its folder"):
        load_checkpoint(saved)


@pytest.mark.parametrize("keys", [[0, 1, 1], [0, -1, 1], [-(2**31), 0, 2**31 - 1]])
def test_keys_that_are_not_distinct_or_negative_are_damage(tmp_path: Path, keys: list[int]) -> None:
    tensors = {"model/keys": torch.tensor(keys, dtype=torch.int32), "model/means": torch.ones(3, 3)}
    checkpoint = open_checkpoint(save_checkpoint(tmp_path, step=1, tensors=tensors, state={}))
    said = r"manifest\.json is damaged: model/keys must be distinct and not negative; remove"
    for read in (checkpoint.read, checkpoint.verify, lambda: checkpoint.read(rows=slice(0, 3))):
        with pytest.raises(InputError, match=said):
            read()
    assert torch.equal(checkpoint.read(["model/means"])["model/means"], torch.ones(3, 3))


def test_files_that_were_swapped_are_damage(saved: Path) -> None:
    """Though their sizes are the same, and the checksums of their names as well."""
    one, two = saved / "00001.safetensors", saved / "00002.safetensors"
    data = one.read_bytes(), two.read_bytes()
    one.write_bytes(data[1]), two.write_bytes(data[0])

    def sign(manifest: dict[str, Any]) -> None:
        for shard in manifest["shards"][1:3]:
            shard["bytes"] = (saved / shard["file"]).stat().st_size

    with pytest.raises(InputError, match=r"is damaged|must have .* bytes"):
        load_checkpoint(saved)
    change_manifest(saved, sign)
    with pytest.raises(InputError, match="is damaged"):
        load_checkpoint(saved)


def test_values_whose_checksums_were_made_right_are_what_is_read(saved: Path) -> None:
    file = saved / "00000.safetensors"
    data = bytearray(file.read_bytes())
    data[-4:] = struct.pack("<f", 7.0)
    file.write_bytes(data)
    with pytest.raises(InputError, match=r"00000\.safetensors is damaged"):
        load_checkpoint(saved)
    change_manifest(saved, lambda manifest: sign_shard(saved, manifest, 0))
    assert float(load_checkpoint(saved).tensors["a"].sum()) == 126


def test_a_file_whose_own_checksum_is_wrong_is_found_by_verifying(saved: Path) -> None:
    """Its pieces are right, so that nothing wrong is ever read."""
    change_manifest(saved, _set("shards", 1, "crc32", 7))
    checkpoint = open_checkpoint(saved)
    checkpoint.read()
    with pytest.raises(InputError, match=r"00001\.safetensors is damaged"):
        checkpoint.verify()


@pytest.mark.parametrize("bit", [0, 1, 4])
def test_a_flipped_bit_of_a_header_is_damage_also_where_others_are_asked_for(
    tmp_path: Path, bit: int
) -> None:
    tensors = {"a": torch.ones(5, 3), "b": torch.arange(5)}
    path = save_checkpoint(tmp_path, step=1, tensors=tensors, state={})
    file = path / "00000.safetensors"
    good = file.read_bytes()
    (length,) = struct.unpack("<Q", good[:8])
    for position in range(8 + length):
        bad = bytearray(good)
        bad[position] ^= 1 << bit
        file.write_bytes(bad)
        with pytest.raises(InputError, match=r"00000\.safetensors is damaged"):
            open_checkpoint(path).read(["b"])


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'{"format":' * 5000, b"\xff\xfe\x00", b"9" * 5000]
)
def test_a_manifest_that_no_json_is_made_of_is_damaged(saved: Path, text: bytes) -> None:
    (saved / "manifest.json").write_bytes(text)
    with pytest.raises(InputError, match=r"manifest\.json (is damaged|must have the format)"):
        open_checkpoint(saved)


def test_a_manifest_too_large_to_be_one_is_not_read(saved: Path) -> None:
    os.truncate(saved / "manifest.json", 1 << 40)
    with pytest.raises(InputError, match=r"it has 1,099,511,627,776 bytes, at most"):
        open_checkpoint(saved)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_shard_that_is_no_file_of_its_own_is_not_read(saved: Path, kind: str) -> None:
    file = saved / "00001.safetensors"
    moved = file.rename(saved.parent / "elsewhere")
    if kind == "link":
        file.symlink_to(moved)
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    with pytest.raises(InputError, match=r"00001\.safetensors must have .* got no such file"):
        open_checkpoint(saved)


def test_a_shard_that_changed_since_it_was_looked_at_is_damage(saved: Path) -> None:
    checkpoint = open_checkpoint(saved)
    file = saved / "00000.safetensors"
    data = file.read_bytes()
    for other in (data[:-1], data + b"x", b""):
        file.write_bytes(other)
        with pytest.raises(InputError, match=r"00000\.safetensors is damaged"):
            checkpoint.read()


def test_a_shard_that_is_gone_when_it_is_read_is_one_line(saved: Path) -> None:
    checkpoint = open_checkpoint(saved)
    (saved / "00000.safetensors").unlink()
    with pytest.raises(InputError, match=r"00000\.safetensors cannot be read: No such file"):
        checkpoint.read()


# ---------------------------------------------------------------------- which one is taken


def _three(folder: Path) -> None:
    for step in (1, 2, 3):
        save_checkpoint(folder, step=step, tensors={}, state={"step": step}, keep=3)


def test_newer_ones_without_a_manifest_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _three(tmp_path)
    (tmp_path / "step_000003" / "manifest.json").unlink()
    (tmp_path / "step_000001" / "manifest.json").unlink()  # older: nobody misses it
    checkpoint = open_latest(tmp_path)
    assert checkpoint is not None
    assert checkpoint.step == 2
    said = f"{tmp_path}/step_000003 has no manifest.json that can be read: step_000002 is taken"
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_where_no_manifest_is_left_all_are_incomplete(tmp_path: Path) -> None:
    _three(tmp_path)
    for path in tmp_path.glob("*/manifest.json"):
        path.unlink()
    assert open_latest(tmp_path) is None
    assert [p.name for p in incomplete_checkpoints(tmp_path)] == [
        f"step_00000{step}" for step in (1, 2, 3)
    ]


def test_a_damaged_one_is_no_reason_to_go_back_silently(tmp_path: Path) -> None:
    _three(tmp_path)
    (tmp_path / "step_000003" / "manifest.json").write_text("{")
    with pytest.raises(InputError, match=r"step_000003/manifest\.json is damaged; remove its"):
        open_latest(tmp_path)


def test_one_that_is_removed_while_it_is_looked_at_is_replaced_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As beside a running fit that keeps one; whether its manifest was still there or not."""
    save_checkpoint(tmp_path, step=1, tensors={}, state={}, keep=1)
    access, left = os.access, [2, 3, 4, 5]

    def late(path: Any, mode: int) -> bool:
        if not left or str(left[0] - 1) not in str(path):
            return access(path, mode)
        step = left.pop(0)
        found = access(path, mode) if step % 2 else False
        with monkeypatch.context() as undisturbed:
            undisturbed.setattr(os, "access", access)
            save_checkpoint(tmp_path, step=step, tensors={}, state={}, keep=1)
        return found

    monkeypatch.setattr(os, "access", late)
    checkpoint = open_latest(tmp_path)
    assert checkpoint is not None
    assert (checkpoint.step, left) == (5, [])


def test_what_a_crash_left_is_removed_and_a_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "thesis").write_text("mine")
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "step_000009.tmp").symlink_to(victim)
    (tmp_path / "all" / "step_000008.tmp").write_text("half")
    save_checkpoint(tmp_path / "all", step=9, tensors={}, state={})
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["step_000009"]
    assert (victim / "thesis").read_text() == "mine"
    assert latest_checkpoint(tmp_path / "all") == tmp_path / "all" / "step_000009"
