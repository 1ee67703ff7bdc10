# SPDX-License-Identifier: Apache-2.0
"""Table of docs/viewer.md: how soon a large scene is seen."""

from __future__ import annotations

from pages.cells import RESULTS, below, grid, required, spread
from results import Result

COLUMNS = {
    "opening": ("opening, s", 1),
    "first picture": ("first picture, ms", 0),
    "coarse": ("coarse, ms", 0),
    "fine": ("fine, ms", 0),
    "flight": ("in flight, pictures/s", 0),
}
"""Head and digits by what is measured."""


def viewers(name: str, result: Result) -> list[str]:
    """A line for each way to keep the rows."""
    rows, n_jumps = [], 0
    for preset in dict.fromkeys(line.name for line in result.lines):
        found = {what: required(result.line(preset, what=what), preset) for what in COLUMNS}
        peak, n_jumps = found["fine"].facts["peak_device_bytes"], len(found["fine"].samples)
        cells = [spread(found[what], digits) for what, (_, digits) in COLUMNS.items()]
        rows.append([f"`{preset}`", *cells, f"{peak / 1e9:.1f}"])
    axes = result.lines[0].axes
    words = (
        f"{axes['gaussians']:,} Gaussians, {axes['size'][0]} x {axes['size'][1]}: until a scene "
        "can be drawn, until its first picture, until the coarse and the fine picture after "
        f"{n_jumps} jumps to cameras far apart (median, least to most), and pictures while a "
        "camera flies. A picture's way to the browser comes on top."
    )
    heads = ["rows", *(head for head, _ in COLUMNS.values()), "GB of the device"]
    return below(name, result, words, folder=f"{RESULTS}/quoted") + grid(heads, rows)
