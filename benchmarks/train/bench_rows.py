# SPDX-License-Identifier: Apache-2.0
"""What do rows cost on their way to gsplat's kernels and back?

Decides what is worth a kernel of its own. The rows of one view: copied out of all, activated and
coloured, the gradients of that, and those added to the sums. Against: the same by torch's and
gsplat's operations. The ceiling is a copy of the bytes that must move.

Device times are of kernels queued behind a pause; what the host needs to launch them is its own
column, and on a busy link the larger one.

    PYTHONPATH=benchmarks python benchmarks/train/bench_rows.py --n 20_000_000 --json rows.json
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from bench_loss import copy_bytes_per_ms, measure
from torch import Tensor

from gs_train.renderers import View
from gs_train.renderers.activation import activate, activate_apart
from gs_train.rows.attributes import columns
from gs_train.rows.copies import add_rows, take_rows
from harness import Record, add_json_option

DEGREE, WIDTH, GEOMETRY = 3, 48, 11
GEOMETRY_SHAPES = {"means": (3,), "scales": (3,), "quats": (4,), "opacities": ()}


def tensors(n: int, seed: int) -> dict[str, Tensor]:
    """All six attributes, the appearance in rows of one table."""
    torch.manual_seed(seed)
    made = {name: torch.randn((n, *of), device="cuda") for name, of in GEOMETRY_SHAPES.items()}
    return made | columns(torch.randn((n, WIDTH), device="cuda"))


def take_apart(values: dict[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
    return {name: part.index_select(0, ids) for name, part in values.items()}


def add_apart(totals: dict[str, Tensor], parts: dict[str, Tensor], ids: Tensor) -> None:
    for name, total in totals.items():
        total.index_add_(0, ids, parts[name])


def makers(n: int, n_visible: int) -> dict[str, tuple[Callable[[], Any], Callable[[], Any], int]]:
    """By name: ours, the other, and floats that must move for each row."""
    values, totals, others = tensors(n, 0), tensors(n, 1), tensors(n, 1)
    runs = torch.randperm(n // 8, device=values["means"].device)[: n_visible // 8].sort().values
    ids = (8 * runs[:, None] + torch.arange(8, device=runs.device)).flatten().int()
    leaves = {name: part.requires_grad_() for name, part in take_rows(values, ids).items()}
    parts = {name: torch.randn_like(leaf) for name, leaf in leaves.items()}
    pose = torch.eye(4, device=runs.device)
    view = View("v", pose, torch.eye(3, device=runs.device), 1920, 1080)
    # The renderer's own gradients reach the means too.
    upstream = [torch.randn_like(leaves[name]) for name in ("means", "scales", "opacities")]
    upstream.append(torch.randn_like(leaves["means"]))

    def run(function: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: function(leaves, view, sh_degree=DEGREE)

    def back(function: Callable[..., Any]) -> Callable[[], Any]:
        out = function(leaves, view, sh_degree=DEGREE)
        wanted = [leaf for name, leaf in leaves.items() if name != "quats"]
        return lambda: torch.autograd.grad(out, wanted, upstream, retain_graph=True)

    def added(function: Callable[..., Any], to: dict[str, Tensor]) -> Callable[[], Any]:
        def call() -> dict[str, Tensor]:
            function(to)
            return to

        return call

    row = WIDTH + GEOMETRY
    return {
        "take": (
            lambda: take_rows(values, ids),
            lambda: take_apart(values, ids),
            2 * row,
        ),
        "activate": (run(activate), run(activate_apart), 7 + WIDTH + 4 + 6),
        "its gradient": (back(activate), back(activate_apart), 20 + WIDTH - 3 + 7 + WIDTH),
        "add": (
            added(lambda to: add_rows(to, parts, ids, ids), totals),
            added(lambda to: add_apart(to, parts, ids), others),
            3 * row,
        ),
    }


def check(name: str, ours: Callable[[], Any], other: Callable[[], Any]) -> None:
    """That both give the same, but for the order of sums of up to 16 products."""
    for mine, theirs in zip(_tensors_of(ours()), _tensors_of(other()), strict=True):
        off = (mine - theirs).abs().max() / theirs.abs().max()
        assert off < 1e-4, f"{name}: off by {off.item():.2g} of the largest"


def _tensors_of(result: Any) -> list[Tensor]:
    return list(result.values() if isinstance(result, dict) else result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=20_000_000)
    parser.add_argument("--visible", type=int, default=480_000)
    add_json_option(parser)
    arguments = parser.parse_args()
    record = Record(arguments.json)
    rate = copy_bytes_per_ms()
    rows = f"{arguments.visible:,} of {arguments.n:,} rows, in runs of 8"
    print(f"copy {rate / 1e6:.0f} GB/s; {rows}")
    heads = f"{'us':>7s} {'of copy':>8s} {'apart':>8s} {'ratio':>6s}"
    print(f"{'':14s} {heads} {'host us':>8s} {'apart':>7s}")
    record.facts["copy_bytes_per_ms"] = rate
    axes = {"gaussians": arguments.n, "visible": arguments.visible}
    for name, (ours, other, floats) in makers(arguments.n, arguments.visible).items():
        check(name, ours, other)
        mine, theirs = (measure(lambda _, call=call: call(), 5, 20) for call in (ours, other))
        us, us_apart, host, host_apart = (
            1e3 * statistics.median(found[key])
            for key in ("device_ms", "host_ms")
            for found in (mine, theirs)
        )
        share = 4e3 * floats * arguments.visible / rate / us
        print(
            f"{name:14s} {us:7.1f} {share:8.2f} {us_apart:8.1f} {us_apart / us:6.2f} "
            f"{host:8.1f} {host_apart:7.1f}"
        )
        for kind, found in (("one kernel", mine), ("torch's operations", theirs)):
            record.add(
                name, found["device_ms"], "ms", axes=axes | {"by": kind}, host_ms=found["host_ms"]
            )
    record.write()


if __name__ == "__main__":
    main()
