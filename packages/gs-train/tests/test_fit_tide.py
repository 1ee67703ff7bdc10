# SPDX-License-Identifier: Apache-2.0
"""Runs whose rows are on a drive end as runs in memory do, whatever part of them is in memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tide_runs import FEW, N_ROWS, STEPS, assert_same, command, fitted, saved
from tide_terms import COLOURS, TERMS, with_terms
from torch import Tensor

from gs_train import Fitted
from gs_train.checkpoint import latest_checkpoint, open_checkpoint
from gs_train.cli import main
from gs_train.errors import CommonError
from gs_train.files.ply import load_ply
from gs_train.machine.interrupt import StopRequest
from gs_train.renderers import Renderer
from gs_train.rows.attributes import NAMES
from gs_train.rows.shown import RowsAtHand, ViewsOf
from gs_train.rows.view_parts import view_parts
from gs_train.rows.visible import render_view
from gs_train.runs import stored_engine
from gs_train.runs.logs import read_log
from gs_train.runs.named_snapshots import named_snapshots
from gs_train.runs.run import Run
from gs_train.runs.shared_run import SharedRun
from gs_train.runs.trainer import StepResult, Trainer
from gs_train.scene.scene import view_in_frame
from gs_train.tide.model import SavingSnapshot, StoredModel
from gs_train.tide.passes import BlockPasses
from gs_train.tide.room import BatchRoom
from gs_train.viewer.opened import Limits, fits_beside, open_scene, reopened
from gs_train.world import Alone

ROOM = 585
"""Rows of a batch: fewer than most pairs of views see, and as many as any one view does."""


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def few(_one_thread: None, tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with few blocks in memory, and checkpoints on the way."""
    return fitted(
        tiny_capture, tmp_path_factory.mktemp("tide") / "few", *FEW, "--checkpoint-every", "2"
    )


@pytest.fixture(scope="module")
def in_memory(
    _one_thread: None, tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same run with all rows in memory."""
    return fitted(tiny_capture, tmp_path_factory.mktemp("none") / "run", offload="none")


def by_key(out: Path) -> dict[str, Tensor]:
    """Present values of a run on a drive, in the order of keys."""
    _, model = Run.open(out).read(torch.device("cpu"))
    assert isinstance(model, StoredModel)
    keys, rows = zip(*model.rows.pieces(), strict=True)
    model.close()
    order = torch.cat(keys).argsort()
    return {name: torch.cat([part[name] for part in rows])[order] for name in NAMES}


def metrics(out: Path) -> dict[str, Any]:
    return json.loads((out / "metrics.json").read_text())


# ---------------------------------------------------------------------- the same results


ONE = ("--steps", "1")


def in_memory_by_key(capture: Path, out: Path, *more: str) -> dict[str, Tensor]:
    """Values after the first step of a run with all rows in memory, in the order of keys."""
    return Fitted.open(fitted(capture, out, *ONE, *more, offload="none")).rows(frame="trained")


def test_the_first_step_on_a_drive_is_that_in_memory(tiny_capture: Path, tmp_path: Path) -> None:
    """To the bit; later steps differ by what rounds otherwise where rows sleep."""
    ours = by_key(fitted(tiny_capture, tmp_path / "tide", *FEW, *ONE))
    for name, values in in_memory_by_key(tiny_capture, tmp_path / "none").items():
        assert torch.equal(ours[name], values), name


@pytest.fixture(scope="module")
def terms_capture(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With masks and depth maps."""
    return with_terms(tiny_capture, tmp_path_factory.mktemp("terms") / "capture")


@pytest.fixture(scope="module")
def of_colours(terms_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """Values after the first step with a loss of colours alone."""
    return in_memory_by_key(terms_capture, tmp_path_factory.mktemp("colours") / "run", *COLOURS)


@pytest.mark.parametrize("term", TERMS)
def test_the_first_step_of_every_loss_on_a_drive_is_that_in_memory(
    term: str, terms_capture: Path, of_colours: dict[str, Tensor], tmp_path: Path
) -> None:
    options = TERMS[term]
    ours = by_key(fitted(terms_capture, tmp_path / "tide", *FEW, *ONE, *options))
    for name, values in in_memory_by_key(terms_capture, tmp_path / "none", *options).items():
        assert torch.equal(ours[name], values), name
    assert any(not torch.equal(ours[name], values) for name, values in of_colours.items())


def test_a_run_on_a_drive_scores_as_one_in_memory(few: Path, in_memory: Path) -> None:
    ours, theirs = metrics(few), metrics(in_memory)
    assert ours["psnr"] == pytest.approx(theirs["psnr"], abs=0.01)
    assert ours["ssim"] == pytest.approx(theirs["ssim"], abs=0.001)
    assert (ours["preset"], theirs["preset"]) == ("tide", "none")
    assert ours["n_gaussians"] == theirs["n_gaussians"] == N_ROWS


@pytest.mark.parametrize(
    "memory",
    [
        pytest.param(
            ("--block-rows", "16", "--tide.slots", "38", "--tide.arena", "64kB"),
            marks=pytest.mark.long,
        ),
        ("--block-rows", "64", "--tide.slots", "1", "--tide.arena", "64kB"),
        (
            "--block-rows",
            "1024",
        ),
    ],
    ids=["all in slots", "one slot", "one block"],
)
def test_the_size_of_memory_and_of_blocks_changes_no_bit(
    tiny_capture: Path, tmp_path: Path, few: Path, memory: tuple[str, ...]
) -> None:
    assert_same(saved(fitted(tiny_capture, tmp_path / "run", *memory)), saved(few))


def _backwards(self: StoredModel, views_of: ViewsOf, renderer: Renderer) -> None:
    """What `StoredModel.foresee` is told of the views of all steps, in the opposite order."""
    foresee(self, lambda step: views_of(STEPS - 1 - step) if step < STEPS else (), renderer)


foresee = StoredModel.foresee


@pytest.mark.parametrize("told", [RowsAtHand.foresee, _backwards], ids=["nothing", "wrong"])
def test_hints_change_no_bit(
    tiny_capture: Path,
    tmp_path: Path,
    few: Path,
    monkeypatch: pytest.MonkeyPatch,
    told: Callable[..., None],
) -> None:
    monkeypatch.setattr(StoredModel, "foresee", told)
    assert_same(saved(fitted(tiny_capture, tmp_path / "run", *FEW)), saved(few))


def test_a_wrong_next_batch_changes_no_bit(
    tiny_capture: Path, tmp_path: Path, few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_once = Trainer.train_step

    def misled(self: Trainer, batch: Any, upcoming: Any, **options: Any) -> StepResult:
        again = [[view for view, _ in batch]]
        return step_once(self, batch, again, **options)

    monkeypatch.setattr(Trainer, "train_step", misled)
    assert_same(saved(fitted(tiny_capture, tmp_path / "run", *FEW)), saved(few))


@pytest.mark.long
def test_scores_while_training_change_no_bit(tiny_capture: Path, tmp_path: Path, few: Path) -> None:
    out = fitted(tiny_capture, tmp_path / "run", *FEW, "--eval-every", "5")
    assert_same(saved(out), saved(few))
    assert "test_psnr" in read_log(out / "log.csv", None)[0]


# ---------------------------------------------------------------------- going on


def test_a_run_that_goes_on_ends_as_one_that_never_stopped(
    tiny_capture: Path, tmp_path: Path, few: Path
) -> None:
    """With other sizes of memory, from a folder that was moved."""
    begun = ("--steps", "5", "--decay-steps", str(STEPS))
    out = fitted(tiny_capture, tmp_path / "begun", *FEW, *begun)
    moved = shutil.move(out, tmp_path / "moved")
    go_on = ("--resume", "--steps", str(STEPS), "--tide.slots", "3")
    assert main(["fit", str(tiny_capture), "--out", str(moved), *go_on]) == 0
    assert_same(saved(Path(moved)), saved(few))


def exposures_of(out: Path) -> dict[str, Tensor]:
    """What the newest checkpoint holds of exposures."""
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    checkpoint = open_checkpoint(newest)
    return checkpoint.read([name for name in checkpoint.shapes if name.startswith("exposure/")])


def test_a_run_with_exposures_goes_on_with_the_same_bits(
    tiny_capture: Path, tmp_path: Path
) -> None:
    more = (*FEW, "--exposure", "--background", "random")
    whole = fitted(tiny_capture, tmp_path / "whole", *more)
    begun = ("--steps", "5", "--decay-steps", str(STEPS))
    out = fitted(tiny_capture, tmp_path / "begun", *more, *begun)
    go_on = ("--resume", "--steps", str(STEPS))
    assert main(["fit", str(tiny_capture), "--out", str(out), *go_on]) == 0
    assert_same(saved(out), saved(whole))
    ours, theirs = exposures_of(out), exposures_of(whole)
    assert set(ours) == set(theirs)
    for name, values in theirs.items():
        assert torch.equal(ours[name], values), name
    assert theirs["exposure/values"].std(0).max() > 0
    with StopRequest() as stop:
        scene = open_scene(whole, Limits(renderer="cpu"), stop)
    shown = torch.stack([scene.exposures[index].flatten() for index in scene.train])
    assert torch.equal(shown, theirs["exposure/values"])
    scene.close()


def test_a_checkpoint_that_waits_for_its_drive_holds_the_exposures_of_its_step(
    tiny_capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = (*FEW, "--exposure")
    at_once = fitted(tiny_capture, tmp_path / "a", *more, "--steps", "4", "--decay-steps", "6")
    monkeypatch.setattr(SavingSnapshot, "is_done", False)
    steps = ("--steps", "6", "--checkpoint-every", "4")
    waiting = fitted(tiny_capture, tmp_path / "b", *more, *steps)
    name = "checkpoints/step_000004"
    ours, theirs = (open_checkpoint(out / name) for out in (waiting, at_once))
    for tensor in theirs.shapes:
        assert torch.equal(ours.read([tensor])[tensor], theirs.read([tensor])[tensor]), tensor


def test_a_batch_that_comes_view_by_view_changes_no_bit_of_exposures(
    tiny_capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = (*FEW, "--exposure", "--background", "random")
    whole = fitted(tiny_capture, tmp_path / "whole", *terms)
    begun = []
    begin = BlockPasses.begin

    def noted(self: BlockPasses, *arguments: Any) -> int:
        begun.append(self._batch.seen)
        return begin(self, *arguments)

    monkeypatch.setattr(BlockPasses, "begin", noted)
    monkeypatch.setattr(stored_engine, "BatchRoom", lambda *_: BatchRoom(ROOM))
    passes = fitted(tiny_capture, tmp_path / "passes", *terms)
    assert begun
    assert all(len(seen.microbatches) == 2 for seen in begun)  # whole views: no sum in other order
    assert_same(saved(passes), saved(whole))
    ours, theirs = exposures_of(passes), exposures_of(whole)
    for name, values in theirs.items():
        assert torch.equal(ours[name], values), name


def test_a_store_elsewhere_goes_with_its_run(tiny_capture: Path, tmp_path: Path, few: Path) -> None:
    out, there = tmp_path / "run", tmp_path / "drive" / "store"
    begun = ("--steps", "5", "--decay-steps", str(STEPS))
    fitted(tiny_capture, out, *FEW, *begun, "--store", str(there))
    assert not (out / "store").exists()
    moved = shutil.move(there, tmp_path / "other drive")
    go_on = ["fit", str(tiny_capture), "--out", str(out), "--resume", "--steps", str(STEPS)]
    assert main(go_on) == 2
    assert main([*go_on, "--store", str(moved)]) == 0
    assert_same(saved(out), saved(few))
    assert main([*command(tiny_capture, out, *FEW), "--overwrite", "--steps", "1"]) == 0
    assert not Path(moved).exists()
    assert (out / "store" / "STORE").exists()


def test_checkpoints_name_snapshots_and_others_are_given_up(few: Path) -> None:
    paths = sorted((few / "checkpoints").iterdir())
    stores = [open_checkpoint(path).state["store"] for path in paths]
    assert [open_checkpoint(path).step for path in paths] == [6, 8]
    named = {store["snapshot"] for store in stores}
    assert named_snapshots(few / "checkpoints") == named
    there = {int(path.name.removeprefix("snap-")) for path in (few / "store").glob("snap-*")}
    assert named <= there
    assert len(there - named) <= 1
    assert all(store["n_rows"] == N_ROWS and store["path"] is None for store in stores)


# ---------------------------------------------------------------------- looking


@pytest.mark.parametrize(
    "layout",
    ["inria", *(pytest.param(x, marks=pytest.mark.long) for x in ("gsplat", "spz", "gltf"))],
)
def test_exports_hold_the_rows_of_a_run_in_memory(
    few: Path, in_memory: Path, tmp_path: Path, layout: str
) -> None:
    if layout == "spz":
        pytest.importorskip("gs_train.files.spz")
    sizes = []
    for out in (few, in_memory):
        to = tmp_path / out.name
        assert main(["export", str(out), "--layout", layout, "--to", str(to)]) == 0
        sizes.append({p.relative_to(to): p.stat().st_size for p in to.rglob("*") if p.is_file()})
    ours, theirs = sizes
    assert set(ours) == set(theirs)
    if layout != "spz":  # whose size follows the order of rows
        ply = [path for path in ours if path.suffix in (".ply", ".glb")]
        assert [ours[path] for path in ply] == [theirs[path] for path in ply]
    if layout == "inria":
        (path,) = ply
        rows, expected = (
            {name: values[whole["means"][:, 0].argsort()] for name, values in whole.items()}
            for whole in (load_ply(tmp_path / out.name / path) for out in (few, in_memory))
        )
        assert len(rows["means"]) == N_ROWS
        for name, values in expected.items():
            assert torch.allclose(rows[name], values, rtol=1e-5, atol=1e-5), name


def test_the_same_views_are_rendered_and_scored(few: Path, in_memory: Path, tmp_path: Path) -> None:
    pictures = []
    for out in (few, in_memory):
        to = tmp_path / out.name
        command = ["render", str(out), "--renderer", "cpu", "--path", "test", "--to", str(to)]
        assert main(command) == 0
        pictures.append([np.asarray(Image.open(path)) for path in sorted(to.glob("*.png"))])
    assert len(pictures[0]) == 2
    for ours, theirs in zip(*pictures, strict=True):
        assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1
    before = metrics(few)["psnr"]
    assert main(["eval", str(few), "--renderer", "cpu"]) == 0
    assert metrics(few)["psnr"] == before


def test_a_checkpoint_in_a_store_is_inspected(
    few: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(few), "--verify"]) == 0
    said = capsys.readouterr().out
    assert f"{N_ROWS:,}, SH degree 1" in said
    assert f"{few / 'store'}, snapshot" in said
    assert "every checksum is right" in said


def test_what_moved_is_counted(few: Path) -> None:
    store = metrics(few)["store"]
    assert isinstance(store, dict)
    assert store["slots"] == 6
    assert store["block_rows"] == 32
    for name in ("blocks_missed", "blocks_late", "blocks_evicted", "bytes_read", "bytes_written"):
        assert store[name] > 0, name
    assert store["blocks_wait_s"] > 0
    page = (few / "report.html").read_text()
    assert "<td>blocks wait</td>" in page
    columns, rows = read_log(few / "log.csv", None)
    assert {"blocks_hit", "blocks_wait_s", "bytes_read", "snapshot_pause_s"} <= set(columns)
    assert float(rows[-1]["bytes_read"]) > 0


@pytest.mark.parametrize(
    "memory",
    [
        ("--block-rows", "32", "--tide.slots", "6", "--tide.arena", "64kB"),
        pytest.param(
            ("--block-rows", "16", "--tide.slots", "12", "--tide.arena", "40kB"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            ("--block-rows", "32", "--order", "tiles", "--tile-views", "4", *FEW[2:]),
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_run_says_what_it_expects_and_what_came(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], memory: tuple[str, ...]
) -> None:
    out = fitted(tiny_capture, tmp_path / "run", "--sh-degree", "0", *memory)
    text, said = capsys.readouterr()
    line = next(line for line in (text + said).splitlines() if line.startswith("expected: "))
    assert "of Gaussians on the device" in line
    assert "more for snapshots; once all are trained, steps use" in line
    assert "from the drive and write" in line
    of = metrics(out)
    for name in ("drive_read_a_step_bytes", "drive_written_a_step_bytes"):
        foretold, real = of["predicted"][name], of["real"][name]
        # The first step finds records of rows that have not been trained, which are small.
        assert real / 1.5 < foretold < real * 2
    store = of["store"]
    assert of["real"]["drive_read_a_step_bytes"] == pytest.approx(store["bytes_read"] / STEPS)
    page = (out / "report.html").read_text()
    assert "drive read a step" in page
    again = command(tiny_capture, out, "--resume", "--more-steps", "1", "--sh-degree", "0", *memory)
    assert main([word for word in again if word not in ("--steps", str(STEPS))]) == 0
    text, said = capsys.readouterr()
    line = next(line for line in (text + said).splitlines() if line.startswith("expected: "))
    assert line.endswith("on the drive")


def test_everything_in_memory_is_expected_to_leave_the_drive_alone(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = fitted(tiny_capture, tmp_path / "run", "--steps", "3", "--block-rows", "64")
    text, said = capsys.readouterr()
    assert "each and do not need the drive" in text + said
    assert metrics(out)["predicted"]["drive_read_a_step_bytes"] == 0


def test_the_viewer_draws_a_run_on_a_drive(few: Path) -> None:
    with StopRequest() as stop:
        scene = open_scene(few, Limits(renderer="cpu"), stop)
        again = reopened(scene, Limits(renderer="cpu"), stop)
    assert scene.run is not None
    assert fits_beside(scene, scene.run.checkpoint)
    view = view_in_frame(scene.cameras[0], scene.frame)
    whole = render_view(again.model, view, again.renderer)
    parts = view_parts(scene.model, view, scene.renderer, most_rows=100, most_pixels=500)
    for rect, part in parts:
        assert torch.equal(part, whole[rect.y0 : rect.y1, rect.x0 : rect.x1])
    scene.close()
    again.close()


def test_a_folder_named_store_is_left_alone_where_it_is_not_a_store(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    (out / "store").mkdir(parents=True)
    (out / "store" / "mine.txt").write_text("mine")
    assert main(command(tiny_capture, out, *FEW)) == 2
    assert f"{out / 'store'}, must be empty or new, it holds mine.txt" in capsys.readouterr().err
    fitted(tiny_capture, out, "--steps", "1", offload="none")
    fitted(tiny_capture, out, "--steps", "1", "--overwrite", offload="none")
    assert (out / "store" / "mine.txt").read_text() == "mine"


def test_looks_take_no_more_memory_than_the_run_was_given(few: Path) -> None:
    model = Run.open(few).model(torch.device("cpu"))
    assert isinstance(model, StoredModel)
    cache, store = model.rows.cache, metrics(few)["store"]
    assert (cache.n_slots, cache.host_blocks) == (store["slots"], store["places"]) == (6, 7)
    model.close()


def test_several_ranks_do_not_look_at_a_run_on_a_drive(few: Path) -> None:
    with pytest.raises(CommonError, match="are in a store on a drive, which is for one process"):
        SharedRun.open(few, Alone(torch.device("cpu")))


def test_plans_and_checks_say_what_a_drive_takes(
    tiny_capture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--renderer", "cpu", "--strategy", "fixed", "--sh-degree", "1", "--json"]
    memory = ["--block-rows", "64", "--tide.slots", "10", "--tide.arena", "1MB"]
    memory += ["--drive-rates", "1GB:1GB"]
    assert main(["plan", str(tiny_capture), *options, *memory]) == 0
    tide = json.loads(capsys.readouterr().out)["tide"]
    block = 64 * (3 * 4 * (11 + 12) + 8)
    n_rows = tide["blocks"]["all"] * 64
    assert n_rows * (block // 64) < tide["drive_bytes"] < 1.5 * n_rows * (block // 64)
    assert (tide["slots"], tide["places"]) == (10, 10**6 // block)
    assert tide["parts"]["device"]["slots"] == 10 * block
    assert tide["parts"]["pinned"]["places"] == tide["places"] * block
    assert tide["images_per_second"] > 0
    assert main(["check", str(tiny_capture), *options, "--offload", "tide"]) == 0
    fit = json.loads(capsys.readouterr().out)["fit"]
    assert fit["preset"] == "tide"
    assert fit["device_bytes"] >= (n_rows - 63) * (block // 64)
