# SPDX-License-Identifier: Apache-2.0
"""What runs on a drive refuse, and what they say of stores and drives in trouble: one line."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from next_format import make_of_version_2
from tide_runs import FEW, STEPS, assert_same, command, fitted, saved

from gs_pinned import BlockStore
from gs_train import fit
from gs_train.checkpoint import latest_checkpoint, open_checkpoint
from gs_train.cli import main
from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.runs import strategies


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("gs-train: error: ") for line in lines) == 1
    assert not any(line.startswith("Traceback") for line in lines)
    return lines[-1]


# ---------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "adc"}, "give --strategy fixed, got adc"),
        ({"strategy": "mcmc"}, "give --strategy fixed, got mcmc"),
        ({"semantics": "sparse"}, "needs --semantics dense, got sparse; --offload best takes both"),
        ({"regularise": "visible"}, "has no --regularise visible: leave it out"),
        ({"opacity_reg": 0.01}, "--opacity-reg must be 0, got 0.01; --offload best takes any"),
        ({"scale_reg": 0.5}, "--scale-reg must be 0, got 0.5"),
        ({"gpus": "2"}, "is for one GPU: leave --gpus out"),
        ({"block_rows": 8}, "--block-rows must be 16 to 8192, got 8"),
        ({"block_rows": 10_000}, "--block-rows must be 16 to 8192, got 10000"),
        (
            {"offload": "best", "store": Path("z")},
            "--store needs --offload tide, got",
        ),
    ],
)
def test_options_that_rows_on_a_drive_do_not_take(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FitConfig(Path("x"), Path("y"), **{"offload": "tide", "strategy": "fixed", **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tide.slots", "0"], "--tide.slots must be at least 1, got 0"),
        (["--tide.arena", "some"], "--tide.arena must be a size such as 4GiB"),
        (["--tide.arena", "5000"], "--tide.arena must be at least 9,088 bytes, for two blocks"),
        (["--device-memory", "5000"], "--device-memory must be at least 1MiB for --offload tide"),
        (["--host-memory", "1MiB"], "--host-memory must be at least 513MiB for --offload tide"),
        (
            ["--tide.slots", "30", "--device-memory", "100kB"],
            "--tide.slots must be at most 22, of 4.4 KiB each, for --device-memory 97.7 KiB",
        ),
        (
            ["--tide.arena", "64kB", "--host-memory", "512MiB"],
            "--host-memory must be at least 513MiB for --tide.arena 64kB, got 512.0 MiB",
        ),
    ],
)
def test_memory_that_is_too_small_names_what_works(
    tiny_capture: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    out = tmp_path / "run"
    assert main(command(tiny_capture, out, "--block-rows", "16", *options)) == 2
    assert message in last_line(capsys)
    assert not out.exists()


@pytest.mark.parametrize(
    ("option", "too_small", "named", "others"),
    [
        ("--tide.slots", "0", r"at least (\d+)", []),
        ("--tide.slots", "30", r"at most (\d+), of", ["--device-memory", "100kB"]),
        ("--tide.arena", "5000", r"at least ([\d,]+) bytes", ["--tide.slots", "1"]),
        ("--device-memory", "5000", r"at least (\d+MiB) for", []),
        ("--host-memory", "1MiB", r"at least (\d+MiB) for", []),
        ("--host-memory", "512MiB", r"at least (\d+MiB) for", ["--tide.arena", "64kB"]),
    ],
)
def test_the_size_that_is_named_works(
    tiny_capture: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    option: str,
    too_small: str,
    named: str,
    others: list[str],
) -> None:
    """At once, or with the size that an over-full view names in its turn."""
    arguments = ["--block-rows", "16", "--steps", "1", *others, option]
    assert main(command(tiny_capture, tmp_path / "run", *arguments, too_small)) == 2
    size = _named(named, last_line(capsys))
    status = main(command(tiny_capture, tmp_path / "run", *arguments, size))
    if status:
        larger = _named(r"(\d+MiB) suffices for all views seen so far", last_line(capsys))
        status = go_on(tiny_capture, tmp_path / "run", "--steps", "1", "--device-memory", larger)
    assert status == 0


def _named(pattern: str, line: str) -> str:
    found = re.search(pattern, line)
    assert found is not None, line
    return found[1].replace(",", "")


@pytest.mark.parametrize("slots", ["1", "22"])
def test_the_memory_that_an_over_full_view_names_works(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], slots: str
) -> None:
    """For the run that goes on, and for a new one."""
    small = [
        "--steps",
        "2",
        "--block-rows",
        "16",
        "--tide.slots",
        slots,
        "--device-memory",
        "100kB",
    ]
    out = tmp_path / "run"
    assert main(command(tiny_capture, out, *small)) == 2
    size = _named(r"(\d+MiB) suffices for all views seen so far; go on with", last_line(capsys))
    assert go_on(tiny_capture, out, "--steps", "2", "--device-memory", size) == 0
    fitted(tiny_capture, tmp_path / "new", *small, "--device-memory", size)


def test_a_strategy_from_python_is_refused(tiny_capture: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leave out the strategy from Python"):
        fit(
            FitConfig(tiny_capture, tmp_path / "run", offload="tide", strategy="fixed"),
            strategy=strategies.fixed,
            renderer="cpu",
        )


# ---------------------------------------------------------------------- stores in trouble


@pytest.fixture(scope="module")
def begun(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps that shall have eight; not to be written to."""
    out = tmp_path_factory.mktemp("begun") / "run"
    return fitted(tiny_capture, out, *FEW, "--steps", "4", "--decay-steps", str(STEPS))


@pytest.fixture
def out(begun: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(begun, tmp_path / "run"))


def go_on(capture: Path, out: Path, *more: str) -> int:
    return main(["fit", str(capture), "--out", str(out), "--resume", "--steps", str(STEPS), *more])


def _without(name: str) -> Callable[[Path], object]:
    return lambda store: (store / name).unlink()


def _changed(name: str, at: int) -> Callable[[Path], object]:
    def change(store: Path) -> None:
        (path,) = store.glob(name)
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    return change


def _every_record(store: Path) -> None:
    """One byte of each page but the first, which is the segment's header."""
    data = bytearray((store / "seg-000000").read_bytes())
    data[4096 + 1000 :: 4096] = bytes(b ^ 1 for b in data[4096 + 1000 :: 4096])
    (store / "seg-000000").write_bytes(data)


def _foreign(store: Path) -> None:
    shutil.rmtree(store)
    from gs_pinned import Plane

    BlockStore.create(store, [Plane("w", 1)], block_rows=16).close()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (shutil.rmtree, "must hold the store {id} of this run, got no store: name the folder"),
        (_without("STORE"), "must hold the store {id} of this run, got no store"),
        (_foreign, "must hold the store {id} of this run, got the store "),
        (_without("seg-000000"), "is damaged, or not all of it is there: "),
        (make_of_version_2, "must have version 1, got 2; use the version of gs-train that wrote"),
        (_changed("STORE", 8), "is damaged, or not all of it is there: "),  # its version alone
        (_changed("STORE", 70), "is damaged, or not all of it is there: "),
        (_every_record, "is damaged, or not all of it is there"),
        (_changed("snap-*3", 100), "is damaged, or not all of it is there: "),
    ],
)
def test_a_store_that_is_damaged_or_another_is_refused(
    tiny_capture: Path,
    out: Path,
    capsys: pytest.CaptureFixture[str],
    harm: Callable[[Path], object],
    message: str,
) -> None:
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    identity = open_checkpoint(newest).state["store"]["identity"]
    harm(out / "store")
    for again in (lambda: go_on(tiny_capture, out), lambda: main(["eval", str(out)])):
        capsys.readouterr()
        assert again() == 2
        assert message.format(id=identity[:8]) in last_line(capsys)
    assert main(["inspect", str(out), "--verify"]) == 2


def test_where_the_newest_snapshot_is_damaged_the_one_before_goes_on(
    tiny_capture: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert go_on(tiny_capture, out, "--checkpoint-every", "2") == 0
    ended = saved(out)
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    number = open_checkpoint(newest).state["store"]["snapshot"]
    _changed(f"snap-*{number}", 100)(out / "store")
    capsys.readouterr()
    assert go_on(tiny_capture, out) == 2
    assert "; remove the newest checkpoint to go on from the one before" in last_line(capsys)
    shutil.rmtree(newest)
    assert go_on(tiny_capture, out) == 0
    assert_same(saved(out), ended)


def test_a_store_has_one_writer(
    tiny_capture: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with BlockStore.open(out / "store"):
        capsys.readouterr()
        assert go_on(tiny_capture, out) == 2
        assert "is written by another process" in last_line(capsys)
        assert main(["eval", str(out), "--renderer", "cpu"]) == 0  # looking goes on
    assert go_on(tiny_capture, out) == 0


@pytest.mark.parametrize(
    ("before", "options", "message"),
    [
        ("tide", ["--offload", "none"], "--offload must be tide as before, got none"),
        ("tide", ["--block-rows", "64"], "--resume must keep --block-rows 32 of the store"),
        ("none", ["--offload", "tide"], "--offload must be none as before, got tide"),
    ],
)
def test_a_run_goes_on_where_its_rows_are(
    tiny_capture: Path,
    tmp_path: Path,
    out: Path,
    capsys: pytest.CaptureFixture[str],
    before: str,
    options: list[str],
    message: str,
) -> None:
    if before == "none":
        out = fitted(tiny_capture, tmp_path / "none", "--steps", "1", offload="none")
    capsys.readouterr()
    assert go_on(tiny_capture, out, *options) == 2
    assert message in last_line(capsys)


def test_a_store_is_put_into_no_folder_with_something(
    tiny_capture: Path, tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for there in (out / "store", out):
        capsys.readouterr()
        new = tmp_path / "new"
        assert main(command(tiny_capture, new, *FEW, "--store", str(there))) == 2
        assert f"the store, {there}, must be empty or new, it holds " in last_line(capsys)
        assert not new.exists()
    assert saved(out)["key"].shape == (600, 1)


# ---------------------------------------------------------------------- drives in trouble


def _failing(monkeypatch: pytest.MonkeyPatch, call: str, code: int, after: int) -> None:
    """One kind of call fails from some call on, of stores that are opened for writing."""
    opened, n_calls = BlockStore.open, 0

    def on_call(name: str, *_: object) -> int:
        nonlocal n_calls
        n_calls += name == call
        return -code if name == call and n_calls > after else 0

    def failing(path: Any, **options: Any) -> BlockStore:
        return opened(path, **options, **({} if options.get("read_only") else {"on_call": on_call}))

    monkeypatch.setattr(BlockStore, "open", failing)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("write", errno.ENOSPC),
        ("sync", errno.EIO),
        *(
            pytest.param(call, code, marks=pytest.mark.long)
            for call in ("write", "sync", "rename", "read")
            for code in (errno.ENOSPC, errno.EIO, errno.EROFS)
        ),
    ],
)
def test_a_drive_that_errs_loses_nothing_that_was_saved(
    tiny_capture: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    call: str,
    code: int,
) -> None:
    with monkeypatch.context() as failing:
        _failing(failing, call, code, after=1)
        assert go_on(tiny_capture, out, "--checkpoint-every", "2") == 2
    line = last_line(capsys)
    assert ("became full" if code == errno.ENOSPC else "cannot be used") in line
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    assert open_checkpoint(newest).step >= 4
    assert main(["eval", str(out), "--renderer", "cpu"]) == 0
    assert go_on(tiny_capture, out) == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    store = closed / "store"
    assert main(command(tiny_capture, tmp_path / "run", *FEW, "--store", str(store))) == 2
    assert f"the store {store} cannot be used" in last_line(capsys)
