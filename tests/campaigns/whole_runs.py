# SPDX-License-Identifier: Apache-2.0
"""Runs that nothing disturbs, and what a disturbed one must come to in the end."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaigns.forked import count_calls, count_changes, run_forked
from campaigns.good_files import OPTIONS
from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.cli import main

_STEPS = 5
FOLLOW_UPS = ("eval", "export", "render")


@dataclass(frozen=True)
class Command:
    """A ``fit``: of what, and with which options."""

    capture: Path
    preset: str
    strategy: str

    @property
    def name(self) -> str:
        return f"{self.preset}-{self.strategy}"

    def fit(self, out: Path, *more: str) -> list[str]:
        options = ["--steps", str(_STEPS), *OPTIONS, "--offload", self.preset]
        options += ["--strategy", self.strategy]
        options += ["--block-rows", "16", "--tide.slots", "4", "--tide.arena", "30kB"]
        return ["fit", str(self.capture), "--out", str(out), *options, *more]


def follow_up(what: str, out: Path) -> list[str]:
    """The arguments of ``eval``, ``export`` or ``render``."""
    options = {
        "eval": ["--renderer", "cpu"],
        "export": ["--layout", "gsplat"],
        "render": ["--renderer", "cpu", "--path", "test"],
    }
    return [what, str(out), *options[what]]


@dataclass(frozen=True)
class Whole:
    """An undisturbed run.

    Attributes:
        folder: the run's.
        n_calls, n_changes: events of each command, as `forked` counts them.
        digests: of what each command made.
    """

    folder: Path
    n_calls: dict[str, int]
    n_changes: dict[str, int]
    digests: dict[str, str]


def whole_run(command: Command, shared: Path, *, seconds: float, warm: bool = False) -> Whole:
    """Run a command and what follows it undisturbed; once for each folder ``shared``.

    Args:
        warm: in this process instead of a child, for what is loaded and compiled then.
    """
    folder = shared / ("warm" if warm else "whole") / command.name
    kept = folder.parent / f"{command.name}.json"
    if not kept.exists():
        work = folder.with_name(f"{folder.name}.{os.getpid()}")
        run = work / "run"
        shutil.rmtree(work, ignore_errors=True)  # of a case that failed here
        work.mkdir(parents=True)
        kinds: tuple[dict[str, Any], ...] = ({}, {}, {})
        for what in ("fit", *FOLLOW_UPS):
            arguments = command.fit(run) if what == "fit" else follow_up(what, run)
            if warm:
                assert main(arguments) == 0
                continue
            for kind, number in zip(kinds, _counted(arguments, run, work, seconds)):
                kind[what] = number
            kinds[-1][what] = digest(what, run)
        run.rename(folder)
        shutil.rmtree(work)
        kept.with_suffix(f".{os.getpid()}").write_text(json.dumps(kinds))
        kept.with_suffix(f".{os.getpid()}").replace(kept)
    return Whole(folder, *json.loads(kept.read_text()))


def _counted(arguments: list[str], run: Path, work: Path, seconds: float) -> list[int]:
    """Calls and changes of a command, which ends with 0."""
    counts = work / "calls", work / "changes"

    def count() -> None:
        count_calls(counts[0])()
        count_changes(run, counts[1])()

    ended = run_forked(arguments, work, seconds=seconds, before=count)
    assert ended.status == 0, ended
    return [int(path.read_text()) for path in counts]


def digest(what: str, run: Path) -> str:
    """Of all that a command makes, but for times."""
    sha = hashlib.sha256()
    if what == "fit":
        newest = latest_checkpoint(run / "checkpoints")
        assert newest is not None, "there must be a checkpoint"
        assert load_checkpoint(newest).step == _STEPS
        files = [*newest.glob("*.safetensors"), *run.glob("point_cloud/*/*.ply")]
    elif what == "eval":
        metrics = json.loads((run / "metrics.json").read_text())
        return json.dumps(metrics.get("mean", metrics.get("psnr")), sort_keys=True)
    else:
        folder = {"export": "export", "render": "renders"}[what]
        files = [path for path in (run / folder).rglob("*.p*") if path.suffix in (".ply", ".png")]
    assert files, f"{what} must have made files"
    for path in sorted(files):
        sha.update(path.name.encode() + path.read_bytes())
    return sha.hexdigest()


def finish(command: Command, what: str, out: Path, folder: Path, *, seconds: float) -> list[str]:
    """Do undisturbed what has been disturbed.

    Returns:
        temporary files that are left.

    Raises:
        AssertionError: it does not end with 0.
    """
    if what != "fit" and not (out / "config.yml").exists():
        shutil.rmtree(out, ignore_errors=True)  # what came after the run had been removed
    if what != "fit" and not latest_checkpoint(out / "checkpoints"):
        what_again = [command.fit(out, "--overwrite"), follow_up(what, out)]
    elif what != "fit":
        what_again = [follow_up(what, out)]
    elif latest_checkpoint(out / "checkpoints"):
        what_again = [command.fit(out, "--resume")]
    else:
        what_again = [command.fit(out, "--overwrite")]
    for arguments in what_again:
        ended = run_forked(arguments, folder, seconds=seconds)
        said = " | ".join(ended.lines[-2:])[-300:]
        assert ended.status == 0, f"must go on afterwards, got {ended.status} and {said!r}"
    return sorted(str(path.relative_to(out)) for path in out.rglob("*.tmp*"))
