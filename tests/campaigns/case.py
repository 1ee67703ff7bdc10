# SPDX-License-Identifier: Apache-2.0
"""One case of a campaign, and what comes of it."""

from __future__ import annotations

import importlib
import shutil
import stat
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SHARED = "shared"
"""The folder, within a run's own, of what all its cases read."""


@dataclass(frozen=True)
class Case:
    """What a campaign's ``run`` gets.

    Attributes:
        seed: names the case within its campaign.
        rng: decides everything about the case; the same for the same campaign and seed.
        folder: empty, absolute, for this case alone, removed afterwards.
        shared: what the campaign's ``prepare`` made; not to be changed.
        say: ``say(text)`` tells what is about to be done. A bad case is reported with what was
            said, also where it ends the process.
    """

    seed: int
    rng: np.random.Generator
    folder: Path
    shared: Path
    say: Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What came of a case.

    Attributes:
        seed: of the case.
        bad: what was bad, in one line; empty where all was well.
        said: what the case said of itself.
        details: where there is more to tell, such as a traceback.
    """

    seed: int
    bad: str = ""
    said: tuple[str, ...] = ()
    details: str = ""


def load(module: str) -> Any:
    """The campaign in a module.

    Args:
        module: its full name, such as ``campaigns.corrupt``.
    """
    return importlib.import_module(module)


def prepare(module: str, work: Path) -> Path:
    """Make the folder that all cases of a run read, within a folder ``work`` of the run's own."""
    shared = work / SHARED
    shared.mkdir(parents=True)
    getattr(load(module), "prepare", lambda _: None)(shared)
    return shared


def attempt(module: str, seed: int, shared: Path, say: Callable[[str], None]) -> Outcome:
    """Run one case in this process, beside ``shared``."""
    campaign = load(module)
    rng = np.random.default_rng([zlib.crc32(campaign.__name__.encode()), seed])
    folder = shared.with_name(f"case-{seed}")
    folder.mkdir()
    said: list[str] = []

    def told(text: str) -> None:
        said.append(text)
        say(text)

    try:
        campaign.run(Case(seed, rng, folder, shared, told))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        lines = traceback.format_exception_only(error)
        first = lines[0].strip().splitlines()[0]
        return Outcome(seed, first, tuple(said), traceback.format_exc())
    finally:
        remove(folder)
    return Outcome(seed, said=tuple(said))


def remove(folder: Path) -> None:
    """Remove a folder, also where a case took its own permissions away."""
    for path in (folder, *folder.rglob("*")):
        if stat.S_ISDIR(path.lstat().st_mode):
            path.chmod(0o700)
    shutil.rmtree(folder)
