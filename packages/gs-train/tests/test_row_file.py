# SPDX-License-Identifier: Apache-2.0
"""Any format of files of Gaussians: crops, surveys, rows that are left out, writing that stops."""

from __future__ import annotations

import errno
import itertools
import math
import os
import re
import shutil
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_rows import chunks_of, rows_of, write
from hypothesis import given, settings
from hypothesis import strategies as st
from threads_as_ranks import ThreadWorld, results

from gs_train.errors import InputError
from gs_train.files.crop import Crop
from gs_train.files.gltf import GltfFormat
from gs_train.files.ply import PlyFormat, load_ply
from gs_train.files.ranks_rows import write_rows_of_ranks
from gs_train.files.row_file import RowFormat, Written, write_rows
from gs_train.files.spz import SpzFormat
from gs_train.files.survey import Survey, survey_rows, survey_rows_of_ranks

FORMATS: dict[str, RowFormat] = {
    "inria": PlyFormat("inria"),
    "gsplat": PlyFormat("gsplat"),
    "spz": SpzFormat(is_antialiased=False),
    "gltf": GltfFormat(),
}
CROP = Crop((-2.0, -math.inf, -1.0), (1.0, 2.5, math.inf))


@pytest.fixture(params=FORMATS)
def form(request: pytest.FixtureRequest) -> RowFormat:
    return FORMATS[request.param]


def _inside(rows: dict[str, torch.Tensor], crop: Crop) -> np.ndarray:
    """Which positions lie in a crop, one number at a time."""
    return np.array(
        [
            all(low <= value <= high for low, value, high in zip(crop.low, mean, crop.high))
            for mean in rows["means"].tolist()
        ]
    )


def test_a_crop_takes_what_a_filter_takes(tmp_path: Path, form: RowFormat) -> None:
    rows = rows_of(300, 1)
    rows["means"][:3] = torch.tensor([-2.0, 2.5, -1.0])  # on the border, which belongs to it
    rows["scales"][5, 1] = math.nan
    keep = _inside(rows, CROP)
    rows["means"][6, 0] = math.nan
    keep[[5, 6]] = False
    written = write(tmp_path / "cropped", rows, form, crop=CROP, size=70)
    assert written == Written(keep.sum(), 2, 298 - keep.sum())
    assert 3 < written.n_rows < 250
    wanted = {name: values[torch.from_numpy(keep)] for name, values in rows.items()}
    write(tmp_path / "wanted", wanted, form)
    assert (tmp_path / "cropped").read_bytes() == (tmp_path / "wanted").read_bytes()


def test_a_crop_without_a_survey_leaves_the_same_ply(tmp_path: Path) -> None:
    rows, form = rows_of(1200, 1), PlyFormat("gsplat")
    write(tmp_path / "a.ply", rows, form, crop=CROP)
    written = write_rows(
        tmp_path / "b.ply", chunks_of(rows, 100), form=form, n_rows=1200, crop=CROP
    )
    assert (tmp_path / "a.ply").read_bytes() == (tmp_path / "b.ply").read_bytes()
    assert len(load_ply(tmp_path / "b.ply")["means"]) == written.n_rows < 1000


@settings(max_examples=50, deadline=None)
@given(
    place=st.floats(-8, 8, width=32), low=st.floats(-9, 9), width=st.floats(1e-9, 9), n=st.just(3)
)
def test_positions_are_compared_in_float64(place: float, low: float, width: float, n: int) -> None:
    crop = Crop.of([low] * n + [low + width] * n, option="--crop")
    means = np.full((1, 3), place, np.float32)
    assert crop.holds(means).tolist() == [low <= place <= low + width]


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ([0, 0, 0, 1, 1, math.nan], "--crop must be six finite numbers, got 0 0 0 1 1 nan"),
        ([-math.inf, 0, 0, 1, 1, 1], "--crop must be six finite numbers, got -inf 0 0 1 1 1"),
        ([0, 2, 0, 1, 1, 1], "--crop must have YMIN below YMAX, got 2 and 1"),
        ([0, 0, 5, 1, 1, 5], "--crop must have ZMIN below ZMAX, got 5 and 5"),
    ],
)
def test_a_crop_that_is_no_box_is_one_line(bounds: list[float], message: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        Crop.of(bounds, option="--crop")


def test_a_survey_is_of_the_rows_that_are_written() -> None:
    rows = rows_of(50, 2)
    rows["quats"][3] = math.inf
    keep = torch.from_numpy(_inside(rows, CROP))
    keep[3] = False
    found = survey_rows(chunks_of(rows, 7), crop=CROP, log_scales=(-5.0, -3.5))
    means, scales = rows["means"][keep], rows["scales"][keep]
    assert found[:4] == (len(means), 1, 49 - len(means), 8)
    assert found.low == tuple(means.amin(0).tolist())
    assert found.high == tuple(means.amax(0).tolist())
    others = rows["means"][torch.arange(50) != 3]
    assert found.scene_low == tuple(others.amin(0).tolist())
    assert found.scene_high == tuple(others.amax(0).tolist())
    assert found.reach == means.abs().max()
    within = ((scales >= -5.0) & (scales <= -3.5)).all(dim=1)
    assert found.n_beyond == len(within) - within.sum() > 0
    assert found.size == pytest.approx(scales.double().mean().exp().item(), rel=1e-12)


def test_a_survey_of_ranks_is_that_of_all_rows() -> None:
    rows = rows_of(50, 1)
    ends = [0, 20, 20, 50]

    def look(world: ThreadWorld) -> Survey:
        own = {name: v[ends[world.rank] : ends[world.rank + 1]] for name, v in rows.items()}
        return survey_rows_of_ranks(world, chunks_of(own, 6), crop=CROP, log_scales=(-5.0, -3.5))

    whole = survey_rows(chunks_of(rows, 50), crop=CROP, log_scales=(-5.0, -3.5))
    for found in results(3, look):
        assert found[:-1] == whole[:-1]
        assert found.log_sizes == pytest.approx(whole.log_sizes, rel=1e-12)


def test_ranks_write_the_rows_of_one(tmp_path: Path, form: RowFormat) -> None:
    rows = rows_of(90, 2)
    rows["means"][40] = math.nan
    ends = [0, 30, 90]
    survey = survey_rows(chunks_of(rows, 90), crop=CROP)

    def export(world: ThreadWorld) -> Written:
        own = {name: v[ends[world.rank] : ends[world.rank + 1]] for name, v in rows.items()}
        return write_rows_of_ranks(
            tmp_path / "two",
            chunks_of(own, 16),
            world=world,
            form=form,
            n_rows=len(own["means"]),
            crop=CROP,
            survey=survey,
        )

    wanted = write(tmp_path / "one", rows, form, size=16, crop=CROP)
    assert results(2, export) == [wanted] * 2
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()


@pytest.mark.parametrize("fault", [KeyboardInterrupt, MemoryError, OSError])
@pytest.mark.parametrize("when", [1, 2, 3])
def test_writing_that_stops_leaves_what_was_there(
    tmp_path: Path, form: RowFormat, fault: type[BaseException], when: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    calls: list[int] = []

    def stop(n: int) -> None:
        calls.append(n)
        if len(calls) == when:
            raise fault

    with pytest.raises(fault):
        write(path, rows_of(90, 3), form, size=30, on_rows=stop)
    assert len(calls) == when
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_bytes() == b"before"


def test_a_disk_that_becomes_full_is_one_line(tmp_path: Path, form: RowFormat) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InputError, match="the disk became full while writing "):
        write(tmp_path / "file", rows_of(9, 0), form, on_rows=full)
    assert os.listdir(tmp_path) == []


def test_a_disk_too_small_is_found_before_writing(
    tmp_path: Path, form: RowFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage: Any = shutil._ntuple_diskusage(10, 5, 5)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(InputError, match=r"bytes free for file \(9 Gaussians\), got 5;"):
        write(tmp_path / "file", rows_of(9, 0), form)


def test_rows_none_of_which_is_finite_are_refused(tmp_path: Path, form: RowFormat) -> None:
    rows = rows_of(4, 1)
    rows["opacities"][:] = math.nan
    with pytest.raises(InputError, match=r"must hold a finite Gaussian, got NaN .* in all 4: "):
        write(tmp_path / "file", rows, form)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["spz", "gltf"])
def test_no_rows_are_refused_where_the_format_has_no_such_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"file must hold .* Gaussian.*, got (0|none)$"):
        write(tmp_path / "file", rows_of(0, 3), FORMATS[name])
    assert os.listdir(tmp_path) == []


def test_a_survey_of_other_rows_is_a_mistake(tmp_path: Path, form: RowFormat) -> None:
    rows = rows_of(9, 0)
    with pytest.raises(ValueError, match=r"survey must be of the rows, which are 9, got \d"):
        write_rows(
            tmp_path / "file",
            [rows],
            form=form,
            n_rows=9,
            survey=survey_rows([rows], crop=CROP),
        )
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["spz", "gltf"])
def test_a_survey_must_precede_where_the_format_needs_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"survey must be given for (Spz|Gltf)Format, got None"):
        write_rows(tmp_path / "file", [rows_of(1, 0)], form=FORMATS[name], n_rows=1)


def test_temporary_data_lies_on_the_disk_of_the_file(
    tmp_path: Path, form: RowFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    write(tmp_path / "file", rows_of(9, 1), form, size=4)
    assert os.listdir(tmp_path) == ["file"]


def test_memory_does_not_grow_with_the_number_of_rows(tmp_path: Path, form: RowFormat) -> None:
    chunk = {name: values.numpy() for name, values in rows_of(1000, 3).items()}

    def peak(n_chunks: int) -> int:
        survey = survey_rows([chunk] * n_chunks)
        tracemalloc.start()
        try:
            write_rows(
                tmp_path / "file",
                itertools.repeat(chunk, n_chunks),
                form=form,
                n_rows=1000 * n_chunks,
                survey=survey,
            )
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(3)  # imports what is imported late
    assert peak(30) < 1.5 * peak(3)


def test_every_row_is_told(tmp_path: Path, form: RowFormat) -> None:
    seen: list[int] = []
    write(tmp_path / "file", rows_of(90, 0), form, size=40, on_rows=seen.append, chunk_rows=25)
    assert seen == [25, 15, 25, 15, 10]
