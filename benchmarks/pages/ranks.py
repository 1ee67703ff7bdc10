# SPDX-License-Identifier: Apache-2.0
"""Tables of training on several GPUs, and what GPUs exchange."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from pages.cells import RESULTS, below, difference, grid, item, number, required, spread
from results import Line, Result

PEER = "gsplat"


def quoted_training(name: str, result: Result) -> list[str]:
    """`training` of a file that is quoted."""
    return training(name, result, folder=f"{RESULTS}/quoted")


def training(name: str, result: Result, *, folder: str = RESULTS) -> list[str]:
    """Rates by preset, number of GPUs and batch size, and how many times one GPU they are."""
    batches, rows = sorted(result.axis("batch")), []
    for who in dict.fromkeys(line.name for line in result.lines):
        for ranks in sorted(result.axis("ranks")):
            lines = [result.line(who, batch=batch, ranks=ranks) for batch in batches]
            if not any(lines):
                continue
            alone = [result.line(who, batch=batch, ranks=1) for batch in batches]
            rows.append(
                ["gsplat, `distributed=True`" if who == PEER else f"`{who}`", str(ranks),
                 *(_times(*both) for both in zip(lines, alone)),
                 ", ".join(_most(line, "ranks_peak_bytes", 1e-9, 1) for line in lines if line),
                 ", ".join(_least_to_most(line, "waited_share", 1e2) for line in lines
                           if line and who != PEER and ranks > 1)]
            )  # fmt: skip
    first = result.lines[0]
    width, height = first.axes["size"]
    words = (
        f"Images a second of {first.axes['gaussians']:,} Gaussians, {width} x {height}, "
        f"{first.facts['visible']:,.0f} rows a view, neighbours share {first.axes['overlap']:.2f}, "
        f"shuffled; median of {len(first.samples)} runs (least to most), times one GPU. By batch, "
        "memory of tensors of the worst GPU, and the share of the time waited for others: of the "
        "GPU that waits least, which is what exchanges cost, to the one that waits most."
    )
    heads = ["", "GPUs", *(f"batch {batch}" for batch in batches), "GB a GPU", "waited, %"]
    return below(name, result, words, folder=folder) + grid(heads, rows)


def exchange(name: str, result: Result) -> list[str]:
    """Times and rates of exchanges, and of what else ranks do together."""
    said, ranks = [], max(result.axis("ranks"))
    for line in result.lines:
        if line.axes["ranks"] == ranks and line.name in ("forward", "back"):
            beside = result.line(f"{line.name} beside drawing", **line.axes)
            alone = f"{spread(line)} ms, {number(_rate(line))} GB/s"
            more = f", {number(beside.median)} ms beside drawing" if beside else ""
            said.append(f"{line.name}, {line.axes['rows']:,} rows a view: {alone}{more}")
    for what in ("copies both ways, rank 0 alone", "copies both ways, all together"):
        copies = result.line(what, ranks=ranks)
        if copies:
            said.append(f"{what}: {spread(copies)} GB/s each way of a GPU")
    for line in result.lines:
        if line.axes["ranks"] == ranks and line.name.startswith("gather of"):
            said.append(f"{line.name}: {spread(line)} ms")
    words = (
        f"{ranks} GPUs exchange splats (52 bytes a row) and gradients (48), median of "
        f"{len(result.lines[0].samples)} samples, rates of bytes that leave a GPU"
    )
    return item(name, result, words, said)


def quoted_capture(name: str, result: Result) -> list[str]:
    """`capture` of a file that is quoted."""
    return capture(name, result, folder=f"{RESULTS}/quoted")


def capture(name: str, result: Result, *, folder: str = RESULTS) -> list[str]:
    """Rates and scores of a capture on several GPUs against one."""
    said = []
    for batch in result.axis("batch"):
        for ranks in result.axis("ranks"):
            axes: dict[str, Any] = {"batch": batch, "ranks": ranks}
            rate = required(result.line("gs-train", "images/s", **axes), "gs-train")
            psnr = required(result.line("gs-train", "dB", **axes), "gs-train")
            words = f"batch {batch}, {ranks} GPU{'s' * (ranks > 1)}: {spread(rate)} images/s"
            pair = f"{ranks} GPUs over 1"
            ratio = result.line(pair, "ratio", batch=batch)
            if ratio:
                apart = difference(result.line(pair, "dB", batch=batch), 2)
                words += f", {spread(ratio, 2)} times one, PSNR {apart} dB more"
            said.append(f"{words}, {psnr.median:.2f} dB")
    axes, called = result.lines[0].axes, Path(shlex.split(result.command)[3]).name
    words = (
        f"{called} in {axes['images']:,} images with `{axes['offload']}`, median of "
        f"{len(result.facts['seeds'])} seeds (least to most)"
    )
    return item(name, result, words, said, folder=folder)


def largest_scene(name: str, result: Result) -> list[str]:
    """The largest number of rows that trained, and the smallest that did not."""
    rows = []
    for line in result.lines:
        facts = line.facts
        rows.append(
            [f"`{line.name}`", str(line.axes["ranks"]), f"{line.median / 1e6:.1f}M",
             f"{facts['smallest_refused'] / 1e6:.1f}M", f"{facts['foretold_largest_n'] / 1e6:.1f}M",
             _most(line, "ranks_peak_bytes", 1e-9, 1)]
        )  # fmt: skip
    axes = result.lines[0].axes
    words = (
        f"Gaussians that train for {result.lines[0].facts['steps']} steps where tensors of a GPU "
        f"may take {number(axes['cap_gib'])} GiB, batches of {axes['batch']}, {axes['size'][0]} x "
        f"{axes['size'][1]}, {axes['share']:.0%} of the rows in a view, a fixed number of rows."
    )
    heads = ["", "GPUs", "trains", "memory ran out", "foretold by `plan`", "GB a GPU"]
    return below(name, result, words, folder=f"{RESULTS}/quoted") + grid(heads, rows)


def _times(line: Line | None, alone: Line | None) -> str:
    cell = spread(line)
    if line is None or alone is None or line is alone:
        return cell
    return f"{cell}; {line.median / alone.median:.2f}"


def _most(line: Line, fact: str, scale: float, digits: int) -> str:
    return f"{scale * max(line.facts[fact]):.{digits}f}"


def _least_to_most(line: Line, fact: str, scale: float) -> str:
    shares = [scale * share for share in line.facts[fact]]
    return f"{min(shares):.0f} to {max(shares):.0f}"


def _rate(line: Line) -> float:
    """GB/s of a line in milliseconds."""
    rate: float = line.facts["bytes"] / line.median / 1e6
    return rate
