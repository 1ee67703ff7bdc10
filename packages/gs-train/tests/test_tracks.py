# SPDX-License-Identifier: Apache-2.0
"""Tracks of a reconstruction: reprojection errors, and which images share points."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_colmap import as_text, write_small

from gs_train.data.colmap import read_model, read_observations, read_point_table
from gs_train.data.tracks.histogram import Histogram
from gs_train.data.tracks.overlap import OverlapCount
from gs_train.data.tracks.point_rows import PointRows
from gs_train.data.tracks.survey import survey_tracks
from gs_train.errors import InputError


@given(st.lists(st.floats(0, 2.0**100, width=32), min_size=1, max_size=200), st.floats(0.01, 1))
@settings(max_examples=50, deadline=None)
def test_quantiles_are_those_of_all_numbers(values: list[float], share: float) -> None:
    histogram = Histogram()
    for part in np.array_split(np.array(values), 3):
        histogram.add(part)
    exact = float(np.quantile(np.float32(values), share, method="inverted_cdf"))
    found = histogram.quantile(share)
    assert found is not None
    assert abs(found - exact) <= exact / 2000 + 1e-38


def test_nothing_has_no_quantile() -> None:
    assert Histogram().quantile(0.5) is None


@pytest.mark.parametrize("spread", [2, 1_000_000_000_000], ids=["a table", "a search"])
def test_points_are_found_by_their_ids(spread: int) -> None:
    ids = np.random.default_rng(0).permutation(50).astype(np.int64) * spread + 3
    rows = PointRows(ids)
    np.testing.assert_array_equal(rows.of(ids[::-1]), np.arange(50)[::-1])
    absent = np.array([0, 1, 2, 4, ids.max() + 1, 1 << 62])
    np.testing.assert_array_equal(rows.of(absent), -1)


def test_without_points_none_is_found() -> None:
    np.testing.assert_array_equal(PointRows(np.empty(0, np.int64)).of(np.array([0, 5])), -1)


@given(
    st.integers(1, 7),
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 11))),
)
@settings(max_examples=60, deadline=None)
def test_shared_points_and_components_are_those_of_the_definition(
    n_images: int, n_points: int, pairs: list[tuple[int, int]]
) -> None:
    seen = [{p for i, p in pairs if i == image and p < n_points} for image in range(n_images)]
    count = OverlapCount(n_images, n_points)
    for image in reversed(range(n_images)):
        rows = [p for i, p in pairs if i == image and p < n_points]  # some twice
        count.add(image, np.array(rows, np.int64))
    found = count.result()
    for i in range(n_images):
        shared = [len(seen[i] & seen[k]) if k != i else 0 for k in range(n_images)]
        assert found.most_shared[i] == max(shared)
        if max(shared):
            assert shared[found.neighbour[i]] == max(shared)
        else:
            assert found.neighbour[i] == -1
    groups: list[set[int]] = []  # joined one by one
    for image in range(n_images):
        if seen[image]:
            linked = [group for group in groups if any(seen[image] & seen[k] for k in group)]
            groups = [group for group in groups if group not in linked]
            groups.append({image}.union(*linked))
    of_labels = [
        set(np.flatnonzero(found.components == k).tolist())
        for k in range(int(found.components.max()) + 1)
    ]
    assert sorted(map(sorted, groups)) == sorted(map(sorted, of_labels))
    assert [len(group) for group in of_labels] == sorted(map(len, of_labels), reverse=True)
    assert set(np.flatnonzero(found.components < 0)) == {i for i in range(n_images) if not seen[i]}


def test_of_very_many_points_some_are_compared() -> None:
    count = OverlapCount(2, 1_000_000)
    for image in range(2):
        count.add(image, np.arange(500_000) + 250_000 * image)
    found = count.result()
    assert found.every == 5
    np.testing.assert_array_equal(found.most_shared, 250_000)
    np.testing.assert_array_equal(found.components, 0)


@pytest.mark.parametrize("text", [False, True], ids=["binary", "text"])
def test_reprojection_errors_are_those_that_pycolmap_computes(tmp_path: Path, text: bool) -> None:
    import pycolmap

    folder = tmp_path / "sparse/0"
    write_small(folder, n_seen=400)
    oracle = pycolmap.Reconstruction(str(folder))
    if text:
        folder = as_text(folder)
    model, table = read_model(folder), read_point_table(folder)
    survey = survey_tracks(model, table)
    errors, n_behind = [], 0
    for index, image in enumerate(model.images):
        (theirs,) = [each for each in oracle.images.values() if each.name == image.name]
        own = []
        for point2d in theirs.points2D:
            if not point2d.has_point3D():
                continue
            point = theirs.cam_from_world() * oracle.points3D[point2d.point3D_id].xyz
            pixel = theirs.camera.img_from_cam(point)
            if pixel is None:
                n_behind += 1
            else:
                own.append(float(np.linalg.norm(pixel - point2d.xy)))
        assert survey.camera_px[index] == pytest.approx(np.median(own))
        errors += own
    assert survey.n_behind == n_behind > 0
    assert survey.n_observations == len(errors) + n_behind == 400
    for found, share in ((survey.median_px, 0.5), (survey.most_px, 0.9)):
        assert found == pytest.approx(np.quantile(errors, share, method="inverted_cdf"), rel=1e-3)
    lengths = {id: len(point.track.elements) for id, point in oracle.points3D.items()}
    assert dict(zip(table.ids.tolist(), table.track_lengths.tolist())) == lengths
    assert survey.n_short == sum(length < 3 for length in lengths.values())


def test_an_observation_of_a_point_that_there_is_not_is_counted(tmp_path: Path) -> None:
    write_small(tmp_path, n_seen=60)
    path = tmp_path / "points3D.bin"
    data = bytearray(path.read_bytes())
    data[8:16] = (10_000).to_bytes(8, "little")  # the first point's id
    path.write_bytes(data)
    n_of_first = sum(int((seen.point_ids == 1).sum()) for seen in read_observations(tmp_path))
    survey = survey_tracks(read_model(tmp_path), read_point_table(tmp_path))
    assert survey.n_unknown == n_of_first > 0
    assert survey.n_observations == 60 - n_of_first


@pytest.mark.parametrize("line", ["1.5 2 7 3", "1 2 x", "1 2 nan"])
def test_text_that_is_no_2d_points_names_its_place(line: str, tmp_path: Path) -> None:
    (tmp_path / "cameras.txt").write_text("1 SIMPLE_PINHOLE 8 6 5 4 3\n")
    (tmp_path / "images.txt").write_text(f"1 1 0 0 0 0 0 0 1 a.jpg\n{line}\n")
    (tmp_path / "points3D.txt").write_text("7 0 0 1 1 2 3 0.5 1 0\n")
    with pytest.raises(InputError, match=r"images.txt:1 and the next: line must be 'POINTS2D"):
        list(read_observations(tmp_path))
