# SPDX-License-Identifier: Apache-2.0
"""The pages that are made from the files of the benchmarks."""

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree
from pathlib import Path

import pytest

from invented_results import (
    COMMIT,
    ROOT,
    all_results,
    cull,
    line_of,
    result_of,
    run_script,
    write,
)


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A copy of the pages that hold tables."""
    root = tmp_path / "root"
    shutil.copytree(ROOT / "docs", root / "docs")
    shutil.copy(ROOT / "README.md", root)
    return root


def _render(root: Path, results: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_script("render_results.py", "--root", root, "--results", results, *options)


def test_the_pages_are_what_the_results_render_to() -> None:
    done = run_script("render_results.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_is_short_and_has_no_number_outside_what_is_rendered() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert len(page.splitlines()) <= 120
    typed = re.sub(r"<!-- results: .*?<!-- end of results -->", "", page, flags=re.DOTALL)
    assert typed != page
    assert not re.findall(r".*\d.*", typed)


def test_the_page_is_short_with_every_table_too(pages: Path, tmp_path: Path) -> None:
    results = write(tmp_path / "results", all_results())
    done = _render(pages, results)
    assert done.returncode == 0, done.stderr
    page, of_gpus = (
        (pages / "docs" / name).read_text() for name in ("benchmarks.md", "scaling.md")
    )
    assert len(page.splitlines()) <= 142
    assert "Not measured" not in page + of_gpus
    commit = f"commit {COMMIT[:9]}, 2026-01-02"
    assert (page.count(commit), of_gpus.count(commit)) == (len(all_results()) - 7, 7)
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
    ours = "| `none` | 2 | 705 (704 to 706); 1.74 | 709 (708 to 710); 1.73 | 8.5, 8.5 |"
    assert f"{ours} 3 to 6, 3 to 6 |" in of_gpus
    assert "| gsplat, `distributed=True` | 2 | - | 84.0 (83.0 to 85.0); 1.42 | 8.5 |  |" in of_gpus
    assert "forward, 480,000 rows a view: 0.1 (0.099 to 0.101) ms, 125 GB/s, 0.25 ms be" in of_gpus
    assert "2 GPUs: 1,400 (1,400 to 1,401) images/s, 1.80 (1.75 to 1.85) times one, PSNR" in of_gpus
    assert _render(pages, results, "--check").returncode == 0


def test_the_readmes_claim_comes_from_the_results_once_there_are_some(
    pages: Path, tmp_path: Path
) -> None:
    before = (pages / "README.md").read_text()
    _render(pages, write(tmp_path / "none", {}))
    assert (pages / "README.md").read_text() == before
    _render(pages, write(tmp_path / "results", all_results()))
    claim = (pages / "README.md").read_text().split("<!-- end of results -->")[0]
    assert "Gaussians train from host memory at 159 images a second in 6.0 GB of GPU" in claim
    assert "2.69 of the rate inside the GPU in 20.2 GB; a loop with torch's fused Adam" in claim
    assert "inside the GPU reaches 49.0 in 6.0 GB\n" in claim
    assert "batches of 8 views of a shuffled epoch)" in claim
    assert "trains 260 images a second to 32.53 dB, gsplat's own loop\n260 to 32.53 dB and" in claim
    assert " and 260 to 32.53 dB on Faster-GS's kernels, given the same loss" in claim
    assert "(medians of 3 seeds, NVIDIA H100 80GB HBM3)" in claim


def test_the_readme_claims_what_a_survey_on_a_drive_took(pages: Path, tmp_path: Path) -> None:
    results = write(tmp_path / "results", {})
    (results / "quoted").mkdir()
    survey = ROOT / "benchmarks" / "results" / "quoted" / "survey.json"
    shutil.copy(survey, results / "quoted")
    _render(pages, results)
    readme = (pages / "README.md").read_text()
    claim = readme.split("<!-- end of results -->")[0]
    facts = json.loads(survey.read_text())["facts"]
    assert f"and none of the {facts['rows']['seen']:,} that views see is missed\n" in claim
    rows = f"A test of all {facts['n_gaussians']:,} rows against "
    assert rows in (pages / "docs" / "drive.md").read_text()


def test_the_chart_is_drawn_and_goes_with_its_result(pages: Path, tmp_path: Path) -> None:
    chart = pages / "docs" / "benchmarks.svg"
    results = write(tmp_path / "results", all_results())
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
    results = write(tmp_path / "results", all_results())
    _render(pages, results)
    page = pages / "docs" / "benchmarks.md"
    page.write_text(page.read_text().replace("152 (151 to 153)", "252 (151 to 153)"))
    done = _render(pages, results, "--check")
    assert done.returncode == 1
    assert done.stdout == f"differs: {page}\n"


def test_a_packages_table_comes_from_what_it_quotes(pages: Path, tmp_path: Path) -> None:
    page = pages / "docs" / "packages" / "gs-train.md"
    before = page.read_text()
    results = write(tmp_path / "results", {})
    _render(pages, results)
    assert page.read_text() == before
    axes = {"capture": "fox", "photographs": 9, "tile_views": 4, "steps": 1500, "batch": 2}
    axes["strategy"] = "adc"
    of = {"shuffle": 30.0, "tiles": 29.0, "tiles - shuffle": -1.0}
    lines = [
        line_of(order, [value, value + 0.5], unit, axes)
        for order, value in of.items()
        for unit in ("dB", "SSIM", "Gaussians")
    ]
    write(results / "quoted", {"order-quality": result_of(lines, facts={"seeds": [0, 1]})})
    _render(pages, results)
    row = "| fox, 9 photographs | 4 | -1.00 to -0.50 | -1.0000 to -0.5000 | 30.2 to 29.2 |"
    assert row in page.read_text()
    assert "of 2 seeds, after 1,500 steps of 2 images with `adc`." in page.read_text()


def test_rules_of_residency_are_set_beside_the_least(pages: Path, tmp_path: Path) -> None:
    of = {"least": [10.0, 30.0], "next use": [11.0, 33.0], "least recently used": [50.0, 50.0]}
    lines = [
        line_of(name, values, "blocks", {"order": "tiles", "share": share})
        for share in (0.5, 0.1)
        for name, values in of.items()
    ]
    facts = {"blocks_seen": 1234, "batch": 4, "views": 500, "blocks_a_view": 46.7}
    results = write(tmp_path / "results", {})
    write(results / "quoted", {"residency": result_of(lines, facts=facts)})
    _render(pages, results)
    page = (pages / "docs" / "packages" / "gs-pinned.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| tiles, ")]
    assert rows == [f"| tiles, {share} | 20.0 | 1.10 | 2.50 |" for share in ("10%", "50%")]


def test_extents_of_surveys_are_set_beside_each_other(pages: Path, tmp_path: Path) -> None:
    axes = {"side": 80, "gaussians": 4000, "photographs": 128, "epochs": 6}
    lines = [
        line_of("view", [26.5], "dB", axes | {"wider": 1}, ratio=0.81),
        line_of("cameras", [20.25], "dB", axes | {"wider": 100}, ratio=100.0),
    ]
    results = write(tmp_path / "results", {})
    write(results / "quoted", {"means-extent": result_of(lines)})
    _render(pages, results)
    page = (pages / "docs" / "packages" / "gs-train.md").read_text()
    assert "| 80 m, 4,000, 128 | `view` | 0.81 | 26.50 |" in page
    assert "| `cameras` of a survey 100 times as wide | 100 | 20.25 |" in page


def test_a_file_of_no_table_is_refused(pages: Path, tmp_path: Path) -> None:
    done = _render(pages, write(tmp_path / "results", {"other": cull()}))
    assert done.returncode == 2
    assert "must be named after one of" in done.stderr
