# SPDX-License-Identifier: Apache-2.0
"""Some rows of a checkpoint: those asked for, from the pieces that hold them alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from format_one import save_format_one
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from gs_train.checkpoint import SavedCheckpoint, blocks, open_checkpoint, save_checkpoint
from gs_train.checkpoint.checksums import combined
from gs_train.errors import InputError

N = 50


def _tensors(n: int = N) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "model/means": torch.randn(n, 3, generator=generator),
        "model/shN": torch.randn(n, 15, 3, generator=generator),
        "model/shN.exp_avg": torch.randn(15, 3, n, generator=generator).permute(2, 0, 1),
        "model/shN.step": torch.tensor(7.0),
        "model/opacities": torch.randn(n, generator=generator),
        "model/strands": torch.randint(0, 256, (n,), generator=generator, dtype=torch.uint8),
        "model/keys": torch.randperm(3 * n, generator=generator)[:n].int(),
        "model/appearance.schedule.shN.lr": torch.randn(n, generator=generator),
        "densify/count": torch.randn(n, generator=generator),
        "ahead/ids": torch.arange(n),
    }


_BY_ROW = {
    *("model/means", "model/shN", "model/shN.exp_avg", "model/opacities", "model/strands"),
    *("model/keys", "densify/count"),
}


def _saved(folder: Path, tensors: dict[str, Tensor], most: int = 1000) -> SavedCheckpoint:
    return open_checkpoint(
        save_checkpoint(folder, step=1, tensors=tensors, state={}, max_shard_bytes=most)
    )


def _saved_as_format_one(folder: Path, tensors: dict[str, Tensor], most: int) -> SavedCheckpoint:
    later = "model/keys", "model/next_key"
    old = {name: tensor for name, tensor in tensors.items() if name not in later}
    path = save_format_one(folder, step=1, tensors=old, state={}, max_shard_bytes=most)
    return open_checkpoint(path)


def test_the_manifest_says_which_tensors_are_by_row(tmp_path: Path) -> None:
    """Not those whose length is the same by chance."""
    saved = _saved(tmp_path, _tensors())
    manifest = json.loads((saved.path / "manifest.json").read_text())
    assert manifest["rows"] == saved.n_rows == N
    assert {name for name, of in manifest["tensors"].items() if of["by_row"]} == _BY_ROW
    assert saved.by_row == _BY_ROW


def test_who_saves_may_say_which_tensors_are_by_row(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6), "b": torch.ones(6, 2), "c": torch.ones(7)}
    path = save_checkpoint(tmp_path, step=1, tensors=tensors, state={}, by_row=["a", "b"])
    read = open_checkpoint(path).read(rows=slice(2, 4))
    assert {name: value.tolist() for name, value in read.items()} == {
        "a": [2, 3],
        "b": [[1.0, 1.0], [1.0, 1.0]],
    }


def test_tensors_by_row_that_cannot_be_are_refused(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6), "c": torch.ones(7), "s": torch.tensor(1.0)}

    def refused(message: str, more: dict[str, Tensor], by_row: list[str] | None = None) -> None:
        with pytest.raises(ValueError, match=message):
            save_checkpoint(tmp_path, step=1, tensors={**tensors, **more}, state={}, by_row=by_row)

    refused(r"by row must have equal lengths, got .*'a': \(6,\), 'c': \(7,\)", {}, ["a", "c"])
    refused(r"by row must have equal lengths, got .*'s': \(\)", {}, ["s"])
    refused(r"by_row must name tensors, got \['d'\]", {}, ["a", "d"])
    refused(
        r"model/keys must be \(N,\) torch.int32, got \(6,\) torch.int64",
        {"model/keys": torch.arange(6)},
    )
    refused(
        r"model/strands must be \(N,\) torch.uint8, got \(6, 1\) torch.uint8",
        {"model/strands": torch.ones(6, 1, dtype=torch.uint8)},
    )
    refused(
        "model/strands must be by row, with as many rows as other tensors",
        {"model/strands": torch.ones(6, dtype=torch.uint8), "model/means": torch.ones(7, 3)},
    )
    assert list(tmp_path.iterdir()) == []


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    ids=st.sets(st.integers(0, N - 1)),
    limits=st.tuples(st.integers(-60, 60) | st.none(), st.integers(-60, 60) | st.none()),
    most=st.sampled_from([1, 100, 500, 1000, 4096, 1 << 30]),
    block_bytes=st.sampled_from([1, 64, 700, 16 << 20]),
    strided=st.booleans(),
    old=st.booleans(),
)
def test_any_rows_are_those_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    ids: set[int],
    limits: tuple[int | None, int | None],
    most: int,
    block_bytes: int,
    strided: bool,
    old: bool,
) -> None:
    tensors, folder = _tensors(), tmp_path_factory.mktemp("saved")
    saved = (_saved_as_format_one if old else _saved)(folder, tensors, most)
    if old:
        tensors |= {"model/keys": torch.arange(N, dtype=torch.int32)}
        tensors |= {"model/next_key": torch.tensor(N)}
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
    for rows in (slice(*limits), torch.tensor(sorted(ids), dtype=torch.int64)):
        read = saved.read(rows=rows)
        assert set(read) == _BY_ROW
        for name, values in read.items():
            assert torch.equal(values, tensors[name][rows]), name
        targets = {name: torch.zeros_like(values) for name, values in read.items()}
        if strided:
            targets = {name: _strided(values) for name, values in targets.items()}
        saved.fill(targets, rows=rows)
        for name, values in targets.items():
            assert torch.equal(values, tensors[name][rows]), name
    for name, values in saved.read().items():
        assert torch.equal(values, tensors[name]), name


def _strided(values: Tensor) -> Tensor:
    """Room for the same values, every other place of a larger tensor."""
    return values.new_zeros((*values.shape, 2))[..., 1]


def test_only_the_pieces_that_hold_the_rows_are_read(tmp_path: Path) -> None:
    """All others are damaged, and it makes no difference."""
    tensors = {name: tensor for name, tensor in _tensors().items() if name != "model/keys"}
    saved = _saved(tmp_path, tensors, 2000)
    manifest = json.loads((saved.path / "manifest.json").read_text())
    rows = torch.tensor([17, 18, 30])
    names = ["model/shN", "model/opacities"]
    for name, of in manifest["tensors"].items():
        for piece in of["pieces"]:
            start, stop = piece["rows"]
            is_wanted = name in names and any(start <= row < stop for row in rows.tolist())
            if not is_wanted and stop > start:
                _flip(saved.path / manifest["shards"][piece["shard"]]["file"], piece["offset"])
    read = saved.read(names, rows=rows)
    assert all(torch.equal(read[name], tensors[name][rows]) for name in names)
    with pytest.raises(InputError, match="is damaged"):
        saved.read(names)
    with pytest.raises(InputError, match="is damaged"):
        saved.verify()


def test_a_flipped_bit_of_a_row_that_is_not_wanted_is_damage_of_its_piece(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(100), "b": torch.arange(100)}
    path = save_checkpoint(tmp_path, step=1, tensors=tensors, state={}, by_row=["a", "b"])
    manifest = json.loads((path / "manifest.json").read_text())
    (piece,) = manifest["tensors"]["a"]["pieces"]
    _flip(path / "00000.safetensors", piece["offset"] + 8 * 70)
    saved = open_checkpoint(path)
    assert saved.read(["b"], rows=slice(3, 5))["b"].tolist() == [3, 4]
    with pytest.raises(InputError, match=r"00000\.safetensors is damaged"):
        saved.read(["a"], rows=slice(3, 5))


def test_no_rows_need_no_file(tmp_path: Path) -> None:
    saved = _saved(tmp_path, _tensors())
    for file in saved.files:
        (saved.path / file.name).unlink()
    none = torch.empty(0, dtype=torch.int64)
    assert all(len(values) == 0 for values in saved.read(rows=none).values())


def _flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        (slice(0, 9, 2), ValueError, "rows must be a slice without a step, got step 2"),
        (torch.tensor([3, 3]), ValueError, "rows must be sorted and unique, got 3 after 3"),
        (torch.tensor([1, 5, 4]), ValueError, "rows must be sorted and unique, got 4 after 5"),
        (torch.tensor([-1, 5]), IndexError, "rows must be at least 0 and below 50, got -1"),
        (torch.tensor([5, N]), IndexError, "rows must be at least 0 and below 50, got 50"),
        (torch.tensor([[1]]), ValueError, r"rows must be one-dimensional, got \(1, 1\)"),
        (torch.tensor([1.0]), TypeError, "must be a slice or an int64 tensor, got torch.float32"),
        ([1, 2], TypeError, "rows must be a slice or an int64 tensor, got list"),
    ],
)
def test_rows_that_cannot_be_asked_for(
    tmp_path: Path, rows: Any, kind: type[Exception], message: str
) -> None:
    saved = _saved(tmp_path, _tensors())
    with pytest.raises(kind, match=message):
        saved.read(rows=rows)


def test_targets_that_do_not_fit_the_rows(tmp_path: Path) -> None:
    saved = _saved(tmp_path, _tensors())
    with pytest.raises(ValueError, match=r"model/means must be \(2, 3\) .*, got \(50, 3\)"):
        saved.fill({"model/means": torch.empty(N, 3)}, rows=slice(0, 2))
    with pytest.raises(ValueError, match="rows must be of tensors by row, ahead/ids has none"):
        saved.fill({"ahead/ids": torch.empty(2, dtype=torch.int64)}, rows=slice(0, 2))
    path = save_checkpoint(tmp_path / "other", step=1, tensors={"a": torch.ones(3)}, state={})
    with pytest.raises(ValueError, match=r"rows must not be given, .* holds no tensor by row"):
        open_checkpoint(path).read(rows=slice(0, 2))


@given(st.lists(st.binary(max_size=300), max_size=4))
def test_the_checksum_of_a_file_follows_from_those_of_its_parts(parts: list[bytes]) -> None:
    import zlib

    crc = 0
    for part in parts:
        crc = combined(crc, zlib.crc32(part), len(part))
    assert crc == zlib.crc32(b"".join(parts))


@pytest.mark.gpu
def test_rows_are_read_into_device_memory(tmp_path: Path) -> None:
    tensors = _tensors()
    saved = _saved(tmp_path, tensors)
    rows = torch.tensor([0, 7, 8, 49], device="cuda")
    for name, values in saved.read(rows=rows, device="cuda").items():
        assert values.device.type == "cuda"
        assert torch.equal(values.cpu(), tensors[name][rows.cpu()]), name
