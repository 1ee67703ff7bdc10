# SPDX-License-Identifier: Apache-2.0
"""Tables of scenes larger than the device, and of a whole run."""

from __future__ import annotations

import itertools

from pages.cells import below, grid, number
from results import Result

PREPARATION = "making the capture"


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
