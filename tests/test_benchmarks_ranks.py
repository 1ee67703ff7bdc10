# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of several GPUs, on processes of the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
TINY = ("--renderer=cpu", "--rows=2000", "--size", "64", "48", "--samples=1")


def _run(script: str, *arguments: str) -> str:
    """What a benchmark prints."""
    paths = [str(BENCHMARKS), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "ranks" / script), *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _lines(path: Path) -> Any:
    return json.loads(path.read_text())["lines"]


@pytest.mark.long
def test_one_rank_and_two_train_the_same_scene_in_one_call(tmp_path: Path) -> None:
    path = tmp_path / "ranks.json"
    few = ("--share=0.1", "--views=6", "--batch=2", "--presets=best", "--seconds=0.05")
    more = ("--order=tiles", "--balance=off", "--cut-views=never", "--ranks", "1", "2")
    said = _run("bench_ranks.py", *TINY, *few, *more, "--json", str(path))
    one, two = _lines(path)
    assert [line["axes"]["ranks"] for line in (one, two)] == [1, 2]
    assert one["facts"]["sent_bytes_an_image"] == 0 == one["facts"]["waited_share"][0]
    assert two["facts"]["sent_bytes_an_image"] > 0
    assert all(0 < share < 1 for share in two["facts"]["waited_share"])
    assert two["facts"]["waited_share_least"] <= two["facts"]["waited_share_worst"]
    for line in (one, two):
        facts, ranks = line["facts"], line["axes"]["ranks"]
        ways = [line["axes"][name] for name in ("order", "balance", "cut_views")]
        assert ways == ["tiles", "off", "never"]
        assert all(n > 0 for part in ("rows", "sums") for n in facts[f"ranks_{part}_bytes"])
        assert all((n > 0) == (ranks > 1) for n in facts["ranks_exchange_bytes"])
        assert facts["foretold_images_per_second"] > 0
        assert 0 < facts["foretold_device_parts"]["gradients"] < facts["foretold_device_bytes"]
    assert len(two["facts"]["ranks_peak_bytes"]) == 2
    (rate_of_one,), (rate_of_two,) = one["samples"], two["samples"]
    assert two["facts"]["times_one"] == pytest.approx(rate_of_two / rate_of_one)
    assert said.count("\nbest ") == 2


@pytest.mark.long
def test_a_line_that_would_begin_too_late_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ranks.json"
    few = ("--share=0.1", "--views=2", "--batch=1", "--presets=none", "--limit=0")
    said = _run("bench_ranks.py", *TINY, *few, "--ranks", "1", "2", "--json", str(path))
    assert "left out, the time is over: none, batch 1 on 2" in said
    assert not path.exists()


@pytest.mark.long
def test_the_largest_number_of_rows_is_found_beside_the_foretold_one(tmp_path: Path) -> None:
    path = tmp_path / "largest.json"
    few = ("--share=0.1", "--views=4", "--batch=2", "--presets=none", "--steps=1", "--cap=0.01")
    size = ("--size", "64", "48", "--counted=20000", "--within=1.3", "--ranks=2")
    _run("bench_largest_ranks.py", "--renderer=cpu", *few, *size, "--json", str(path))
    (line,) = _lines(path)
    (found,), facts = line["samples"], line["facts"]
    assert found < facts["smallest_refused"] <= 1.3 * found
    assert facts["foretold_largest_n"] in [n for n, _ in facts["tries"]]
    assert [len(facts[f"ranks_{part}_bytes"]) for part in ("rows", "sums", "exchange")] == [2] * 3


SEARCH = """
from bench_largest_ranks import Search
result = []
for true in (100, 95, 130, 50):
    search, n, tried = Search(), 100, []
    while n is not None:
        tried.append(n)
        search.note(n, n <= true)
        n = search.following(100, 1.05)
    result.append([search.low, search.high, tried])
"""


def test_a_search_brackets_the_largest_number() -> None:
    for true, (low, high, tried) in zip((100, 95, 130, 50), _python(SEARCH)):
        assert tried[0] == 100
        assert len(tried) < 12
        assert low <= true < high <= 1.05 * low + 1


@pytest.mark.long
def test_every_exchange_is_timed(tmp_path: Path) -> None:
    path = tmp_path / "exchange.json"
    _run("bench_exchange.py", *TINY, "--visible", "600", "--json", str(path))
    found = {line["name"]: line for line in _lines(path)}
    assert {"forward", "back", "drawing", "gather of 12 integers", "barrier"} <= found.keys()
    # Half of the rows of the view that the other rank draws.
    assert found["forward"]["facts"]["bytes"] == 300 * 52
    assert found["back"]["facts"]["bytes"] == 300 * 48


# The model


def _python(code: str) -> Any:
    """What ``result`` holds after ``code``, which can import the model."""
    path = [str(BENCHMARKS), str(BENCHMARKS / "ranks"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", f"import json\n{code}\nprint(json.dumps(result))"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_page_on_scaling_is_what_the_model_gives() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "ranks" / "model.py"), "--check"],
        env=os.environ | {"PYTHONPATH": str(BENCHMARKS)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


STEPS = """
from step_model import Launching, Links, OneGpu, Terms
one = OneGpu.of({batch: 1e3 * batch / (3.2 + 2.0 * batch) for batch in (1, 4, 16)})
terms = Terms(1e6, Links(0.02, 260.0), 0.1, 1.5, {})
slow = Terms(1e6, Links(0.02, 1.0), 0.1, 1.5, {})
launched = Terms(1e6, Links(0.02, 260.0), 0.1, 1.5, {"none": Launching(20.0, 0.5, 1.5)})
points = [(b, n, 5.0 + 0.5 * b + 1.5 * b / n) for b, n in ((2, 2), (8, 2), (8, 4), (64, 4))]
result = {
    "one": [one.step_ms, one.view_ms, terms.step_ms("none", one, 8, 1)],
    "two": terms.step_ms("none", one, 8, 2),
    "cut": terms.step_ms("none", one, 9, 2) - terms.step_ms("none", one, 8, 2),
    "slow": slow.step_ms("none", one, 8, 2),
    "least": Terms(0.0, Links(0.0, 1.0), 0.0, 99.0, {}).step_ms("none", one, 1, 8),
    "launched": [launched.step_ms(name, one, 9, 4) for name in ("none", "best")],
    "launching": vars(Launching.of(points)),
    "links": vars(Links.of([(1e6, 0.02), (3e6, 0.04)])),
}
"""


def test_the_model_adds_what_its_page_says() -> None:
    found = _python(STEPS)
    assert found["one"] == pytest.approx([3.2, 2.0, 19.2])
    ends = 1.2 + (3.2 - 1.2) / 2
    exchanged = 0.04 + (52 + 48) / 2 / 260
    assert found["two"] == pytest.approx(4 * (1.03 * 2.0 + 0.1) + ends + exchanged)
    assert found["cut"] == pytest.approx(1.15 * 2.0 / 2 + 0.1)
    exchanged = 0.04 + (52 + 48) / 2
    assert found["slow"] == pytest.approx(4 * exchanged + ends + exchanged)
    assert found["least"] == 99.0
    assert found["launched"][0] == pytest.approx(20.0 + 9 * 0.5 + 3 * 1.5)
    assert found["launched"][1] < 20.0
    fitted = {"batch_ms": 5.0, "view_ms": 0.5, "drawn_ms": 1.5}
    assert found["launching"] == pytest.approx(fitted)
    assert found["links"] == pytest.approx({"start_ms": 0.01, "gb_s": 100.0})


FITS = """
from step_model import Links, OneGpu, Terms
ones = {"none": OneGpu.of({1: 150.0, 4: 390.0, 16: 470.0})}
given = Terms(1e6, Links(0.02, 260.0), 0.7, 1.5, {}, {"none": 2.5})
steps = [(b, n, given.step_ms("none", ones["none"], b, n)) for b, n in ((4, 2), (16, 4), (1, 2))]
found = Terms(1e6, Links(0.02, 260.0), 0.0, 1.5, {}).fitted_beside(ones, {"none": steps})
found = found.fitted_cut(ones, {"none": steps})
result = [found.beside_ms, found.cut_ms, ones["none"].ms(4), ones["none"].view_of(4)]
"""


def test_the_model_finds_the_terms_that_steps_were_made_with() -> None:
    beside_ms, cut_ms, four, view = _python(FITS)
    assert beside_ms == pytest.approx(0.7)
    assert cut_ms == pytest.approx({"none": 2.5})
    # A batch that was measured is as measured, whatever the line through all of them says.
    assert four == pytest.approx(4e3 / 390)
    assert 0 < view < four / 4


def test_the_model_without_launching_is_as_near_as_the_page_says() -> None:
    ratios = _python(
        f"""
from pathlib import Path
import model
found = model.measured(Path({str(BENCHMARKS / "results")!r}), model.RUNS[1])
result = [
    rate * found.terms.step_ms(preset, found.one[preset], batch, n) / batch / 1e3
    for (preset, n, batch), rate in found.several.items()
]
"""
    )
    assert len(ratios) == 10
    assert all(abs(ratio - 1) < 0.125 for ratio in ratios)


def _line(name: str, ms: float, axes: dict[str, Any], **facts: Any) -> dict[str, Any]:
    return {"name": name, "axes": axes, "unit": "ms", "samples": [ms], "facts": facts}


def test_the_model_takes_its_terms_from_files_that_are_there(tmp_path: Path) -> None:
    lines = [_line("drawing", 1.0, {"ranks": 2})]
    for way, row_bytes in (("forward", 52), ("back", 48)):
        for rows in (60_000, 480_000):
            axes, n_bytes = {"ranks": 2, "rows": rows}, rows // 2 * row_bytes
            lines.append(_line(way, 0.01 + n_bytes / 1e8, axes, bytes=n_bytes))
            lines.append(_line(f"drawing beside {way}", 1.0 + rows / 4.8e6, axes))
    lines.append(_line("copies both ways, all together", 52.0, {"ranks": 2}))
    ranks = json.loads((BENCHMARKS / "results" / "ranks-4gpu.json").read_text())
    alone = [line for line in ranks["lines"] if line["axes"]["ranks"] == 1]
    (tmp_path / "ranks-4gpu.json").write_text(json.dumps(ranks | {"lines": alone}))
    (tmp_path / "exchange.json").write_text(json.dumps(ranks | {"lines": lines}))
    beside, start, rate, said = _python(
        f"""
from pathlib import Path
import model
found = model.measured(Path({str(tmp_path)!r}), model.RUNS[0])
links = found.terms.links
result = [found.terms.beside_ms, links.start_ms, links.gb_s, "\\n".join(model.tables([found]))]
"""
    )
    assert (beside, start, rate) == pytest.approx((0.2, 0.01, 100.0))
    assert "| x | 0.20 ms | measured, `exchange.json`" in said
    assert "| copies both ways, all together, 2 GPUs | 52.0 GB/s each way |" in said
    assert "Nothing has been measured on several GPUs yet." in said
