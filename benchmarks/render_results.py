# SPDX-License-Identifier: Apache-2.0
"""Write the tables of docs/benchmarks.md and of packages' pages, the chart and the README's claim.

    python benchmarks/render_results.py             # after new files came into benchmarks/results
    python benchmarks/render_results.py --check     # exit status 1 if a page says something else

A page holds tables between ``<!-- results: NAME NAME -->`` and ``<!-- end of results -->``. A table
comes from one file, so from one machine and one commit: ``results/NAME.json``, or
``results/quoted/NAME.json`` for the pages of packages. Where a file is missing docs/benchmarks.md
says so; the README's claim and a package's table stay as they are.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
import statistics
import sys
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path

import chart
from results import Line, Result, read_result

ROOT = Path(__file__).resolve().parent.parent
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
PREPARATION = "making the capture"  # of the whole run
PEER, FASTER_GS, BEFORE = "gsplat's loop", "Faster-GS's loop", "before"
CAPTURES = ("capture", "capture-boruszyn", "capture-mcmc")  # in one table
COLOURS = {"best": "#1b6ca8", ALL_ON_DEVICE: "#9aa5b1", "clm": "#e0a030", "naive": "#c8553d"}
CLAIM, CHART = "claim", "chart"
END = "<!-- end of results -->"
# What the tables of the parts show of the lines in a file.
ON_DEVICE = r"torch fused, all rows|gs-adam, (10|100)% have gradients"
ON_HOST = r"torch fused, all rows|gs-adam dense, all rows|gs-adam deferred, 10% random"
CULLING = r"gs-cull, rows in Morton order, blocks|gsplat's projection"
LINK = r"cudaMemcpyAsync to device, 5 %|gather 5 % sorted|torch index_select \+ copy 5 % sorted"
# Renderers in the table of a view, and how the table calls each.
CALLS = {
    "gs-raster, one call each way": "one call each way",
    "gs-raster, functions": "`rasterize`",
    "gsplat.rasterization": "`gsplat.rasterization`",
    "Faster-GS": "Faster-GS",
}
QUOTED = "../../benchmarks/results/quoted"
PAGES = ("docs/benchmarks.md", "README.md", "docs/packages/gs-raster.md",
         "docs/packages/gs-train.md")  # fmt: skip
ORDERS, SCENE = ("random", "tsp"), "city"

Results = Mapping[str, Result]
Row = list[str]


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


def grid(heads: Row, rows: Iterable[Row]) -> list[str]:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def below(
    name: str, result: Result, words: str, *, folder: str = "../benchmarks/results"
) -> list[str]:
    """What stands above a table: what was measured, where, and with which command."""
    raw = f"[every sample]({folder}/{name}.json)"
    return [f"{words} {result.place}, {raw}: `{result.command}`", ""]


def label(preset: str) -> str:
    """How a table calls a line of the engine's benchmark."""
    return "rendering alone, no optimizer" if preset == ALONE else f"`{preset}`"


def orders(result: Result) -> list[tuple[str, dict[str, str]]]:
    """Orders of the views, the headline's first, each with the axis that picks its lines; a file
    without that axis holds the path alone."""
    return [(order, {"order": order}) for order in result.axis("order")] or [("path", {})]


def engine(presets: Iterable[str]) -> Callable[[str, Result], list[str]]:
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


def captures(results: Results) -> list[str]:
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


def difference(line: Line | None, digits: int) -> str:
    """The mean of paired differences and its standard error."""
    if line is None or len(line.samples) < 2:
        return "-"
    error = statistics.stdev(line.samples) / len(line.samples) ** 0.5
    return f"{statistics.mean(line.samples):+.{digits}f} ± {error:.{digits}f}"


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


def largest(name: str, result: Result) -> list[str]:
    """Each case of its own process, with what was foretold."""
    rows = []
    for line in result.lines:
        facts, (first, last) = line.facts, line.facts["loss"]
        pairs = (
            (facts["device_gb"], facts["predicted_device_gb"]),
            (facts["host_gb"], facts["predicted_host_gb"]),
        )
        rows.append(
            [f"`{line.name}`, updated on the {facts['updated_on']}", f"{line.axes['n_rows']:,}",
             number(line.axes["cap_gib"]), str(line.axes["batch"]),
             f"{number(line.median)} ({number(facts['predicted_images_per_second'])})",
             *(f"{had:.1f} ({foretold:.1f})" for had, foretold in pairs),
             f"{first:.4f} to {last:.4f}"]
        )  # fmt: skip
    heads = ["", "Gaussians", "cap, GiB", "batch", "images/s", "device GB", "host GB", "loss"]
    return below(name, result, "In brackets what `gs-train plan` foretells.") + grid(heads, rows)


def start(name: str, result: Result) -> list[str]:
    """One sentence on a start from points."""
    host, device = (result.facts[f"peak_{of}_bytes"] / 1e9 for of in ("host", "device"))
    seconds = {line.name: line.median for line in result.lines}
    parts = ", ".join(f"{part} {number(s)}" for part, s in seconds.items() if part != "all")
    words = (
        f"A start from {result.lines[0].axes['points']:,} points takes {number(seconds['all'])} s "
        f"({parts}), {host:.1f} GB of host memory and {device:.1f} GB of the device's."
    )
    return below(name, result, words)[:1]


def whole(name: str, result: Result) -> list[str]:
    """The parts of a run that take a second or more, down the columns."""
    axes, facts = result.lines[0].axes, result.facts
    n_first, _, n_last = facts["gaussians"]
    width, height = axes["size"]
    device, host = facts["peak_device_bytes"] / 1e9, max(facts["peak_host_bytes"].values()) / 1e9
    words = (
        f"{axes['views']} photographs, {width} x {height}, from {n_first:,} points to {n_last:,} "
        f"Gaussians in {axes['steps']:,} steps with `{facts['preset']}`; PSNR {facts['psnr']:.2f} "
        f"dB; at most {device:.1f} GB of device memory and {host:.1f} GB of host memory."
    )
    parts = [
        [line.name, number(line.median), line.facts["words"]]
        for line in result.lines
        if line.median >= 1.0 and line.name != PREPARATION
    ]
    n = -(-len(parts) // 3)
    parts += [[""] * 3] * (3 * n - len(parts))
    rows = [list(itertools.chain(*parts[k::n])) for k in range(n)]
    return below(name, result, words) + grid(["", "seconds", ""] * 3, rows)


def item(name: str, result: Result, words: str, lines: Iterable[str]) -> list[str]:
    """One item of a list: what was measured, each line of it, and where."""
    return below(name, result, f"- {words}. {'; '.join(lines)}.")[:1]


def rates(question: str, wanted: str) -> Callable[[str, Result], list[str]]:
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
        f"{len(result.lines[0].samples)} runs (least to most). Milliseconds of one refinement, by part: which rows, their values, the "
        "edit, its share of a re-sort, and how much longer the next batch takes. All rows are "
        f"sorted anew once in {result.facts['resort_every']:g} N changes."
    )
    heads = ["", "batch", "with refinements", "without", "ratio", *parts]
    return below(name, result, words) + grid(heads, rows)


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


def mean_of(line: Line | None, n: int) -> str:
    """What each of ``n`` takes of a line, for parts that add up."""
    return "-" if line is None else number(sum(line.samples) / n)


TABLES: dict[str, Callable[[str, Result], list[str]]] = {
    "engine-20m": engine(PRESETS),
    "engine-64": engine(FEW_PRESETS),
    "engine-5m": engine(FEW_PRESETS),
    "refine-20m": refining,
    "photographs": photographs,
    "largest": largest,
    "init": start,
    "whole-20m": whole,
    "cull": culling,
    "order": ordering,
    "pinned": rates("gs-pinned: chosen rows over the link, of a table", LINK),
    "adam-device": rates("gs-adam: a step on the device", ON_DEVICE),
    "adam-host": rates("gs-adam: a step on the host", ON_HOST),
}

OF_PACKAGES: dict[str, Callable[[str, Result], list[str]]] = {
    "view": view,
    "order-quality": order_quality,
}


def headline(result: Result) -> str:
    """The chart of presets by batch size, in the first order."""
    batches, (order, axis) = result.axis("batch"), orders(result)[0]

    def values(name: str) -> tuple[tuple[float, float, float] | None, ...]:
        lines = [result.line(name, batch=batch, **axis) for batch in batches]
        return tuple((x.median, min(x.samples), max(x.samples)) if x else None for x in lines)

    series = [chart.Series(f"{name}", colour, values(name)) for name, colour in COLOURS.items()]
    series.append(chart.Series("rendering alone", "#222222", values(ALONE), is_mark=True))
    title = (
        f"{result.lines[0].axes['gaussians']:,} Gaussians, {result.machine['gpu'] or 'no GPU'}, "
        f"{VIEWS[order]}"
    )
    return chart.bars(title, "images a second", [f"batch {batch}" for batch in batches], series)


def claim(results: Results) -> list[str]:
    """What the README says first; nothing without results."""
    makers = {"engine-20m": claim_of_city, "capture": claim_of_capture}
    made = [make(results[name]) for name, make in makers.items() if name in results]
    return [line for k, lines in enumerate(made) for line in ([""] if k else []) + lines]


def claim_of_city(result: Result) -> list[str]:
    """`best` against all on the device, and against torch's loop, with most views a batch."""
    batch, (order, axis) = max(result.axis("batch")), orders(result)[0]

    def line(name: str) -> Line:
        return required(result.line(name, batch=batch, **axis), name)

    best, inside, torchs = (line(name) for name in ("best", ALL_ON_DEVICE, TORCHS))
    memory = [f"{each.facts['device_gb']:.1f} GB" for each in (best, inside, torchs)]
    return [
        f"{result.lines[0].axes['gaussians']:,} Gaussians train from host memory at "
        f"{number(best.median)} images a second in {memory[0]} of GPU memory,",
        f"{best.median / inside.median:.2f} of the rate inside the GPU in {memory[1]}; a loop with "
        f"torch's fused Adam inside the GPU reaches {number(torchs.median)} in {memory[2]}",
        f"({result.machine['gpu']}, batches of {batch} {VIEWS[order]}).",
    ]


def claim_of_capture(result: Result) -> list[str]:
    """All on the device against the loops of others."""

    def reached(name: str, unit_of_rate: str = "") -> str:
        rate, psnr = (required(result.line(name, unit), name) for unit in ("images/s", "dB"))
        return f"{number(rate.median)}{unit_of_rate} to {psnr.median:.2f} dB"

    ours = required(result.line(ALL_ON_DEVICE, "images/s"), ALL_ON_DEVICE)
    theirs = reached(PEER)
    if result.line(FASTER_GS):
        theirs += f" and {reached(FASTER_GS)} on Faster-GS's kernels"
    return [
        f"On {ours.axes['photographs']} drone photographs it trains "
        f"{reached(ALL_ON_DEVICE, ' images a second')}, gsplat's own loop",
        f"{theirs}, given the same loss and image feed "
        f"(medians of {len(ours.samples)} seeds, {result.machine['gpu']}).",
    ]


def required(line: Line | None, name: str) -> Line:
    if line is None:
        raise ValueError(f"the README's claim must have a line {name} in its result, got none")
    return line


def blocks(results: Results, quoted: Results) -> dict[str, list[str] | None]:
    """What stands between a page's marks, by name; nothing without a result, and None: what stands
    there."""
    made: dict[str, list[str] | None] = {
        name: table(name, results[name]) if name in results else []
        for name, table in TABLES.items()
    }
    shown = {name: results[name] for name in CAPTURES if name in results}
    made[CAPTURES[0]] = captures(shown) if shown else []
    made[CHART] = ["![Images a second of each preset, by batch size](benchmarks.svg)"]
    if "engine-20m" not in results:
        made[CHART] = ["The chart is drawn from `engine-20m.json`."]
    made[CLAIM] = claim(results) or None
    for name, table in OF_PACKAGES.items():
        made[name] = table(name, quoted[name]) if name in quoted else None
    return made


def filled(page: str, made: Mapping[str, list[str] | None]) -> str:
    """A page with its tables anew.

    Raises:
        ValueError: a mark names nothing that is known.
    """

    def replace(found: re.Match[str]) -> str:
        mark, names = found[1], found[2].split()
        unknown = [name for name in names if name not in made]
        if unknown:
            raise ValueError(f"a mark must name some of {sorted(made)}, got {unknown}")
        parts = [made[name] for name in names]
        if None in parts:
            return found[0]
        missing = ", ".join(f"`{name}`" for name, part in zip(names, parts) if not part)
        if missing:
            parts.append([f"Not measured yet (`benchmarks/publish.sh OUT NAME`): {missing}."])
        lines: list[str] = []
        for part in filter(None, parts):
            is_list = bool(lines) and lines[-1][:2] == part[0][:2] == "- "
            lines += [*([""] if lines and not is_list else []), *part]
        return "\n".join([mark, *lines, END])

    marks = rf"(<!-- results: ([\w -]+) -->)\n.*?{END}"
    return re.sub(marks, replace, page, flags=re.DOTALL)


def read_folder(folder: Path, known: Container[str]) -> dict[str, Result]:
    """All results, by name.

    Raises:
        ValueError: a file is not as ``results.py`` says, or is of no table.
    """
    found = {}
    for path in sorted(folder.glob("*.json")):
        if path.stem not in known:
            raise ValueError(f"{path} must be named after one of {known}")
        found[path.stem] = read_result(path)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--root", type=Path, default=ROOT, help="with docs/ and README.md")
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    try:
        results = read_folder(arguments.results, [*TABLES, *CAPTURES])
        made = blocks(results, read_folder(arguments.results / "quoted", [*OF_PACKAGES]))
        wanted: dict[Path, str | None] = {
            path: filled(path.read_text(), made)
            for path in (arguments.root / page for page in PAGES)
        }
    except (OSError, ValueError) as error:
        parser.error(str(error))
    picture = arguments.root / "docs" / "benchmarks.svg"
    wanted[picture] = headline(results["engine-20m"]) if "engine-20m" in results else None
    stale = [
        path
        for path, text in wanted.items()
        if (path.read_text() if path.exists() else None) != text
    ]
    for path in stale:
        print(f"{'differs' if arguments.check else 'written'}: {path}")
        if not arguments.check:
            text = wanted[path]
            path.unlink() if text is None else path.write_text(text)
    if stale and arguments.check:
        sys.exit(1)


if __name__ == "__main__":
    main()
