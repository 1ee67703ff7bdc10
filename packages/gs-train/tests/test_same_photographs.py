# SPDX-License-Identifier: Apache-2.0
"""Ranks that would train on different photographs find out before they begin."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
from PIL import Image
from small_captures import PINHOLE, write_capture
from world_photographs import compare
from world_workers import Workers


def test_ranks_find_out_whether_their_photographs_differ(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write_capture(one, [(f"{index}.ppm", PINHOLE) for index in range(4)])
    shutil.copytree(one, two)
    photographs = sorted((two / "images").iterdir())
    with Workers(2) as ranks:
        assert ranks.call(compare, [str(one)] * 2) == [("", 0)] * 2

        os.utime(photographs[1], (5, 5))  # as in any copy
        assert ranks.call(compare, [str(one), str(two)]) == [("", 1)] * 2

        pixels = np.asarray(Image.open(photographs[2])).copy()
        pixels[4, 5] ^= 1
        Image.fromarray(pixels).save(photographs[2])
        (said, n_read), other = ranks.call(compare, [str(one), str(two)])
        assert (said, n_read) == other
        assert n_read == 1
        assert said.startswith("photographs must be the same on all ranks, got other bytes on rank")

        photographs[3].write_bytes(photographs[3].read_bytes() + b"\n")
        (said, n_read), other = ranks.call(compare, [str(one), str(two)])
        assert (said, n_read) == other
        assert n_read == 0
        assert said.startswith("points and sizes of photographs must be the same on all ranks, got")
