# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' files, the comparison of two of them, and what measures all."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from invented_results import (
    COMMIT,
    FOLDER,
    MACHINE,
    ROOT,
    all_results,
    cull,
    line_of,
    result_of,
    run_script,
    write,
)

RESULTS = sorted((FOLDER / "results").glob("*.json"))


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
        ({"lines": [line_of("best", [], "s", {})]}, r"line 0 \(best\) must have samples, got \[\]"),
        ({"lines": 2 * [line_of("best", [1.0], "s", {})]}, "line 1 must differ from all before"),
    ],
)
def test_a_file_that_lacks_something_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write(tmp_path, {"good": cull(), "bad": cull() | change})
    done = run_script("compare.py", tmp_path / "good.json", tmp_path / "bad.json")
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
    assert found["lines"] == [line_of("ours", [1.0, 3.0, 2.0], "ms", {"n": 5}, unknown=None)]
    assert found["machine"].keys() == MACHINE.keys()
    assert run_script("compare.py", path, path).returncode == 0


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
        result_of([line_of(name, both[k], "ms", {"n": 5}) for name, both in names.items()])
        for k in (0, 1)
    )
    before["lines"].append(line_of("gone", [1.0], "ms", {}))
    after["machine"] = MACHINE | {"torch": "2.12.0"}
    write(tmp_path, {"before": before, "after": after})
    done = run_script("compare.py", tmp_path / "before.json", tmp_path / "after.json")
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
    assert published.keys() == all_results().keys()
    for command in published.values():
        assert (FOLDER / command.split()[0]).exists(), command
    page = "".join((ROOT / "docs" / name).read_text() for name in ("benchmarks.md", "scaling.md"))
    marks = " ".join(re.findall(r"<!-- results: ([\w -]+) -->", page)).split()
    quoted = {path.stem for path in (FOLDER / "results" / "quoted").glob("*.json")}
    shown = {"capture-boruszyn", "capture-mcmc", *marks} - quoted
    assert shown == published.keys() | {"chart"}
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


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("bench_boxes.py", "--n 3000 --share 0.2 --block-rows 64 --batch 2 --epochs 1"),
        (
            "bench_residency.py",
            "--n 5000 --share 0.1 --views 60 --block-rows 64 --shares 0.9 --orders shuffle",
        ),
    ],
)
def test_benchmarks_of_blocks_run_when_they_are_small(script: str, options: str) -> None:
    """They use parts of gs-train that nothing else may use any more."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / "tide" / script), *options.split()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 1


@pytest.mark.long
def test_a_scene_of_each_kind_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "viewer.json"
    words = "--n 4000 --seen 500 --views 8 --size 64 48 --offload none tide --renderer cpu"
    words += " --steps 2 --jumps 3 --frames 4"
    script = [sys.executable, str(FOLDER / "train" / "bench_viewer.py"), *words.split()]
    subprocess.run(
        [*script, "--folder", str(tmp_path), "--json", str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), *sys.path])},
        check=True,
    )
    lines = json.loads(path.read_text())["lines"]
    whats = ("opening", "first picture", "coarse", "fine", "flight")
    found = [(line["name"], line["axes"]["what"]) for line in lines]
    assert found == [(preset, what) for preset in ("none", "tide") for what in whats]
    for line in lines:
        assert line["facts"]["n_gaussians"] == 4000
        assert len(line["samples"]) == (3 if line["axes"]["what"] in ("coarse", "fine") else 1)
