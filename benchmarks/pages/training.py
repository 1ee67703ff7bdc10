# SPDX-License-Identifier: Apache-2.0
"""Tables of training: the synthetic city, captures, and photographs beyond memory."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from pages.cells import (
    QUOTED,
    RESULTS,
    Results,
    Table,
    below,
    difference,
    grid,
    mean_of,
    required,
    spread,
)
from results import Line, Result

ALL_ON_DEVICE, ALONE = "none", "none, no optimizer"
TORCHS = "torch's fused Adam"
PRESETS = (
    ALL_ON_DEVICE,
    TORCHS,
    "gsplat's SelectiveAdam",
    "naive",
    "clm",
    "gs-scale",
    "best",
    ALONE,
)
FEW_PRESETS = (ALL_ON_DEVICE, TORCHS, "best")
VIEWS = {
    "shuffle": "views of a shuffled epoch",
    "tiles": "views of a tile of neighbours",
    "path": "neighbouring views",
}
PEER, FASTER_GS, BEFORE = "gsplat's loop", "Faster-GS's loop", "before"


def label(preset: str) -> str:
    """How a table calls a line of the engine's benchmark."""
    return "rendering alone, no optimizer" if preset == ALONE else f"`{preset}`"


def orders(result: Result) -> list[tuple[str, dict[str, str]]]:
    """Orders of the views, the headline's first, each with the axis that picks its lines; a file
    without that axis holds the path alone."""
    return [(order, {"order": order}) for order in result.axis("order")] or [("path", {})]


def engine(presets: Iterable[str]) -> Table:
    """A table of presets by batch size, for each order of the views."""

    def table(name: str, result: Result) -> list[str]:
        batches, first = result.axis("batch"), result.lines[0]
        rows = []
        for order, axis in orders(result):
            over = [result.line(ALL_ON_DEVICE, batch=batch, **axis) for batch in batches]
            for preset in presets:
                lines = [result.line(preset, batch=batch, **axis) for batch in batches]
                if not any(lines):
                    continue
                ratios = [f"{a.median / b.median:.2f}" if a and b else "-"
                          for a, b in zip(lines, over)]  # fmt: skip
                memory = [f"{line.facts['device_gb']:.1f}" if line else "-" for line in lines]
                rows.append(
                    [label(preset), order, *map(spread, lines),
                     ", ".join(ratios), ", ".join(memory)]
                )  # fmt: skip
        width, height = first.axes["size"]
        words = (
            f"Images a second of {first.axes['gaussians']:,} Gaussians, {width} x {height}, "
            f"{first.facts['visible']:,.0f} rows a view, neighbours of the survey share "
            f"{first.axes['overlap']:.2f}; median of {len(first.samples)} runs (least to most)."
        )
        columns = [f"batch {batch}" for batch in batches]
        heads = ["", "order", *columns, "times `none`", "device GB"]
        return below(name, result, words) + grid(heads, rows)

    return table


def refining(name: str, result: Result) -> list[str]:
    """Rates with and without refinements, and what one takes by part."""
    axes, parts = result.lines[0].axes, ("choose", "read", "replace", "re-sort", "rest")
    rows = []
    for batch in result.axis("batch"):
        for preset in PRESETS:
            line = result.line(preset, batch=batch)
            if line is None:
                continue

            def other(what: str, preset: str = preset, batch: int = batch) -> Line | None:
                return result.line(f"{preset}, {what}", batch=batch)

            refinements = other("replace")
            n = len(refinements.samples) if refinements else 1
            times = [mean_of(other(part), n) for part in parts]
            rows.append(
                [label(preset), str(batch), spread(line), spread(other("no refinement")),
                 spread(other("ratio"), 2), *times]
            )  # fmt: skip
    words = (
        f"Images a second of {axes['gaussians']:,} Gaussians along the path, where every "
        f"{axes['every']} images {axes['share']:.0%} of them are replaced; median of "
        f"{len(result.lines[0].samples)} runs (least to most). Milliseconds of one refinement, by "
        "part: which rows, their values, the edit, its share of a re-sort, and how much longer the "
        "next batch takes. All rows are "
        f"sorted anew once in {result.facts['resort_every']:g} N changes."
    )
    heads = ["", "batch", "with refinements", "without", "ratio", *parts]
    return below(name, result, words) + grid(heads, rows)


def captures(results: Results, *, folder: str = RESULTS) -> list[str]:
    """Quality, rate and memory of each trainer on each capture, and ours against each other."""
    units = {"dB": 2, "SSIM": 4, "Gaussians": 0, "images/s": 0, "MB": 0}
    words, rows = [], []
    for name, result in results.items():
        axes, seeds = result.lines[0].axes, len(result.lines[0].samples)
        width, height = axes["size"]
        called = Path(shlex.split(result.command)[3]).name
        n_machines = len(result.facts.get("parts", [0]))
        machines = "" if n_machines == 1 else f" on {n_machines} machines of one kind"
        words += below(
            name, result,
            f"{called}: {axes['photographs']} photographs, {width} x {height}, {axes['test']} of "
            f"them held out, {axes['steps']:,} steps of one image with `{axes['strategy']}`; "
            f"median of {seeds} seeds (least to most){machines}.",
            folder=folder,
        )[:1]  # fmt: skip
        first = f"{called}, `{axes['strategy']}`"
        for who in (line.name for line in result.lines if line.unit == "images/s"):
            said = f"gs-train, `{who}`" if who in PRESETS else who
            if who == BEFORE:
                said = f"gs-train at {result.facts['before'][:9]}"
            cells = [spread(result.line(who, unit), digits) for unit, digits in units.items()]
            pair = f"{ALL_ON_DEVICE} over {who}"
            cells.append(spread(result.line(pair, "ratio"), 2))
            cells += [difference(result.line(pair, unit), units[unit]) for unit in ("dB", "SSIM")]
            rows.append([first, said, *cells])
            first = ""
    heads = ["", "", "PSNR, dB", "SSIM", "Gaussians", "images/s", "device MB",
             "rate of `none` over it", "PSNR of `none` less its", "SSIM"]  # fmt: skip
    return [*words, "", *grid(heads, rows)]


def swapped(name: str, result: Result) -> list[str]:
    """The same of one capture, with parts of gsplat's in place of ours."""
    return captures({name: result}, folder=QUOTED)


def photographs(name: str, result: Result) -> list[str]:
    """Rates of the trainer and of the feed alone, where not all photographs fit memory."""
    axes, said = result.lines[0].axes, []
    width, height = axes["size"]
    for what in ("trainer", "feed"):
        whole = required(result.line(f"{what}, memory"), f"{what}, memory")
        ways = {"file": "the file", "decoding": "decoding"}
        parts = [(words, result.line(f"{what}, {how}")) for how, words in ways.items()]
        rates = [
            f"{line.median / whole.median:.2f} with {words} ({spread(line)})"
            for words, line in parts if line
        ]  # fmt: skip
        said.append(f"the {what} keeps {', '.join(rates)} of {spread(whole)}")
    words = (
        f"{axes['photographs']:,} photographs, {width} x {height}, memory for "
        f"{axes['share']:.0%} of them, the others from a file of raw pixels or decoded each time. "
        f"Images a second against all in memory: {'; '.join(said)}."
    )
    return below(name, result, words)[:1]
