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
import re
import sys
from collections.abc import Container, Mapping
from pathlib import Path

import chart
from pages.cells import Results, Table, number, required
from pages.drive import boxes, foretold, saturated, survey, tide
from pages.exposures import exposures
from pages.large import largest, start, whole
from pages.parts import (
    culling,
    means_extent,
    order_quality,
    ordering,
    rates,
    residency,
    view,
)
from pages.ranks import capture, exchange, largest_scene, quoted_capture, quoted_training, training
from pages.stores import limits, moments, store
from pages.training import (
    ALL_ON_DEVICE,
    ALONE,
    FASTER_GS,
    FEW_PRESETS,
    PEER,
    PRESETS,
    TORCHS,
    VIEWS,
    captures,
    engine,
    orders,
    photographs,
    refining,
    swapped,
)
from pages.viewers import viewers
from results import Line, Result, read_result

ROOT = Path(__file__).resolve().parent.parent
CAPTURES = ("capture", "capture-boruszyn", "capture-mcmc")  # in one table
COLOURS = {"best": "#1b6ca8", ALL_ON_DEVICE: "#9aa5b1", "clm": "#e0a030", "naive": "#c8553d"}
CLAIM, CHART = "claim", "chart"
END = "<!-- end of results -->"
# What the tables of the parts show of the lines in a file.
ON_DEVICE = r"torch fused, all rows|gs-adam, (10|100)% have gradients"
ON_HOST = r"torch fused, all rows|gs-adam dense, all rows|gs-adam deferred, 10% random"
LINK = r"cudaMemcpyAsync to device, 5 %|gather 5 % sorted|torch index_select \+ copy 5 % sorted"
PAGES = ("docs/benchmarks.md", "docs/scaling.md", "README.md", "docs/packages/gs-raster.md",
         "docs/packages/gs-pinned.md", "docs/packages/gs-train.md", "docs/drive.md",
         "docs/viewer.md")  # fmt: skip

TABLES: dict[str, Table] = {
    "engine-20m": engine(PRESETS),
    "engine-64": engine(FEW_PRESETS),
    "engine-5m": engine(FEW_PRESETS),
    "refine-20m": refining,
    "photographs": photographs,
    "largest": largest,
    "init": start,
    "whole-20m": whole,
    "ranks": training,
    "ranks-40m": training,
    "ranks-4k": training,
    "ranks-40m-4gpu": training,
    "ranks-4gpu": training,
    "exchange": exchange,
    "capture-ranks": capture,
    "cull": culling,
    "order": ordering,
    "pinned": rates("gs-pinned: chosen rows over the link, of a table", LINK),
    "adam-device": rates("gs-adam: a step on the device", ON_DEVICE),
    "adam-host": rates("gs-adam: a step on the host", ON_HOST),
}

OF_PACKAGES: dict[str, Table] = {
    "view": view,
    "order-quality": order_quality,
    "swap": swapped,
    "residency": residency,
    "means-extent": means_extent,
    "tide": tide,
    "tide-20m": tide,
    "tide-75m": saturated,
    "tide-100m": saturated,
    "survey": survey,
    "survey-10m": survey,
    "survey-300m": survey,
    "survey-300m-h200": survey,
    "limits": limits,
    "moments": moments,
    "foretold": foretold,
    "boxes": boxes,
    "store": store,
    "store-idle": store,
    "exposure-caliterra": exposures,
    "exposure-boruszyn": exposures,
    "viewer-20m": viewers,
    "viewer-100m": viewers,
    "ranks-4gpu-h200": quoted_training,
    "ranks-unbalanced": quoted_training,
    "ranks-batch1": quoted_training,
    "ranks-40m-batches": quoted_training,
    "capture-ranks-batch4": quoted_capture,
    "largest-ranks": largest_scene,
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


def claim(results: Results, quoted: Results) -> list[str]:
    """What the README says first; nothing without results."""
    makers = {"engine-20m": claim_of_city, "survey": claim_of_survey, "capture": claim_of_capture}
    known = {**quoted, **results}
    made = [make(known[name]) for name, make in makers.items() if name in known]
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


def claim_of_survey(result: Result) -> list[str]:
    """Rows on a drive."""
    facts, axes = result.facts, result.lines[0].axes
    device, host = facts["peak_device_bytes"], facts["peak_host_bytes"]["fit"]
    records, evicted = facts["records"], facts["store"]["blocks_evicted"]
    rate = facts["real"]["images_per_second"]  # since the last resume
    listed = records["blocks"] - records["unlisted"]
    room = f"more than memory holds: {evicted:,} evictions" if evicted else "which memory holds"
    return [
        f"{axes['n']:,} Gaussians train [from a drive](docs/drive.md) at "
        f"{number(rate)} images a second in {device / 1e9:.1f} GB of GPU memory",
        f"and {host / 1e9:.1f} GB of host memory, and none of the {facts['rows']['seen']:,} that "
        "views see is missed",
        f"({result.machine['gpu']}, {axes['views']} views in batches of {axes['batch_size']} that "
        f"list {listed:,} of {records['blocks']:,} blocks, {room}).",
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
    made[CLAIM] = claim(results, quoted) or None
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
