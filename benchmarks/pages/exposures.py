# SPDX-License-Identifier: Apache-2.0
"""Table of docs/packages/gs-train.md: what an exposure for each photograph is worth."""

from __future__ import annotations

from pages.cells import QUOTED, below, difference, grid, required, spread
from results import Result

PLAIN, WITH, DIFFERENCE = "plain", "exposure", "exposure - plain"
SCORES = {
    "dB, colours fitted": ("PSNR, colours fitted, dB", 2),
    "dB": ("PSNR as drawn, dB", 2),
    "s": ("training, s", 1),
}
"""Head and digits by unit."""


def exposures(name: str, result: Result) -> list[str]:
    """Scores and seconds of a capture with exposures and without, seed by seed."""
    rows = []
    for unit, (head, digits) in SCORES.items():
        one, other, gain = (
            required(result.line(kind, unit), kind) for kind in (PLAIN, WITH, DIFFERENCE)
        )
        cells = [spread(one, digits), spread(other, digits), difference(gain, digits)]
        cells.append(spread(gain, digits))
        rows.append([head, *cells])
    axes = result.lines[0].axes
    words = (
        f"Held-out views of {axes['capture']} ({axes['photographs']} photographs, "
        f"{axes['size'][0]} x {axes['size'][1]}) after {axes['steps']:,} steps of a view each, "
        f"`--strategy {axes['strategy']}`, {len(result.facts['seeds'])} seeds: median "
        "(least to most), the mean of differences seed by seed with its standard error, and these "
        "differences."
    )
    heads = ["", "without", "`--exposure`", "difference", "of single seeds"]
    return below(name, result, words, folder=QUOTED) + grid(heads, rows)
