# SPDX-License-Identifier: Apache-2.0
"""The demo capture is a COLMAP capture like any other, and a good one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gs_train.data import load_capture, read_image, write_demo_capture


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_capture(
        tmp_path_factory.mktemp("demo"), n_views=12, width=160, height=120, seed=3
    )


def test_it_loads_as_a_capture(demo: Path, tmp_path: Path) -> None:
    capture = load_capture(demo, cache_dir=tmp_path / "cache")
    assert len(capture.views) == 12
    assert capture.test == (0, 8)
    assert 5000 < len(capture.points) <= 8000
    assert read_image(capture.views[5]).shape == (120, 160, 3)
    with Image.open(capture.views[0].path) as image:
        assert image.format == "JPEG"


def test_pycolmap_reads_it_and_points_reproject_where_they_were_observed(demo: Path) -> None:
    import pycolmap

    model = pycolmap.Reconstruction(str(demo / "sparse/0"))
    assert model.num_reg_images() == 12
    worst = 0.0
    n_observations = 0
    for image in model.images.values():
        camera = model.cameras[image.camera_id]
        pose = image.cam_from_world()
        for index, point2D in enumerate(image.points2D):
            point = model.points3D[point2D.point3D_id]
            pixel = camera.img_from_cam(pose * point.xyz)
            worst = max(worst, float(np.abs(pixel - point2D.xy).max()))
            elements = [(e.image_id, e.point2D_idx) for e in point.track.elements]
            assert elements.count((image.image_id, index)) == 1
            n_observations += 1
    # Exact projections, through a quaternion and back, in float64.
    assert worst < 1e-9
    assert n_observations == model.compute_num_observations()
    assert min(point.track.length() for point in model.points3D.values()) >= 3


def test_points_have_the_colour_of_the_photographs_where_they_are_seen(
    demo: Path, tmp_path: Path
) -> None:
    import pycolmap

    capture = load_capture(demo, cache_dir=tmp_path / "cache")
    pictures = {view.name: read_image(view).astype(float) for view in capture.views}
    model = pycolmap.Reconstruction(str(demo / "sparse/0"))
    differences = [
        np.abs(
            pictures[image.name][int(point2D.xy[1]), int(point2D.xy[0])]
            - model.points3D[point2D.point3D_id].color
        ).max()
        for image in model.images.values()
        for point2D in image.points2D
    ]
    # Surfaces look the same from everywhere; edges, pixel size and JPEG make single outliers.
    assert np.median(differences) < 6
    assert np.quantile(differences, 0.95) < 40


def test_the_photographs_are_lit_and_textured_everywhere(demo: Path, tmp_path: Path) -> None:
    for view in load_capture(demo, cache_dir=tmp_path / "cache").views:
        pixels = read_image(view).astype(float)
        assert pixels.max(axis=2).min() > 20  # no black: renderers compose over it
        assert 20 < pixels.std() < 90
        # Smooth enough for few Gaussians: neighbours differ little but at edges.
        assert np.median(np.abs(np.diff(pixels, axis=1))) < 6


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(
    demo: Path, tmp_path: Path
) -> None:
    options = {"n_views": 12, "width": 160, "height": 120}
    again = write_demo_capture(tmp_path / "again", seed=3, **options)
    other = write_demo_capture(tmp_path / "other", seed=4, **options)
    names = [path.relative_to(demo) for path in sorted(demo.rglob("*")) if path.is_file()]
    assert len(names) == 12 + 3
    assert all((demo / name).read_bytes() == (again / name).read_bytes() for name in names)
    same = [
        str(name) for name in names if (demo / name).read_bytes() == (other / name).read_bytes()
    ]
    assert same == ["sparse/0/cameras.bin"]


@pytest.mark.parametrize(("name", "least"), [("n_views", 3), ("width", 16), ("height", 16)])
def test_arguments_out_of_range_are_refused(tmp_path: Path, name: str, least: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least {least}, got {least - 1}"):
        write_demo_capture(tmp_path / "demo", **{name: least - 1})
    assert not (tmp_path / "demo").exists()
