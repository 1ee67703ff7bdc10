# SPDX-License-Identifier: Apache-2.0
"""An invented file of results for each table, and the scripts that read such files."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
MACHINE = {
    "gpu": "NVIDIA H100 80GB HBM3", "driver": "570.1", "gpu_memory_bytes": 85 * 10**9,
    "cpu": "A processor", "cores": 16, "memory_bytes": 128 * 10**9, "platform": "Linux",
    "python": "3.12.3", "torch": "2.11.0", "cuda": "13.0", "packages": {"gsplat": "1.5.3"},
    "environment": {},
}  # fmt: skip


def line_of(name: str, samples: list[float], unit: str, axes: Any, **facts: Any) -> dict[str, Any]:
    """A line of a file of results."""
    return {"name": name, "axes": axes, "unit": unit, "samples": samples, "facts": facts}


def result_of(lines: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """A file of results."""
    return {
        "format": 1, "benchmark": "train/bench_engine.py", "command": "python bench --n 1",
        "commit": COMMIT, "date": "2026-01-02T03:04:05+00:00", "seconds": 12.5,
        "machine": MACHINE, "facts": {}, "lines": lines, **fields,
    }  # fmt: skip


def _engine(gaussians: int) -> dict[str, Any]:
    rates = {
        "none": 50.0, "torch's fused Adam": 40.0, "naive": 2.0, "clm": 5.0, "best": 150.0,
        "none, no optimizer": 180.0,
    }  # fmt: skip
    return result_of(
        [
            line_of(
                name, [rate + batch, rate + batch + 2, rate + batch + 1], "images/s",
                {"gaussians": gaussians, "size": [1920, 1080], "overlap": 0.67,
                 "order": order, "batch": batch},
                visible=480_000.0, device_gb=20.25 if name == "none" else 5.0 + batch / 8,
            )
            for batch in (1, 4, 8)
            for order, names in {"shuffle": rates, "tiles": ("none", "best")}.items()
            for name, rate in ((name, rates[name] + 100 * (order == "tiles")) for name in names)
        ]
    )  # fmt: skip


def _capture(strategy: str = "adc") -> dict[str, Any]:
    axes = {"photographs": 75, "test": 10, "size": [1436, 1076], "steps": 3000}
    axes["strategy"] = strategy
    of = {"dB": 32.5, "SSIM": 0.9, "Gaussians": 240_000.0, "images/s": 260.0, "MB": 450.0}
    others = ("gsplat's loop", "Faster-GS's loop", "before")
    lines = [
        line_of(who, [value, 1.001 * value, 1.002 * value], unit, axes)
        for who in ("none", *others)
        for unit, value in of.items()
    ]
    pairs = {"ratio": [1.5, 2.0, 1.75], "dB": [0.25, 0.5, 0.75], "SSIM": [-0.001, 0.0, -0.002]}
    lines += [
        line_of(f"none over {who}", values, unit, axes)
        for who in others
        for unit, values in pairs.items()
    ]
    command = "PYTHONPATH=benchmarks python benchmarks/train/bench_real_capture.py data/fox"
    return result_of(lines, facts={"seeds": [0, 1, 2], "before": "f" * 40}, command=command)


def _photographs() -> dict[str, Any]:
    axes = {"photographs": 2000, "size": [1920, 1080], "share": 0.25}
    rates = {"memory": 400.0, "file": 380.0, "decoding": 200.0}
    return result_of(
        [
            line_of(f"{what}, {how}", [rate, rate + 2, rate + 1], "images/s", axes)
            for what in ("feed", "trainer")
            for how, rate in rates.items()
        ]
    )


def _largest() -> dict[str, Any]:
    facts = {
        "loss": [0.03, 0.02], "predicted_images_per_second": 170.0, "device_gb": 16.25,
        "predicted_device_gb": 16.0, "host_gb": 11.6, "predicted_host_gb": 11.7,
        "updated_on": "device",
    }  # fmt: skip
    sizes = (20, 21, 34, 100, 120)
    axes = [{"n_rows": n * 10**6, "cap_gib": 24.0, "batch": 8} for n in sizes]
    return result_of([line_of("best", [180.0], "images/s", one, **facts) for one in axes])


def _init() -> dict[str, Any]:
    axes = {"points": 50_000_000, "gaussians": 50_000_000}
    lines = [line_of(name, [8.0], "s", axes) for name in ("read", "order", "tables", "all")]
    return result_of(lines, facts={"peak_host_bytes": 33 * 10**9, "peak_device_bytes": 2 * 10**9})


def cull() -> dict[str, Any]:
    """An invented file of the table of gs-cull."""
    names = ("gs-cull, rows in Morton order, blocks", "gsplat's projection", "plain torch")
    lines = [
        line_of(name, [0.5, 0.75], "ms a view", {"rows": 1000, "views": 64}, peak_bytes=2900)
        for name in names
    ]
    return result_of(lines, facts={"n": 1000, "visible per view": 47.0, "missed": 0})


def _order() -> dict[str, Any]:
    return result_of(
        [
            line_of(
                name, [7.0], "MB",
                {"scene": "city", "views": 64, "mode": "shuffle", "retain": retain},
            )
            for name in ("random", "tsp")
            for retain in ("none", "previous", "capacity", "last_use")
        ]
    )  # fmt: skip


def _times(*names: str) -> dict[str, Any]:
    return result_of(
        [line_of(name, [1e-3, 2e-3], "s", {"rows": 1000}, bytes=10**6) for name in names]
    )


def _refine() -> dict[str, Any]:
    axes = {"gaussians": 20_000_000, "batch": 8, "every": 100, "share": 0.02}
    lines = [
        line_of("best", [180.0, 190.0], "images/s", axes),
        line_of("best, no refinement", [200.0, 210.0], "images/s", axes),
        line_of("best, ratio", [0.9, 0.91], "", axes),
        *(line_of(f"best, {part}", [10.0, 30.0], "ms", axes) for part in ("choose", "replace")),
    ]
    return result_of(lines, facts={"resort_every": 1.0})


def _whole() -> dict[str, Any]:
    axes = {"views": 200, "size": [1920, 1080], "steps": 4000}
    words = {"start from points": "16,000,000 Gaussians", "checkpoints": "1 of 14.1 GB, 1.50 GB/s"}
    facts = {
        "gaussians": [16_000_000, 19_000_000, 22_000_000], "preset": "none", "psnr": 24.125,
        "peak_device_bytes": 17 * 10**9, "peak_host_bytes": {"fit": 9 * 10**9, "eval": 10**9},
    }  # fmt: skip
    lines = [line_of(name, [9.5], "s", axes, words=said) for name, said in words.items()]
    return result_of(lines, facts=facts)


def _ranks() -> dict[str, Any]:
    rates = {("none", 1): 400.0, ("none", 2): 700.0, ("gsplat", 1): 50.0, ("gsplat", 2): 75.0}
    lines = [
        line_of(
            who, [rate + batch, rate + batch + 2, rate + batch + 1], "images/s",
            {"gaussians": 20_000_000, "size": [1920, 1080], "overlap": 0.67, "batch": batch,
             "ranks": ranks},
            visible=480_000.0, ranks_peak_bytes=[(17 - k) * 10**9 // ranks for k in range(ranks)],
            waited_share=[0.0625, 0.03][:ranks],
        )
        for batch in (4, 8)
        for (who, ranks), rate in rates.items()
        if who == "none" or batch == 8
    ]  # fmt: skip
    return result_of(lines)


def _exchange() -> dict[str, Any]:
    def line(name: str, ms: float, **facts: Any) -> dict[str, Any]:
        axes = {"ranks": 2, "rows": 480_000}
        return line_of(name, [ms, ms + 0.002, ms + 0.001], "ms", axes, **facts)

    ways = {"forward": 12_480_000, "back": 8_640_000}
    return result_of(
        [
            line_of("gather of 12 integers", [0.1, 0.2, 0.15], "ms", {"ranks": 2}),
            line_of("copies both ways, all together", [50.0, 52.0], "GB/s", {"ranks": 2}),
            *(line(way, 0.099, bytes=n_bytes) for way, n_bytes in ways.items()),
            *(line(f"{way} beside drawing", 0.249, bytes=n) for way, n in ways.items()),
        ]
    )


def _capture_ranks() -> dict[str, Any]:
    axes = {"images": 3000, "batch": 4, "offload": "none"}
    of = {"images/s": 700.0, "dB": 32.5}
    lines = [
        line_of("gs-train", [value * ranks, value * ranks + 1], unit, axes | {"ranks": ranks})
        for ranks in (1, 2)
        for unit, value in of.items()
    ]
    pairs = {"ratio": [1.75, 1.85], "dB": [0.25, 0.75]}
    lines += [line_of("2 GPUs over 1", values, unit, axes) for unit, values in pairs.items()]
    command = "PYTHONPATH=benchmarks python benchmarks/ranks/bench_capture_ranks.py data/fox"
    return result_of(lines, facts={"seeds": [0, 1]}, command=command)


def all_results() -> dict[str, dict[str, Any]]:
    """An invented file for each table."""
    return {
        "engine-20m": _engine(20_000_000), "engine-64": _engine(20_000_000),
        "engine-5m": _engine(5_000_000), "capture": _capture(), "capture-boruszyn": _capture(),
        "capture-mcmc": _capture("mcmc"), "photographs": _photographs(),
        "refine-20m": _refine(), "whole-20m": _whole(),
        "ranks": _ranks(), "ranks-4gpu": _ranks(), "ranks-4k": _ranks(),
        "ranks-40m": _ranks(), "ranks-40m-4gpu": _ranks(),
        "exchange": _exchange(), "capture-ranks": _capture_ranks(),
        "largest": _largest(), "init": _init(), "cull": cull(), "order": _order(),
        "pinned": _times("cudaMemcpyAsync to device, 5 %", "gather 5 % sorted",
                         "torch index_select + copy 5 % sorted"),
        "adam-device": _times("torch fused, all rows", "gs-adam, 10% have gradients",
                              "gs-adam, 100% have gradients"),
        "adam-host": _times("torch fused, all rows", "gs-adam dense, all rows",
                            "gs-adam deferred, 10% random"),
    }  # fmt: skip


def write(folder: Path, results: dict[str, Any]) -> Path:
    """Write files of results; returns their folder."""
    folder.mkdir(exist_ok=True)
    for name, result in results.items():
        (folder / f"{name}.json").write_text(json.dumps(result))
    return folder


def run_script(script: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    """Run a script of the benchmarks' folder."""
    command = [sys.executable, str(FOLDER / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
