# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' files, the comparison of two of them, and the page that is made from them."""

import importlib
import json
import re
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks"
RESULTS = sorted((FOLDER / "results").glob("*.json"))
COMMIT = "0123456789abcdef0123456789abcdef01234567"
MACHINE = {
    "gpu": "NVIDIA H100 80GB HBM3", "driver": "570.1", "gpu_memory_bytes": 85 * 10**9,
    "cpu": "A processor", "cores": 16, "memory_bytes": 128 * 10**9, "platform": "Linux",
    "python": "3.12.3", "torch": "2.11.0", "cuda": "13.0", "packages": {"gsplat": "1.5.3"},
    "environment": {},
}  # fmt: skip


def _line(name: str, samples: list[float], unit: str, axes: Any, **facts: Any) -> dict[str, Any]:
    return {"name": name, "axes": axes, "unit": unit, "samples": samples, "facts": facts}


def _result(lines: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
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
    return _result(
        [
            _line(
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
        _line(who, [value, 1.001 * value, 1.002 * value], unit, axes)
        for who in ("none", *others)
        for unit, value in of.items()
    ]
    pairs = {"ratio": [1.5, 2.0, 1.75], "dB": [0.25, 0.5, 0.75], "SSIM": [-0.001, 0.0, -0.002]}
    lines += [
        _line(f"none over {who}", values, unit, axes)
        for who in others
        for unit, values in pairs.items()
    ]
    command = "PYTHONPATH=benchmarks python benchmarks/train/bench_real_capture.py data/fox"
    return _result(lines, facts={"seeds": [0, 1, 2], "before": "f" * 40}, command=command)


def _photographs() -> dict[str, Any]:
    axes = {"photographs": 2000, "size": [1920, 1080], "share": 0.25}
    rates = {"memory": 400.0, "file": 380.0, "decoding": 200.0}
    return _result(
        [
            _line(f"{what}, {how}", [rate, rate + 2, rate + 1], "images/s", axes)
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
    return _result([_line("best", [180.0], "images/s", one, **facts) for one in axes])


def _init() -> dict[str, Any]:
    axes = {"points": 50_000_000, "gaussians": 50_000_000}
    lines = [_line(name, [8.0], "s", axes) for name in ("read", "order", "tables", "all")]
    return _result(lines, facts={"peak_host_bytes": 33 * 10**9, "peak_device_bytes": 2 * 10**9})


def _cull() -> dict[str, Any]:
    names = ("gs-cull, rows in Morton order, blocks", "gsplat's projection", "plain torch")
    lines = [
        _line(name, [0.5, 0.75], "ms a view", {"rows": 1000, "views": 64}, peak_bytes=2900)
        for name in names
    ]
    return _result(lines, facts={"n": 1000, "visible per view": 47.0, "missed": 0})


def _order() -> dict[str, Any]:
    return _result(
        [
            _line(
                name, [7.0], "MB",
                {"scene": "city", "views": 64, "mode": "shuffle", "retain": retain},
            )
            for name in ("random", "tsp")
            for retain in ("none", "previous", "capacity", "last_use")
        ]
    )  # fmt: skip


def _times(*names: str) -> dict[str, Any]:
    return _result([_line(name, [1e-3, 2e-3], "s", {"rows": 1000}, bytes=10**6) for name in names])


def _refine() -> dict[str, Any]:
    axes = {"gaussians": 20_000_000, "batch": 8, "every": 100, "share": 0.02}
    lines = [
        _line("best", [180.0, 190.0], "images/s", axes),
        _line("best, no refinement", [200.0, 210.0], "images/s", axes),
        _line("best, ratio", [0.9, 0.91], "", axes),
        *(_line(f"best, {part}", [10.0, 30.0], "ms", axes) for part in ("choose", "replace")),
    ]
    return _result(lines, facts={"resort_every": 1.0})


def _whole() -> dict[str, Any]:
    axes = {"views": 200, "size": [1920, 1080], "steps": 4000}
    words = {"start from points": "16,000,000 Gaussians", "checkpoints": "1 of 14.1 GB, 1.50 GB/s"}
    facts = {
        "gaussians": [16_000_000, 19_000_000, 22_000_000], "preset": "none", "psnr": 24.125,
        "peak_device_bytes": 17 * 10**9, "peak_host_bytes": {"fit": 9 * 10**9, "eval": 10**9},
    }  # fmt: skip
    lines = [_line(name, [9.5], "s", axes, words=said) for name, said in words.items()]
    return _result(lines, facts=facts)


def _ranks() -> dict[str, Any]:
    rates = {("none", 1): 400.0, ("none", 2): 700.0, ("gsplat", 1): 50.0, ("gsplat", 2): 75.0}
    lines = [
        _line(
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
    return _result(lines)


def _exchange() -> dict[str, Any]:
    def line(name: str, ms: float, **facts: Any) -> dict[str, Any]:
        axes = {"ranks": 2, "rows": 480_000}
        return _line(name, [ms, ms + 0.002, ms + 0.001], "ms", axes, **facts)

    ways = {"forward": 12_480_000, "back": 8_640_000}
    return _result(
        [
            _line("gather of 12 integers", [0.1, 0.2, 0.15], "ms", {"ranks": 2}),
            _line("copies both ways, all together", [50.0, 52.0], "GB/s", {"ranks": 2}),
            *(line(way, 0.099, bytes=n_bytes) for way, n_bytes in ways.items()),
            *(line(f"{way} beside drawing", 0.249, bytes=n) for way, n in ways.items()),
        ]
    )


def _capture_ranks() -> dict[str, Any]:
    axes = {"images": 3000, "batch": 4, "offload": "none"}
    of = {"images/s": 700.0, "dB": 32.5}
    lines = [
        _line("gs-train", [value * ranks, value * ranks + 1], unit, axes | {"ranks": ranks})
        for ranks in (1, 2)
        for unit, value in of.items()
    ]
    pairs = {"ratio": [1.75, 1.85], "dB": [0.25, 0.75]}
    lines += [_line("2 GPUs over 1", values, unit, axes) for unit, values in pairs.items()]
    command = "PYTHONPATH=benchmarks python benchmarks/ranks/bench_capture_ranks.py data/fox"
    return _result(lines, facts={"seeds": [0, 1]}, command=command)


def _all_results() -> dict[str, dict[str, Any]]:
    """An invented file for each table."""
    return {
        "engine-20m": _engine(20_000_000), "engine-64": _engine(20_000_000),
        "engine-5m": _engine(5_000_000), "capture": _capture(), "capture-boruszyn": _capture(),
        "capture-mcmc": _capture("mcmc"), "photographs": _photographs(),
        "refine-20m": _refine(), "whole-20m": _whole(),
        "ranks": _ranks(), "ranks-4gpu": _ranks(), "ranks-40m": _ranks(), "ranks-4k": _ranks(),
        "exchange": _exchange(), "capture-ranks": _capture_ranks(),
        "largest": _largest(), "init": _init(), "cull": _cull(), "order": _order(),
        "pinned": _times("cudaMemcpyAsync to device, 5 %", "gather 5 % sorted",
                         "torch index_select + copy 5 % sorted"),
        "adam-device": _times("torch fused, all rows", "gs-adam, 10% have gradients",
                              "gs-adam, 100% have gradients"),
        "adam-host": _times("torch fused, all rows", "gs-adam dense, all rows",
                            "gs-adam deferred, 10% random"),
    }  # fmt: skip


def _write(folder: Path, results: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, result in results.items():
        (folder / f"{name}.json").write_text(json.dumps(result))
    return folder


def _run(script: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A copy of the pages that hold tables."""
    root = tmp_path / "root"
    shutil.copytree(ROOT / "docs", root / "docs")
    shutil.copy(ROOT / "README.md", root)
    return root


def _render(root: Path, results: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return _run("render_results.py", "--root", root, "--results", results, *options)


# The page


def test_the_pages_are_what_the_results_render_to() -> None:
    done = _run("render_results.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_is_short_and_has_no_number_outside_what_is_rendered() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert len(page.splitlines()) <= 120
    typed = re.sub(r"<!-- results: .*?<!-- end of results -->", "", page, flags=re.DOTALL)
    assert typed != page
    assert not re.findall(r".*\d.*", typed)


def test_the_page_is_short_with_every_table_too(pages: Path, tmp_path: Path) -> None:
    results = _write(tmp_path / "results", _all_results())
    done = _render(pages, results)
    assert done.returncode == 0, done.stderr
    page, of_gpus = (
        (pages / "docs" / name).read_text() for name in ("benchmarks.md", "scaling.md")
    )
    assert len(page.splitlines()) <= 142
    assert "Not measured" not in page + of_gpus
    commit = f"commit {COMMIT[:9]}, 2026-01-02"
    assert (page.count(commit), of_gpus.count(commit)) == (len(_all_results()) - 6, 6)
    in_a_shuffled_epoch = "| `best` | shuffle | 152 (151 to 153) | 155 (154 to 156) | 159 (158"
    assert in_a_shuffled_epoch in page
    assert "| `best` | tiles | 252 (251 to 253) | 255 (254 to 256) | 259 (258 to 260) |" in page
    assert "2.92, 2.82, 2.69 | 5.1, 5.5, 6.0 |" in page
    for other in ("gsplat's loop", "Faster-GS's loop", "gs-train at fffffffff"):
        line = f"|  | {other} | 32.53 (32.50 to 32.56) | 0.9009 (0.9000 to 0.9018) | 240,240 ("
        compared = "| 1.75 (1.50 to 2.00) | +0.50 ± 0.14 | -0.0010 ± 0.0006 |"
        assert len(re.findall(f"{re.escape(line)}.*{re.escape(compared)}", page)) == 3
    assert "| fox, `mcmc` | gs-train, `none` | 32.53 (32.50" in page
    assert "none over" not in page
    assert "the trainer keeps 0.95 with the file (381 (380 to 382)), 0.50 with decoding" in page
    assert "; gather 5 % sorted: 1.50 (1.00 to 2.00) ms, 0.667 GB/s;" in page
    assert "\n- gs-pinned: chosen rows over the link, of a table of 1,000 rows, median of 2" in page
    rates = "185 (180 to 190) | 205 (200 to 210) | 0.91 (0.90 to 0.91)"
    assert f"| `best` | 8 | {rates} | 20.0 | - | 20.0 | - | - |" in page
    assert "from 16,000,000 points to 22,000,000 Gaussians in 4,000 steps with `none`;" in page
    assert "24.12 dB; at most 17.0 GB of device memory and 9.0 GB of host memory." in page
    parts = "start from points | 9.50 | 16,000,000 Gaussians | checkpoints | 9.50 | 1 of 14.1 GB"
    assert parts in page
    ours = "| `none` | 2 | 705 (704 to 706); 1.74 | 709 (708 to 710); 1.73 | 8.5, 8.5 | 6, 6 |"
    assert ours in of_gpus
    assert "| gsplat, `distributed=True` | 2 | - | 84.0 (83.0 to 85.0); 1.42 | 8.5 |  |" in of_gpus
    assert "forward, 480,000 rows a view: 0.1 (0.099 to 0.101) ms, 125 GB/s, 0.25 ms be" in of_gpus
    assert "2 GPUs: 1,400 (1,400 to 1,401) images/s, 1.80 (1.75 to 1.85) times one, PSNR" in of_gpus
    assert _render(pages, results, "--check").returncode == 0


def test_the_readmes_claim_comes_from_the_results_once_there_are_some(
    pages: Path, tmp_path: Path
) -> None:
    before = (pages / "README.md").read_text()
    _render(pages, _write(tmp_path / "none", {}))
    assert (pages / "README.md").read_text() == before
    _render(pages, _write(tmp_path / "results", _all_results()))
    claim = (pages / "README.md").read_text().split("<!-- end of results -->")[0]
    assert "Gaussians train from host memory at 159 images a second in 6.0 GB of GPU" in claim
    assert "2.69 of the rate inside the GPU in 20.2 GB; a loop with torch's fused Adam" in claim
    assert "inside the GPU reaches 49.0 in 6.0 GB\n" in claim
    assert "batches of 8 views of a shuffled epoch)" in claim
    assert "trains 260 images a second to 32.53 dB, gsplat's own loop\n260 to 32.53 dB and" in claim
    assert " and 260 to 32.53 dB on Faster-GS's kernels, given the same loss" in claim
    assert "(medians of 3 seeds, NVIDIA H100 80GB HBM3)" in claim


def test_the_chart_is_drawn_and_goes_with_its_result(pages: Path, tmp_path: Path) -> None:
    chart = pages / "docs" / "benchmarks.svg"
    results = _write(tmp_path / "results", _all_results())
    _render(pages, results)
    first = chart.read_bytes()
    root = xml.etree.ElementTree.fromstring(first)
    words = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"152", "155", "159", "182", "batch 1", "rendering alone"} <= set(words)
    chart.unlink()
    _render(pages, results)
    assert chart.read_bytes() == first
    (results / "engine-20m.json").unlink()
    _render(pages, results)
    assert not chart.exists()
    page = (pages / "docs" / "benchmarks.md").read_text()
    assert "benchmarks.svg" not in page
    assert "\nNot measured yet (`benchmarks/publish.sh OUT NAME`): `engine-20m`.\n" in page


def test_a_page_that_was_edited_by_hand_is_found(pages: Path, tmp_path: Path) -> None:
    results = _write(tmp_path / "results", _all_results())
    _render(pages, results)
    page = pages / "docs" / "benchmarks.md"
    page.write_text(page.read_text().replace("152 (151 to 153)", "252 (151 to 153)"))
    done = _render(pages, results, "--check")
    assert done.returncode == 1
    assert done.stdout == f"differs: {page}\n"


def test_a_packages_table_comes_from_what_it_quotes(pages: Path, tmp_path: Path) -> None:
    page = pages / "docs" / "packages" / "gs-train.md"
    before = page.read_text()
    results = _write(tmp_path / "results", {})
    _render(pages, results)
    assert page.read_text() == before
    axes = {"capture": "fox", "photographs": 9, "tile_views": 4, "steps": 1500, "batch": 2}
    axes["strategy"] = "adc"
    of = {"shuffle": 30.0, "tiles": 29.0, "tiles - shuffle": -1.0}
    lines = [
        _line(order, [value, value + 0.5], unit, axes)
        for order, value in of.items()
        for unit in ("dB", "SSIM", "Gaussians")
    ]
    _write(results / "quoted", {"order-quality": _result(lines, facts={"seeds": [0, 1]})})
    _render(pages, results)
    row = "| fox, 9 photographs | 4 | -1.00 to -0.50 | -1.0000 to -0.5000 | 30.2 to 29.2 |"
    assert row in page.read_text()
    assert "of 2 seeds, after 1,500 steps of 2 images with `adc`." in page.read_text()


def test_rules_of_residency_are_set_beside_the_least(pages: Path, tmp_path: Path) -> None:
    of = {"least": [10.0, 30.0], "next use": [11.0, 33.0], "least recently used": [50.0, 50.0]}
    lines = [
        _line(name, values, "blocks", {"order": "tiles", "share": share})
        for share in (0.5, 0.1)
        for name, values in of.items()
    ]
    facts = {"blocks_seen": 1234, "batch": 4, "views": 500, "blocks_a_view": 46.7}
    results = _write(tmp_path / "results", {})
    _write(results / "quoted", {"residency": _result(lines, facts=facts)})
    _render(pages, results)
    page = (pages / "docs" / "packages" / "gs-pinned.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| tiles, ")]
    assert rows == [f"| tiles, {share} | 20.0 | 1.10 | 2.50 |" for share in ("10%", "50%")]


def test_extents_of_surveys_are_set_beside_each_other(pages: Path, tmp_path: Path) -> None:
    axes = {"side": 80, "gaussians": 4000, "photographs": 128, "epochs": 6}
    lines = [
        _line("view", [26.5], "dB", axes | {"wider": 1}, ratio=0.81),
        _line("cameras", [20.25], "dB", axes | {"wider": 100}, ratio=100.0),
    ]
    results = _write(tmp_path / "results", {})
    _write(results / "quoted", {"means-extent": _result(lines)})
    _render(pages, results)
    page = (pages / "docs" / "packages" / "gs-train.md").read_text()
    assert "| 80 m, 4,000, 128 | `view` | 0.81 | 26.50 |" in page
    assert "| `cameras` of a survey 100 times as wide | 100 | 20.25 |" in page


def test_a_file_of_no_table_is_refused(pages: Path, tmp_path: Path) -> None:
    done = _render(pages, _write(tmp_path / "results", {"other": _cull()}))
    assert done.returncode == 2
    assert "must be named after one of" in done.stderr


# The files


@pytest.mark.parametrize("path", RESULTS, ids=[path.stem for path in RESULTS])
def test_every_result_names_machine_commit_and_command(path: Path) -> None:
    found = json.loads(path.read_text())
    assert re.fullmatch("[0-9a-f]{40}", found["commit"]), "measured with changes"
    assert found["machine"]["cpu"]
    assert found["machine"]["cores"] > 0
    script = found["command"].split()[2]
    assert script == f"benchmarks/{found['benchmark']}"
    assert (ROOT / script).exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format must be 1, got 2"),
        ({"command": None}, "command must be there, got None"),
        ({"commit": "main"}, "commit must be 40 hexadecimal digits, got 'main'"),
        ({"machine": {}}, r"machine must name gpu, got \[\]"),
        ({"machine": MACHINE | {"driver": ""}}, "machine's driver must be known, got ''"),
        ({"lines": []}, "lines must hold one at least, got none"),
        ({"lines": [{"name": "best"}]}, "line 0 must have name, axes, unit, samples and facts"),
        ({"lines": [_line("best", [], "s", {})]}, r"line 0 \(best\) must have samples, got \[\]"),
        ({"lines": 2 * [_line("best", [1.0], "s", {})]}, "line 1 must differ from all before"),
    ],
)
def test_a_file_that_lacks_something_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    _write(tmp_path, {"good": _cull(), "bad": _cull() | change})
    done = _run("compare.py", tmp_path / "good.json", tmp_path / "bad.json")
    assert done.returncode == 2
    assert re.search(f"bad.json: {message}", done.stderr), done.stderr


RECORDING = """
import argparse
from harness import Record, add_json_option
parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int)
add_json_option(parser)
options = parser.parse_args()
record = Record(options.json, device="cpu")
record.add("ours", [1.0, 3.0, 2.0], "ms", axes={"n": options.n}, unknown=float("nan"))
record.write()
"""


def _recorded(tmp_path: Path, *options: str, commit: str = COMMIT) -> Any:
    """What a benchmark of one line does, in a folder that is no checkout."""
    folder = tmp_path / "benchmarks"
    (folder / "train").mkdir(parents=True)
    for name in ("harness.py", "results.py"):
        shutil.copy(FOLDER / name, folder)
    script = folder / "train" / "bench_it.py"
    script.write_text(RECORDING)
    environment = {"PYTHONPATH": str(folder), "GIT_CEILING_DIRECTORIES": str(tmp_path)}
    if commit:
        environment["GS_COMMIT"] = commit
    return subprocess.run(
        [sys.executable, str(script), "--n", "5", *options],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("form", ["--json {}", "--json={}"])
def test_a_record_names_machine_commit_command_and_every_sample(tmp_path: Path, form: str) -> None:
    path = tmp_path / "new" / "it.json"
    done = _recorded(tmp_path, *form.format(path).split())
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    assert found["benchmark"] == "train/bench_it.py"
    assert found["command"] == "PYTHONPATH=benchmarks python benchmarks/train/bench_it.py --n 5"
    assert found["commit"] == COMMIT
    assert found["facts"] == {"device": "cpu"}
    assert found["lines"] == [_line("ours", [1.0, 3.0, 2.0], "ms", {"n": 5}, unknown=None)]
    assert found["machine"].keys() == MACHINE.keys()
    assert _run("compare.py", path, path).returncode == 0


def test_a_record_without_a_file_needs_no_commit(tmp_path: Path) -> None:
    assert _recorded(tmp_path, commit="").returncode == 0


@pytest.mark.parametrize(
    ("commit", "message"),
    [("", "is no git checkout: set GS_COMMIT"), ("main", "must be 40 hexadecimal digits")],
)
def test_a_record_must_know_its_commit(tmp_path: Path, commit: str, message: str) -> None:
    path = tmp_path / "it.json"
    done = _recorded(tmp_path, "--json", str(path), commit=commit)
    assert done.returncode == 1
    assert message in done.stderr
    assert not path.exists()


# Watching a process

RUN = """
import os, sys, time
from pathlib import Path
run = Path(sys.argv[1])
def wait_for(name):
    while not (run / name).exists():
        time.sleep(0.01)
print("7 training and 1 test images, 1,000 Gaussians after 0 steps; rendering with cpu on cpu")
print("step 1/40  loss 0.1306", flush=True)
os.mkdir(run / "checkpoints" / "step_000010.tmp")
wait_for("the writing was seen")
os.rename(run / "checkpoints" / "step_000010.tmp", run / "checkpoints" / "step_000010")
(run / "log.csv").write_text("step,loss,n_gaussians\\n20,0.125,1200.0\\n40,0.1")
wait_for("nothing")
"""


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(FOLDER / "train")
    return importlib.import_module("watched")


def test_a_watched_process_is_killed_once_it_has_written_a_checkpoint(
    watched: Any, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints" / "step_000005").mkdir(parents=True)  # was there before

    def has_saved(seen: Any) -> bool:
        if seen.busy:
            (tmp_path / "the writing was seen").touch()
        return bool(seen.log) and bool(seen.saved)

    command = [sys.executable, "-c", RUN, str(tmp_path)]
    seen = watched.watch(command, tmp_path / "output", run=tmp_path, until=has_saved)
    assert seen.status == -signal.SIGKILL
    assert seen.ready[1:] == (1000, 0)
    assert seen.saved.keys() == {10}
    assert [row for _, *row in seen.log] == [[20, 1200]]
    assert seen.started < seen.ready[0] <= seen.first_step <= seen.saved[10] <= seen.ended
    ((start, stop),) = seen.busy
    assert seen.busy_between(seen.started, seen.ended) == stop - start > 0
    assert seen.busy_between(stop, seen.ended) == 0
    assert seen.peak_host_bytes > 0


def test_the_last_words_of_a_watched_process_that_fails_are_told(
    watched: Any, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no room')"]
    with pytest.raises(RuntimeError, match="ended with status 1:\nno room"):
        watched.watch(command, tmp_path / "output")


# Comparing two files


def test_lines_differ_where_their_medians_are_further_apart_than_both_spreads(
    tmp_path: Path,
) -> None:
    names = {
        "slower": ([10.0, 11.0, 12.0], [13.0, 14.0, 15.0]),  # 3 apart, quartiles 1 and 1
        "alike": ([10.0, 11.0, 12.0], [12.0, 13.0, 14.0]),  # 2 apart
        "once": ([10.0], [99.0]),
    }
    before, after = (
        _result([_line(name, both[k], "ms", {"n": 5}) for name, both in names.items()])
        for k in (0, 1)
    )
    before["lines"].append(_line("gone", [1.0], "ms", {}))
    after["machine"] = MACHINE | {"torch": "2.12.0"}
    _write(tmp_path, {"before": before, "after": after})
    done = _run("compare.py", tmp_path / "before.json", tmp_path / "after.json")
    assert done.returncode == 0, done.stderr
    cells = {
        line.split("  ")[0]: line.split() for line in done.stdout.splitlines() if "(n 5)" in line
    }
    assert cells["slower (n 5)"][4:] == ["11", "1", "14", "1", "1.273", "differs"]
    assert cells["alike (n 5)"][4:] == ["11", "1", "13", "1", "1.182"]
    assert cells["once (n 5)"][-2:] == ["one", "sample"]
    assert "1 of 4 lines are only in before" in done.stdout
    assert "The machines or versions are not the same." in done.stdout


# Measuring all


def _published() -> dict[str, str]:
    done = subprocess.run(
        [str(FOLDER / "publish.sh"), "--list"], capture_output=True, text=True, check=True
    )
    return {name: command for name, _, command in (s.split("|") for s in done.stdout.splitlines())}


def test_publish_writes_a_file_for_every_table_by_a_script_that_exists() -> None:
    published = _published()
    assert published.keys() == _all_results().keys()
    for command in published.values():
        assert (FOLDER / command.split()[0]).exists(), command
    page = "".join((ROOT / "docs" / name).read_text() for name in ("benchmarks.md", "scaling.md"))
    marks = " ".join(re.findall(r"<!-- results: ([\w -]+) -->", page)).split()
    assert {"capture-boruszyn", "capture-mcmc", *marks} == published.keys() | {"chart"}
    table = (FOLDER / "results" / "README.md").read_text()
    rows = dict(re.findall(r"^\| `([\w-]+)\.json` \| `([\w/.]+)`", table, re.MULTILINE))
    assert rows == {name: command.split()[0] for name, command in published.items()}


def test_publish_refuses_a_name_that_it_does_not_know(tmp_path: Path) -> None:
    command = [str(FOLDER / "publish.sh"), str(tmp_path / "out"), "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "NAME must be one of those that --list prints, got nothing" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("script", sorted(FOLDER.glob("*/bench_*.py")), ids=lambda path: path.stem)
def test_every_benchmark_writes_through_the_harness(script: Path) -> None:
    assert re.search(r"\bRecord\(\w+\.json\b", script.read_text()), script
