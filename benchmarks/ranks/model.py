# SPDX-License-Identifier: Apache-2.0
"""Rates on several GPUs, foretold from what was measured on fewer, for docs/scaling.md.

    export PYTHONPATH=benchmarks
    python benchmarks/ranks/model.py             # after new files came into benchmarks/results
    python benchmarks/ranks/model.py --check     # exit status 1 if the page says something else

The page explains the model, `step_model.py` holds it. Each of ``RUNS`` gives rates of one GPU and
of several. Exchanges and their cost beside drawing come from ``exchange.json``, the shortest step
from ``capture.json``. A term that no file has is assumed, and the page says so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from step_model import (
    CUT,
    FIXED_MS,
    GRADIENT_BYTES,
    RECORD_BYTES,
    SETS,
    UNEVEN,
    Links,
    OneGpu,
    Step,
    Terms,
)

from pages.cells import grid, number
from results import Result, read_result

ROOT = Path(__file__).resolve().parent.parent.parent
PRESETS = ("none", "best")
RANKS = (2, 4, 8)
BATCHES = (1, 4, 8, 16, 64)
BEGIN, END = "<!-- model -->", "<!-- end of model -->"

# Assumed where no file of exchanges is.
BESIDE_MS = 0.13
# Off-rank bytes of an all-to-all and its milliseconds, of two H100 with NVLink.
EXCHANGES = ((4 << 20, 0.035), (16 << 20, 0.083), (64 << 20, 0.264))


@dataclass(frozen=True)
class Runs:
    """Files of rates of one scene on one kind of machine.

    Attributes:
        files: a line of a later file replaces that of an earlier one.
        is_launching_slow: whether the threads that launch work set the rates of several GPUs.
            The terms of launching are fitted then; else what a round takes beside drawing is.
    """

    files: tuple[str, ...]
    is_launching_slow: bool


RUNS = (Runs(("ranks-4gpu",), True), Runs(("ranks", "quoted/ranks-batch1"), False))


@dataclass(frozen=True)
class Measured:
    """What the results hold, and where each part is from.

    Attributes:
        machine: in words.
        one: by preset.
        several: rates, by preset, ranks and batch.
        sources: of each term, in words.
        scene: in words.
        copies: rates of copies between host and device, by name.
    """

    machine: str
    one: dict[str, OneGpu]
    several: dict[tuple[str, int, int], float]
    terms: Terms
    sources: dict[str, str]
    scene: str
    copies: dict[str, str]


def measured(folder: Path, runs: Runs) -> Measured:
    """What a folder of results says; the rest is assumed."""
    files = [folder / f"{name}.json" for name in runs.files]
    ranks = [read_result(file) for file in files if file.exists()]
    one, several = _rates(ranks)
    links, beside, sources = _exchanges(_read(folder, "exchange"))
    least, capture = 0.0, _read(folder, "capture")
    if capture is not None:
        line = capture.line("none", "images/s")
        least = 1e3 / line.median if line else 0.0
        sources["least"] = f"measured, `capture.json`, {capture.machine['gpu']}"
    names = " and ".join(f"`{file.name}`" for file in files if file.exists())
    gpu = ranks[0].machine["gpu"]
    sources |= {"one": f"measured, {names}, {gpu}", "fitted": f"fitted to {names}"}
    first = next(line for line in ranks[0].lines if line.name in PRESETS)
    terms = Terms(first.facts["visible"], links, beside, least, {})
    if several and runs.is_launching_slow:
        terms = terms.fitted_launching(_steps(several))
    elif several:
        terms = terms.fitted_beside(one, _steps(several))
        sources["beside"] = sources["fitted"]
    terms = terms.fitted_cut(one, _steps(several))
    width, height = first.axes["size"]
    scene = (
        f"{first.axes['gaussians']:,} Gaussians, {width} x {height}, "
        f"{first.facts['visible']:,.0f} rows a view, shuffled"
    )
    machine = f"{max((n for _, n, _ in several), default=1)} {gpu}, commit {ranks[0].commit[:9]}"
    copies = _copies(_read(folder, "exchange")) if runs.is_launching_slow else {}
    return Measured(machine, one, several, terms, sources, scene, copies)


def _read(folder: Path, name: str) -> Result | None:
    file = folder / f"{name}.json"
    return read_result(file) if file.exists() else None


def _rates(
    results: Sequence[Result],
) -> tuple[dict[str, OneGpu], dict[tuple[str, int, int], float]]:
    """Of one GPU, and of several."""
    rates = {
        (line.name, line.axes["ranks"], line.axes["batch"]): line.median
        for result in results
        for line in result.lines
        if line.name in PRESETS
    }
    ones: dict[str, dict[int, float]] = {preset: {} for preset in PRESETS}
    for (preset, ranks, batch), rate in rates.items():
        if ranks == 1:
            ones[preset][batch] = rate
    several = {key: rate for key, rate in rates.items() if key[1] > 1}
    return {preset: OneGpu.of(those) for preset, those in ones.items()}, several


def _steps(several: dict[tuple[str, int, int], float]) -> dict[str, list[Step]]:
    """The steps of several GPUs by preset."""
    steps: dict[str, list[Step]] = {}
    for (preset, ranks, batch), rate in several.items():
        steps.setdefault(preset, []).append((batch, ranks, 1e3 * batch / rate))
    return steps


def _exchanges(result: Result | None) -> tuple[Links, float, dict[str, str]]:
    """Links, cost beside drawing, and their sources."""
    if result is None:
        words = "measured before on two H100 with NVLink, all-to-alls of NCCL alone"
        return Links.of(EXCHANGES), BESIDE_MS, {"links": words, "beside": "assumed"}
    lines = [line for line in result.lines if line.name in ("forward", "back")]
    few = [line for line in lines if line.axes["ranks"] == min(result.axis("ranks"))]
    links = Links.of([(line.facts["bytes"], line.median) for line in few])
    source = f"measured, `exchange.json`, {result.machine['gpu']}"
    drawing, beside = result.line("drawing"), 0.0
    rows = sorted({line.axes["rows"] for line in few})
    for way in ("forward", "back"):
        both = result.line(f"drawing beside {way}", rows=_nearest(rows, 480_000))
        if both and drawing:
            beside += max(0.0, both.median - drawing.median)
    return links, beside, {"links": source, "beside": source}


def _copies(result: Result | None) -> dict[str, str]:
    """Rates both ways at once, of one rank alone and of all together."""
    if result is None:
        return {}
    lines = [line for line in result.lines if line.name.startswith("copies both ways")]
    ranks = max(result.axis("ranks"))
    return {
        f"{line.name}, {ranks} GPUs": f"{number(line.median)} GB/s each way"
        for line in lines
        if line.axes["ranks"] == ranks
    }


def _nearest(values: Sequence[int], wanted: int) -> int:
    return min(values, key=lambda value: abs(value - wanted))


def tables(all_found: Sequence[Measured]) -> list[str]:
    """What stands on the page between the marks."""
    travelling = [
        "**What travels**, of each GPU in a round, each way; foretold.",
        "",
        *grid(
            ["GPUs", "splats, MB", "gradients, MB", "both alone, ms", "buffers, MB"],
            _travels(all_found[0].terms),
        ),
        "",
    ]
    return travelling + [line for found in all_found for line in _of_runs(found)]


def _of_runs(found: Measured) -> list[str]:
    """Terms, rates foretold and rates measured of one kind of machine."""
    at_most = "" if found.terms.launching else ", at most: nothing is counted for launching"
    return [
        f"### {found.machine}",
        "",
        f"{found.scene}.",
        "",
        *grid(["term", "value", "from"], _terms(found)),
        "",
        f"**Foretold**{at_most}. Images a second and, in brackets, times one GPU. Rates of one GPU "
        "are measured where bold, else s + v B.",
        "",
        *grid(["", "GPUs", *(f"batch {batch}" for batch in BATCHES)], _foretold(found)),
        "",
        *_checked(found),
    ]


def _terms(found: Measured) -> list[list[str]]:
    terms, sources = found.terms, found.sources
    rows = []
    for preset, one in found.one.items():
        rows.append([f"v, `{preset}`", f"{one.view_ms:.2f} ms", sources["one"]])
        rows.append([f"s, `{preset}`", f"{one.step_ms:.2f} ms", sources["one"]])
    for preset, launching in terms.launching.items():
        words = f"{launching.batch_ms:.2f}, {launching.view_ms:.2f} and {launching.drawn_ms:.2f} ms"
        rows.append([f"l, m, n, `{preset}`", words, f"{sources['fitted']}, batches of whole views"])
    for preset, cut_ms in terms.cut_ms.items():
        rows.append(
            [f"k, `{preset}`", f"{cut_ms:.2f} ms", f"{sources['fitted']}, batches of fewer views"]
        )
    return [
        *rows,
        ["f, of s", f"{FIXED_MS:.2f} ms at most", "assumed"],
        ["u", f"{UNEVEN:.2f}", "assumed"],
        ["c", f"{CUT:.2f}", "assumed"],
        ["x", f"{terms.beside_ms:.2f} ms", sources["beside"]],
        ["exchange, start", f"{1e3 * terms.links.start_ms:.0f} µs", sources["links"]],
        ["exchange, rate", f"{number(terms.links.gb_s)} GB/s each way", sources["links"]],
        ["shortest step", f"{terms.least_ms:.2f} ms", sources.get("least", "not measured")],
        *([name, value, sources["links"]] for name, value in found.copies.items()),
    ]


def _foretold(found: Measured) -> list[list[str]]:
    rows = []
    for preset, one in found.one.items():
        cells = [
            f"**{number(one.rates[batch])}**"
            if batch in one.rates
            else number(1e3 * batch / one.ms(batch))
            for batch in BATCHES
        ]
        rows.append([f"`{preset}`", "1", *cells])
        for ranks in RANKS:
            cells = []
            for batch in BATCHES:
                ms = found.terms.step_ms(preset, one, batch, ranks)
                cells.append(f"{number(1e3 * batch / ms)} ({one.ms(batch) / ms:.2f})")
            rows.append(["", str(ranks), *cells])
    return rows


def _checked(found: Measured) -> list[str]:
    """The model against what was measured on several GPUs; nothing where that is missing."""
    rows = []
    for preset, one in found.one.items():
        for ranks in sorted({n for name, n, _ in found.several if name == preset and n > 1}):
            cells = []
            for batch in BATCHES:
                rate = found.several.get((preset, ranks, batch))
                ms = found.terms.step_ms(preset, one, batch, ranks)
                cells.append(
                    f"{number(rate)} ({rate * ms / batch / 1e3:.2f})" if rate is not None else "-"
                )
            rows.append([f"`{preset}`", str(ranks), *cells])
    if not rows:
        return ["Nothing has been measured on several GPUs yet.", ""]
    return [
        "**Measured**, images a second and, in brackets, times what was foretold.",
        "",
        *grid(["", "GPUs", *(f"batch {batch}" for batch in BATCHES)], rows),
        "",
    ]


def _travels(terms: Terms) -> list[list[str]]:
    # Room grows in steps of an eighth; records are sent and received, gradients received.
    held = SETS * terms.visible * (2 * RECORD_BYTES + GRADIENT_BYTES) * 9 / 8
    return [
        [
            str(ranks),
            *(f"{terms.away(n, ranks) / 1e6:.1f}" for n in (RECORD_BYTES, GRADIENT_BYTES)),
            f"{terms.exchanged_ms(ranks):.2f}",
            f"{held / 1e6:.0f}",
        ]
        for ranks in RANKS
    ]


def filled(page: str, lines: Sequence[str]) -> str:
    """The page with the model's tables anew."""
    before, mark, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"the page must hold {BEGIN} and {END}")
    return "\n".join([before + BEGIN, *lines, END + after])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "scaling.md")
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    page = options.page.read_text()
    wanted = filled(page, tables([measured(options.results, runs) for runs in RUNS]))
    if wanted == page:
        return
    print(f"{'differs' if options.check else 'written'}: {options.page}")
    if options.check:
        sys.exit(1)
    options.page.write_text(wanted)


if __name__ == "__main__":
    main()
