# SPDX-License-Identifier: Apache-2.0
"""What a user can get wrong: one line that says so, exit status 2, and nothing written."""

import json
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gs_train.cli import main


@pytest.fixture
def capture(tiny_capture: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(tiny_capture, tmp_path / "capture"))


def _refused(capsys: pytest.CaptureFixture[str], capture: Path, out: Path, *options: str) -> str:
    """The one line that a refused fit prints; ``out`` must not have come into being."""
    assert main(["fit", str(capture), "--out", str(out), "--renderer", "cpu", *options]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("prepar")]
    assert len(lines) == 1, lines
    assert lines[0].startswith("gs-train: error: ")
    assert not out.exists()
    return lines[0]


Case = namedtuple("Case", "damage message")


def _truncate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 7])


def _garbage(path: Path) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(1000))


def _other_model(capture: Path) -> None:
    path = capture / "sparse/0/cameras.bin"
    data = bytearray(path.read_bytes())
    data[12:16] = (17).to_bytes(4, "little")  # EQUIRECTANGULAR, which has two parameters
    path.write_bytes(bytes(data))


def _other_size(capture: Path) -> None:
    Image.new("RGB", (60, 48)).save(sorted((capture / "images").iterdir())[3])


def _nan_points(capture: Path) -> None:
    path = capture / "sparse/0/points3D.bin"
    data = bytearray(path.read_bytes())
    data[16:24] = np.float64(np.nan).tobytes()
    path.write_bytes(bytes(data))


CASES = {
    "no such folder": Case(lambda c: shutil.rmtree(c), "got no folder at"),
    "no model": Case(lambda c: shutil.rmtree(c / "sparse"), "COLMAP"),
    "truncated cameras": Case(lambda c: _truncate(c / "sparse/0/cameras.bin"), "cameras.bin"),
    "truncated images": Case(lambda c: _truncate(c / "sparse/0/images.bin"), "images.bin"),
    "truncated points": Case(lambda c: _truncate(c / "sparse/0/points3D.bin"), "points3D.bin"),
    "garbage": Case(lambda c: _garbage(c / "sparse/0/images.bin"), "images.bin"),
    "missing image": Case(lambda c: sorted((c / "images").iterdir())[2].unlink(), "view_002.jpg"),
    "unreadable image": Case(lambda c: _garbage(c / "images/view_004.jpg"), "view_004.jpg"),
    "image of another size": Case(_other_size, "60x48"),
    "camera model": Case(_other_model, "EQUIRECTANGULAR"),
    "NaN points": Case(_nan_points, "points3D.bin"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_capture_is_refused(
    name: str, capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    CASES[name].damage(capture)
    assert CASES[name].message in _refused(capsys, capture, tmp_path / "out")


def test_no_training_images_after_the_split(
    capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "training" in _refused(capsys, capture, tmp_path / "out", "--test-every", "1")


def test_a_test_list_with_an_unknown_name(
    capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("view_001.jpg\nnobody.jpg\n")
    assert "nobody.jpg" in _refused(capsys, capture, tmp_path / "out", "--test-list", str(names))


def test_a_full_disk_is_noticed_before_anything_is_written(
    capture: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 0))
    line = _refused(capsys, capture, tmp_path / "out", "--max-side", "32")
    assert "bytes free" in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none(
    capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", str(capture), "--out", str(tmp_path / "o"), "--renderer", "gsplat"]) == 2
    assert "needs a CUDA device" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_an_output_path_that_is_a_file(
    capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    assert main(["fit", str(capture), "--out", str(out), "--renderer", "cpu"]) == 2
    assert "must be a folder" in capsys.readouterr().err
    assert out.read_text() == "mine"


def test_overwriting_leaves_what_is_not_the_runs(
    capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["fit", str(capture), "--out", str(out), "--renderer", "cpu", "--steps", "2"]
    assert main(command) == 0
    (out / "notes.txt").write_text("mine")
    (out / "log.csv").write_text("old")
    assert main([*command, "--overwrite"]) == 0
    assert (out / "notes.txt").read_text() == "mine"
    assert "old" not in (out / "log.csv").read_text()
    capsys.readouterr()


def test_overwriting_needs_a_run_to_overwrite(
    capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    (out / "export").mkdir(parents=True)
    (out / "export" / "thesis.txt").write_text("mine")
    command = ["fit", str(capture), "--out", str(out), "--renderer", "cpu", "--overwrite"]
    assert main(command) == 2
    assert "holds export, but no run of gs-train" in capsys.readouterr().err
    assert (out / "export" / "thesis.txt").read_text() == "mine"


def test_a_run_that_cannot_start_leaves_the_old_one(
    capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["fit", str(capture), "--out", str(out), "--renderer", "cpu", "--steps", "2"]
    assert main(command) == 0
    before = sorted(out.rglob("*"))
    assert main([*command, "--overwrite", "--lr.means", "-1"]) == 2
    assert "--lr.means must be finite and not negative" in capsys.readouterr().err
    assert sorted(out.rglob("*")) == before


def test_a_photograph_that_breaks_off_leaves_nothing_or_a_checkpoint(
    capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for image in (capture / "images").iterdir():
        image.write_bytes(image.read_bytes()[:-300])
    out = tmp_path / "out"
    assert main(["fit", str(capture), "--out", str(out), "--renderer", "cpu"]) == 2
    assert "gs-train: error: " in capsys.readouterr().err.splitlines()[-1]
    assert not out.exists()


@pytest.mark.parametrize("more", [[], ["--max-side", "32"]])  # which writes to the cache first
def test_a_folder_that_cannot_be_made(
    more: list[str], capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    out = str(file / "run")
    assert main(["fit", str(capture), "--out", out, "--renderer", "cpu", *more]) == 2
    line = f"--out {out}/config.yml cannot be written: {file} is no folder"
    assert capsys.readouterr().err == f"gs-train: error: {line}\n"


def test_images_smaller_than_the_ssim_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gs_train.data import write_demo_capture

    low = write_demo_capture(tmp_path / "low", n_views=3, width=128, height=64)
    out = tmp_path / "out"
    command = ["fit", str(low), "--out", str(out), "--renderer", "cpu", "--max-side", "16"]
    assert main(command) == 2
    assert "images must be at least 11 pixels" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["cache"]


def test_a_checkpoint_of_another_version(
    capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["fit", str(capture), "--out", str(out), "--renderer", "cpu", "--steps", "2"]
    assert main(command) == 0
    (manifest,) = (out / "checkpoints").glob("*/manifest.json")
    content = json.loads(manifest.read_text())
    content["version"] = 999
    manifest.write_text(json.dumps(content))
    capsys.readouterr()
    for again in ([*command[:4], "--resume"], ["eval", str(out)], ["export", str(out)]):
        assert main(again) == 2
        assert "999" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["eval", "render", "export"])
def test_a_folder_without_a_run(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main([command, str(tmp_path)]) == 2
    assert "holds no run of gs-train" in capsys.readouterr().err


def test_resume_where_nothing_was_started(
    capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "holds none" in _refused(capsys, capture, tmp_path / "out", "--resume")
