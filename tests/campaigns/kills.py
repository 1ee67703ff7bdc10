# SPDX-License-Identifier: Apache-2.0
"""kill -9 at any moment of a run: what goes on from there ends as if nothing had happened.

Each case starts a run of one preset and strategy in a process that kills itself before a random
call, goes on with it, perhaps kills that too, and at last lets it end. Good is: every folder in
between can be gone on with, or started anew where nothing was saved; and the files in the end are
those of a run that nobody killed, byte for byte but for times, and no others.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import os
import re
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from campaigns.case import Case
from campaigns.forked import (
    Act,
    Ended,
    at_call,
    at_change,
    count_calls,
    count_changes,
    run_forked,
)
from campaigns.good_files import write_captures
from gs_pinned import BlockStore
from gs_train.checkpoint import latest_checkpoint, open_checkpoint
from gs_train.cli import main
from gs_train.runs.logs import read_log

SECONDS = 300.0

_COMMAND_S = 100.0
_WAYS = (
    *itertools.product(("none", "naive", "clm", "gs-scale", "best"), ("adc", "mcmc")),
    *(("tide", "fixed"),) * 3,
)
"""Presets and strategies, as often as they are drawn."""
_STEPS = "22"
_OPTIONS = (
    *("--renderer", "cpu", "--steps", _STEPS, "--cap", "240", "--sh-degree", "1"),
    *("--checkpoint-every", "5", "--resort-every", "8", "--sh-every", "6"),
    *("--adc.refine-start", "3", "--adc.refine-every", "4", "--adc.grow-grad2d", "1e-6"),
    *("--mcmc.refine-start", "3", "--mcmc.refine-every", "4"),
    *("--block-rows", "16", "--tide.slots", "4", "--tide.arena", "30kB"),
    *("--exposure", "--background", "random"),
)
_IS_TRAFFIC = re.compile(r"(blocks|bytes)_\w+|snapshot_pause_s").fullmatch
_UNEQUAL = ("tensorboard", "cache", "store")
"""Folders whose files differ between runs that are alike."""


@dataclass(frozen=True)
class _Undisturbed:
    """A run that nobody kills.

    Attributes:
        contents: of its files, as far as they must be equal.
        n_calls, n_changes: how many calls of functions it makes, and changes of files.
    """

    contents: dict[str, object]
    n_calls: int
    n_changes: int


def prepare(shared: Path) -> None:
    write_captures(shared)


def run(case: Case) -> None:
    offload, strategy = _WAYS[case.rng.integers(len(_WAYS))]
    undisturbed = _undisturbed(case.shared, offload, strategy)
    _Attempts(case, offload, strategy, undisturbed).go()
    left, expected = _contents(case.folder / "run"), undisturbed.contents
    assert left.keys() == expected.keys(), (
        f"files must be those of an undisturbed run, got {sorted(left.keys() ^ expected.keys())}"
    )
    different = sorted(name for name in left if left[name] != expected[name])
    assert not different, f"files must be as in an undisturbed run, got others in {different}"


class _Attempts:
    """A run that is killed up to three times and ends at last."""

    def __init__(self, case: Case, offload: str, strategy: str, undisturbed: _Undisturbed) -> None:
        self._case, self._undisturbed = case, undisturbed
        self._out = case.folder / "run"
        self._fit = _command(case.shared, self._out, offload, strategy)
        self._resume = [*self._fit[:4], "--resume"]
        case.say(f"{offload} {strategy}")

    def go(self) -> None:
        command = self._fit
        for k in range(int(self._case.rng.integers(1, 4))):
            share = 1.0 if k == 0 else 0.6  # what goes on is shorter
            command = self._next(command, self._run(command, share))
            if self._case.rng.random() < 0.2:
                self._look()
            if command is not self._fit and self._case.rng.random() < 0.15:
                command = [*self._fit, "--overwrite"]
        ended = self._run(command)
        assert ended.status == 0, f"{command} must end well, got {ended}"

    def _next(self, command: list[str], ended: Ended) -> list[str]:
        """What goes on after a command that was killed, or that ended before it was."""
        assert ended.status in (0, -9), f"{command} must not fail, got {ended}"
        if next(self._out.glob("checkpoints/step_*[0-9]/manifest.json"), None):
            return self._resume
        refused = self._run(self._resume)
        is_clear = refused.status == 2 and len(refused.lines) == 1
        assert is_clear, f"--resume must be refused in one line without a checkpoint, got {refused}"
        return [*self._fit, "--overwrite"]

    def _look(self) -> None:
        ended = self._run(["eval", str(self._out), "--renderer", "cpu"])
        assert ended.status in (0, 2), f"eval must end in order, got {ended}"

    def _run(self, command: list[str], share: float = 0.0) -> Ended:
        """Run a command.

        Args:
            share: of an undisturbed run's calls or changes, before any of which it kills itself.
        """
        said = command[-1] if command[-1] in ("--resume", "--overwrite") else command[0]
        before = self._moment(said, share) if share else None
        if before is None:
            self._case.say(said)
        return run_forked(command, self._case.folder, seconds=_COMMAND_S, before=before)

    def _moment(self, said: str, share: float) -> Act:
        rng, of = self._case.rng, self._undisturbed
        if rng.random() < 0.5:
            at = 1 + int(rng.random() * share * of.n_calls)
            self._case.say(f"{said} killed at call {at}")
            return at_call(at, _kill)
        at = 1 + int(rng.random() * share * of.n_changes)
        self._case.say(f"{said} killed at change {at}")
        return at_change(at, self._out, lambda *_: _kill())


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@functools.cache
def _undisturbed(shared: Path, offload: str, strategy: str) -> _Undisturbed:
    _warm_up(shared)
    folder = shared.with_name(f"undisturbed-{offload}-{strategy}")
    folder.mkdir()
    out = folder / "run"
    calls, changes = folder / "calls", folder / "changes"

    def count() -> None:
        count_calls(calls)()
        count_changes(out, changes)()

    command = _command(shared, out, offload, strategy)
    ended = run_forked(command, folder, seconds=_COMMAND_S, before=count)
    assert ended.status == 0, ended
    of = _Undisturbed(_contents(out), int(calls.read_text()), int(changes.read_text()))
    shutil.rmtree(folder)
    return of


@functools.cache
def _warm_up(shared: Path) -> None:
    """Import and compile here what forks would, each."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # which no fork could use
    for offload, strategy in (("none", "adc"), ("best", "adc"), ("tide", "fixed")):
        out = shared.with_name(f"warm-{offload}")
        with contextlib.redirect_stderr(io.StringIO()):
            assert main(_command(shared, out, offload, strategy)) == 0
        shutil.rmtree(out)


def _command(shared: Path, out: Path, offload: str, strategy: str) -> list[str]:
    of_run = ["--offload", offload, "--strategy", strategy]
    return ["fit", str(shared / "binary"), "--out", str(out), *of_run, *_OPTIONS]


def _contents(out: Path) -> dict[str, object]:
    """What must be equal of each file that must be there."""
    files = [path for path in out.rglob("*") if not path.is_dir()]
    named = {str(path.relative_to(out)): path for path in files}
    equal = {
        name: _equal_part(path)
        for name, path in named.items()
        if name.split(os.sep)[0] not in _UNEQUAL
    }
    if "store" in {name.split(os.sep)[0] for name in named}:
        equal["store"] = _stored(out)
    return equal


def _stored(out: Path) -> dict[str, bytes]:
    """The rows of the newest checkpoint by plane, in the order of keys: where their records lie in
    the files depends on when the drive was ready."""
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    number = open_checkpoint(newest).state["store"]["snapshot"]
    with BlockStore.open(out / "store", snapshot=number, read_only=True) as store:
        assert store.verify().is_intact
        planes = store.read(store.blocks)
    order = planes["key"][:, 0].argsort()
    return {name: values[order].tobytes() for name, values in planes.items()}


def _equal_part(path: Path) -> object:
    if path.name == "metrics.json":
        metrics = json.loads(path.read_text())
        return {name: metrics[name] for name in ("psnr", "ssim", "images", "n_gaussians", "steps")}
    if path.name == "report.html":  # which tells times, memory and paths besides
        page = path.read_text()
        assert page.endswith("</html>\n")
        return page[page.index("<h2>Curves") : page.index("<h2>Memory and rate")]
    if path.name == "manifest.json":
        manifest = json.loads(path.read_text())
        return {name: manifest[name] for name in ("step", "tensors", "shards")}
    if path.name == "run.json":  # which tells runs apart
        return None
    if path.name == "log.csv":  # which counts what each process moved
        columns, rows = read_log(path, None)
        return [[row[name] for name in columns if not _IS_TRAFFIC(name)] for row in rows]
    if path.name == "config.yml":  # whose paths differ
        lines = path.read_text().splitlines()
        return [line for line in lines if not line.startswith(("out:", "data:"))]
    return path.read_bytes()
