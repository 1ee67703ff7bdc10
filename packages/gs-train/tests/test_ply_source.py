# SPDX-License-Identifier: Apache-2.0
"""Models read from PLY files, into one memory or two."""

from pathlib import Path

import numpy as np
import pytest
import torch
from cloud import cloud_rows

from gs_train.errors import InputError
from gs_train.files.ply import Layout, count_ply, sample_means, write_ply
from gs_train.rows.attributes import NAMES
from gs_train.rows.ply_source import PlySource
from gs_train.rows.restore import restored_to_look_at
from gs_train.rows.visible import all_rows


@pytest.mark.parametrize("k", [0, 15])
@pytest.mark.parametrize("layout", ["inria", "gsplat"])
@pytest.mark.parametrize("room", [1 << 40, 1])
def test_rows_are_those_of_the_file_wherever_they_live(
    k: int, layout: Layout, room: int, tmp_path: Path
) -> None:
    rows = cloud_rows(70_000 if k == 0 else 50, k)  # more than a chunk
    write_ply(tmp_path / "a.ply", rows, layout=layout)
    seen: list[int] = []
    source = PlySource(
        tmp_path / "a.ply",
        transform=lambda chunk: {**chunk, "means": chunk["means"] * 2},
        report=seen.append,
    )
    model = restored_to_look_at(source, device=torch.device("cpu"), room=room)
    try:
        read = all_rows(model)
        for name in NAMES:
            expected = rows[name] * 2 if name == "means" else rows[name]
            torch.testing.assert_close(read[name], expected, rtol=0, atol=0)
        assert model.keys.values.tolist() == list(range(len(rows["means"])))
        assert seen[-1] == len(rows["means"])
    finally:
        model.close()


def test_a_sample_of_positions_is_spread_over_the_file(tmp_path: Path) -> None:
    rows = cloud_rows(1000, 3)
    write_ply(tmp_path / "a.ply", rows)
    assert count_ply(tmp_path / "a.ply") == (1000, 3)
    some = sample_means(tmp_path / "a.ply", 300)
    np.testing.assert_array_equal(some, rows["means"][::4].double().numpy())
    assert len(sample_means(tmp_path / "a.ply", 1000)) == 1000


def test_a_file_without_rows_has_no_positions(tmp_path: Path) -> None:
    write_ply(tmp_path / "a.ply", cloud_rows(0))
    assert sample_means(tmp_path / "a.ply", 10).shape == (0, 3)


def test_other_files_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.ply").write_bytes(b"ply\nformat binary_little_endian 1.0\nelement vertex 1\n")
    with pytest.raises(InputError, match="its header does not end"):
        PlySource(tmp_path / "a.ply")
