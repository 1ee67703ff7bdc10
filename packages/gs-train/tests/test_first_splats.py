# SPDX-License-Identifier: Apache-2.0
"""Runs that begin with Gaussians of a file, a run, a checkpoint or a store, by ``--init``."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from exported_rows import rows_of
from made_clouds import rows_by_key
from tide_runs import FEW, fitted
from torch import Tensor

from gs_train.blocks.stored_rows import StoredRows
from gs_train.checkpoint import latest_checkpoint
from gs_train.cli import main
from gs_train.clouds.making import place_of_making
from gs_train.clouds.stored_splats import stored_splats
from gs_train.data.frame import Frame
from gs_train.errors import InputError
from gs_train.files.ply import write_ply
from gs_train.machine.interrupt import Interrupted, StopRequest
from gs_train.options.config import FitConfig
from gs_train.ranks.first_rows import first_rows
from gs_train.rows.attributes import NAMES
from gs_train.rows.keys import RowKeys
from gs_train.rows.saved_rows import KeyedRows, PlyRows
from gs_train.rows.visible import caught_up_chunks
from gs_train.runs.folder import RunFolder
from gs_train.runs.init_splats import first_splats
from gs_train.runs.run import Run
from gs_train.scene.first_splats import FirstSplats
from gs_train.tide.model import StoredModel

ADAM = {"betas": (0.9, 0.999), "eps": 1e-15, "ceilings": {"means": 0.1, "scales": 0.02}}
NOWHERE = Frame((0.0, 0.0, 0.0), 1.0, 1.0)
N = 5000


@pytest.fixture(scope="module")
def runs(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of eight steps, by preset."""
    root = tmp_path_factory.mktemp("runs")
    fitted(tiny_capture, root / "tide", *FEW)
    for preset in ("none", "best", "naive"):
        fitted(tiny_capture, root / preset, offload=preset)
    return root


@pytest.fixture(scope="module")
def ply(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ply") / "splats.ply"
    write_ply(path, rows_of(N, 1))
    return path


def saved_rows(run: Path) -> KeyedRows:
    """What looks find in the newest checkpoint of a run, by key."""
    _, model = Run.open(run).read(torch.device("cpu"))
    if isinstance(model, StoredModel):
        parts = list(model.rows.pieces())
        keys = torch.cat([keys for keys, _ in parts])
        rows = {name: torch.cat([own[name] for _, own in parts]) for name in NAMES}
    else:
        keys = model.keys.values
        chunks = list(caught_up_chunks(model))
        rows = {name: torch.cat([own[name] for own in chunks]) for name in NAMES}
    by_key = KeyedRows(keys[keys.argsort()].clone(), in_order(keys, rows))
    model.close()
    return by_key


def in_order(keys: Tensor, rows: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: values[keys.argsort()] for name, values in rows.items()}


def found(path: Path, capture: Path, out: Path, frame: Frame, **options: object) -> FirstSplats:
    options = {"sh_degree": 1, "strategy": "fixed", **options}
    config = FitConfig(data=capture, out=out, init=path, **options)
    splats = first_splats(config, frame, RunFolder(out))
    assert splats is not None
    return splats


def in_memory(splats: FirstSplats, capture: Path) -> KeyedRows:
    config = FitConfig(data=capture, out=Path("nowhere"))
    rows, keys = splats.in_memory(config, StopRequest())
    assert keys.next == int(keys.values.max()) + 1
    return KeyedRows(keys.values.sort().values, in_order(keys.values, rows))


def assert_equal(ours: KeyedRows, theirs: KeyedRows) -> None:
    assert torch.equal(ours.keys, theirs.keys)
    assert set(ours.rows) == set(NAMES)
    for name in NAMES:
        assert torch.equal(ours.rows[name], theirs.rows[name]), name


# ---------------------------------------------------------------------- values and keys


@pytest.mark.parametrize("preset", ["none", "best", "naive", "tide"])
@pytest.mark.parametrize("what", ["run", "checkpoint"])
def test_a_run_of_any_preset_gives_its_present_values(
    runs: Path, tiny_capture: Path, tmp_path: Path, preset: str, what: str
) -> None:
    frame = Run.open(runs / preset).frame
    path = runs / preset
    if what == "checkpoint":
        newest = latest_checkpoint(path / "checkpoints")
        assert newest is not None
        path = newest
    splats = found(path, tiny_capture, tmp_path, frame)
    assert_equal(in_memory(splats, tiny_capture), saved_rows(runs / preset))


@pytest.mark.parametrize("is_alone", [False, True], ids=["in its run", "alone"])
def test_a_store_gives_its_present_values(
    runs: Path, tiny_capture: Path, tmp_path: Path, is_alone: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = runs / "tide" / "store"
    if is_alone:
        path = shutil.copytree(path, tmp_path / "elsewhere")
    splats = found(path, tiny_capture, tmp_path / "out", Run.open(runs / "tide").frame)
    assert_equal(in_memory(splats, tiny_capture), saved_rows(runs / "tide"))
    assert ("is in no run" in capsys.readouterr().err) == is_alone


def test_a_file_gives_its_values_and_places(ply: Path, tiny_capture: Path, tmp_path: Path) -> None:
    splats = found(ply, tiny_capture, tmp_path, NOWHERE)
    expected = KeyedRows(torch.arange(N, dtype=torch.int32), rows_of(N, 1))
    assert_equal(in_memory(splats, tiny_capture), expected)


def test_harmonics_of_a_higher_degree_begin_at_zero(
    ply: Path, tiny_capture: Path, tmp_path: Path
) -> None:
    splats = found(ply, tiny_capture, tmp_path, NOWHERE, sh_degree=3)
    rows = in_memory(splats, tiny_capture).rows
    assert torch.equal(rows["shN"][:, :3], rows_of(N, 1)["shN"])
    assert not rows["shN"][:, 3:].any()
    assert rows["shN"].shape == (N, 15, 3)


def test_rows_of_another_frame_are_moved() -> None:
    rows = rows_of(50, 1)
    here, there = Frame((3.0, -1.0, 2.0), 0.5, 1.0), Frame((-8.0, 0.0, 4.0), 2.0, 1.0)
    moved = here.rows_in(rows, there.shift, there.scale)
    back = there.rows_in(moved, here.shift, here.scale)
    for name in NAMES:
        torch.testing.assert_close(back[name], rows[name], rtol=1e-6, atol=2e-6)
    captured, also = there.rows_out(rows), here.rows_out(moved)
    for name in ("means", "scales"):
        torch.testing.assert_close(captured[name], also[name], rtol=1e-6, atol=2e-6)
    assert here.rows_in(rows, here.shift, here.scale)["means"] is rows["means"]


def test_rows_that_are_not_finite_are_left_out_and_others_keep_their_keys(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, path = rows_of(300, 1), tmp_path / "splats.ply"
    write_ply(path, rows)
    data = bytearray(path.read_bytes())
    head = data.index(b"end_header\n") + len(b"end_header\n")
    size = (len(data) - head) // 300
    data[head + 7 * size : head + 7 * size + 4] = b"\x00\x00\xc0\x7f"
    path.write_bytes(data)
    ours = in_memory(found(path, tiny_capture, tmp_path / "o", NOWHERE), tiny_capture)
    stays = torch.arange(300) != 7
    expected = KeyedRows(torch.arange(300).int()[stays], {k: v[stays] for k, v in rows.items()})
    assert_equal(ours, expected)
    assert "1 Gaussians left out" in capsys.readouterr().err


# ---------------------------------------------------------------------- into a store


@pytest.mark.parametrize("memory", [400_000, 3_000_000, 1 << 30])
@pytest.mark.parametrize("block_rows", [16, 1024])
def test_a_store_has_the_rows_of_a_start_in_memory_whatever_memory_there_is(
    ply: Path, tiny_capture: Path, tmp_path: Path, memory: int, block_rows: int
) -> None:
    splats = found(ply, tiny_capture, tmp_path, Frame((1.0, 2.0, 3.0), 0.25, 1.0))
    how = {"block_rows": block_rows, **ADAM}
    n = stored_splats(splats, tmp_path / "s", **how, memory=memory, stop=StopRequest())
    expected = in_memory(splats, tiny_capture)
    StoredRows.create(tmp_path / "m", expected.rows, expected.keys, **how)
    assert n == N
    assert rows_by_key(tmp_path / "s") == rows_by_key(tmp_path / "m")


def test_memory_for_a_region_is_asked_for_in_one_line(
    ply: Path, tiny_capture: Path, tmp_path: Path
) -> None:
    splats = found(ply, tiny_capture, tmp_path, NOWHERE)
    with pytest.raises(InputError, match="memory must be at least"):
        stored_splats(
            splats, tmp_path / "s", block_rows=64, **ADAM, memory=1000, stop=StopRequest()
        )
    assert not (tmp_path / "s").exists()
    assert not place_of_making(tmp_path / "s").exists()


class StoppedAt(StopRequest):
    """Asked to stop at the n-th time that someone looks."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.left = n

    def check(self, work: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise Interrupted(2, work)


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_start_that_is_stopped_leaves_nothing(
    ply: Path, tiny_capture: Path, tmp_path: Path, at: int
) -> None:
    splats = found(ply, tiny_capture, tmp_path, NOWHERE)
    with pytest.raises(Interrupted):
        stored_splats(
            splats, tmp_path / "s", block_rows=64, **ADAM, memory=1 << 20, stop=StoppedAt(at)
        )
    assert not any(tmp_path.iterdir())


# ---------------------------------------------------------------------- runs


_LONG = [pytest.param(source, marks=pytest.mark.long) for source in ("none", "best", "store")]


@pytest.mark.parametrize("source", ["ply", "tide", *_LONG])
def test_the_first_step_is_the_same_in_memory_and_from_a_drive(
    runs: Path, ply: Path, tiny_capture: Path, tmp_path: Path, source: str
) -> None:
    path = {"ply": ply, "store": runs / "tide" / "store"}.get(source, runs / source)
    options = ("--steps", "1", "--init", str(path), "--cap", "9000")
    tide = fitted(tiny_capture, tmp_path / "tide", *FEW, *options)
    others = ("none", "best") if source == "tide" else ("none",)
    for preset in others:
        out = fitted(tiny_capture, tmp_path / preset, *options, offload=preset)
        assert_equal(saved_rows(tide), saved_rows(out))


def test_a_run_that_may_grow_begins_with_the_keys_of_another(
    runs: Path, tiny_capture: Path, tmp_path: Path
) -> None:
    arguments = ["fit", str(tiny_capture), "--renderer", "cpu", "--steps", "1", "--out"]
    arguments += [str(tmp_path / "next"), "--init", str(runs / "none"), "--sh-degree", "1"]
    assert main([*arguments, "--offload", "none"]) == 0
    assert torch.equal(saved_rows(tmp_path / "next").keys, saved_rows(runs / "none").keys)


def test_ranks_own_rows_with_the_keys_that_these_had() -> None:
    rows = rows_of(500, 1)
    chance = torch.Generator().manual_seed(0)
    keys = RowKeys(torch.randperm(5000, generator=chance)[:500].int(), 5000)
    parts = [first_rows(rows, rank=rank, n_ranks=3, keys=keys) for rank in range(3)]
    assert all(part.keys.next == 5000 for part in parts)
    own = torch.cat([part.keys.values for part in parts])
    together = {name: torch.cat([part.rows[name] for part in parts]) for name in NAMES}
    ours = KeyedRows(own.sort().values, in_order(own, together))
    assert_equal(ours, KeyedRows(keys.values.sort().values, in_order(keys.values, rows)))


# ---------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"cap": 4999}, "--cap must be at least 5,000"),
        ({"sh_degree": 0}, "--sh-degree must be at least 1"),
        ({"init_opacity": 0.5}, "--init-opacity is for points"),
        ({"init_scale": 0.5}, "--init-scale is for points"),
    ],
)
def test_options_that_do_not_suit_gaussians_are_refused(
    ply: Path, tiny_capture: Path, tmp_path: Path, options: dict[str, object], line: str
) -> None:
    with pytest.raises(InputError, match=line):
        found(ply, tiny_capture, tmp_path, NOWHERE, **options)


def test_folders_of_other_things_are_refused(
    runs: Path, tiny_capture: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="must be a PLY file, the folder of a run, a checkpoint"):
        found(tmp_path / "empty", tiny_capture, tmp_path / "o", NOWHERE)
    (tmp_path / "begun" / "checkpoints").mkdir(parents=True)
    with pytest.raises(InputError, match="must have a checkpoint"):
        found(tmp_path / "begun", tiny_capture, tmp_path / "o", NOWHERE)
    moved = shutil.copytree(runs / "tide", tmp_path / "moved")
    shutil.rmtree(moved / "store")
    with pytest.raises(InputError, match="must hold the store"):
        found(moved, tiny_capture, tmp_path / "o", NOWHERE)


def test_the_run_that_is_begun_with_is_not_overwritten(
    runs: Path, ply: Path, tiny_capture: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(runs / "tide", tmp_path / "run")
    frame = Run.open(run).frame
    for path in (run, run / "store"):
        with pytest.raises(InputError, match="--overwrite would remove --init"):
            found(path, tiny_capture, run, frame, overwrite=True)
    found(ply, tiny_capture, run, frame, overwrite=True)


def test_a_cloud_of_points_is_no_cloud_of_gaussians(ply: Path, tiny_capture: Path) -> None:
    config = FitConfig(data=tiny_capture, out=Path("nowhere"))
    assert first_splats(config, NOWHERE, RunFolder(Path("nowhere"))) is None
    config = dataclasses.replace(config, init=ply)
    assert first_splats(config, NOWHERE, RunFolder(Path("nowhere"))) is not None
    assert PlyRows(ply).n_rows == N
