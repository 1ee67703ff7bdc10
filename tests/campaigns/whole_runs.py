# SPDX-License-Identifier: Apache-2.0
"""Runs that nothing disturbs, and what a disturbed one must come to in the end."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

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
        n_calls, n_changes: events of its ``fit``, as `forked` counts them.
        digests: of what each command made.
    """

    folder: Path
    n_calls: int
    n_changes: int
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
        counts = work / "calls", work / "changes"
        run = work / "run"
        work.mkdir(parents=True)
        numbers, digests = [0, 0], {}
        if warm:
            assert main(command.fit(run)) == 0
        else:

            def count() -> None:
                count_calls(counts[0])()
                count_changes(run, counts[1])()

            ended = run_forked(command.fit(run), work, seconds=seconds, before=count)
            assert ended.status == 0, ended
            numbers = [int(path.read_text()) for path in counts]
            digests["fit"] = digest("fit", run)
        for what in FOLLOW_UPS:
            if warm:
                assert main(follow_up(what, run)) == 0
            else:
                ended = run_forked(follow_up(what, run), work, seconds=seconds)
                assert ended.status == 0, ended
                digests[what] = digest(what, run)
        run.rename(folder)
        shutil.rmtree(work)
        kept.with_suffix(f".{os.getpid()}").write_text(json.dumps([numbers, digests]))
        kept.with_suffix(f".{os.getpid()}").replace(kept)
    (n_calls, n_changes), digests = json.loads(kept.read_text())
    return Whole(folder, n_calls, n_changes, digests)


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
