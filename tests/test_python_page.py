# SPDX-License-Identifier: Apache-2.0
"""Each example of docs/python.md and the README's run as they stand, given what a reader has."""

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gs_train import Fitted
from gs_train.data import load_capture, read_image, write_demo_capture

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "python.md"
EXAMPLES = re.findall(r"\n## ([^\n]*)|```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def _examples() -> list[Any]:
    """Each example, called by the heading above it."""
    heading, found = "the first", []
    for title, example in EXAMPLES:
        heading = title or heading
        if example:
            found.append(pytest.param(example, id=f"{heading} {len(found)}"))
    return found


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the examples take as there: a capture as a folder, as arrays and as files of arrays."""
    root = tmp_path_factory.mktemp("given")
    folder = write_demo_capture(root / "capture", n_views=8, width=64, height=48)
    capture = load_capture(folder, cache_dir=root / "cache")
    images = [read_image(view) for view in capture.views]
    files = [str(root / f"{i}.npy") for i in range(len(images))]
    for file, image in zip(files, images):
        np.save(file, image)
    return {
        "capture_folder": str(folder),
        "images": images,
        "files": files,
        "viewmats": np.stack([view.world_to_camera for view in capture.views]),
        "Ks": np.stack([view.K for view in capture.views]),
        "depths": np.full((len(images), 48, 64), 2.5),
        "points": capture.points,
        "colors": capture.colors,
    }


@pytest.mark.parametrize("example", _examples())
def test_an_example_runs(
    example: str, given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = dict(given)
    exec(compile(example, str(PAGE), "exec"), names)
    fitted = names["fitted"]
    assert isinstance(fitted, Fitted)
    assert fitted.metrics["steps"] == fitted.step == (10 if "stop_at_ten" in names else 20)
    assert isinstance(fitted.metrics["psnr"], float)
    assert len(fitted.rows()["means"]) == fitted.metrics["n_gaussians"]


def test_the_readmes_example_runs_on_the_capture_of_the_demo(
    given: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "gs-demo").mkdir()
    (tmp_path / "gs-demo" / "capture").symlink_to(given["capture_folder"])
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), names)
    fitted = names["fitted"]
    assert isinstance(fitted, Fitted)
    assert fitted.step == 100
    first, second, last = capsys.readouterr().out.splitlines()[-3:]
    assert first.startswith("50 ")
    assert second.startswith("100 ")
    assert last == f"{fitted.metrics['psnr']} {fitted.rows()['means'].shape}"


def test_there_is_an_example_of_each_argument() -> None:
    used = {
        keyword.arg
        for _, example in EXAMPLES
        for node in ast.walk(ast.parse(example))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "gs_train.fit"
        for keyword in node.keywords
        if isinstance(keyword.value, ast.Name | ast.Call)
    }
    assert {"capture", "renderer", "strategy", "on_step"} <= used
