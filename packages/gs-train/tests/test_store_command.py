# SPDX-License-Identifier: Apache-2.0
"""``gs-train store``: what it says of a store, of a damaged one, and of one that is written."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from next_format import make_of_version_2
from street import street_rows

from gs_pinned import BlockStore, Plane
from gs_train.blocks.stored_rows import StoredRows
from gs_train.cli import main
from gs_train.machine.progress import TaskProgress

N, BLOCK_ROWS = 300, 64


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with a store of a scene in it."""
    (tmp_path / "run").mkdir()
    StoredRows.create(
        tmp_path / "run" / "store",
        street_rows(N, sh_degree=1),
        torch.arange(N).int(),
        block_rows=BLOCK_ROWS,
        betas=(0.9, 0.999),
        eps=1e-15,
        ceilings={"means": 0.1, "scales": 0.1},
    )
    return tmp_path / "run"


def damage(store: Path, page: int) -> None:
    with open(store / "seg-000000", "r+b") as file:
        file.seek(4096 * page + 700)
        file.write(bytes([file.read(1)[0] ^ 1]) * 9)


@pytest.mark.parametrize("below", ["", "store"])
def test_info_says_what_a_store_holds(
    run: Path, below: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "info", str(run / below)]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    said = {words[0]: words[1] for words in lines[1:]}
    assert lines[0] == [str(run / "store")]
    assert said["format"] == "1"
    assert said["snapshot"] == "1, step 0, this one"
    assert said["blocks"] == "5 of at most 64 rows"
    assert said["appearance.exp_avg"].split() == ["float32", "[12]", "48", "bytes", "a", "row"]
    assert any(words[1].startswith("300 of 284 bytes") for words in lines[1:])


def test_info_lists_the_snapshots_and_their_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with BlockStore.create(tmp_path / "s", [Plane("w", 1)], block_rows=2) as store:
        for value in (1.0, 2.0):
            store.write([0], {"w": np.full((2, 1), value, np.float32)})
            store.snapshot(keep=2)
    assert main(["store", "info", str(tmp_path / "s"), "--snapshot", "1"]) == 0
    said = [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()[2:4]]
    assert said == ["1, of no scene, or damaged, this one", "2, of no scene, or damaged"]


def test_a_whole_store_passes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "check", str(run)]) == 0
    captured = capsys.readouterr()
    assert "5 blocks with 300 rows verified, all whole" in captured.out
    assert "blocks verified 5/5" in captured.err


def test_damage_is_named_by_block_file_and_step(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run / "store", page=1)
    assert main(["store", "check", str(run)]) == 2
    captured = capsys.readouterr()
    for said in (captured.out, captured.err):
        assert "block 0 of step 0" in said
        assert "seg-000000 at page 1" in said
    last = captured.err.splitlines()[-1]
    assert last.startswith(f"gs-train: error: {run}/store is damaged: 1 of 5 blocks")


def test_a_damaged_snapshot_is_damage_though_an_older_one_opens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with BlockStore.create(tmp_path / "s", [Plane("w", 1)], block_rows=2) as store:
        store.write([0], {"w": np.ones((2, 1), np.float32)})
        store.snapshot(keep=2)
        store.snapshot(keep=2)
    (tmp_path / "s" / "snap-0000000002").write_bytes(b"GSSNAPSH")
    for action in ("check", "info"):
        assert main(["store", action, str(tmp_path / "s")]) == 2
        assert "snap-0000000002" in capsys.readouterr().err
        assert main(["store", action, str(tmp_path / "s"), "--snapshot", "1"]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "{run}/none"], "does not exist"),
        (["check", "{run}/store/STORE"], "is no folder"),
        (["info", "{run}/.."], "holds neither STORE nor store/STORE"),
        (["check", "{run}", "--snapshot", "7"], "snapshot 7"),
        (["info", "{run}", "--snapshot", "0"], "--snapshot must be 1"),
    ],
)
def test_what_is_no_store_is_refused_in_one_line(
    run: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", *(word.format(run=run) for word in arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gs-train: error: ")
    assert said in line


def test_a_store_of_another_version_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_of_version_2(run / "store")
    for action in ("check", "info"):
        assert main(["store", action, str(run)]) == 2
        said = "STORE must have version 1, got 2; use the version of gs-train that wrote it\n"
        assert capsys.readouterr().err.endswith(said)


def test_ctrl_c_stops_a_check(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = TaskProgress.__enter__

    def pressed(self: TaskProgress) -> TaskProgress:
        os.kill(os.getpid(), signal.SIGINT)
        return before(self)

    monkeypatch.setattr(TaskProgress, "__enter__", pressed)
    assert main(["store", "check", str(run)]) == 128 + signal.SIGINT
    assert "nothing was changed" in capsys.readouterr().err


def test_a_snapshot_that_its_writer_replaces_meanwhile_is_left_for_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s"
    with BlockStore.create(path, [Plane("w", 1)], block_rows=2) as store:
        store.write([0], {"w": np.ones((2, 1), np.float32)})
        store.snapshot()
        before = BlockStore.verify

        def late(self: BlockStore, *arguments: object) -> object:
            if store.snapshots == [1]:  # the writer goes on before the record is read
                for value in (2.0, 3.0, 4.0):
                    store.write([0], {"w": np.full((2, 1), value, np.float32)})
                    store.snapshot()
            return before(self, *arguments)

        monkeypatch.setattr(BlockStore, "verify", late)
        assert main(["store", "check", str(path)]) == 0
    assert "1 blocks with 2 rows verified" in capsys.readouterr().out
