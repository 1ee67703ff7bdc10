# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that earlier versions wrote: read as format 2 would hold them."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from format_one import save_format_one, sign_format_one
from torch import Tensor

from gs_train.checkpoint import (
    latest_checkpoint,
    load_checkpoint,
    open_checkpoint,
    open_latest,
    save_checkpoint,
)
from gs_train.cli import main
from gs_train.errors import InputError

N = 11


def _tensors() -> dict[str, Tensor]:
    values = torch.arange(N * 3, dtype=torch.float32).reshape(N, 3)
    return {
        "model/means": values / 7,
        "model/means.step": torch.tensor(5.0),
        "model/means.exp_avg": -values,
        "model/opacities": values[:, 0].clone(),
        "densify/count": values[:, 1] + 0.5,
        "ahead/ids": torch.arange(4),
        "ahead/mask": torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]], dtype=torch.uint8),
        "flags": values[:, 0] > 9,
        "half": values[:5].bfloat16(),
        "none": torch.empty(0, 3),
        "strided": torch.arange(12, dtype=torch.int16).reshape(3, 4).T,
    }


def _saved(folder: Path, most: int = 100) -> Path:
    state = {"a": [1, 2.5, None], "n": "Füchse", "big": 0.1 + 0.2}
    return save_format_one(folder, step=300, tensors=_tensors(), state=state, max_shard_bytes=most)


@pytest.mark.parametrize(
    ("most", "n_files", "crc"),
    [
        (1, 75, 1892044912),
        (50, 11, 4243069412),
        (100, 6, 1925022138),
        (1 << 20, 2, 3706283442),
    ],
)
def test_the_writer_of_these_tests_writes_the_bytes_of_format_one(
    tmp_path: Path, most: int, n_files: int, crc: int
) -> None:
    """The checksums are those of files that the last version with format 1 wrote."""
    files = sorted(_saved(tmp_path, most).iterdir())
    assert len(files) == n_files
    assert zlib.crc32(b"".join(file.read_bytes() for file in files)) == crc


@pytest.mark.parametrize("most", [1, 50, 100, 1 << 20])
def test_it_has_keys_and_nothing_that_was_found_early(tmp_path: Path, most: int) -> None:
    saved = open_checkpoint(_saved(tmp_path, most))
    assert (saved.version, saved.is_of_old_format, saved.step, saved.n_rows) == (1, True, 300, N)
    assert saved.state == {"a": [1, 2.5, None], "n": "Füchse", "big": 0.1 + 0.2}
    assert saved.dropped == ("ahead/ids", "ahead/mask")
    assert saved.by_row == {
        *("model/means", "model/means.exp_avg", "model/opacities", "model/keys", "densify/count"),
    }
    expected = {name: t for name, t in _tensors().items() if not name.startswith("ahead/")}
    expected["model/keys"] = torch.arange(N, dtype=torch.int32)
    expected["model/next_key"] = torch.tensor(N)
    assert set(saved.shapes) == set(saved.dtypes) == set(expected)
    read = saved.read()
    for name, values in expected.items():
        assert saved.shapes[name] == tuple(values.shape)
        assert saved.dtypes[name] == read[name].dtype == values.dtype
        assert torch.equal(read[name], values), name
    saved.verify()


def test_tensors_of_no_trainer_have_no_keys(tmp_path: Path) -> None:
    path = save_format_one(tmp_path, step=1, tensors={"a": torch.ones(3)}, state={})
    saved = open_checkpoint(path)
    assert (saved.n_rows, set(saved.shapes)) == (None, {"a"})


def test_verifying_reads_every_byte_of_the_files(tmp_path: Path) -> None:
    saved = open_checkpoint(_saved(tmp_path))
    told: list[int] = []
    saved.verify(told.append)
    assert sum(told) == sum(file.n_bytes for file in saved.files)


def test_any_flipped_bit_of_any_file_is_found(tmp_path: Path) -> None:
    path = _saved(tmp_path)
    for file in sorted(path.iterdir()):
        good = file.read_bytes()
        for position in {0, 7, 8, 9, 30, len(good) // 2, len(good) - 1}:
            bad = bytearray(good)
            bad[position] ^= 4
            file.write_bytes(bad)
            with pytest.raises(InputError, match=rf"{file.name}.*(damaged|must have)|version"):
                open_checkpoint(path).verify()
            if file.suffix == ".json" or "ahead" not in file.read_text("latin1"):
                with pytest.raises(InputError, match=rf"{file.name}.*(damaged|must have)|version"):
                    load_checkpoint(path)
        file.write_bytes(good)
    load_checkpoint(path)


Change = Callable[[dict[str, Any]], None]


def _at(*keys: Any) -> Change:
    """Set what the keys but the last lead to, to the last."""
    *way, last, value = keys

    def change(plain: dict[str, Any]) -> None:
        for key in way:
            plain = plain[key]
        plain[last] = value

    return change


MANIFESTS = {
    "no step": lambda m: m.pop("step"),
    "a state that is a list": _at("state", []),
    "tensors in a list": _at("tensors", []),
    "a dtype that there is not": _at("tensors", "half", "dtype", "F31"),
    "a negative shape": _at("tensors", "half", "shape", [5, -3]),
    "a shape of 2^60 rows": _at("tensors", "half", "shape", [2**60, 3]),
    "rows of no width": lambda m: m["tensors"]["model/means"].update(
        shape=[2**40, 0], pieces=[[0, 0, 2**40]]
    ),
    "no pieces": _at("tensors", "none", "pieces", []),
    "pieces that leave rows out": lambda m: m["tensors"]["model/means"]["pieces"].pop(0),
    "a piece of two numbers": _at("tensors", "half", "pieces", [[0, 0]]),
    "a piece of a shard that there is not": _at("tensors", "half", "pieces", 0, 0, 99),
    "a shard anywhere": _at("shards", 0, "file", "/etc/passwd"),
    "a shard without a checksum": _at("shards", 0, "crc32", None),
    "keys": lambda m: m["tensors"].update({"model/keys": m["tensors"]["model/opacities"]}),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_does_not_fit_is_damaged(tmp_path: Path, name: str) -> None:
    path = _saved(tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    MANIFESTS[name](manifest)
    sign_format_one(path, manifest)
    with pytest.raises(InputError, match=r"manifest\.json is damaged; remove its folder"):
        open_checkpoint(path)


HEADERS = {
    "one offset": _at("model/means", "data_offsets", [0]),
    "offsets backwards": _at("model/means", "data_offsets", [96, 0]),
    "another shape": _at("model/means", "shape", [6, 4]),
    "another dtype": _at("model/means", "dtype", "I32"),
    "an entry that is a list": _at("model/means", []),
    "a tensor of 2^60 bytes": _at(
        "more", {"dtype": "U8", "shape": [2**60], "data_offsets": [96, 96 + 2**60]}
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_is_checked_before_it_is_believed(tmp_path: Path, name: str) -> None:
    path = _saved(tmp_path)
    file = path / "00000.safetensors"
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    HEADERS[name](header)
    new = json.dumps(header).encode()
    data = struct.pack("<Q", len(new)) + new + data[8 + length :]
    file.write_bytes(data)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["shards"][0].update(bytes=len(data), crc32=zlib.crc32(data))
    sign_format_one(path, manifest)
    with pytest.raises(InputError, match=r"00000\.safetensors is damaged; remove its folder"):
        load_checkpoint(path)


# ---------------------------------------------------------------------- a run


def _as_before(run: Path) -> None:
    """Make the newest checkpoint of a run, which becomes the only one, one of format 1."""
    newest = latest_checkpoint(run / "checkpoints")
    assert newest is not None
    saved = load_checkpoint(newest)
    shutil.rmtree(run / "checkpoints")
    later = ("model/keys", "model/next_key", "costs/")
    tensors = {name: v for name, v in saved.tensors.items() if not name.startswith(later)}
    # What culling found early, of which the next version has no use.
    tensors |= {"ahead/ids": torch.arange(7), "ahead/views": torch.zeros(32, dtype=torch.uint8)}
    save_format_one(run / "checkpoints", step=saved.step, tensors=tensors, state=saved.state)


@pytest.mark.parametrize("preset", ["none", "best"])
def test_a_run_goes_on_from_it_and_a_line_says_how(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], preset: str
) -> None:
    run = tmp_path / "run"
    command = ["fit", str(tiny_capture), "--out", str(run), "--renderer", "cpu", "--cap", "200"]
    assert main([*command, "--steps", "3", "--offload", preset]) == 0
    _as_before(run)
    before = open_latest(run / "checkpoints")
    assert before is not None
    capsys.readouterr()
    assert main(["export", str(run)]) == 0
    assert "format 1" not in capsys.readouterr().err
    assert main([*command[:4], "--resume", "--steps", "5"]) == 0
    said = capsys.readouterr().err.splitlines()
    (line,) = [line for line in said if "format 1" in line]
    assert line == (
        f"{run}/checkpoints/step_000003 has checkpoint format 1: the run goes on by the rules of "
        "this version, with the index of each Gaussian as its key"
    )
    after = open_latest(run / "checkpoints")
    assert after is not None
    assert (after.version, after.step) == (2, 5)
    capsys.readouterr()
    assert main([*command[:4], "--resume", "--steps", "6"]) == 0
    assert "format 1" not in capsys.readouterr().err


def test_saving_beside_it_leaves_both_to_be_read(tmp_path: Path) -> None:
    _saved(tmp_path)
    save_checkpoint(tmp_path, step=300, tensors=_tensors(), state={})
    assert [open_checkpoint(path).version for path in sorted(tmp_path.iterdir())] == [1, 2]
    newest = open_latest(tmp_path)
    assert newest is not None
    assert newest.path.name == "step_000300.1"
