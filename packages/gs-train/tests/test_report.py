# SPDX-License-Identifier: Apache-2.0
"""``report.html``: one file about a run, that needs no network."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gs_train.cli import main
from gs_train.files.pictures import comparison_jpeg
from gs_train.options.config import FitConfig
from gs_train.runs.report.charts import chart
from gs_train.runs.report.page import write_report
from gs_train.runs.scores import title_of_renders

OPTIONS = ["--renderer", "cpu", "--max-side", "32", "--steps", "4", "--eval-every", "2"]
METRICS = {
    **{"psnr": "n/a", "ssim": "n/a", "lpips": "n/a", "steps": 3, "seconds": 61.0},
    **{"images_per_second": 0.5, "n_gaussians": 1234, "peak_device_reserved_bytes": 0},
    **{"peak_host_bytes": 2**30, "preset": "none", "renderer": "cpu", "run_id": None},
    **{"versions": {"python": "3"}, "images": []},
}
"""Of a run without held-out images, by an older version."""


class _Page(HTMLParser):
    """Text, cells of tables, tags that are open, and what a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.addresses: list[str] = []
        self.points: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag not in ("meta", "img", "line", "polyline"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self.addresses += [v or "" for k, v in attributes if k in ("src", "href", "xlink:href")]
        self.points += [given["points"] or ""] if "points" in given else []

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def _page(path: Path) -> _Page:
    page = _Page(path.read_text(encoding="utf-8"))
    assert page.open == []
    return page


def test_a_run_leaves_a_page_that_needs_nothing_else(tiny_capture: Path, tmp_path: Path) -> None:
    out = tmp_path / "a <b> run"
    assert main(["fit", str(tiny_capture), "--out", str(out), *OPTIONS]) == 0
    page = _page(out / "report.html")
    words = " ".join(page.words)
    assert page.words.count("a <b> run") == 2  # the title and the heading
    metrics = json.loads((out / "metrics.json").read_text())
    assert f"{metrics['psnr']:.2f}" in page.words
    for image in metrics["images"]:
        assert image["name"] in page.words
        assert f"{image['psnr']:.2f}" in page.words
    order = [
        page.words.index(i["name"]) for i in sorted(metrics["images"], key=lambda i: i["psnr"])
    ]
    assert order == sorted(order)  # the worst first
    with open(out / "log.csv") as file:
        assert len(list(csv.DictReader(file))) == 2
    assert len(page.points) == 4  # loss, Gaussians, PSNR, SSIM
    assert "foretold" in words
    assert "max_side" in page.words
    (address,) = page.addresses
    kind, _, data = address.partition(",")
    assert kind == "data:image/jpeg;base64"
    with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
        assert picture.size[0] > 3 * 32
    # What eval finds replaces the page.
    (out / "report.html").unlink()
    assert main(["eval", str(out), "--renderer", "cpu"]) == 0
    assert _page(out / "report.html").words.count("a <b> run") == 2
    # Another run in the folder begins without it.
    (out / "metrics.json").unlink()
    assert main(["fit", str(tiny_capture), "--out", str(out), "--resume"]) == 0
    assert (out / "metrics.json").exists()


def test_a_page_has_what_there_is(tmp_path: Path) -> None:
    config = FitConfig(data=Path("photos"), out=tmp_path, seed=3)
    path = tmp_path / "report.html"
    write_report(path, METRICS, config=config, log=tmp_path / "log.csv", worst=[])
    page = _page(path)
    assert page.addresses == page.points == []
    assert {"n/a", "1,234", "0:01:01 (hours:minutes:seconds)", "without an id"} <= set(page.words)
    assert "foretold" not in page.words
    assert "<tr class=given><td>seed</td><td>3</td></tr>" in path.read_text()
    assert "<tr><td>steps</td><td>30000</td></tr>" in path.read_text()


def test_what_was_foretold_stands_beside_what_came(tmp_path: Path) -> None:
    """In the order of what came."""
    metrics = {
        **METRICS,
        "predicted": {
            **{"images_per_second": 12.345, "host_bytes": 3 * 2**29, "pinned_bytes": 0},
            "device_bytes": 2**20,
        },
        "real": {
            **{"device_bytes": 1_500_000, "pinned_bytes": 2048, "host_bytes": 3 * 2**30},
            **{"images_per_second": 9.96, "drive_read_a_step_bytes": 700},
        },
    }
    path = tmp_path / "report.html"
    config = FitConfig(data=Path("photos"), out=tmp_path)
    write_report(path, metrics, config=config, log=tmp_path / "log.csv", worst=[])
    rows = _page(path).rows
    first = rows.index(["", "foretold", "real"])
    assert rows[first + 1 : first + 6] == [
        ["device", "1.0 MiB", "1.4 MiB"],
        ["pinned", "0 B", "2.0 KiB"],
        ["host", "1.5 GiB", "3.0 GiB"],
        ["images per second", "12.3", "10.0"],
        ["drive read a step", "n/a", "700 B"],
    ]
    write_report(
        path,
        {**metrics, "predicted": "n/a"},
        config=config,
        log=tmp_path / "log.csv",
        worst=[],
    )
    assert "foretold" not in _page(path).words


def test_the_worst_are_shown_beside_their_photographs(tmp_path: Path) -> None:
    white, black = np.full((20, 30, 3), 255, np.uint8), np.zeros((20, 30, 3), np.uint8)
    path = tmp_path / "report.html"
    config = FitConfig(data=Path("photos"), out=tmp_path)
    worst = [("one.png", white, black), ("two.png", black, black)]
    write_report(path, METRICS, config=config, log=tmp_path / "log.csv", worst=worst)
    (address,) = _page(path).addresses
    with Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))) as picture:
        assert picture.size[1] > 2 * 20


@pytest.mark.parametrize(
    ("options", "title", "words"),
    [
        ({}, "render", []),
        ({"background": "white"}, "render over white", []),
        ({"background": "random"}, "render over black", ["trained over random colours"]),
        (
            {"background": "white", "exposure": True},
            "render over white in the scene's own colours",
            ["Nobody knows the exposure", "right halves"],
        ),
    ],
)
def test_a_page_says_what_its_pictures_show(
    options: dict[str, Any],
    title: str,
    words: list[str],
    tmp_path: Path,
) -> None:
    config = FitConfig(data=Path("photos"), out=tmp_path, **options)
    assert title_of_renders(config) == title
    black = np.zeros((20, 600, 3), np.uint8)
    path, worst = tmp_path / "report.html", [("one.png", black, black)]
    write_report(path, METRICS, config=config, log=tmp_path / "log.csv", worst=worst)
    page = _page(path)
    text = " ".join(page.words)
    assert all(each in text for each in words)
    assert ("Nobody" in text) is bool(options.get("exposure"))
    expected = base64.b64encode(comparison_jpeg(worst, title=title)).decode()
    assert page.addresses == [f"data:image/jpeg;base64,{expected}"]
    assert (comparison_jpeg(worst, title=title) != comparison_jpeg(worst)) is (title != "render")


@pytest.mark.parametrize("points", [[], [(1.0, 2.0)], [(1.0, math.nan), (2.0, 3.0)]])
def test_a_curve_needs_two_points(points: list[tuple[float, float]]) -> None:
    assert chart("loss", points) == ""


def test_a_curve_runs_from_corner_to_corner_and_stays_small() -> None:
    page = _Page(chart("a & b", [(float(k), float(k)) for k in range(5000)]))
    assert "a & b" in page.words
    (points,) = page.points
    places = [tuple(map(float, place.split(","))) for place in points.split()]
    assert len(places) <= 601
    assert places[0] == (64.0, 204.0)
    assert places[-1] == (448.0, 28.0)
    level = _Page(chart("level", [(0.0, 7.0), (1.0, 7.0)]))
    assert [place.split(",")[1] for place in level.points[0].split()] == ["116.0", "116.0"]
