# SPDX-License-Identifier: Apache-2.0
"""Lines of ``gs-train plan`` about Gaussians on a drive."""

from __future__ import annotations

from typing import Any

from gs_train.sizes import format_bytes


def lines_of_drive(tide: dict[str, Any], *, in_one: bool) -> list[str]:
    """What the table has no column for.

    Args:
        tide: see :func:`gs_train.commands.plan_blocks.planned_on_drive`.
        in_one: whether other presets are planned for several processes.
    """
    if "parts" not in tide:
        return [f"--offload tide does not fit: {tide['reason']}"]
    blocks = tide["blocks"]
    process = ", in one process" if in_one else ""
    lines = [
        f"--offload tide{process}: {blocks['all']:,} blocks of {tide['block_rows']:,} Gaussians, "
        f"{min(tide['slots'], blocks['all']):,} on the device and {tide['places']:,} in host "
        f"memory; a step uses {blocks['used']:,.0f}, of which {_few(blocks['loaded'])} come from "
        f"host memory and {_few(blocks['read'])} from the drive"
    ]
    space = (
        f"its drive holds {format_bytes(tide['drive_bytes'])} once all are trained, and up to "
        f"{format_bytes(tide['snapshot_bytes'])} more for snapshots"
    )
    if not blocks["read"]:
        lines.append(f"{space}; steps need no drive")
    elif tide["drive"] is None:
        lines.append(f"{space}; {tide['drive_trouble']}")
    else:
        drive, moved = tide["drive"], (tide["bytes_read"], tide["bytes_written"])
        n_read, n_written = (format_bytes(int(n_bytes)) for n_bytes in moved)
        lines.append(
            f"{space}; a step reads {n_read} and writes {n_written}; it reads "
            f"{drive['read'] / 1e9:.3g} GB/s and writes {drive['write'] / 1e9:.3g} GB/s, "
            f"{drive['source']}"
        )
    if tide["reason"]:
        lines.append(f"--offload tide does not fit: {tide['reason']}")
    return lines


def _few(blocks: float) -> str:
    """With a decimal where that is most of it."""
    return f"{blocks:,.0f}" if blocks >= 10 or not blocks else f"{blocks:.1f}"
