# SPDX-License-Identifier: Apache-2.0
"""What ``gs-train plan`` says of Gaussians on a drive."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from made_up import RATES

from gs_train.cli import main
from gs_train.commands import plan, plan_blocks
from gs_train.options.config import FitConfig
from gs_train.sizing.drive_rates import DriveRates
from gs_train.sizing.workload import Workload

SHORT = ("--device-memory", "64MiB", "--host-memory", "700MiB", "--gaussians", "500k")
"""Memory for a part of so many Gaussians."""

GIVEN = ("--drive-rates", "4GB:2GB")


@pytest.fixture
def rates_file(tmp_path: Path) -> Path:
    RATES.save(tmp_path / "rates.json")
    return tmp_path / "rates.json"


@pytest.fixture
def said(tiny_capture: Path, rates_file: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Plans, and returns what was printed on a line for each."""

    def plan(*options: str, status: int = 0) -> str:
        start = ["plan", str(tiny_capture), "--offload-rates", str(rates_file)]
        renderer = () if "--renderer" in options else ("--renderer", "cpu")
        assert main([*start, *renderer, *options]) == status
        out, err = capsys.readouterr()
        return out if status == 0 else err

    return plan


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that drives were measured in, which takes no time."""
    folders: list[Path] = []

    def measure(folder: Path, record_bytes: int) -> DriveRates:
        folders.append(folder)
        return DriveRates(3e9, 1e9, f"measured with records of {record_bytes}")

    monkeypatch.setattr(plan_blocks, "measure_drive", measure)
    return folders


def test_it_has_a_row_as_other_presets_and_says_what_moves(said: Any) -> None:
    text = said(*SHORT, *GIVEN, "--verbose")
    row = next(line for line in text.splitlines() if "\u2502 tide " in line).split("\u2502")
    head = next(line for line in text.splitlines() if "\u2503 preset " in line).split("\u2503")
    of = dict(zip((name.strip() for name in head), (cell.strip() for cell in row)))
    assert of["bound by"] == "drive"
    assert float(of["images/s"]) > 0
    assert of["drive"].endswith("MiB")
    assert of["h:mm"].count(":") == 1
    assert "--offload tide: 489 blocks of 1,024 Gaussians" in text
    assert "it reads 4 GB/s and writes 2 GB/s, as --drive-rates says" in text
    assert "page-locked \u2502 places" in " ".join(text.split())


def test_as_json_it_has_what_other_presets_have(said: Any) -> None:
    result = json.loads(said(*SHORT, *GIVEN, "--json"))
    tide = result["tide"]
    assert set(result["presets"]["best"]) <= set(tide)
    assert tide["device_bytes"] == sum(tide["parts"]["device"].values())
    blocks = tide["blocks"]
    assert 0 < blocks["read"] <= blocks["loaded"]
    assert tide["bytes_read"] == pytest.approx(tide["drive_bytes"] / blocks["all"] * blocks["read"])
    assert 0 < tide["bytes_written"] <= tide["bytes_read"]
    seconds = tide["bytes_read"] / 4e9 + tide["bytes_written"] / 2e9
    assert tide["seconds"]["drive"] == pytest.approx(seconds)
    assert tide["images_per_second"] == pytest.approx(1 / seconds)
    assert tide["drive"] == {"read": 4e9, "write": 2e9, "source": "as --drive-rates says"}
    assert tide["snapshot_bytes"] > 0
    # Slots, places and the size of blocks are those of fit's options.
    options = ("--tide.slots", "20", "--tide.arena", "5MB", "--block-rows", "256")
    other = json.loads(said(*SHORT, *GIVEN, *options, "--json"))["tide"]
    assert (other["slots"], other["block_rows"]) == (20, 256)
    assert other["places"] == 5_000_000 // (256 * 716)


def test_tiles_and_more_memory_read_less(said: Any) -> None:
    def read(*options: str) -> float:
        result = json.loads(said(*GIVEN, "--gaussians", "20M", *options, "--json"))
        return float(result["tide"]["bytes_read"])

    cut = ("--view-rows", "200k", "--device-memory", "2GiB", "--host-memory", "5GiB")
    shuffled = read(*cut)
    assert 0 < read(*cut, "--order", "tiles", "--tile-views", "3") < shuffled
    assert 0 < read(*cut, "--tide.arena", "1500MB") < read(*cut, "--tide.arena", "500MB")


def test_the_drive_is_measured_where_steps_need_it_and_nobody_gave_its_rates(
    said: Any, unmeasured: list[Path], tmp_path: Path
) -> None:
    assert json.loads(said("--json"))["tide"]["drive"] is None
    assert json.loads(said(*SHORT, *GIVEN, "--json"))["tide"]["drive"]["read"] == 4e9
    assert unmeasured == []
    text = said(*SHORT, "--store", str(tmp_path / "store"))
    assert unmeasured == [tmp_path / "store"]
    assert "it reads 3 GB/s and writes 1 GB/s, measured with records of 737280" in text
    said(*SHORT)
    assert unmeasured[1:] == [Path()]


def test_a_drive_that_cannot_be_measured_leaves_the_speed_open(
    said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> DriveRates:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(plan_blocks, "measure_drive", fail)
    text = said(*SHORT)
    row = next(line for line in text.splitlines() if "\u2502 tide " in line)
    assert row.count("n/a") == 3
    assert "cannot be measured (Permission denied): --drive-rates READ:WRITE says how fast" in text
    assert json.loads(said(*SHORT, "--json"))["tide"]["images_per_second"] == "n/a"


def test_a_drive_that_is_not_here_is_not_measured(
    said: Any, unmeasured: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    there = ("--renderer", "raster", *SHORT, "--json")
    tide = json.loads(said(*there))["tide"]
    assert (tide["images_per_second"], tide["drive"], tide["drive_free"]) == ("n/a", None, None)
    assert "its drive is not here" in tide["drive_trouble"]
    assert unmeasured == []
    assert json.loads(said(*there, *GIVEN))["tide"]["bound"] == "drive"


def test_a_full_drive_bounds_the_scene(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 10**9
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    options = (*GIVEN, "--device-memory", "4GiB", "--host-memory", "16GiB", "--json")
    tide = json.loads(said("--gaussians", "2M", *options))["tide"]
    assert not tide["fits"]
    assert "the drive must have " in tide["reason"]
    most = tide["largest_n"]
    assert 100_000 < most < 2_000_000
    at_most = json.loads(said("--gaussians", str(most), *options))["tide"]
    assert at_most["fits"]
    assert 0.95 * free < at_most["drive_bytes"] + at_most["snapshot_bytes"] <= free
    assert not json.loads(said("--gaussians", str(most + 2000), *options))["tide"]["fits"]


def test_of_several_processes_one_has_a_drive(said: Any) -> None:
    text = said(*GIVEN, "--gpus", "2")
    assert "\u2502 tide (1 process) " in text
    assert "--offload tide, in one process: " in text


def test_views_may_see_less_of_a_larger_scene(said: Any) -> None:
    result = json.loads(said(*GIVEN, "--gaussians", "300M", "--view-rows", "480k", "--json"))
    work = result["workload"]
    assert work["mean"]["visible"] == pytest.approx(480_000)
    assert work["n_rows"] == 300_000_000
    some = json.loads(said(*GIVEN, "--gaussians", "300M", "--json"))["workload"]
    less = some["mean"]["visible"] / 480_000
    assert work["epoch_batches"] == pytest.approx(some["epoch_batches"] * less)
    assert work["epoch_rows"] == some["epoch_rows"]


@pytest.mark.parametrize("view_rows", [(), ("--view-rows", "480k")])
def test_gaussians_on_a_drive_are_as_small_as_their_number_makes_them(
    said: Any, monkeypatch: pytest.MonkeyPatch, view_rows: tuple[str, ...]
) -> None:
    """There they come from a cloud, elsewhere training adds them, which leaves them larger."""
    planned: list[Workload] = []

    def noted(run: FitConfig, work: Workload, *arguments: Any, **more: Any) -> Any:
        planned.append(work)
        return plan_blocks.planned_on_drive(run, work, *arguments, **more)

    monkeypatch.setattr(plan, "planned_on_drive", noted)
    grown = json.loads(said(*GIVEN, "--gaussians", "2M", *view_rows, "--json"))["workload"]
    first = json.loads(said(*GIVEN, "--json"))["workload"]
    work = planned[0]
    assert work.n_rows == grown["n_rows"] == 2_000_000
    assert work.most.largest == pytest.approx(grown["most"]["largest"])
    assert work.mean.visible == pytest.approx(grown["mean"]["visible"])

    def tiles(most: dict[str, float]) -> float:
        return most["intersections"] / most["largest"]

    assert tiles(grown["most"]) == pytest.approx(tiles(first["most"]))
    assert tiles(asdict(work.most)) < 0.95 * tiles(grown["most"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--drive-rates", "fast"), "--drive-rates must be READ:WRITE in bytes a second"),
        (("--drive-rates", "0:1GB"), "--drive-rates must be two rates above 0"),
        (("--gaussians", "10k", "--view-rows", "0"), "--view-rows must be from 1 to 10,000"),
        (("--gaussians", "10k", "--view-rows", "20k"), "to 10,000 Gaussians, got 20000"),
    ],
)
def test_bad_options_are_one_line(said: Any, options: tuple[str, ...], message: str) -> None:
    assert message in said(*options, status=2)
