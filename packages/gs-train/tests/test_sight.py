# SPDX-License-Identifier: Apache-2.0
"""Runs whose views see nothing end."""

from pathlib import Path

import numpy as np
import pytest
from georeferenced import UTM

from gs_train.checkpoint import latest_checkpoint
from gs_train.cli import main
from gs_train.options.config import FitConfig
from gs_train.runs.sight import BlindEpochError, Sight

N_TRAIN = 10  # of the tiny capture


def _sight(**options: int) -> Sight:
    config = FitConfig(data=Path("-"), out=Path("-"), batch_size=options.get("batch_size", 1))
    return Sight(config, n_views=5, images_seen=options.get("images_seen", 0))


def test_a_whole_epoch_without_a_visible_row_ends_a_run() -> None:
    sight = _sight()
    for images in range(1, 5):
        sight.check(images, lambda: 0)
    with pytest.raises(BlindEpochError, match=r"in a whole epoch \(5 images, the last of step 5\)"):
        sight.check(5, lambda: 0)


def test_views_in_the_dark_of_two_epochs_are_no_dark_epoch() -> None:
    sight, n_visible = _sight(), 0
    for images in range(1, 15):  # first of the first epoch, last of the second
        n_visible += images in (1, 10)
        sight.check(images, lambda n_visible=n_visible: n_visible)


def test_batches_across_the_border_of_epochs_count_for_both() -> None:
    sight = _sight(batch_size=2)
    sight.check(2, lambda: 0)
    sight.check(4, lambda: 7)
    for images in (6, 8):
        sight.check(images, lambda: 7)
    with pytest.raises(BlindEpochError, match=r"all have faded or left the views"):
        sight.check(10, lambda: 7)


def test_a_step_that_ends_no_epoch_asks_for_no_count() -> None:
    sight, asked = _sight(batch_size=2), []

    def seen(images: int) -> int:
        asked.append(images)
        return images

    for images in range(2, 22, 2):
        sight.check(images, lambda images=images: seen(images))
    # Epochs end at 5, within the step of 6, at 10, at 15, within that of 16, and at 20.
    assert asked == [4, 6, 10, 14, 16, 20]


def test_an_epoch_that_was_resumed_is_not_judged_by_its_rest() -> None:
    sight = _sight(images_seen=3)
    for images in range(4, 10):
        sight.check(images, lambda: 0)
    with pytest.raises(BlindEpochError, match=r"the last of step 10\)"):
        sight.check(10, lambda: 0)


def _points_elsewhere(path: Path) -> Path:
    """Points where no camera of the tiny capture looks: as if it were georeferenced."""
    records = np.zeros(50, [(name, "<f4") for name in "xyz"])
    for name, values in zip("xyz", np.random.default_rng(0).normal(size=(3, 50))):
        records[name] = values
    records["x"] += UTM[0]
    lines = ["ply", "format binary_little_endian 1.0", "element vertex 50"]
    lines += [f"property float {name}" for name in "xyz"]
    path.write_bytes("\n".join([*lines, "end_header", ""]).encode() + records.tobytes())
    return path


@pytest.mark.parametrize("offload", ["none", "naive", "clm", "gs-scale", "best"])
def test_points_that_no_view_sees_end_a_run_and_leave_nothing(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], offload: str
) -> None:
    points, out = _points_elsewhere(tmp_path / "elsewhere.ply"), tmp_path / "run"
    options = ["--renderer", "cpu", "--init", str(points), "--offload", offload, "--steps", "30"]
    assert main(["fit", str(tiny_capture), "--out", str(out), *options]) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert f"in a whole epoch ({N_TRAIN} images, the last of step {N_TRAIN}): --init" in last
    assert "must be in the frame of the capture's poses, and in front of the cameras" in last
    assert not out.exists()


def test_rows_that_faded_are_not_saved(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    # One step down by 5 and every row is less opaque than what culling drops.
    options = ["--opacity-reg", "1e3", "--lr.opacities", "5", "--checkpoint-every", "8"]
    options += ["--renderer", "cpu", "--steps", "60"]
    assert main(["fit", str(tiny_capture), "--out", str(out), *options]) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert "(10 images, the last of step 20): all have faded or left the views; start again" in last
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    assert newest.name == "step_000016"
