# SPDX-License-Identifier: Apache-2.0
"""``python -m campaigns NAME --count N --seed S``: run cases, and name those that are bad."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from campaigns import NAMES
from campaigns.case import Outcome, load
from campaigns.runner import run_apart

_SECONDS_BETWEEN_LINES = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="campaigns", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--count", type=int, default=100, help="cases (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="of the first case (default 0)")
    options = parser.parse_args()
    module = f"campaigns.{options.name}"
    print(f"{options.name}: {(load(module).__doc__ or '').splitlines()[0]}", flush=True)
    work = Path(tempfile.mkdtemp(prefix=f"campaign-{options.name}-")).resolve() / "work"
    bad, progress = [], _Progress(options.count)
    try:
        for outcome in run_apart(module, range(options.seed, options.seed + options.count), work):
            if outcome.bad:
                bad.append(outcome)
                print(_line(options.name, outcome), flush=True)
            progress.tell(len(bad))
    finally:
        work.parent.rmdir()
    for outcome in bad if options.count == 1 else ():
        print("\n".join((*outcome.said, outcome.details)))
    for outcome in bad if options.count > 1 else ():
        print(_line(options.name, outcome))
    print(f"{options.count} tried, {options.count - len(bad)} ok, {len(bad)} bad")
    return 1 if bad else 0


def _line(name: str, outcome: Outcome) -> str:
    command = f"PYTHONPATH=tests python -m campaigns {name} --count 1 --seed {outcome.seed}"
    return f"BAD {command}  # {outcome.bad} [{'; '.join(outcome.said)}]"


class _Progress:
    """A line now and then: how many are done, how many of them bad, and when the rest will be."""

    def __init__(self, count: int) -> None:
        self._count, self._done = count, 0
        self._started = self._told = time.monotonic()

    def tell(self, n_bad: int) -> None:
        self._done += 1
        now = time.monotonic()
        if now - self._told < _SECONDS_BETWEEN_LINES:
            return
        self._told = now
        seconds = round((now - self._started) / self._done * (self._count - self._done))
        left = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left"
        print(f"{self._done}/{self._count}, {n_bad} bad, {left}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
