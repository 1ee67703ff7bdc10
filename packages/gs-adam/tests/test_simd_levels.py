# SPDX-License-Identifier: Apache-2.0
"""The instruction sets agree with the scalar definition to a few ulp."""

import os
import subprocess
import sys

import pytest
import torch

import gs_adam

SCRIPT = """
import sys, torch, gs_adam
out = []
for semantics in ("dense", "deferred", "sparse"):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(61, 37, generator=generator)
    params = [table[:, :3], table[:, 3:20], table[:, 20:21], table[:, 21:].clone()]
    host = gs_adam.HostAdam(
        [{"params": [p], "lr": 0.01 * (k + 1)} for k, p in enumerate(params)],
        semantics=semantics, weight_decay=0.01,
    )
    for _ in range(60):
        seen = torch.rand(61, generator=generator) < 0.3
        scale = 10 ** (-15 * torch.rand(61, 1, generator=generator))
        grads = torch.randn(61, 37, generator=generator) * scale
        host.step(seen, [g[seen] for g in grads.split([3, 17, 1, 16], dim=1)])
    host.flush()
    out += params + [host.state[p][k] for p in params for k in ("exp_avg", "exp_avg_sq")]
torch.save([t.clone() for t in out], sys.argv[1])
print(gs_adam.build_info()["simd_used"])
"""


@pytest.mark.parametrize("level", gs_adam.build_info()["simd_compiled"])
def test_levels_agree(level, tmp_path):
    results = {}
    for name in ("scalar", level):
        file = tmp_path / f"{name}.pt"
        result = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", SCRIPT, str(file)],
            capture_output=True,
            text=True,
            env={**os.environ, "GS_SIMD": name, "OMP_NUM_THREADS": "1"},
        )
        if "GS_SIMD must be at most" in result.stderr:
            pytest.skip(f"this processor has no {name}")
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip() == name
        results[name] = torch.load(file)
    for a, b in zip(results["scalar"], results[level], strict=True):
        # Sixty steps, each of which may round once more where there is no fused multiply-add; where
        # that brings a moment near zero, relative to what was added.
        torch.testing.assert_close(b, a, rtol=5e-6, atol=2e-7 * float(a.abs().max()))


def test_an_unknown_level_is_refused():
    code = "import torch, gs_adam; gs_adam.HostAdam([torch.zeros(2, 2)]).begin_step()"
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "GS_SIMD": "mmx"},
    )
    assert "GS_SIMD must be scalar, avx2 or avx512, got mmx" in result.stderr
