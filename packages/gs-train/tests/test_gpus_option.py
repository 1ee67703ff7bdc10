# SPDX-License-Identifier: Apache-2.0
"""What ``--gpus`` asks for, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from gs_train import cli
from gs_train.commands.gpus import ranks_of, without_gpus
from gs_train.errors import InputError

HERE: dict[str, Any] = {"renderer": "raster", "n_devices": 2, "environment": {}}
CPU: dict[str, Any] = {"renderer": "cpu", "n_devices": 0, "environment": {}}


@pytest.mark.parametrize(
    ("gpus", "machine", "ranks"),
    [
        (None, HERE, None),
        (None, HERE | {"environment": {"WORLD_SIZE": "2"}}, None),
        ("1", HERE, None),
        ("2", HERE, 2),
        ("all", HERE, 2),
        ("all", HERE | {"n_devices": 1}, None),
        ("3", CPU, 3),
        ("3", CPU | {"n_devices": 2}, 3),
    ],
)
def test_as_many_ranks_as_asked_for(
    gpus: str | None, machine: dict[str, Any], ranks: int | None
) -> None:
    assert ranks_of(gpus, **machine) == ranks


@pytest.mark.parametrize(("n_devices", "launched"), [(1, []), (2, [2]), (8, [8])])
def test_all_gpus_are_launched(
    n_devices: int, launched: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process trains by itself, and refuses a folder that does not exist."""
    started: list[int] = []

    def launch(command: Sequence[str], n_ranks: int) -> int:
        assert "--gpus" not in command
        started.append(n_ranks)
        return 7

    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_devices)
    monkeypatch.setattr(cli, "launch", launch)
    command = ["fit", str(tmp_path / "none"), "--out", str(tmp_path / "run"), "--gpus", "all"]
    assert cli.main(command) == (7 if launched else 2)
    assert started == launched


@pytest.mark.parametrize(
    ("gpus", "machine", "message"),
    [
        ("3", HERE, "--gpus must be at most 2, the CUDA devices of this machine, got 3"),
        ("0", HERE, "--gpus must be a number of at least 1, or all, got '0'"),
        ("-1", HERE, "--gpus must be a number of at least 1, or all, got '-1'"),
        ("257", CPU, "--gpus must be at most 256, got 257"),
        ("two", CPU, "--gpus must be a number of at least 1, or all, got 'two'"),
        ("all", CPU, "--gpus must be a number with --renderer cpu, got all"),
        ("2", HERE | {"n_devices": 0}, "--gpus needs CUDA devices, there are none here, got 2"),
        ("2", HERE | {"environment": {"WORLD_SIZE": "4"}}, r"\(WORLD_SIZE=4\), got --gpus 2"),
    ],
)
def test_what_cannot_be_is_refused(gpus: str, machine: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ranks_of(gpus, **machine)


def test_ranks_get_the_command_line_without_the_option() -> None:
    command = ["fit", "gpus", "--gpus", "2", "--out", "run", "--gpus=all", "--gpus-x", "1"]
    assert without_gpus(command) == ["fit", "gpus", "--out", "run", "--gpus-x", "1"]
