# SPDX-License-Identifier: Apache-2.0
"""``gs-train inspect``: what it says of a checkpoint, and of one that is damaged."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from format_one import save_format_one
from signed import change_manifest, sign_manifest
from torch import Tensor

from gs_train.checkpoint import SavedCheckpoint, save_checkpoint
from gs_train.cli import main
from gs_train.machine.progress import TaskProgress

N = 20
STATE = {
    "run_id": "0123456789abcdef",
    "recipe": {"strategy": "mcmc"},
    "placing": {"preset": "best"},
    "spent": {"images": 1200},
}


def _tensors() -> dict[str, Tensor]:
    return {
        "model/means": torch.ones(N, 3),
        "model/shN": torch.ones(N, 8, 3),
        "model/shN.step": torch.tensor(3.0),
        "model/strands": torch.zeros(N, dtype=torch.uint8),
        "model/keys": torch.arange(N).int().flip(0) * 100 + 7,
        "densify/count": torch.ones(N),
        "word": torch.ones(3, dtype=torch.float64),
    }


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "checkpoints"
    save_checkpoint(folder, step=200, tensors={}, state={})
    return save_checkpoint(folder, step=300, tensors=_tensors(), state=STATE, max_shard_bytes=2000)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """The lines on standard output of a command that ends well."""

    def of(*command: object) -> list[str]:
        capsys.readouterr()
        assert main(["inspect", *map(str, command)]) == 0
        return capsys.readouterr().out.splitlines()

    return of


@pytest.fixture
def error(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The only error line of a command that ends with 2, and prints nothing else."""

    def of(*command: object) -> str:
        capsys.readouterr()
        assert main(["inspect", *map(str, command)]) == 2
        out, err = capsys.readouterr()
        lines = [line for line in err.splitlines() if not line.startswith("verified bytes")]
        assert (out, len(lines)) == ("", 1)
        return lines[0].removeprefix("gs-train: error: ")

    return of


def test_it_says_what_the_checkpoint_holds(saved: Path, said: Callable[..., list[str]]) -> None:
    sizes = [(file.name, file.stat().st_size) for file in sorted(saved.glob("*.safetensors"))]
    total = sum(n_bytes for _, n_bytes in sizes)
    lines = said(saved)
    assert lines[:11] == [
        str(saved),
        "  format      2",
        "  step        300",
        "  images      1,200",
        "  strategy    mcmc",
        "  placement   best",
        "  run         0123456789abcdef",
        "  Gaussians   20, SH degree 2",
        "  keys        7 to 1,907",
        "  strands     one for each Gaussian",
        "  tensors     7, 2.3 KiB (2,368 bytes)",
    ]
    words = [" ".join(line.split()) for line in lines[11:]]
    assert words == [
        "model: 2.2 KiB (2,264 bytes)",
        "means float32 [20, 3] 240 bytes by row",
        "shN float32 [20, 8, 3] 1,920 bytes by row",
        "shN.step float32 [] 4 bytes",
        "strands uint8 [20] 20 bytes by row",
        "keys int32 [20] 80 bytes by row",
        "densify: 80 B (80 bytes)",
        "count float32 [20] 80 bytes by row",
        "other: 24 B (24 bytes)",
        "word float64 [3] 24 bytes",
        f"files 2, {total / 1024:.1f} KiB ({total:,} bytes)",
        *(f"{name} {n:,} bytes" for name, n in sizes),
    ]


def test_of_a_run_it_takes_the_newest_checkpoint(
    saved: Path, said: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said(saved.parent.parent) == said(saved)
    monkeypatch.chdir(saved)
    assert said(".")[1:] == said(saved)[1:]


def test_verifying_is_said_and_progress_is_on_stderr(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(saved), "--verify"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "  verified    every checksum is right"
    total = sum(file.stat().st_size for file in saved.glob("*.safetensors"))
    assert err.splitlines()[-1] == f"verified bytes {total:,}/{total:,}"


def test_an_earlier_format_is_named_with_what_is_not_read(
    tmp_path: Path, said: Callable[..., list[str]]
) -> None:
    tensors = {name: value for name, value in _tensors().items() if name != "model/keys"}
    tensors |= {"ahead/ids": torch.arange(3), "ahead/mask": torch.arange(3)}
    path = save_format_one(tmp_path, step=7, tensors=tensors, state={})
    lines = said(path, "--verify")
    assert "  format      1, of an earlier version" in lines
    assert "  keys        0 to 19, the index of each Gaussian" in lines
    assert "  tensors     7, and 2 not read" in lines
    assert "  images      not said" in lines


@pytest.mark.parametrize(
    "state",
    [
        {"spent": [], "recipe": "word", "placing": {"preset": None}},
        {"spent": {"images": -3}, "placing": {"preset": [1]}, "run_id": {"a": 1}},
        {"spent": {"images": 1e9}, "recipe": {"strategy": True}},
    ],
)
def test_a_state_of_other_things_is_not_said(
    tmp_path: Path, said: Callable[..., list[str]], state: dict[str, Any]
) -> None:
    path = save_checkpoint(tmp_path, step=1, tensors={}, state=state)
    lines = said(path)
    for name in ("images", "strategy", "placement", "run"):
        assert f"  {name:<12}not said" in lines
    assert "  Gaussians   none" in lines


def test_what_a_terminal_obeys_is_escaped(tmp_path: Path, said: Callable[..., list[str]]) -> None:
    tensors = {"\x1b[31m/\nname": torch.ones(1)}
    state = {"run_id": "\x1b[2J", "recipe": {"strategy": "a\nb"}}
    path = save_checkpoint(tmp_path, step=1, tensors=tensors, state=state)
    lines = said(path)
    assert "  strategy    a\\nb" in lines
    assert "  run         \\x1b[2J" in lines
    assert all(line.isprintable() for line in lines)


# ---------------------------------------------------------------------- what is wrong


def test_a_damaged_checkpoint_is_one_line(saved: Path, error: Callable[..., str]) -> None:
    file = saved / "00001.safetensors"
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert f"{file} is damaged; remove its folder" in error(saved, "--verify")
    file.write_bytes(good[:-1])
    assert f"{file} must have {len(good):,} bytes" in error(saved)
    file.write_bytes(good)
    manifest = saved / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace("mcmc", "abcd"))
    assert f"{manifest} is damaged" in error(saved)
    manifest.write_text(text)
    change_manifest(saved, lambda plain: plain["tensors"]["word"].update(shape=[4]))
    assert f"{manifest} is damaged" in error(saved.parent.parent)
    sign_manifest(saved, {"format": "gs-train checkpoint", "version": 3})
    assert "must have checkpoint format version 1 or 2, got version 3" in error(saved)


def test_keys_that_are_not_distinct_are_one_line(tmp_path: Path, error: Callable[..., str]) -> None:
    tensors = {"model/keys": torch.zeros(3, dtype=torch.int32)}
    path = save_checkpoint(tmp_path, step=1, tensors=tensors, state={})
    said = f"{path}/manifest.json is damaged: model/keys must be distinct and not negative"
    assert said in error(path)


def test_a_place_without_a_checkpoint_is_one_line(
    tmp_path: Path, error: Callable[..., str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "step_000001").mkdir()
    what = "must be a checkpoint or the output folder of a run, and"
    assert f"{tmp_path / 'nowhere'} {what} does not exist" in error(tmp_path / "nowhere")
    assert f"{tmp_path / 'file'} {what} is no folder" in error(tmp_path / "file")
    nothing = f"must be a checkpoint or hold one as a run does: {tmp_path}/checkpoints holds none"
    assert nothing in error(tmp_path)
    half = tmp_path / "step_000001"
    assert f"{half} must be a checkpoint folder: {half}/manifest.json: No such" in error(half)


def test_ctrl_c_ends_verifying_at_once(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        TaskProgress, "update", lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)
    )
    assert main(["inspect", str(saved), "--verify"]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "gs-train: stopped during the verification; nothing was changed\n"


def test_a_checkpoint_that_its_run_removes_meanwhile_is_replaced_by_the_next(
    saved: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[..., list[str]]
) -> None:
    verify, left = SavedCheckpoint.verify, [400, 500]

    def late(checkpoint: SavedCheckpoint, *arguments: Any) -> None:
        if left:
            step = left.pop(0)
            save_checkpoint(saved.parent, step=step, tensors=_tensors(), state=STATE)
            shutil.rmtree(checkpoint.path)
        verify(checkpoint, *arguments)

    monkeypatch.setattr(SavedCheckpoint, "verify", late)
    lines = said(saved.parent.parent, "--verify")
    assert lines[0] == str(saved.parent / "step_000500")
    assert left == []
