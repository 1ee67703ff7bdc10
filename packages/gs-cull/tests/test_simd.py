# SPDX-License-Identifier: Apache-2.0
"""Every instruction set finds the same rows."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import gs_cull

SCRIPT = """
import sys, numpy as np, gs_cull
rng = np.random.default_rng(0)
n = 3001
means = (rng.normal(size=(n, 3)) * 5).astype("f4")
means[::50] = np.nan
scales = rng.normal(-3, 2, size=(n, 3)).astype("f4")
scales[::77, 1] = 100
quats = rng.normal(size=(n, 4)).astype("f4")
opacities = rng.normal(size=n).astype("f4") * 4
K = np.array([[300, 0, 160], [0, 300, 120], [0, 0, 1.0]])[None].repeat(3, 0)
poses = np.eye(4)[None].repeat(3, 0)
poses[:, 2, 3] = [0, 4, 20]
total = []
for model in ("pinhole", "ortho", "fisheye"):
    for activated in (False, True):
        v = gs_cull.cull(means, scales, quats, poses, K, 320, 240, opacities=opacities,
                         camera_model=model, activated=activated)
        total += [v.ids, v.mask[:, 0].astype("i4"), v.counts, np.array([v.n_not_finite], "i4")]
        total.append(v.and_counts().astype("i4").ravel())
        wide = gs_cull.cull(means, scales, quats, poses, K, 320, 240, opacities=opacities,
                            camera_model=model, activated=activated,
                            inflate=gs_cull.Inflate(means=0.5))
        marks = gs_cull.mark(means, scales, quats, poses, K, 320, 240, wide.ids, wide.mask,
                             opacities=opacities, camera_model=model, activated=activated)
        assert wide.ids[marks].tolist() == v.ids.tolist()
        total.append(marks.astype("i4"))
sys.stdout.buffer.write(np.concatenate(total).tobytes())
"""


def run(level: str) -> bytes:
    environment = {**os.environ, "GS_SIMD": level, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize("level", ["avx2", "avx512"])
def test_levels_agree_bit_for_bit(level: str) -> None:
    info = gs_cull.build_info()
    if level not in info["simd_compiled"] or (level == "avx512" and info["simd_used"] != "avx512"):
        pytest.skip(f"{level} is not available in this build or on this processor")
    scalar = run("scalar")
    assert len(np.frombuffer(scalar, "i4")) > 5_000
    assert run(level) == scalar
