# SPDX-License-Identifier: Apache-2.0
"""What the viewer opens, its pictures, and the run that it follows; without a server."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cloud import cloud_rows

from gs_train import Fitted
from gs_train.cli import main
from gs_train.data import read_image
from gs_train.data.frame import Frame, camera_centres
from gs_train.errors import InputError
from gs_train.files.pictures import to_uint8
from gs_train.files.ply import write_ply
from gs_train.losses.mask import IGNORED, KEPT
from gs_train.machine.interrupt import Interrupted, StopRequest
from gs_train.renderers.cpu import CpuRenderer
from gs_train.rows.visible import render_view
from gs_train.runs.folder import RunFolder
from gs_train.scene.path_file import load_path, save_path
from gs_train.scene.scene import view_in_frame
from gs_train.viewer.live import progress_of
from gs_train.viewer.opened import Limits, OpenedScene, fits_beside, open_scene, reopened
from gs_train.viewer.photographs import Photographs
from gs_train.viewer.pictures import Pictures, colored, joined, on_canvas
from gs_train.viewer.places import first_place, nearest_camera, place_of, place_of_page
from gs_train.viewer.request import Request, reduced
from gs_train.viewer.shapes import box_lines, frustum_lines

CPU = Limits(renderer="cpu")
OPTIONS = ("--renderer", "cpu", "--steps", "4", "--checkpoint-every", "2", "--seed", "3")


@pytest.fixture(scope="module")
def run(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("viewed") / "run"
    assert main(["fit", str(tiny_capture), "--out", str(out), *OPTIONS]) == 0
    return out


@pytest.fixture(scope="module")
def scene(run: Path) -> OpenedScene:
    return open_scene(run, CPU, StopRequest())


def never() -> bool:
    return False


def test_a_run_is_opened_at_its_newest_checkpoint_and_a_checkpoint_as_it_is(
    run: Path, scene: OpenedScene
) -> None:
    assert scene.title == "run, step 4"
    assert len(scene.cameras) == 12
    earlier = open_scene(run / "checkpoints" / "step_000002", CPU, StopRequest())
    assert earlier.title == "run, step 2"
    assert not torch.equal(earlier.model.params["means"], scene.model.params["means"])
    newest = reopened(earlier, CPU, StopRequest())
    torch.testing.assert_close(newest.model.params["means"], scene.model.params["means"])
    assert newest.run is not None
    assert fits_beside(newest, newest.run.checkpoint)


def test_a_ply_file_is_moved_to_about_unit_size_and_looks_the_same(tmp_path: Path) -> None:
    rows = cloud_rows(300)
    far = {**rows, "means": rows["means"] * 40 + 1000, "scales": rows["scales"] + np.log(40)}
    write_ply(tmp_path / "near.ply", rows)
    write_ply(tmp_path / "far.ply", far)
    near, moved = (
        open_scene(tmp_path / name, CPU, StopRequest()) for name in ("near.ply", "far.ply")
    )
    for scene in (near, moved):
        assert scene.cameras == ()
        centred = scene.model.params["means"].detach()
        assert float(centred.norm(dim=1).median()) == pytest.approx(1, rel=1e-3)
    torch.testing.assert_close(
        moved.model.params["means"], near.model.params["means"], rtol=1e-3, atol=1e-3
    )
    assert moved.frame.scale * 40 == pytest.approx(near.frame.scale, rel=1e-3)
    views = [first_place(scene).view(64) for scene in (near, moved)]
    images = [
        render_view(scene.model, view, scene.renderer) for scene, view in zip((near, moved), views)
    ]
    assert images[0].max() > 0.1
    torch.testing.assert_close(images[1], images[0], rtol=0, atol=0.02)


def test_a_stop_ends_the_reading_of_a_ply_file(tmp_path: Path) -> None:
    write_ply(tmp_path / "a.ply", cloud_rows(10))
    stop = StopRequest()
    stop.signal_number = 2
    with pytest.raises(Interrupted, match="stopped during the reading of"):
        open_scene(tmp_path / "a.ply", CPU, stop)


class StopAfter(StopRequest):
    """A stop that is asked for at the n-th look."""

    def __init__(self, n_looks: int) -> None:
        super().__init__()
        self.n_left = n_looks

    def check(self, work: str) -> None:
        self.n_left -= 1
        if not self.n_left:
            self.signal_number = 2
        super().check(work)


def test_a_stop_ends_the_reading_of_a_checkpoint_between_two_blocks(
    run: Path, scene: OpenedScene
) -> None:
    for path in (run, run / "checkpoints" / "step_000002"):
        with pytest.raises(Interrupted, match=r"stopped during the reading of .*/step_00000"):
            open_scene(path, CPU, StopAfter(3))
    with pytest.raises(Interrupted, match="stopped during the reading of"):
        reopened(scene, CPU, StopAfter(3))


def assert_pictures_are_renders(scene: OpenedScene) -> None:
    pictures = Pictures(lambda: scene, None)
    view = view_in_frame(scene.cameras[3], scene.frame)
    picture = pictures(Request(view, (64, 48)), 1.0, never)
    assert picture is not None
    assert picture.is_final
    expected = to_uint8(render_view(scene.model, view, scene.renderer))
    assert expected.std() > 5
    np.testing.assert_array_equal(picture.pixels, expected)
    coarse = pictures(Request(view, (64, 48)), 0.25, never)
    assert coarse is not None
    assert (coarse.pixels.shape, coarse.is_final) == ((12, 16, 3), False)


def test_the_picture_of_a_request_is_the_render(scene: OpenedScene) -> None:
    assert_pictures_are_renders(scene)


@pytest.mark.parametrize(
    "trained",
    [
        *(("--offload", preset) for preset in ("naive", "clm", "gs-scale", "best")),
        pytest.param(("--gpus", "2"), marks=pytest.mark.long),
    ],
    ids=" ".join,
)
def test_a_run_is_shown_however_it_was_trained(
    trained: tuple[str, ...], tiny_capture: Path, tmp_path: Path
) -> None:
    """Its rows are those that Python gets, too."""
    out = tmp_path / "run"
    short = ["--renderer", "cpu", "--steps", "2", "--seed", "3", "--cap", "2000"]
    assert main(["fit", str(tiny_capture), "--out", str(out), *short, *trained]) == 0
    shown = open_scene(out, CPU, StopRequest())
    rows = Fitted.open(out).rows(frame="trained")
    assert shown.model.n_rows == len(rows["means"])
    (chunk,) = shown.model.chunks(shown.model.n_rows)
    for name, values in rows.items():
        assert torch.equal(chunk[name], values), name
    assert_pictures_are_renders(shown)
    shown.close()


def test_a_stale_picture_is_given_up_after_a_part(scene: OpenedScene) -> None:
    asked: list[int] = []

    def after_two() -> bool:
        asked.append(1)
        return len(asked) == 2

    view = view_in_frame(scene.cameras[0], scene.frame)
    pictures = Pictures(lambda: scene, None, part_pixels=500)
    assert pictures(Request(view, (64, 48)), 1.0, after_two) is None
    assert len(asked) == 2


class CountedRows(CpuRenderer):
    """Counts the rows of each drawing."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[int] = []

    def project(self, rows, view, **options):
        self.drawn.append(len(rows["means"]))
        return super().project(rows, view, **options)


@pytest.mark.parametrize("source", ["run", "point cloud"])
def test_a_cap_on_device_memory_makes_drawings_smaller_and_changes_no_pixel(
    run: Path, scene: OpenedScene, source: str
) -> None:
    path = run if source == "run" else RunFolder(run).point_cloud(4)
    drawn, pixels = [], []
    for limits in (CPU, dataclasses.replace(CPU, device_memory="2MiB")):
        opened, counted = open_scene(path, limits, StopRequest()), CountedRows()
        shown = dataclasses.replace(opened, renderer=counted)
        view = view_in_frame(scene.cameras[3], opened.frame)
        pictures = Pictures(lambda shown=shown: shown, None)
        picture = pictures(Request(view, (64, 48)), 1.0, never)
        assert picture is not None
        drawn.append(counted.drawn)
        pixels.append(picture.pixels)
        assert max(counted.drawn) <= opened.most_rows
        opened.close()
    assert len(drawn[0]) == 1
    assert len(drawn[1]) > 1
    assert pixels[0].std() > 5
    np.testing.assert_array_equal(pixels[1], pixels[0])


class ShortOfMemory(CpuRenderer):
    """Has memory for 3000 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.tried: list[int] = []

    def project(self, rows, view, **options):
        self.tried.append(len(rows["means"]))
        if len(rows["means"]) > 3000:
            raise MemoryError
        return super().project(rows, view, **options)


def test_where_memory_runs_out_smaller_parts_are_drawn(scene: OpenedScene) -> None:
    short = ShortOfMemory()
    pictures = Pictures(lambda: dataclasses.replace(scene, renderer=short, most_rows=10_000), None)
    view = view_in_frame(scene.cameras[0], scene.frame)
    request = Request(view, (64, 48))
    first = pictures(request, 1.0, never)
    n_refused = sum(n > 3000 for n in short.tried)
    assert n_refused
    second = pictures(request, 1.0, never)
    assert sum(n > 3000 for n in short.tried) == n_refused  # it does not forget
    expected = to_uint8(render_view(scene.model, view, scene.renderer))
    for picture in (first, second):
        assert picture is not None
        np.testing.assert_array_equal(picture.pixels, expected)


def test_a_view_is_set_beside_its_photograph(scene: OpenedScene, run: Path) -> None:
    assert scene.run is not None
    opened = threading.Event()
    capture = scene.run.capture(StopRequest())
    photographs = Photographs(lambda: capture, opened.set)
    pictures = Pictures(lambda: scene, photographs)
    view = view_in_frame(scene.cameras[5], scene.frame)
    request = Request(view, (200, 48), photograph=5, panels=("photograph", "render", "error"))
    first = pictures(request, 1.0, never)
    assert first is not None
    opened.wait()
    photographs.close()
    picture = pictures(request, 1.0, never)
    assert picture is not None
    truth = read_image(capture.views[5])
    render = to_uint8(render_view(scene.model, view, scene.renderer))
    error = np.abs(truth.astype(float) - render).mean() / 255
    assert picture.note.startswith(f"mean error {error:.4f}")
    assert picture.pixels.shape[1] >= 3 * 64 + 12
    at = (picture.pixels.shape[1] - (3 * 64 + 12)) // 2
    top = (picture.pixels.shape[0] - 48) // 2
    panel = picture.pixels[top : top + 48]
    np.testing.assert_array_equal(panel[:, at : at + 64], truth)
    np.testing.assert_array_equal(panel[:, at + 70 : at + 134], render)
    half = pictures(request, 0.5, never)
    assert half is not None
    assert half.note.startswith("mean error")


class Masked:
    """The photograph of one view; a mask hides the left half of it."""

    def __init__(self, colours: np.ndarray) -> None:
        states = np.full((*colours.shape[:2], 1), KEPT, np.uint8)
        states[:, : colours.shape[1] // 2] = IGNORED
        self.photograph = np.concatenate((colours, states), axis=2)

    def of(self, index: int) -> tuple[np.ndarray, str]:
        return self.photograph, ""


def test_what_a_mask_hides_is_black_and_left_out_of_the_error(scene: OpenedScene) -> None:
    view = view_in_frame(scene.cameras[5], scene.frame)
    render = to_uint8(render_view(scene.model, view, scene.renderer))
    masked = Masked(render ^ 8)
    pictures = Pictures(lambda: scene, masked)
    request = Request(view, (64, 48), photograph=5, panels=("photograph",))
    photograph = pictures(request, 1.0, never)
    assert photograph is not None
    assert not photograph.pixels[:, :32].any()
    np.testing.assert_array_equal(photograph.pixels[:, 32:], masked.photograph[:, 32:, :3])
    error = pictures(dataclasses.replace(request, panels=("error",)), 1.0, never)
    assert error is not None
    assert not error.pixels[:, :32].any()
    assert error.pixels[:, 32:].any()
    assert error.note.startswith(f"mean error {8 / 255:.4f}")
    half = pictures(dataclasses.replace(request, panels=("error",)), 0.5, never)
    assert half is not None
    assert not half.pixels[:, :16].any()
    masked.photograph[..., 3] = IGNORED
    nothing = pictures(dataclasses.replace(request, panels=("error",)), 1.0, never)
    assert nothing is not None
    assert nothing.note == "the mask hides every pixel"


def test_photographs_that_are_gone_leave_the_render_and_a_line(scene: OpenedScene) -> None:
    opened = threading.Event()

    def gone():
        raise InputError("the capture is gone")

    pictures = Pictures(lambda: scene, Photographs(gone, opened.set))
    view = view_in_frame(scene.cameras[0], scene.frame)
    request = Request(view, (64, 48), photograph=0, panels=("photograph", "render", "error"))
    pictures(request, 1.0, never)
    opened.wait()
    picture = pictures(request, 1.0, never)
    assert picture is not None
    assert picture.note == "no photographs: the capture is gone"
    expected = to_uint8(render_view(scene.model, view, scene.renderer))
    np.testing.assert_array_equal(picture.pixels, expected)
    nothing = pictures(dataclasses.replace(request, panels=("photograph",)), 1.0, never)
    assert nothing is not None
    assert nothing.pixels.std() == 0


def test_depths_are_coloured_from_near_to_far_in_units_of_the_capture() -> None:
    depths = np.linspace(1, 3, 100, dtype=np.float32).reshape(10, 10, 1)
    depths[0, 0] = 0
    pixels, note = colored(depths, "depth", scale=0.5)
    assert pixels[0, 0].tolist() == [0, 0, 0]
    brightness = pixels.sum(axis=2).reshape(-1)[5:-5]
    assert (np.diff(brightness.astype(int)) <= 0).all()
    near, far = np.percentile(depths[depths > 0], (2, 98)) / 0.5
    assert note == f"depth {near:.3g} (pale) to {far:.3g} (dark)"
    nothing, note = colored(np.zeros((2, 2, 1), np.float32), "depth", scale=1)
    assert not nothing.any()
    assert note == "nothing is there"


def test_panels_lie_where_they_are_largest_and_canvases_have_the_page_s_ratio() -> None:
    panels = [np.full((30, 40, 3), value, np.uint8) for value in (1, 2, 3)]
    assert joined(panels, 30, (300, 60)).shape == (30, 132, 3)
    assert joined(panels, 30, (60, 300)).shape == (102, 40, 3)
    for canvas in ((300, 60), (60, 300)):
        h, w, _ = on_canvas(panels[0], canvas).shape
        assert (h, w) >= (30, 40)
        assert w / h == pytest.approx(canvas[0] / canvas[1], rel=0.02)


@pytest.mark.parametrize("canvas", [(2, 900), (900, 2)])
def test_a_page_that_is_only_a_strip_gets_a_picture_that_jpeg_can_hold(
    canvas: tuple[int, int],
) -> None:
    h, w, _ = on_canvas(np.zeros((900, 1600, 3), np.uint8), canvas).shape
    assert max(h, w) == 8 * 1600


def test_a_place_leads_to_the_capture_s_frame_and_back(scene: OpenedScene) -> None:
    camera = scene.cameras[7]
    place = place_of(camera, scene.frame)
    key = place.key(scene.frame)
    np.testing.assert_allclose(key.world_to_camera, camera.world_to_camera, atol=1e-9)
    assert key.K[1, 1] == pytest.approx(camera.K[1, 1])
    view, expected = place.view(1 << 14), view_in_frame(camera, scene.frame)
    torch.testing.assert_close(view.viewmat, expected.viewmat)
    torch.testing.assert_close(view.K[1, 1], expected.K[1, 1])
    assert nearest_camera(scene, place) == 7
    assert dataclasses.replace(place, width=1001, height=333).size(500) == (500, 166)
    assert reduced(view, 1.0) is view


CAMERA = {
    "wxyz": (0.5, 0.5, -0.5, 0.5),
    "position": (1.0, 2.0, 3.0),
    "fov": 0.8,
    "image_width": 64,
    "image_height": 48,
}


def test_a_page_s_camera_has_a_place() -> None:
    place = place_of_page(SimpleNamespace(**CAMERA))
    assert place is not None
    assert (place.fov_y, place.width, place.height) == (0.8, 64, 48)
    np.testing.assert_allclose(place.camera_to_world[:3, 3], (1, 2, 3))
    np.testing.assert_allclose(
        place.camera_to_world[:3, :3], [[0, -1, 0], [0, 0, -1], [1, 0, 0]], atol=1e-12
    )


@pytest.mark.parametrize("fov", [0.0, 4.0])
def test_a_path_of_a_page_s_cameras_can_be_read(fov: float, tmp_path: Path) -> None:
    place = place_of_page(SimpleNamespace(**CAMERA | {"fov": fov}))
    assert place is not None
    save_path(tmp_path / "path.json", [place.key(Frame((0.0, 0.0, 0.0), 1.0, 1.0))])
    assert len(load_path(tmp_path / "path.json")) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"image_width": 0},
        {"image_height": -1},
        {"fov": np.nan},
        {"wxyz": (0.0, 0.0, 0.0, 0.0)},
        {"wxyz": (1.0, np.nan, 0.0, 0.0)},
        {"position": (np.inf, 0.0, 0.0)},
    ],
)
def test_a_page_s_camera_that_is_none_has_no_place(change: dict[str, object]) -> None:
    assert place_of_page(SimpleNamespace(**CAMERA | change)) is None


def test_a_scene_without_cameras_is_looked_at_from_aside(tmp_path: Path) -> None:
    write_ply(tmp_path / "a.ply", cloud_rows(300))
    scene = open_scene(tmp_path / "a.ply", CPU, StopRequest())
    pose = first_place(scene).camera_to_world
    ahead = pose[:3, 3] + np.linalg.norm(pose[:3, 3] - scene.focus) * pose[:3, 2]
    np.testing.assert_allclose(ahead, scene.focus, atol=1e-9)
    assert -pose[:3, 1] @ scene.up > 0.9


def test_pyramids_start_at_their_cameras(scene: OpenedScene) -> None:
    lines = frustum_lines(scene.cameras[:2], scene.frame, 0.5)
    assert lines.shape == (16, 2, 3)
    poses = np.stack([scene.frame.pose_in(c.world_to_camera) for c in scene.cameras[:2]])
    np.testing.assert_allclose(lines[0, 0], camera_centres(poses)[0], atol=1e-5)
    np.testing.assert_allclose(lines[8, 0], camera_centres(poses)[1], atol=1e-5)
    assert frustum_lines([], scene.frame, 1.0).shape == (0, 2, 3)
    assert len(box_lines((1, 2, 3))) == 12
    lengths = np.linalg.norm(np.diff(box_lines((1, 2, 3)), axis=1), axis=2).reshape(-1)
    assert sorted(lengths.tolist()) == [1] * 4 + [2] * 4 + [3] * 4


def test_the_progress_of_a_run_is_its_log_s_last_line(run: Path, tmp_path: Path) -> None:
    progress = progress_of(RunFolder(run), 4)
    assert (progress.step, progress.steps) == (4, 4)
    assert progress.newest == run / "checkpoints" / "step_000004"
    assert progress.line.startswith("step 4 of 4, loss 0.")
    assert progress.line.endswith("Gaussians")


@pytest.mark.parametrize(
    ("log", "step"),
    [
        (None, 0),
        (b"", 0),
        (b"step,loss\n", 0),
        (b"step,loss\n10,0.5\n20,0.4\n3", 20),
        (b"step,loss\n10,0.5\n" + b"20,0.25\n" * 9000, 20),
        (b"nothing of the kind\n1,2\n", 0),
        (b"step,loss\n-4,0.5\n", 0),
        (b"step,loss\n10,0.5\n\n", 0),
        (b"step,loss,n_gaussians\ninf,nan,nan\n", 0),
        (bytes(range(256)) * 300, 0),
    ],
)
def test_a_log_that_grows_or_is_none_gives_what_it_has(
    log: bytes | None, step: int, tmp_path: Path
) -> None:
    if log is not None:
        (tmp_path / "log.csv").write_bytes(log)
    progress = progress_of(RunFolder(tmp_path), 30)
    assert (progress.step, progress.newest) == (step, None)


def test_what_cannot_be_opened_is_named_in_one_line(
    run: Path, tmp_path: Path, scene: OpenedScene
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    alone = Path(shutil.copytree(run / "checkpoints" / "step_000004", tmp_path / "step_000004"))
    (tmp_path / "text.ply").write_text("no ply")
    write_ply(tmp_path / "empty.ply", cloud_rows(0))
    for path, message in (
        (tmp_path / "none", "must be the output folder of a run, a checkpoint or a PLY file"),
        (tmp_path, r"config.yml"),
        (alone, "must lie in the folder of its run"),
        (tmp_path / "text.ply", "does not start with 'ply'"),
        (tmp_path / "empty.ply", "must hold Gaussians, got none"),
    ):
        with pytest.raises(InputError, match=message):
            open_scene(path, CPU, StopRequest())
    shard = next((copy / "checkpoints" / "step_000004").glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    shard.write_bytes(data)
    with pytest.raises(InputError, match="step_000004"):
        open_scene(copy, CPU, StopRequest())
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(InputError, match="must have a checkpoint"):
        open_scene(copy, CPU, StopRequest())
