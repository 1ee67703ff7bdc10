# SPDX-License-Identifier: Apache-2.0
"""Tables of the page about Gaussians on a drive."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from pages.cells import RESULTS, below, grid, number, required, spread
from results import Line, Result

_FOLDER = f"{RESULTS}/quoted"
_ORDERS = {"shuffle": "shuffled batches", "tiles": "batches in tiles"}
_IN_HOST, _ON_DRIVE = "tide, host", "tide, drive"


def tide(name: str, result: Result) -> list[str]:
    """Rates of rows in blocks beside those of rows in one place."""
    rows = []
    for batch in result.axis("batch"):
        bases = [result.line(preset, batch=batch) for preset in ("none", "best")]
        for line in (line for line in result.lines if line.axes["batch"] == batch):
            ratios = [f"{line.median / base.median:.2f}" if base else "-" for base in bases]
            shown = line.name if "," in line.name else f"`{line.name}`"
            rows.append([str(batch), shown, spread(line, 0), *ratios])
    axes, names = result.lines[0].axes, {line.name for line in result.lines}
    words = (
        f"Images a second at {axes['gaussians']:,} Gaussians, {axes['size'][0]} x "
        f"{axes['size'][1]}, {_ORDERS[axes.get('order', 'shuffle')]}, "
        f"blocks of {result.facts['block_rows']:,}; all of the blocks in slots"
    )
    words += (
        ", or half of them in slots and all others in host memory." if _IN_HOST in names else "."
    )
    drive = result.line(_ON_DRIVE)
    if drive is not None and "of bound" in drive.facts:
        words += f" The last line has {_of_blocks(drive)}."
    return below(name, result, words, folder=_FOLDER) + grid(
        ["batch", "rows", "images/s", "of `none`", "of `best`"], rows
    )


def saturated(name: str, result: Result) -> list[str]:
    """One sentence on views of a scene of which most lies on the drive."""
    line = required(result.line(_ON_DRIVE), _ON_DRIVE)
    axes, facts = line.axes, line.facts
    left = axes.get("device_left")
    words = (
        f"{axes['gaussians']:,} Gaussians, {axes['size'][0]} x {axes['size'][1]}, batches of "
        f"{axes['batch']} in {axes['order']}{f', {left} of the device left' if left else ''}; "
        f"views list {facts['used'] / facts['blocks']:.0%} of the blocks. {spread(line)} images a "
        f"second, the median of {len(line.samples)} runs of an epoch or more, with "
        f"{_of_blocks(line)}."
    )
    beside = result.line("best")
    if beside is not None:
        words += f" With all appearance in host memory, `best`: {spread(beside)}."
    return below(name, result, words, folder=_FOLDER)[:1]


def _of_blocks(line: Line) -> str:
    """Where the blocks of rows on the drive are, and how near the rate is to what the drive
    allows."""
    facts = line.facts
    places = (
        f"slots for {facts['slots']:,} and an arena for {facts['places']:,} of the "
        f"{facts['used']:,} blocks that views list"
    )
    if not facts["bytes_read an image"]:
        return f"{places}, which both together hold: nothing is read any more"
    bound = "of the drive" if facts["drive is bound"] else "of all blocks in slots"
    read, written = (facts[f"bytes_{what} an image"] / 1e6 for what in ("read", "written"))
    reads, writes = (facts[f"drive {what} a second"] / 1e9 for what in ("reads", "writes"))
    return (
        f"{places}; {facts['of bound']:.0%} of the rate {bound}: "
        f"{read:.3g} MB are read and {written:.3g} MB written an image, at {reads:.3g} and "
        f"{writes:.3g} GB/s"
    )


def foretold(name: str, result: Result) -> list[str]:
    """What `gs-train plan` foretells of surveys larger than any that was trained."""
    rows = []
    for line in result.lines:
        gib = [line.facts[what] / 2**30 for what in ("records", "snapshots")]
        rows.append(
            [f"`{line.axes['order']}`", f"{line.axes['gaussians'] / 1e6:,.0f}M",
             number(line.median), line.facts["bound"], number(line.facts["read"] / 2**20),
             *(number(size, 0) for size in gib)]
        )  # fmt: skip
    facts, axes = result.facts, result.lines[0].axes
    visits = sorted({round(line.facts["visits"]) for line in result.lines})
    read, write = (part.removesuffix("GB") for part in facts["drive"].split(":"))
    words = (
        f"{axes['view_rows']:,.0f} Gaussians a view, each seen by {' to '.join(map(str, visits))} "
        f"views of an epoch, batches of {facts['batch_size']}; {facts['device_memory']} of the "
        f"device, {facts['host_memory']} of host memory, a drive of {read} and {write} GB/s. Rates "
        f"of {facts['rates']}. No line of this table has been run."
    )
    heads = ["order", "Gaussians", "images/s, foretold", "bound by", "read an image, MiB",
             "records, GiB", "snapshots, up to, GiB"]  # fmt: skip
    return below(name, result, words, folder=_FOLDER) + grid(heads, rows)


def boxes(name: str, result: Result) -> list[str]:
    """By how much more blocks are listed than hold a row that a view sees."""
    rows = []
    for scene in result.axis("scene"):
        for batch in result.axis("batch"):
            for block_rows in result.axis("block rows"):
                which = {"scene": scene, "batch": batch, "block rows": block_rows}
                lines = [
                    required(result.line(what, **which), what)
                    for what in ("for ever", "now", "now, along Morton")
                ]
                facts = lines[0].facts
                rows.append(
                    [scene, str(batch), f"{block_rows:,}", f"{facts['visible']:,.0f}",
                     f"{facts['holding']:,.0f}",
                     *(f"{statistics.mean(line.samples):.2f}" for line in lines)]
                )  # fmt: skip
    words = (
        "Blocks that a view lists over blocks that hold a row which the view sees, mean of the "
        "views: through boxes of all that sleeping rows may do, through boxes of what they are "
        "now, and the same for runs of rows along the Morton curve. Gradients are made up."
    )
    heads = ["scene", "batch", "rows of a block", "rows seen", "blocks that hold some",
             "listed, for ever", "now", "now, Morton"]  # fmt: skip
    return below(name, result, words, folder=_FOLDER) + grid(heads, rows)


def _of_device(facts: Mapping[str, Any]) -> str:
    n_bytes = facts["peak_device_bytes"]
    return f", {n_bytes / 1e9:.2f} GB of the device" if n_bytes else ""


def _of_making(facts: Mapping[str, Any]) -> str:
    n_bytes = facts.get("making_host_bytes")
    return f", {n_bytes / 1e9:.2f} GB of host memory at most" if n_bytes else ""


def _given(checked: Mapping[str, Any]) -> str:
    if "given" not in checked:
        return ""
    if "given_steps" not in checked:
        return f"; by {checked['given']:.2g} everywhere where both take the same gradients"
    return (
        f"; after {checked['given_steps']} steps with the same gradients, which draw "
        f"{checked['given_drawn']:,} of the {checked['given_rows']:,} rows of all blocks that "
        f"training views list, all of these differ by {checked['given']:.2g}"
    )


def _foretold(plan: Mapping[str, Any], real: Mapping[str, Any]) -> str:
    rate = real["images_per_second"]
    beside = "" if isinstance(rate, str) else f" ({number(rate)} in the last process)"
    words = (
        f" `gs-train plan` foretells {number(plan['images_per_second'])} images/s of steps that "
        f"the {plan['bound']} bounds{beside}"
    )
    moved = ", ".join(
        f"{plan[f'bytes_{name}'] / 1e6:.0f} MB ({real[f'drive_{name}_a_step_bytes'] / 1e6:.0f}) "
        f"{name} a step"
        for name in ("read", "written")
    )
    words += f", {moved}"
    if isinstance(real["device_bytes"], str):  # rows are all on the host
        return f"{words}."
    device, host = (
        f"{plan[name] / 1e9:.2f} GB ({real[name] / 1e9:.2f})"
        for name in ("device_bytes", "host_bytes")
    )
    return f"{words}, {device} of the device and {host} of host memory."


def survey(name: str, result: Result) -> list[str]:
    """What each part of a run of a scene larger than memory takes."""
    facts, axes = result.facts, result.lines[0].axes
    exported = facts["exported"].split(" Gaussians")[0].split()[-1]
    said = {
        "writing points": f"{15e-9 * axes['n']:.1f} GB, by the benchmark",
        "making the store": f"`gs-train fit`, before the first step{_of_making(facts)}",
        "training": f"{axes['steps']} steps of {axes['batch_size']} views, "
        f"{facts['store']['bytes_read'] / 1e9:.1f} GB read, "
        f"{facts['store']['bytes_written'] / 1e9:.1f} GB written since the last resume",
        "waiting for the drive": "for blocks, since the last resume",
        "snapshots": "that kept training waiting, since the last resume",
        "resume": "after kill -9, until training begins",
        "first step": "from there, with the blocks of its batch",
        "store check": f"{facts['store_bytes'] / 1e9:.1f} GB",
        "sweep over all rows": f"against {facts['rows']['views']} views, by the benchmark",
        "eval": f"{facts['psnr']:.2f} dB ({facts['psnr_of_one_colour']:.2f} of one colour)",
        "export of a part": f"`--crop`, {exported} rows",
    }
    rows = [
        [line.name, ", ".join(f"{s:.1f}" for s in line.samples), said[line.name]]
        for line in result.lines
    ]
    checked = facts["rows"]
    left = axes["device_left"]
    of_device = f", of which {left} are left" if left else ""
    limit, of_host = axes.get("host_left"), ""
    if limit:
        could = (
            "which no process could have more of"
            if facts["host_is_limited"]
            else (f"no group of processes could be limited to {limit} there")
        )
        of_host = f" ({could})"
    words = (
        f"A survey of {axes['n']:,} points, {axes['views']} views of {axes['size'][0]} x "
        f"{axes['size'][1]}; {axes['slots'] or 'as many as fit'} blocks on the device "
        f"(`{facts['renderer']}`{of_device}), an arena of {axes['arena'] or 'what is left'} of "
        f"{axes['host_memory']} of host memory{of_host}. `fit` took "
        f"{facts['peak_host_bytes']['fit'] / 1e9:.2f} GB of host memory at most"
        f"{_of_device(facts)}. A test of all "
        f"{checked['rows']:,} rows against {checked['views']} views found {checked['seen']:,} "
        f"seen, {checked['missed']} of them missed by way of blocks. A step in blocks and one of "
        f"torch's Adam over {checked['rows_of_batch']:,} rows differ by "
        f"{checked['difference']:.2g} of max(value, rate) at most where a row is drawn "
        f"(torch's Adam with rows in the opposite order: {checked['reordered']:.2g}), "
        f"and by {checked['asleep']:.2g} elsewhere{_given(checked)}."
    )
    evicted = facts["store"]["blocks_evicted"]
    words += (
        f" {evicted:,} times since the last resume a block made room for another one."
        if evicted
        else " Memory held all blocks that views list: none had to make room for another one."
    )
    if records := facts.get("records"):
        words += (
            f" Of {records['blocks']:,} blocks no view lists {records['unlisted']:,}, and "
            f"{records['changed_unlisted']} of these have another record than before training."
        )
    if plan := facts.get("plan"):
        words += _foretold(plan, facts["real"])
    if twin := facts.get("twin"):
        words += (
            f" A run that nobody killed ended with the same bits but for {twin['different']} of "
            f"{twin['blocks']:,} blocks."
        )
    return below(name, result, words, folder=_FOLDER) + grid(["part", "seconds", ""], rows)
