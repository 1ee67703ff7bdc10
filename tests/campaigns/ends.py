# SPDX-License-Identifier: Apache-2.0
"""Commands that something ends or disturbs: full disks, signals, removed folders, closed pipes.

Each case runs ``fit``, or a command on a finished run, in a child process and lets something
happen at a random event in its middle; often again while it is resumed. Good are: an end with 0, 2
or 128 + the signal; one line that says why and no traceback; and afterwards the same command,
undisturbed, which makes what it would have made at once, to the last byte, and leaves no temporary
file. Where file systems can be mounted, disks are really full or read-only; elsewhere each change
fails as it would there.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from campaigns.case import Case
from campaigns.disks import can_mount, mounted
from campaigns.forked import Act, Ended, at_call, at_change, run_forked
from campaigns.good_files import write_captures
from campaigns.whole_runs import Command, digest, finish, follow_up, whole_run

SECONDS = 300.0

_COMMAND_S = 60.0
_WAYS = (
    *itertools.product(("none", "naive", "clm", "gs-scale", "best"), ("adc", "mcmc")),
    *(("tide", "fixed"),) * 3,
)
"""Presets and strategies, as often as they are drawn."""
_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CLOSED = (errno.EROFS, errno.EACCES)
_NEEDS_NO_ROOM = ("rename", "replace", "remove", "unlink", "rmdir", "truncate")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Trouble:
    """What happens to a command.

    Attributes:
        name: in a few words.
        before: what makes the child meet it.
        signals: that may end it.
        is_silent: whether nobody reads what the command says.
    """

    name: str
    before: Act
    signals: tuple[int, ...] = ()
    is_silent: bool = False


def prepare(shared: Path) -> None:
    """A capture; and every module and kernel, so that children start with them."""
    torch.set_num_threads(1)
    write_captures(shared)
    for preset, strategy in dict(reversed(_WAYS)).items():
        whole_run(
            Command(shared / "binary", preset, strategy), shared, seconds=_COMMAND_S, warm=True
        )


def run(case: Case) -> None:
    torch.set_num_threads(1)
    rng = case.rng
    preset, strategy = _WAYS[rng.integers(len(_WAYS))]
    command = Command(case.shared / "binary", preset, strategy)
    whole = whole_run(command, case.shared, seconds=_COMMAND_S)
    what = str(rng.choice(["fit", "fit", "fit", "eval", "export", "render"]))
    case.say(f"{what}, --offload {preset}, --strategy {strategy}")
    out = case.folder / "run"
    if what != "fit":
        shutil.copytree(whole.folder, out)
    arguments = command.fit(out) if what == "fit" else follow_up(what, out)
    if rng.random() < 0.2 and can_mount():
        _on_a_small_disk(case, arguments, out)
    else:
        for _ in range(int(rng.integers(1, 3))):
            trouble = _trouble(rng, out, whole.n_calls[what], whole.n_changes[what])
            case.say(trouble.name)
            _check(trouble, _run(case, arguments, trouble.before))
            if what == "fit" and (out / "checkpoints").exists():
                arguments = command.fit(out, "--resume")
    left = finish(command, what, out, case.folder, seconds=_COMMAND_S)
    assert digest(what, out) == whole.digests[what], "must make the same bytes afterwards"
    assert not left, f"no temporary file may be left, got {left}"


def _run(case: Case, arguments: list[str], before: Act | None = None) -> Ended:
    return run_forked(arguments, case.folder, seconds=_COMMAND_S, before=before)


def _check(trouble: Trouble, ended: Ended) -> None:
    """It ended as it should."""
    shown = f"got {ended.status} and {' | '.join(ended.lines[-3:])[-400:]!r}"
    assert not ended.hung, f"must end within {_COMMAND_S:g} s, {shown}"
    assert not any(line.startswith("Traceback") for line in ended.lines), f"no traceback, {shown}"
    good = {0, 2, *(128 + number for number in trouble.signals)}
    good |= {-number for number in trouble.signals}
    assert ended.status in good, f"must end with one of {sorted(good)}, {shown}"
    n_errors = sum(line.startswith("gs-train: error: ") for line in ended.lines)
    if not trouble.is_silent:
        assert n_errors == (ended.status == 2), f"errors must be one line, {shown}"
    if ended.status > 128 and not trouble.is_silent:
        assert ended.last.startswith("gs-train: stopped"), f"must say that it stopped, {shown}"


# ---------------------------------------------------------------------- what happens


def _trouble(rng: np.random.Generator, out: Path, n_calls: int, n_changes: int) -> Trouble:
    kinds: tuple[Callable[..., Trouble], ...]
    kinds = (_error, _error, _error, _stop, _stop, _stop_twice, _removal, _clock, _pipe)
    kind: Callable[..., Trouble] = kinds[rng.integers(len(kinds))]
    return kind(rng, out, n_changes if kind is _error else n_calls)


def _error(rng: np.random.Generator, out: Path, n_changes: int) -> Trouble:
    number, at = int(rng.choice(_ERRORS)), int(rng.integers(1, n_changes + 1))
    is_once = number == errno.EIO and rng.random() < 0.5
    left = [1] if is_once else [10**9]

    def fail(kind: str, path: str | None) -> None:
        if number in _FULL and kind in _NEEDS_NO_ROOM:
            return
        if number in _CLOSED and path is None:
            return  # what is open stays so
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(number, os.strerror(number), path)

    how = "once" if is_once else "from"
    name = f"{errno.errorcode[number]} {how} change {at} of {n_changes} on"
    return Trouble(name, at_change(at, out, fail))


def _stop(rng: np.random.Generator, out: Path, n_calls: int) -> Trouble:
    number, at = int(rng.choice(_SIGNALS)), int(rng.integers(1, n_calls + 1))
    name = f"{signal.Signals(number).name} at call {at} of {n_calls}"
    return Trouble(name, at_call(at, lambda: os.kill(os.getpid(), number)), (number,))


def _stop_twice(rng: np.random.Generator, out: Path, n_calls: int) -> Trouble:
    first, then = int(rng.integers(1, n_calls + 1)), int(rng.integers(1, 3000))

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def stop_twice() -> None:
        stop()
        at_call(then, stop)()

    name = f"SIGINT at call {first} of {n_calls} and {then} calls later"
    return Trouble(name, at_call(first, stop_twice), (signal.SIGINT,))


def _removal(rng: np.random.Generator, out: Path, n_calls: int) -> Trouble:
    place = str(rng.choice(["", "tensorboard", "checkpoints", "log.csv"]))
    at = int(rng.integers(1, n_calls + 1))

    def remove() -> None:
        path = out / place
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    return Trouble(f"RUN/{place} removed at call {at} of {n_calls}", at_call(at, remove))


def _clock(rng: np.random.Generator, out: Path, n_calls: int) -> Trouble:
    seconds = float(rng.choice([-1e9, -3600.0, 3600.0, 1e9]))
    at, now = int(rng.integers(1, n_calls + 1)), time.time

    def turn() -> None:
        time.time = lambda: now() + seconds

    return Trouble(f"the clock {seconds:+g} s at call {at} of {n_calls}", at_call(at, turn))


def _pipe(rng: np.random.Generator, out: Path, n_calls: int) -> Trouble:
    def close() -> None:
        os.close(1)
        os.close(2)
        sys.stdout = sys.stderr = None  # as the interpreter does

    def break_pipe() -> None:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
        os.dup2(writer, 2)

    if rng.random() < 0.3:
        return Trouble("output is closed", close, is_silent=True)
    at = int(rng.integers(1, n_calls + 1))
    name = f"output is a broken pipe from call {at} of {n_calls} on"
    return Trouble(name, at_call(at, break_pipe), is_silent=True)


def _on_a_small_disk(case: Case, arguments: list[str], out: Path) -> None:
    """A real disk that becomes full, or is read-only, and is larger afterwards."""
    kept = case.folder / "kept"
    if out.exists():
        out.rename(kept)
    out.mkdir()
    n_kib = int(case.rng.integers(100, 4000))
    is_read_only = bool(case.rng.random() < 0.2)
    case.say("a read-only disk" if is_read_only else f"a disk of {n_kib} KiB")
    with mounted(out, n_kib + 8192) as remount:
        if kept.exists():
            shutil.copytree(kept, out, dirs_exist_ok=True)
            shutil.rmtree(kept)
        used = shutil.disk_usage(out).used // 1024
        remount("ro" if is_read_only else f"size={used + n_kib}k")
        trouble = Trouble("a small disk", lambda: None)
        _check(trouble, _run(case, arguments))
        remount("rw" if is_read_only else f"size={used + 65536}k")
        shutil.copytree(out, kept)
    shutil.rmtree(out, ignore_errors=True)
    kept.rename(out)
