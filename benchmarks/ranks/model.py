# SPDX-License-Identifier: Apache-2.0
"""Rates on several GPUs, foretold from what was measured on fewer, for docs/scaling.md.

    export PYTHONPATH=benchmarks
    python benchmarks/ranks/model.py             # after new files came into benchmarks/results
    python benchmarks/ranks/model.py --check     # exit status 1 if the page says something else

The page explains the model. Rates of one GPU and of several come from ``ranks-4gpu.json``,
exchanges and their cost beside drawing from ``exchange.json``, the shortest step from
``capture.json``. A term that no file has is assumed, and the page says so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from pages.cells import grid, number
from results import Line, Result, read_result

ROOT = Path(__file__).resolve().parent.parent.parent
PRESETS = ("none", "best")
RANKS = (2, 4, 8)
BATCHES = (1, 4, 8, 16, 64)
RANKS_FILE = "ranks-4gpu"
BEGIN, END = "<!-- model -->", "<!-- end of model -->"

RECORD_BYTES, GRADIENT_BYTES = 52, 48
SETS = 3  # of buffers

# Assumed where nothing was measured.
UNEVEN = 1.03
CUT = 1.15
FIXED_MS = 1.2
BESIDE_MS = 0.13
# Off-rank bytes of an all-to-all and its milliseconds, of two H100 with NVLink.
EXCHANGES = ((4 << 20, 0.035), (16 << 20, 0.083), (64 << 20, 0.264))


@dataclass(frozen=True)
class OneGpu:
    """What a batch takes on one GPU: ``step_ms`` and, for each view, ``view_ms``.

    Attributes:
        rates: images a second by batch, as measured.
    """

    view_ms: float
    step_ms: float
    rates: dict[int, float]

    @classmethod
    def of(cls, rates: dict[int, float]) -> OneGpu:
        """The line through milliseconds of batches that misses them least, relative to each."""
        points = [(batch, 1e3 * batch / rate) for batch, rate in rates.items()]
        weights = [1 / ms**2 for _, ms in points]
        total = sum(weights)
        x = sum(w * b for w, (b, _) in zip(weights, points)) / total
        y = sum(w * ms for w, (_, ms) in zip(weights, points)) / total
        covered = sum(w * (b - x) ** 2 for w, (b, _) in zip(weights, points))
        slope = sum(w * (b - x) * (ms - y) for w, (b, ms) in zip(weights, points)) / covered
        step = max(0.0, y - slope * x)
        return cls(slope, step, rates)

    def ms(self, batch: int) -> float:
        """Of a batch."""
        return self.step_ms + self.view_ms * batch


@dataclass(frozen=True)
class Links:
    """An exchange takes ``start_ms`` and its bytes at ``gb_s``."""

    start_ms: float
    gb_s: float

    @classmethod
    def of(cls, points: Sequence[tuple[float, float]]) -> Links:
        """The line through (bytes, milliseconds) that misses them least.

        >>> Links.of([(1e6, 0.02), (3e6, 0.04)])
        Links(start_ms=0.01, gb_s=100.0)
        """
        n = len(points)
        x, y = sum(b for b, _ in points) / n, sum(ms for _, ms in points) / n
        covered = sum((b - x) ** 2 for b, _ in points)
        slope = sum((b - x) * (ms - y) for b, ms in points) / covered
        return cls(round(max(0.0, y - slope * x), 6), round(1e-6 / slope, 6))

    def ms(self, n_bytes: float) -> float:
        """Of so many bytes that leave a rank."""
        return self.start_ms + n_bytes / self.gb_s / 1e6


@dataclass(frozen=True)
class Launching:
    """What the main thread of a rank takes for a batch: ``batch_ms``, ``view_ms`` for each view of
    the batch, and ``drawn_ms`` for each view that the rank draws."""

    batch_ms: float
    view_ms: float
    drawn_ms: float

    @classmethod
    def of(cls, points: Sequence[tuple[int, int, float]]) -> Launching:
        """From (batch, ranks, milliseconds) of steps whose views are not cut: the sums that miss
        them least, relative to each."""
        lines = np.array([[1.0, batch, batch / ranks] for batch, ranks, _ in points])
        ms = np.array([ms for _, _, ms in points])
        found, _ = nnls(lines / ms[:, None], np.ones(len(ms)))
        return cls(*found.tolist())

    def ms(self, batch: int, ranks: int) -> float:
        """Of a batch; a part of a view is launched as a whole one."""
        return self.batch_ms + self.view_ms * batch + self.drawn_ms * -(-batch // ranks)


@dataclass(frozen=True)
class Terms:
    """Of the model, besides one GPU's.

    Attributes:
        visible: rows of a view.
        links: of exchanges.
        beside_ms: for which drawing takes longer in a round because of its exchanges.
        least_ms: of a step, whatever is drawn.
        launching: by preset.
    """

    visible: float
    links: Links
    beside_ms: float
    least_ms: float
    launching: dict[str, Launching]

    def step_ms(self, preset: str, one: OneGpu, batch: int, ranks: int) -> float:
        """Of a batch on several GPUs: of what takes longer, the devices or the threads that launch
        their work."""
        launching = self.launching.get(preset)
        launched = 0.0 if launching is None or ranks == 1 else launching.ms(batch, ranks)
        return max(self.device_ms(one, batch, ranks), launched)

    def device_ms(self, one: OneGpu, batch: int, ranks: int) -> float:
        """Of a batch on several GPUs whose work is launched in time."""
        if ranks == 1:
            return one.ms(batch)
        whole, left = divmod(batch, ranks)
        exchanged = self.exchanged_ms(ranks)
        rounds = whole * max(one.view_ms * UNEVEN + self.beside_ms, exchanged)
        if left:
            cut = one.view_ms * CUT * left / ranks + self.beside_ms
            rounds += max(cut, exchanged * left / ranks)
        fixed = min(one.step_ms, FIXED_MS)
        ms = rounds + fixed + (one.step_ms - fixed) / ranks + exchanged
        return max(ms, self.least_ms)

    def exchanged_ms(self, ranks: int) -> float:
        """The exchanges of a round, there and back: as long as the first and the last of a step,
        which nothing hides."""
        return sum(self.links.ms(self.away(n, ranks)) for n in (RECORD_BYTES, GRADIENT_BYTES))

    def away(self, row_bytes: int, ranks: int) -> float:
        """Bytes that leave a rank in a round."""
        return self.visible * row_bytes * (ranks - 1) / ranks


@dataclass(frozen=True)
class Measured:
    """What the results hold, and where each part is from.

    Attributes:
        one: by preset.
        several: rates, by preset, ranks and batch.
        sources: of each term, in words.
        scene: in words.
        copies: rates of copies between host and device, by name.
    """

    one: dict[str, OneGpu]
    several: dict[tuple[str, int, int], float]
    terms: Terms
    sources: dict[str, str]
    scene: str
    copies: dict[str, str]


def measured(folder: Path) -> Measured:
    """What a folder of results says; the rest is assumed."""
    results = {
        name: read_result(folder / f"{name}.json")
        for name in (RANKS_FILE, "exchange", "capture")
        if (folder / f"{name}.json").exists()
    }
    ranks = results[RANKS_FILE]
    found = [line for line in ranks.lines if line.name in PRESETS]
    rates = {
        preset: {line.axes["batch"]: line.median for line in _of(found, preset, {"ranks": 1})}
        for preset in PRESETS
    }
    one = {preset: OneGpu.of(those) for preset, those in rates.items()}
    several = {
        (line.name, line.axes["ranks"], line.axes["batch"]): line.median
        for line in found
        if line.axes["ranks"] > 1
    }
    first = found[0]
    links, beside, sources = _exchanges(results.get("exchange"))
    least = 0.0
    if "capture" in results:
        line = results["capture"].line("none", "images/s")
        least = 1e3 / line.median if line else 0.0
        sources["least"] = f"measured, `capture.json`, {results['capture'].machine['gpu']}"
    sources["one"] = f"measured, `{RANKS_FILE}.json`, {ranks.machine['gpu']}"
    sources["launching"] = f"fitted to batches of whole views of `{RANKS_FILE}.json`"
    width, height = first.axes["size"]
    scene = (
        f"{first.axes['gaussians']:,} Gaussians, {width} x {height}, "
        f"{first.facts['visible']:,.0f} rows a view, shuffled"
    )
    whole = {
        preset: [
            (batch, n, 1e3 * batch / rate)
            for (name, n, batch), rate in several.items()
            if name == preset and batch % n == 0
        ]
        for preset in PRESETS
    }
    launching = {preset: Launching.of(points) for preset, points in whole.items() if points}
    terms = Terms(first.facts["visible"], links, beside, least, launching)
    return Measured(one, several, terms, sources, scene, _copies(results.get("exchange")))


def _of(lines: Sequence[Line], name: str, axes: dict[str, object]) -> list[Line]:
    return [line for line in lines if line.name == name and axes.items() <= line.axes.items()]


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


def tables(found: Measured) -> list[str]:
    """What stands on the page between the marks."""
    return [
        f"{found.scene[0].upper()}{found.scene[1:]}.",
        "",
        *grid(["term", "value", "from"], _terms(found)),
        "",
        "**Foretold**, images a second and, in brackets, times one GPU. Rates of one GPU are "
        "measured where bold, else s + v B.",
        "",
        *grid(["", "GPUs", *(f"batch {batch}" for batch in BATCHES)], _foretold(found)),
        "",
        *_checked(found),
        "**What travels**, of each GPU in a round, each way; foretold.",
        "",
        *grid(
            ["GPUs", "splats, MB", "gradients, MB", "both alone, ms", "buffers, MB"],
            _travels(found.terms),
        ),
    ]


def _terms(found: Measured) -> list[list[str]]:
    terms, sources = found.terms, found.sources
    rows = []
    for preset, one in found.one.items():
        rows.append([f"v, `{preset}`", f"{one.view_ms:.2f} ms", sources["one"]])
        rows.append([f"s, `{preset}`", f"{one.step_ms:.2f} ms", sources["one"]])
    for preset, launching in terms.launching.items():
        words = f"{launching.batch_ms:.2f}, {launching.view_ms:.2f} and {launching.drawn_ms:.2f} ms"
        rows.append([f"l, m, n, `{preset}`", words, sources["launching"]])
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
    wanted = filled(page, tables(measured(options.results)))
    if wanted == page:
        return
    print(f"{'differs' if options.check else 'written'}: {options.page}")
    if options.check:
        sys.exit(1)
    options.page.write_text(wanted)


if __name__ == "__main__":
    main()
