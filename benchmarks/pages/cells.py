# SPDX-License-Identifier: Apache-2.0
"""Numbers, tables and places as a page shows them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping

from results import Line, Result

Results = Mapping[str, Result]
Table = Callable[[str, Result], list[str]]
"""Lines of Markdown from a result and the name of its file."""
Row = list[str]

RESULTS, QUOTED = "../benchmarks/results", "../../benchmarks/results/quoted"
"""From the pages of docs/, and from those of the packages."""


def number(value: float, digits: int | None = None) -> str:
    """So many digits after the point; without that, three that count and thousands apart."""
    if digits is not None:
        return f"{value:,.{digits}f}"
    for limit, count in ((100, 0), (10, 1), (1, 2)):
        if abs(value) >= limit:
            return f"{value:,.{count}f}"
    return f"{value:.3g}"


def spread(line: Line | None, digits: int | None = None, scale: float = 1.0) -> str:
    """The median of a line, and from least to most where it has several samples."""
    if line is None:
        return "-"
    low, high = (number(scale * end(line.samples), digits) for end in (min, max))
    middle = number(scale * line.median, digits)
    return middle if len(line.samples) == 1 else f"{middle} ({low} to {high})"


def difference(line: Line | None, digits: int) -> str:
    """The mean of paired differences and its standard error."""
    if line is None or len(line.samples) < 2:
        return "-"
    error = statistics.stdev(line.samples) / len(line.samples) ** 0.5
    return f"{statistics.mean(line.samples):+.{digits}f} ± {error:.{digits}f}"


def mean_of(line: Line | None, n: int) -> str:
    """What each of ``n`` takes of a line, for parts that add up."""
    return "-" if line is None else number(sum(line.samples) / n)


def grid(heads: Row, rows: Iterable[Row]) -> list[str]:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def below(name: str, result: Result, words: str, *, folder: str = RESULTS) -> list[str]:
    """What stands above a table: what was measured, where, and with which command."""
    raw = f"[every sample]({folder}/{name}.json)"
    return [f"{words} {result.place}, {raw}: `{result.command}`", ""]


def item(
    name: str, result: Result, words: str, lines: Iterable[str], *, folder: str = RESULTS
) -> list[str]:
    """One item of a list: what was measured, each line of it, and where."""
    return below(name, result, f"- {words}. {'; '.join(lines)}.", folder=folder)[:1]


def required(line: Line | None, name: str) -> Line:
    if line is None:
        raise ValueError(f"the README's claim must have a line {name} in its result, got none")
    return line
