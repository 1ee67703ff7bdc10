# SPDX-License-Identifier: Apache-2.0
"""Lists of the parts' results, and tables of packages' pages."""

from __future__ import annotations

import re
from statistics import mean

from pages.cells import QUOTED, Table, below, grid, item, number, required, spread
from results import Line, Result

CULLING = r"gs-cull, rows in Morton order, blocks|gsplat's projection"
# Renderers in the table of a view, and how the table calls each.
CALLS = {
    "gs-raster, one call each way": "one call each way",
    "gs-raster, functions": "`rasterize`",
    "gsplat.rasterization": "`gsplat.rasterization`",
    "Faster-GS": "Faster-GS",
}
ORDERS, SCENE = ("random", "tsp"), "city"
LEAST = "least"


def rates(question: str, wanted: str) -> Table:
    """Times and bytes a second of the lines whose name matches."""

    def one(name: str, result: Result) -> list[str]:
        lines = [line for line in result.lines if re.fullmatch(wanted, line.name)]
        n_rows = max(line.axes["rows"] for line in lines)
        words = f"{question} of {n_rows:,} rows, median of {len(lines[0].samples)} samples"
        return item(
            name, result, words,
            [f"{line.name}: {spread(line, scale=1e3)} ms"
             + (f", {number(line.facts['bytes'] / line.median / 1e9)} GB/s"
                if line.facts["bytes"] else "") for line in lines],
        )  # fmt: skip

    return one


def culling(name: str, result: Result) -> list[str]:
    """Time of a view's visible set."""
    said = []
    for line in (line for line in result.lines if re.fullmatch(CULLING, line.name)):
        peak = line.facts["peak_bytes"]
        room = "" if peak is None else f", {number(peak / line.axes['rows'])} bytes a Gaussian"
        said.append(f"{line.name} ({line.axes['views']} together): {spread(line)} ms a view{room}")
    words = (
        f"gs-cull: what a view sees of {result.facts['n']:,} Gaussians, "
        f"{result.facts['visible per view']:,.0f} of them visible, "
        f"{result.facts['missed']} missed, median of {len(result.lines[0].samples)} samples"
    )
    return item(name, result, words, said)


def ordering(name: str, result: Result) -> list[str]:
    """Bytes of a batch by order and by what stays on the device."""
    retains, views = result.axis("retain"), max(result.axis("views"))
    axes = {"scene": SCENE, "views": views, "mode": "shuffle"}
    said = []
    for order in ORDERS:
        lines = [(retain, result.line(order, **axes, retain=retain)) for retain in retains]
        values = [f"{number(line.median)} with `{retain}`" for retain, line in lines if line]
        said.append(f"`{order}`: {', '.join(values)}")
    words = (
        f"gs-order: megabytes each way of a batch of {views} random views of the synthetic city, "
        "exact, by order and by what stays on the device from one view to the next"
    )
    return item(name, result, words, said)


def view(name: str, result: Result) -> list[str]:
    """Milliseconds a view of each renderer, by the clock and busy."""
    rows = []
    for scene in result.axis("scene"):
        lines = [result.line(call, scene=scene) for call in CALLS]
        cells = [f"{line.median:.2f} ({line.facts['busy_ms']:.2f})" if line else "-"
                 for line in lines]  # fmt: skip
        seen = next(line for line in lines if line).axes["rows"]
        rows.append([f"{seen:,} of {scene}", *cells])
    words = (
        "Milliseconds of a view of 1920 x 1080 with its gradient, by the clock and, in brackets, "
        f"those that the device was busy; median of {len(result.lines[0].samples)} samples."
    )
    return below(name, result, words, folder=QUOTED) + grid(["rows", *CALLS.values()], rows)


def order_quality(name: str, result: Result) -> list[str]:
    """What tiles change, capture by capture."""
    rows, axes = [], result.lines[0].axes
    for capture in result.axis("capture"):

        def line(order: str, unit: str, capture: str = capture) -> Line:
            return required(result.line(order, unit, capture=capture), order)

        changes = [line("tiles - shuffle", unit).samples for unit in ("dB", "SSIM")]
        n_rows = [number(line(order, "Gaussians").median) for order in ("shuffle", "tiles")]
        of = line("tiles", "dB").axes
        rows.append(
            [f"{capture}, {of['photographs']} photographs", str(of["tile_views"]),
             *(f"{min(all_):+.{digits}f} to {max(all_):+.{digits}f}"
               for all_, digits in zip(changes, (2, 4))), " to ".join(n_rows)]
        )  # fmt: skip
    words = (
        "Scores of held-out views with `tiles` minus those with `shuffle`, from least to most of "
        f"{len(result.facts['seeds'])} seeds, after {axes['steps']:,} steps of {axes['batch']} "
        f"images with `{axes['strategy']}`."
    )
    heads = ["capture", "views of a tile", "PSNR, dB", "SSIM",
             "Gaussians, `shuffle` to `tiles`, medians"]  # fmt: skip
    return below(name, result, words, folder=QUOTED) + grid(heads, rows)


def residency(name: str, result: Result) -> list[str]:
    """Blocks that rules read, relative to the least that there can be."""
    rules = [line for line in dict.fromkeys(line.name for line in result.lines) if line != LEAST]
    rows = []
    for order in result.axis("order"):
        for share in sorted(result.axis("share")):
            least = result.line(LEAST, order=order, share=share)
            if least is None:  # a batch has more blocks
                continue
            lines = [required(result.line(rule, order=order, share=share), rule) for rule in rules]
            ratios = [f"{sum(line.samples) / sum(least.samples):.2f}" for line in lines]
            rows.append([f"{order}, {share:.0%}", number(mean(least.samples)), *ratios])
    facts = result.facts
    words = (
        "Blocks read from disk in a step, relative to the least that there can be, by the share of "
        f"{facts['blocks_seen']:,} blocks that memory holds; batches of {facts['batch']} of "
        f"{facts['views']:,} views of the synthetic city, {facts['blocks_a_view']:.0f} blocks each."
    )
    heads = ["order, share in memory", "least, blocks a step", *rules]
    return below(name, result, words, folder=QUOTED) + grid(heads, rows)


def means_extent(name: str, result: Result) -> list[str]:
    """Scores of surveys by what the learning rate of the means is a multiple of."""
    rows = []
    for side in result.axis("side"):
        for line in (line for line in result.lines if line.axes["side"] == side):
            wider = line.axes["wider"]
            what = f"`{line.name}`" + (f" of a survey {wider} times as wide" if wider > 1 else "")
            survey = f"{side} m, {line.axes['gaussians']:,}, {line.axes['photographs']:,}"
            rows.append([survey, what, number(line.facts["ratio"]), spread(line, 2)])
    words = (
        f"Scores of held-out views after {result.lines[0].axes['epochs']} epochs of surveys of the "
        "synthetic city, and the learning rate of the means relative to that with `cameras`."
    )
    heads = ["width, Gaussians, photographs", "extent", "learning rate", "PSNR, dB"]
    return below(name, result, words, folder=QUOTED) + grid(heads, rows)
