# SPDX-License-Identifier: Apache-2.0
"""The tables that ``gs-train plan`` prints."""

from __future__ import annotations

import math
from typing import IO, Any

from rich.console import Console
from rich.table import Table

from gs_train.commands.plan_lines import lines_of_drive
from gs_train.sizes import format_bytes
from gs_train.sizing.duration import as_hours
from gs_train.sizing.memory import PROCESS_BYTES

_TIERS = {"device": "device", "pinned": "page-locked", "pageable": "other host"}


def print_plan(result: dict[str, Any], *, verbose: bool, file: IO[str]) -> None:
    """Print what :func:`gs_train.commands.plan.plan` returns.

    Args:
        verbose: also bytes by part, and the measured rates.
    """
    # Wide enough for all columns where the output is a file.
    console = Console(file=file, width=None if file.isatty() else 140, highlight=False)
    console.print(_heading(result))
    if result["scratch_bytes"]:
        console.print(_photographs(result))
    console.print(_summary(result))
    if verbose:
        console.print(_parts(result))
        console.print(_rates(result["rates"]))
    for line in lines_of_drive(result["tide"], in_one=bool(result["ranks"])):
        console.print(line, soft_wrap=True, markup=False)
    auto = result["auto"]
    name = auto["preset"] or "nothing"
    console.print(f"--offload auto takes {name}: {auto['reason']}")
    if auto["preset"]:
        hours = as_hours(result["presets"][auto["preset"]]["seconds_of_run"])
        console.print(
            f"{result['steps']:,} steps will take about {hours} (hours:minutes){_growth(result)}"
        )
    if result["ranks"]:
        console.print(_of_ranks(result["ranks"]))
        for line in _ranks_lines(result["ranks"]):
            console.print(line)
    if result["within_an_hour"]:
        console.print(f"within an hour: {result['within_an_hour']}", soft_wrap=True, markup=False)


def _of_ranks(ranks: dict[str, Any]) -> Table:
    """Of each rank, but for the last two columns."""
    table = Table(f"each of {ranks['n_ranks']}")
    for name in ("device", "of it exchange", "host", "host of all", "fits", "residents"):
        table.add_column(name, justify="right")
    for name in ("images/s", "bound by", "largest N"):
        table.add_column(name, justify="right")
    for name, of in ranks["presets"].items():
        table.add_row(
            name,
            format_bytes(of["device_bytes"]),
            format_bytes(of["parts"]["device"]["exchange"]),
            format_bytes(of["host_bytes"]),
            format_bytes(of["host_bytes_of_all"]),
            "yes" if of["fits"] else "no",
            _million(of["residents"]) if of["residents"] else "",
            _speeds(of),
            of["bound"],
            _million(of["largest_n"]),
        )
    return table


def _ranks_lines(ranks: dict[str, Any]) -> list[str]:
    auto, caps = ranks["auto"], ranks["caps"]
    return [
        f"Each of {ranks['n_ranks']} owns up to {ranks['n_rows']:,} Gaussians. Caps of each: "
        f"device {format_bytes(caps['device'])}, host {format_bytes(caps['host'])}. Between two: "
        f"{ranks['between_ranks'] / 1e9:.3g} GB/s, {ranks['between_ranks_source']}.",
        f"--offload auto takes {auto['preset'] or 'nothing'} there: {auto['reason']}",
        ranks["verdict"],
    ]


def _growth(result: dict[str, Any]) -> str:
    first, last = result["n_rows_first"], result["n_rows_last"]
    return f", with {first:,} Gaussians that become up to {last:,}" if last > first else ""


def _heading(result: dict[str, Any]) -> str:
    work, caps = result["workload"], result["caps"]
    mean, n = work["mean"], result["n_rows"]
    own = "of which" if caps["process"] else "beside which"
    per_view = 100 * mean["visible"] / work["batch_size"] / n
    return (
        f"{n:,} Gaussians, {work['batch_size']} images a step of up to "
        f"{work['width']}x{work['height']}; a view sees {per_view:.3g} %, a step "
        f"{100 * mean['union'] / n:.3g} %. Caps: device {format_bytes(caps['device'])}, host "
        f"{format_bytes(caps['host'])}{' together' if caps['shared'] else ''}, "
        f"{own} the process takes about {format_bytes(PROCESS_BYTES)}."
    )


def _photographs(result: dict[str, Any]) -> str:
    return (
        f"Photographs: {format_bytes(result['decoded_bytes'])} decoded, of which "
        f"{format_bytes(result['workload']['image_cache'])} are in memory; fit keeps all in a file "
        f"of {format_bytes(result['scratch_bytes'])} while it trains."
    )


def _summary(result: dict[str, Any]) -> Table:
    table = Table()
    table.add_column("preset")
    for name in ("device", "page-locked", "other host"):
        table.add_column(name, justify="right")
    table.add_column("fits")
    for name in ("residents", "images/s", "bound by", "largest N", "h:mm", "drive"):
        table.add_column(name, justify="right")
    for name, of in _rows_of(result).items():
        fits = "no" if not of["fits"] else "yes" if of["views_whole"] else "views cut"
        batch = of["batch_size"]
        note = "" if batch == result["workload"]["batch_size"] else f" (batch {batch})"
        table.add_row(
            name + note,
            format_bytes(of["device_bytes"]),
            format_bytes(of["pinned_bytes"]),
            format_bytes(of["host_bytes"] - of["pinned_bytes"]),
            fits,
            _million(of["residents"]) if of["residents"] else "",
            _speeds(of),
            of["bound"],
            _million(of["largest_n"]),
            _hours(of),
            format_bytes(of["drive_bytes"]) if "drive_bytes" in of else "",
        )
    return table


def _rows_of(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What there is a row for, by its name: the last one is on a drive, if it has room at all."""
    tide = result["tide"]
    name = "tide (1 process)" if result["ranks"] else "tide"
    return {**result["presets"], **({name: tide} if "parts" in tide else {})}


def _hours(of: dict[str, Any]) -> str:
    seconds = of["seconds_of_run"]
    return seconds if isinstance(seconds, str) else as_hours(seconds)


def _speeds(of: dict[str, Any]) -> str:
    """Images a second with the first Gaussians and with all that are planned for."""
    speeds = (of[key] for key in ("images_per_second_first", "images_per_second"))
    ends = (speed if isinstance(speed, str) else f"{speed:.3g}" for speed in speeds)
    return " to ".join(dict.fromkeys(ends))


def _parts(result: dict[str, Any]) -> Table:
    table = Table("memory", "part")
    for name in _rows_of(result):
        table.add_column(name, justify="right")
    for tier, title in _TIERS.items():
        of = {name: preset["parts"][tier] for name, preset in _rows_of(result).items()}
        for part in dict.fromkeys(part for parts in of.values() for part in parts):
            cells = [format_bytes(parts[part]) if parts.get(part) else "" for parts in of.values()]
            if any(cells):
                table.add_row(title, part, *cells)
    return table


def _rates(rates: dict[str, Any]) -> Table:
    table = Table(f"measured on {rates['device']}", "")
    titles = {
        "to_device": "copy to the device",
        "to_host": "copy to the host",
        "both": "both at once, each",
        "gather": "gather of sorted rows",
        "device_adam": "Adam on the device, geometry",
        "host_adam": "Adam on the host, all rows",
        "host_rows": "Adam on the host, one row in twenty",
    }
    for name, title in titles.items():
        table.add_row(title, f"{rates[name] / 1e9:.3g} GB/s")
    table.add_row("culling", f"{rates['cull_rows'] / 1e6:.3g} M rows/s")
    table.add_row("culling each further view", f"{rates['cull_more_rows'] / 1e6:.3g} M rows/s")
    for title, kind in (("a view", ""), ("a view of a batch", "batch_")):
        table.add_row(title, f"{1e3 * rates[kind + 'view_s']:.3g} ms")
        table.add_row("and for 1000 rows that it sees", f"{1e6 * rates[kind + 'row_s']:.3g} ms")
    return table


def _million(n: int) -> str:
    """Rounded down, so that what fits still does."""
    return f"{math.floor(n / 1e4) / 100:g}M" if n >= 1e6 else f"{n:,}"
