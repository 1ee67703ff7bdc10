# SPDX-License-Identifier: Apache-2.0
"""Runs whose rows are on a drive, on a GPU."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tide_runs import assert_same, saved
from tide_terms import TERMS, with_terms
from transforms_files import write_points

from gs_train.blocks.stored_rows import StoredRows
from gs_train.cli import main
from gs_train.engine.settings import StepSettings
from gs_train.renderers import RenderOptions, View, make_renderer
from gs_train.rows.attributes import NAMES
from gs_train.runs import figures
from gs_train.runs.run import Run
from gs_train.tide.engine import block_engine
from gs_train.tide.model import StoredModel

pytestmark = pytest.mark.gpu

STEPS, N_ROWS = 40, 4000
FEW = ("--block-rows", "64", "--tide.slots", "16", "--tide.arena", "2MB")
"""Fewer blocks in memory than the 63 that there are."""


def _fit(capture: Path, out: Path, *more: str, offload: str = "tide") -> Path:
    options = ["--renderer", "raster", "--strategy", "fixed", "--cap", str(N_ROWS)]
    options += ["--sh-degree", "2", "--sh-every", "8", "--batch-size", "2", "--steps", str(STEPS)]
    command = ["fit", str(capture), "--out", str(out), "--offload", offload, *options, *more]
    assert main(command) == 0
    return out


def _metrics(out: Path) -> dict[str, object]:
    return json.loads((out / "metrics.json").read_text())


def test_a_run_on_a_drive_scores_as_one_on_the_device(tiny_capture: Path, tmp_path: Path) -> None:
    ours = _fit(tiny_capture, tmp_path / "tide", *FEW)
    theirs = _fit(tiny_capture, tmp_path / "none", offload="none")
    # As far as two runs of `none` with re-ordered sums are apart, and no more.
    assert _metrics(ours)["psnr"] == pytest.approx(_metrics(theirs)["psnr"], abs=0.1)
    store = _metrics(ours)["store"]
    assert isinstance(store, dict)
    assert store["bytes_read"] > 0
    assert store["blocks_evicted"] > 0


def _by_key(run: Path) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    _, model = Run.open(run).read(torch.device("cuda"))
    if isinstance(model, StoredModel):
        parts = list(model.rows.pieces())
        keys, rows = torch.cat([keys for keys, _ in parts]), [own for _, own in parts]
    else:
        keys, rows = model.keys.values, list(model.chunks(N_ROWS))
    order = keys.argsort().cpu()
    joined = {name: torch.cat([own[name].cpu() for own in rows])[order] for name in NAMES}
    keys = keys.cpu()[order]
    model.close()
    return keys, joined


@pytest.mark.parametrize("has_terms", [False, True], ids=["colours", "all"])
def test_the_first_step_on_a_drive_is_that_on_the_device(
    tiny_capture: Path, tmp_path: Path, has_terms: bool
) -> None:
    """Also with masks, depth maps, exposures and a random background."""
    capture = with_terms(tiny_capture, tmp_path / "capture") if has_terms else tiny_capture
    one = ("--steps", "1", *(TERMS["all"] if has_terms else ()))
    ours = _fit(capture, tmp_path / "tide", *FEW, *one)
    theirs = _fit(capture, tmp_path / "none", *one, offload="none")
    keys, there = _by_key(theirs)
    own_keys, own = _by_key(ours)
    assert torch.equal(own_keys, keys)
    for name, values in there.items():
        assert own[name].shape == values.shape
        assert torch.allclose(own[name], values, rtol=1e-5, atol=1e-5), name


@pytest.mark.parametrize(
    ("source", "preset"), [("tide", "none"), ("tide", "best"), ("best", "tide"), ("none", "tide")]
)
def test_a_run_of_any_preset_begins_another(
    tiny_capture: Path, tmp_path: Path, source: str, preset: str
) -> None:
    few = {"tide": FEW}
    first = _fit(tiny_capture, tmp_path / "first", *few.get(source, ()), offload=source)
    start = ("--init", str(first), "--steps", "1")
    out = _fit(tiny_capture, tmp_path / "next", *few.get(preset, ()), *start, offload=preset)
    keys, before = _by_key(first)
    same_keys, after = _by_key(out)
    assert torch.equal(keys, same_keys)
    for name, values in before.items():
        # The first step of Adam moves a value by its rate at most: 0.05 sqrt(2) for opacities.
        assert torch.allclose(after[name], values, rtol=0, atol=0.08), name


@pytest.mark.parametrize(
    "memory",
    [
        ("--block-rows", "64", "--tide.slots", "63"),
        ("--block-rows", "128", "--tide.slots", "4", "--tide.arena", "4MB"),
    ],
)
def test_the_size_of_memory_changes_no_bit(
    tiny_capture: Path, tmp_path: Path, memory: tuple[str, ...]
) -> None:
    ours = _fit(tiny_capture, tmp_path / "few", *FEW)
    assert_same(saved(_fit(tiny_capture, tmp_path / "other", *memory)), saved(ours))


def _ground(n_tiles: int, n_rows: int) -> dict[str, torch.Tensor]:
    """The same square of ground so many times, far from each other along x."""
    draw = torch.Generator().manual_seed(0)
    one = torch.rand((n_rows, 3), generator=draw) * torch.tensor([10.0, 10.0, 0.1])
    n = n_tiles * n_rows
    return {
        "means": torch.cat([one + torch.tensor([1024.0 * k, 0.0, 0.0]) for k in range(n_tiles)]),
        "scales": torch.full((n, 3), -4.0),
        "quats": torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(n, 1),
        "opacities": torch.zeros(n),
        "sh0": torch.zeros((n, 1, 3)),
        "shN": torch.zeros((n, 3, 3)),
    }


def _peak_of_steps(path: Path, n_tiles: int, n_rows: int) -> int:
    """The most device memory that training took, all of it on views of the first square."""
    rates = dict.fromkeys(NAMES, 1e-3)
    StoredRows.create(
        path,
        _ground(n_tiles, n_rows),
        torch.arange(n_tiles * n_rows, dtype=torch.int32),
        block_rows=256,
        betas=(0.9, 0.999),
        eps=1e-15,
        ceilings=rates,
    )
    K = torch.tensor([[40.0, 0.0, 32.0], [0.0, 40.0, 24.0], [0.0, 0.0, 1.0]])
    views = []
    for x in (3.0, 4.0, 5.0, 6.0):
        pose = torch.diag(torch.tensor([1.0, -1.0, -1.0, 1.0]))  # straight down from a height of 5
        pose[:3, 3] = torch.tensor([-x, 5.0, 5.0])
        views.append(View(f"{x}", pose, K, 64, 48).to("cuda"))
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with StoredRows.open(path, slots=400, host_blocks=128, device="cuda") as rows:
        engine = block_engine(rows, make_renderer("raster", RenderOptions()))
        photo = torch.zeros((48, 64, 3), dtype=torch.uint8, device="cuda")
        for view in views * 2:
            settings = StepSettings(1, rates, (0.9, 0.999), 1e-15, 0.2)
            engine.step([(view, photo)], settings, lambda ids, splats: None)
        engine.finish()
        assert engine.stats.seen > 8 * n_rows // 20
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


def test_device_memory_does_not_grow_with_the_scene(tmp_path: Path) -> None:
    """With the same slots and views of the same ground: 0.1 bytes a row, which no table of all rows
    could be."""
    n_rows = 1 << 17
    _peak_of_steps(tmp_path / "warm", 1, n_rows)  # what is made once in a process
    few, many = (_peak_of_steps(tmp_path / f"{k}", k, n_rows) for k in (1, 8))
    assert abs(many - few) <= 0.1 * 7 * n_rows


def test_a_run_goes_on_to_the_same_bits(tiny_capture: Path, tmp_path: Path) -> None:
    whole = _fit(tiny_capture, tmp_path / "whole", *FEW, "--checkpoint-every", "10")
    begun = ("--steps", "15", "--decay-steps", str(STEPS), "--checkpoint-every", "4")
    out = _fit(tiny_capture, tmp_path / "run", *FEW, *begun)
    resumed = ["fit", str(tiny_capture), "--out", str(out), "--resume", "--steps", str(STEPS)]
    assert main(resumed) == 0
    assert_same(saved(out), saved(whole))


def test_a_run_is_evaluated_rendered_and_exported(tiny_capture: Path, tmp_path: Path) -> None:
    out = _fit(tiny_capture, tmp_path / "run", *FEW, "--eval-every", "20")
    before = _metrics(out)["psnr"]
    assert main(["eval", str(out), "--renderer", "raster"]) == 0
    assert _metrics(out)["psnr"] == pytest.approx(before, abs=1e-4)
    to = tmp_path / "frames"
    render = ["render", str(out), "--renderer", "raster", "--path", "test", "--to", str(to)]
    assert main(render) == 0
    assert all(np.asarray(Image.open(path)).any() for path in to.glob("*.png"))
    assert main(["export", str(out), "--layout", "gsplat"]) == 0


def test_slots_that_the_device_cannot_hold_are_refused(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = np.random.default_rng(5).uniform(-1.0, 1.0, (100_000, 3))
    write_points(tmp_path / "points.ply", points, np.zeros((100_000, 3)))
    command = ["fit", str(tiny_capture), "--out", str(tmp_path / "run"), "--offload", "tide"]
    command += ["--strategy", "fixed", "--renderer", "raster"]
    command += ["--init", str(tmp_path / "points.ply")]
    try:  # with room for the cameras, which come to the device before
        assert main([*command, "--device-memory", "64MiB", "--tide.slots", "98"]) == 2
    finally:
        torch.cuda.set_per_process_memory_fraction(
            1.0
        )  # of this process, for the tests that follow
    said = "--tide.slots must be at most 86, of 716.0 KiB each, for --device-memory 64.0 MiB"
    assert said in capsys.readouterr().err


def test_what_came_is_beside_what_was_foretold(
    tiny_capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rates of the device, the link and the drive included, which are measured for that."""
    monkeypatch.setattr(figures, "_WORTH_S", 0.0)
    few = ("--block-rows", "64", "--tide.slots", "12", "--tide.arena", "1MB")
    of = _metrics(_fit(tiny_capture, tmp_path / "run", *few))
    names = ["device_bytes", "pinned_bytes", "host_bytes", "images_per_second"]
    names += ["drive_read_a_step_bytes", "drive_written_a_step_bytes"]
    for section in ("predicted", "real"):
        values = of[section]
        assert isinstance(values, dict)
        assert list(values) == [*names, "seconds"]
        assert all(values[name] > 0 for name in names), values
