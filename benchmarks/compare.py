# SPDX-License-Identifier: Apache-2.0
"""Which lines of two results differ by more than their noise?

    python benchmarks/compare.py before.json after.json

A line is one of both files if name, axes and unit are the same. Its ratio is that of the medians,
the second over the first. Two lines differ where the medians are further apart than the spreads of
both together, a spread reaching from the lower to the upper quartile of a line's samples. Of a
single sample no spread is known, so nothing is said.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from results import Line, Result, read_result


def differs(before: Line, after: Line) -> bool | None:
    """Whether two lines differ by more than their noise; None: one has a single sample."""
    if len(before.samples) < 2 or len(after.samples) < 2:
        return None
    return abs(after.median - before.median) > before.spread + after.spread


def comparison(before: Result, after: Result) -> str:
    """A table of the lines that both have, and how many others there are."""
    ours = {line.key: line for line in before.lines}
    theirs = {line.key: line for line in after.lines}
    cells = [["line", "unit", "before", "spread", "after", "spread", "ratio", ""]]
    words = {True: "differs", False: "", None: "one sample"}
    for key, old in ours.items():
        new = theirs.get(key)
        if new is None:
            continue
        axes = ", ".join(f"{name} {value}" for name, value in old.axes.items())
        ratio = f"{new.median / old.median:.3f}" if old.median else ""
        numbers = [f"{x:.4g}" for line in (old, new) for x in (line.median, line.spread)]
        cells.append([f"{old.name} ({axes})" if axes else old.name, old.unit, *numbers, ratio,
                      words[differs(old, new)]])  # fmt: skip
    widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))])
        for row in cells
    ]
    for name, mine, others in (("before", ours, theirs), ("after", theirs, ours)):
        alone = len(mine.keys() - others.keys())
        if alone:
            lines.append(f"{alone} of {len(mine)} lines are only in {name}")
    return "\n".join(line.rstrip() for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    arguments = parser.parse_args()
    try:
        before, after = read_result(arguments.before), read_result(arguments.after)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    for name, result in (("before", before), ("after", after)):
        print(f"{name + ':':7} {result.benchmark}, {result.place}")
    if before.machine != after.machine:
        print("The machines or versions are not the same.")
    print(comparison(before, after))


if __name__ == "__main__":
    main()
