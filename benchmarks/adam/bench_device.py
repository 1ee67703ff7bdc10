# SPDX-License-Identifier: Apache-2.0
"""Is dense Adam on the GPU from compact gradients bound by memory alone?

Decides whether geometry (11 floats a row) can be updated for all rows every batch without a
gradient of N rows. The ceiling is a device-to-device copy; the peer, in the same run, is torch's
fused Adam, which needs that gradient (whose filling is timed apart). A value counts 24 bytes, 4
more where it has a gradient. The device is held until a call is queued: its own time is measured,
and apart from it how long the host takes to queue.

    PYTHONPATH=benchmarks python benchmarks/adam/bench_device.py [--rows N] [--json PATH]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from device_timing import copy_bandwidth, host_time, timed

from gs_adam import DeviceAdam
from harness import Record, add_json_option

WIDTHS = (3, 3, 4, 1)
SHARES = (0.02, 0.1, 1.0)


def make_params(n_rows: int) -> list[torch.nn.Parameter]:
    """Geometry of n_rows Gaussians."""
    torch.manual_seed(0)
    return [
        torch.nn.Parameter(torch.randn(n_rows, width, device="cuda"), requires_grad=False)
        for width in WIDTHS
    ]


def check() -> None:
    """What is timed below is right: against torch's fused Adam."""
    ours, theirs = make_params(10_001), make_params(10_001)
    device, fused = DeviceAdam(ours, eps=1e-15), torch.optim.Adam(theirs, eps=1e-15, fused=True)
    for _ in range(10):
        ids = (torch.rand(10_001, device="cuda") < 0.1).nonzero().flatten()
        grads = [torch.randn(len(ids), width, device="cuda") for width in WIDTHS]
        device.step(ids, grads)
        for p, g in zip(theirs, grads, strict=True):
            p.grad = torch.zeros_like(p).index_copy_(0, ids, g)
        fused.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-6)


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--samples", type=int, default=20)
    add_json_option(parser)
    options = parser.parse_args()
    record = Record(options.json)
    check()
    n_rows, width = options.rows, sum(WIDTHS)
    limit = copy_bandwidth(n_rows * width, options.samples)
    name = torch.cuda.get_device_name()
    print(f"{name}: {n_rows} rows x {width}, copy {limit:.0f} GB/s")
    print(f"{'case':40} {'best ms':>9} {'median':>9} {'GB/s':>8} {'limit':>6} {'x fused':>8}")
    record.facts["copy_gb_per_second"] = limit

    def report(case: str, seconds: list[float], n_bytes: int, fused: float) -> float:
        best = min(seconds)
        rate = n_bytes / best / 1e9
        median = float(np.median(seconds))
        print(
            f"{case:40} {best * 1e3:9.3f} {median * 1e3:9.3f} {rate:8.0f} "
            f"{rate / limit:6.0%} {best / (fused or best):8.3f}"
        )
        axes = {"rows": n_rows, "width": width}
        record.add(case, seconds, "s", axes=axes, bytes=n_bytes)
        return best

    params = make_params(n_rows)
    for p in params:
        p.grad = torch.zeros_like(p)
    peer = torch.optim.Adam(params, eps=1e-15, fused=True)
    fused = report(
        "torch fused, all rows", timed(peer.step, options.samples), 28 * n_rows * width, 0
    )
    ids = torch.arange(0, n_rows, 10, device="cuda")
    compact = [torch.randn(len(ids), w, device="cuda") for w in WIDTHS]

    def fill() -> None:
        for p, g in zip(params, compact, strict=True):
            assert p.grad is not None
            p.grad.zero_().index_copy_(0, ids, g)

    report("torch, filling its gradients (10 %)", timed(fill, options.samples), 0, fused)
    del peer
    for p in params:
        p.grad = None
    device = DeviceAdam(params, eps=1e-15)
    for share in SHARES:
        n_ids = int(n_rows * share)
        ids = torch.randperm(n_rows, device="cuda")[:n_ids].sort().values.int()
        compact = [torch.randn(n_ids, w, device="cuda") for w in WIDTHS]

        def step(ids: torch.Tensor = ids, grads: list[torch.Tensor] = compact) -> None:
            device.step(ids, grads)

        n_bytes = 24 * n_rows * width + 4 * n_ids * (width + 1)
        report(f"gs-adam, {share:.0%} have gradients", timed(step, options.samples), n_bytes, fused)
        print(f"{'  host, until it is queued':40} {host_time(step, options.samples) * 1e3:9.3f}")
    record.write()


if __name__ == "__main__":
    main()
