# SPDX-License-Identifier: Apache-2.0
"""Tables about stores: the speed of one beside its drive, what grows with a scene, and what moments
are worth."""

from __future__ import annotations

import re
import statistics

from pages.cells import QUOTED, RESULTS, below, grid, number, required, spread
from results import Line, Result

TIMES = ("open", "resume", "pause", "snapshot")
KEPT, FORGOTTEN, GAIN = "kept", "forgotten", "kept - forgotten"


def limits(name: str, result: Result) -> list[str]:
    """Seconds by number of Gaussians, and bytes that each Gaussian more takes."""

    def line(what: str, unit: str, n: int, block_rows: int) -> Line:
        found = result.line(what, unit, gaussians=n, block_rows=block_rows)
        return required(found, what)

    sizes, rows = sorted(result.axis("gaussians")), []
    for n in sizes:
        for block_rows in result.axis("block_rows"):
            seconds = [line(what, "s", n, block_rows).median for what in ("making", *TIMES)]
            making, using = (
                line(what, "B", n, block_rows).median / 1e6 for what in ("making", "training")
            )
            rows.append(
                [f"{n:,}", f"{block_rows:,}", number(seconds[0]), f"{making:.0f}",
                 *map(number, seconds[1:]), f"{using:.0f}"]
            )  # fmt: skip
    more = sizes[-1] - sizes[0]
    slopes = []
    for block_rows in result.axis("block_rows"):
        most, least = (line("training", "B", n, block_rows).median for n in (sizes[-1], sizes[0]))
        each = (most - least) / more
        a_block = f"{each * block_rows:,.0f} a block"
        slopes.append(f"{each:.2f} bytes with blocks of {block_rows:,} ({a_block})")
    facts = result.facts
    words = (
        f"A store is made from points with {facts['making_bytes'] >> 20} MiB for these, opened, "
        f"trained for {facts['steps']} steps on a CPU with {facts['rows_in_slots']:,} Gaussians in "
        f"slots and {facts['rows_in_arena']:,} in the arena, and saved. Memory is the most that a "
        "process had beside its libraries, slots and arena. Between the smallest and the largest "
        f"scene a Gaussian more takes {' and '.join(slopes)}."
    )
    heads = ["Gaussians", "block", "making, s", "making, MB", "open, s", "resume, s",
             "pause of a snapshot, s", "until it is written, s", "training, MB"]  # fmt: skip
    return below(name, result, words, folder=f"{RESULTS}/quoted") + grid(heads, rows)


def moments(name: str, result: Result) -> list[str]:
    """Scores with moments that are kept, and with moments that blocks lose."""
    rows = []
    for order in result.axis("order"):
        kept, lost, gain = (
            required(result.line(what, order=order), what) for what in (KEPT, FORGOTTEN, GAIN)
        )
        rows.append([f"`{order}`", spread(kept, 2), spread(lost, 2), spread(gain, 2)])
    axes = result.lines[0].axes
    words = (
        f"PSNR of held-out views of {axes['capture']} ({axes['photographs']} photographs, "
        f"{axes['size'][0]} x {axes['size'][1]}) after {axes['epochs']} epochs of "
        f"{axes['gaussians']:,} Gaussians, with slots for {result.facts['slots']:.0%} of the "
        f"blocks; {len(result.facts['seeds'])} seeds."
    )
    heads = ["`--order`", "moments kept", "forgotten", "gain, seed by seed"]
    return below(name, result, words, folder=f"{RESULTS}/quoted") + grid(heads, rows)


def store(name: str, result: Result) -> list[str]:
    """Rates of a store and of plain calls on the same drive, by kind of transfer and record."""
    rows = []
    for line in result.lines:
        found = re.fullmatch(r"store (\w+), (\d+) KiB, (\d+) threads", line.name)
        if found is None:
            continue
        kind, kib, threads = found.groups()
        raw = required(result.line(line.facts["limit"]), line.facts["limit"])
        rates = [
            sorted(line.facts["bytes"] / seconds / 1e9 for seconds in own.samples)
            for own in (raw, line)
        ]
        said = [f"{statistics.median(own):.2f} ({own[0]:.2f} to {own[-1]:.2f})" for own in rates]
        rows.append([kind, kib, threads, *said, f"{line.facts['share']:.0%}"])
    words = (
        f"GB/s of a store of blocks, and of plain `preadv` and `pwritev` past the page cache: the "
        f"same sizes, threads and random order, in turns; {result.lines[0].axes['bytes'] >> 20:,} "
        "MiB a sample, median (least to most), and the median of the shares of pairs. The drive is "
        "a virtual one, shared with other machines."
    )
    heads = ["transfer", "record, KiB", "threads", "drive, GB/s", "store, GB/s", "share"]
    return below(name, result, words, folder=QUOTED) + grid(heads, rows)
