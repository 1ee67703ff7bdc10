# SPDX-License-Identifier: Apache-2.0
"""How many Gaussians do several GPUs of a given memory really train, and was it foretold?

Decides how many GPUs a scene needs, and how far ``gs-train plan --gpus`` can be believed. The
synthetic city on W ranks, each of which may take so much device memory and no more (torch refuses
what is beyond it, as a smaller card would). The search begins with the number that ``plan`` calls
the largest, times ``--first``, and halves the gap between a number that trains and one that does
not until it is small. Each try is a call of its own with fresh processes: so many steps, with the
limits that ``fit`` would take, or the tightest ones where ``plan`` says that the rows do not fit.

    PYTHONPATH=benchmarks python benchmarks/ranks/bench_largest_ranks.py --cap 8 --json largest.json

A number also trains where some view had to be drawn in parts; the file says so. Every rank makes
all rows on its device before it is limited, 236 bytes a row: caps near a card's memory are for few
ranks. ``--limit`` begins no try after so many seconds, and the gap is what it is then. On a CPU,
where nothing refuses memory but ``plan``, try

    ... bench_largest_ranks.py --renderer cpu --cap 0.02 --share 0.1 --views 8 --size 64 48
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from launching import Line, links, measured, worlds

from harness import Record, add_json_option

PRESETS = ("none", "best")
_STRIDE = 1.2  # from the first number to the next one, until one trains and one does not


@dataclasses.dataclass
class Search:
    """The numbers of rows that train and those that do not.

    Attributes:
        low: the largest that trains; 0: none so far.
        high: the smallest that does not; None: none so far.
    """

    low: int = 0
    high: int | None = None

    def following(self, first: int, within: float) -> int | None:
        """The number to try next; None: the gap is small."""
        if self.high is None:
            return round(self.low * _STRIDE) if self.low else first
        if not self.low:
            smaller = round(self.high / _STRIDE)
            return smaller if smaller < self.high else None
        middle = round((self.low * self.high) ** 0.5)
        is_small = self.high <= self.low * within or middle in (self.low, self.high)
        return None if is_small else middle

    def note(self, n_rows: int, trains: bool) -> None:
        """Of a try."""
        if trains:
            self.low = max(self.low, n_rows)
        else:
            self.high = n_rows if self.high is None else min(self.high, n_rows)


def tried(
    options: argparse.Namespace, preset: str, batch: int, ranks: int, n_rows: int | None
) -> tuple[Line | None, bool]:
    """A try, and whether memory ran out in it.

    Args:
        n_rows: None: nothing is trained, and the line says what is foretold.

    Raises:
        RuntimeError: it ended in another way.
    """
    with tempfile.TemporaryDirectory() as folder:
        ran_out = Path(folder, "ran out")
        plan = vars(options) | {
            "json": None, "preset": preset, "batch": batch, "ran_out": str(ran_out),
            "tries": n_rows is not None, "rows": options.counted if n_rows is None else n_rows,
        }  # fmt: skip
        lines, status = measured("largest_ranks", ranks, plan)
        if lines and not status:
            return lines[0], False
        if ran_out.exists():
            return None, True
    raise RuntimeError(f"a try of {n_rows} rows on {ranks} ranks ended with {status}")


def search(
    options: argparse.Namespace, preset: str, batch: int, ranks: int, ends: float
) -> tuple[list[float], dict[str, Any], dict[str, Any]] | None:
    """The largest number that trains, axes and facts; None where none does."""
    seen, _ = tried(options, preset, batch, ranks, None)
    assert seen is not None
    foretold = int(seen["samples"][0])
    found, best, tries = Search(), None, []
    first = max(round(foretold * options.first), 4)
    n_rows: int | None = first
    while n_rows is not None and time.monotonic() < ends:
        line, ran_out = tried(options, preset, batch, ranks, n_rows)
        found.note(n_rows, line is not None)
        best = line if line is not None and n_rows == found.low else best
        tries.append([n_rows, not ran_out])
        print(f"  {n_rows:,}: {'memory ran out' if ran_out else 'trains'}", flush=True)
        n_rows = found.following(first, options.within)
    if best is None:
        return None
    facts = best["facts"] | {"foretold_largest_n": foretold, "smallest_refused": found.high}
    axes = best["axes"]
    of_plan = f"plan says {foretold:,} ({found.low / max(1, foretold):.2f} times)"
    peaks = " ".join(f"{n / 1e9:.2f}" for n in facts["ranks_peak_bytes"])
    print(f"{preset}, batch {batch}, {ranks} ranks: {found.low:,}; {of_plan}; peak GB {peaks}")
    return [float(found.low)], axes, facts | {"tries": tries}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cap", type=float, default=8.0, help="GiB of device memory of each rank")
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=list(PRESETS))
    parser.add_argument("--batch", type=int, nargs="+", default=[8])
    parser.add_argument(
        "--ranks", type=int, nargs="+", help="numbers of ranks; 1 and all GPUs by default"
    )
    parser.add_argument("--steps", type=int, default=20, help="of a try")
    parser.add_argument("--first", type=float, default=1.0, help="try, times what plan foretells")
    parser.add_argument("--within", type=float, default=1.05, help="the gap that ends the search")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds until no try begins")
    parser.add_argument("--overlap", type=float, default=0.67, help="of neighbours")
    parser.add_argument("--size", type=int, nargs=2, default=[1920, 1080])
    parser.add_argument("--views", type=int, default=220, help="of the survey")
    parser.add_argument("--share", type=float, default=0.02, help="of the rows in a view")
    parser.add_argument(
        "--counted", type=int, default=200_000, help="rows of the city that plan looks at"
    )
    parser.add_argument("--renderer", choices=("raster", "cpu"), default="raster")
    add_json_option(parser)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    record = Record(options.json, gpus=torch.cuda.device_count(), links=links())
    ends, n_lines = time.monotonic() + options.limit, 0
    for ranks in worlds(options.ranks, options.renderer):
        for batch in options.batch:
            for preset in options.presets:
                found = search(options, preset, batch, ranks, ends)
                if found is None:
                    print(f"left out: {preset}, batch {batch} on {ranks}", flush=True)
                    continue
                samples, axes, facts = found
                record.add(preset, samples, "Gaussians", axes=axes, **facts)
                record.write()
                n_lines += 1
    sys.exit(0 if n_lines else 1)


if __name__ == "__main__":
    main()
