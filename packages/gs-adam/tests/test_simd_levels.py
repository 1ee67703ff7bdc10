# SPDX-License-Identifier: Apache-2.0
"""The instruction sets agree with the scalar definition to a few ulp."""

import os
import subprocess
import sys

import pytest
import torch

import gs_adam

LEVELS = gs_adam.build_info()["simd_compiled"]
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


# Values, moments and gradients over six orders of magnitude: a step is now less than a value and
# now more, and moments gain as well as lose.
ONE_STEP = """
import sys, torch, gs_adam
generator = torch.Generator().manual_seed(3)
def spread():
    scale = 10 ** (-6 * torch.rand(20_000, 48, generator=generator))
    return torch.randn(20_000, 48, generator=generator) * scale
param, exp_avg, exp_avg_sq, grad = spread(), spread(), spread().square_(), spread()
before = [t.clone() for t in (param, exp_avg, grad)]
host = gs_adam.HostAdam(
    [{"params": [param], "lr": 0.01}], semantics="dense", weight_decay=0.01,
    state={"exp_avg": [exp_avg], "exp_avg_sq": [exp_avg_sq]},
)
host.step(None, [grad])
torch.save([*before, param, exp_avg, exp_avg_sq], sys.argv[1])
print(gs_adam.build_info()["simd_used"])
"""


def results_of(script, level, tmp_path):
    """What the script saves at that level; None where the processor does not have it."""
    file = tmp_path / f"{level}.pt"
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(file)],
        capture_output=True,
        text=True,
        env={**os.environ, "GS_SIMD": level, "OMP_NUM_THREADS": "1"},
    )
    if "GS_SIMD must be at most" in result.stderr:
        return None
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == level
    return torch.load(file)


@pytest.mark.parametrize("level", LEVELS)
def test_levels_agree(level, tmp_path):
    scalar, other = (results_of(SCRIPT, name, tmp_path) for name in ("scalar", level))
    if other is None:
        pytest.skip(f"this processor has no {level}")
    for a, b in zip(scalar, other, strict=True):
        # Sixty steps, each of which may round once more where there is no fused multiply-add; where
        # that brings a moment near zero, relative to what was added.
        torch.testing.assert_close(b, a, rtol=5e-6, atol=2e-7 * float(a.abs().max()))


@pytest.fixture(scope="module")
def one_step(tmp_path_factory):
    """By level."""
    folder = tmp_path_factory.mktemp("one_step")
    results = {level: results_of(ONE_STEP, level, folder) for level in LEVELS}
    return {level: tensors for level, tensors in results.items() if tensors is not None}


def ulp(values):
    """(...) float64: the distance of float32 numbers as large as these."""
    return torch.ldexp(torch.ones_like(values), torch.frexp(values)[1] - 24)


def test_one_step_at_two_levels_differs_by_a_few_ulp(one_step):
    """Levels take the same operations, square root and division rounded correctly at each; they
    differ in the product of a multiply-add, which is rounded or not."""
    scalar, *others = ([t.double() for t in tensors] for tensors in one_step.values())
    param, exp_avg, grad, *after, sq = scalar
    # Sums may cancel: what is rounded are their terms.
    moment = torch.maximum(exp_avg.abs(), 0.1 * (grad - exp_avg).abs())
    step = 0.1 * moment / (sq / 0.001).sqrt()
    assert 0.1 < float((step > param.abs()).double().mean()) < 0.9
    terms = torch.maximum(param.abs(), step), moment, sq
    # Second moments, of positive terms, differ by the rounding of a product; first moments by that
    # and by one of a sum as large as both terms. A step has both, its square root and division and
    # two products more: 18 ulp if all of them add up, and 8 is the most that was met in five times
    # a million values.
    for other in others:
        for bound, scale, a, b in zip((8, 2, 1), terms, (*after, sq), other[3:], strict=True):
            assert ((a - b).abs() / ulp(scale)).max() <= bound


def test_levels_with_fused_multiply_add_give_the_same_bits(one_step):
    if not {"avx2", "avx512"} <= one_step.keys():
        pytest.skip("one level of vectors at most")
    for a, b in zip(one_step["avx2"], one_step["avx512"], strict=True):
        assert torch.equal(a, b)


def test_an_unknown_level_is_refused():
    code = "import torch, gs_adam; gs_adam.HostAdam([torch.zeros(2, 2)]).begin_step()"
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "GS_SIMD": "mmx"},
    )
    assert "GS_SIMD must be scalar, avx2 or avx512, got mmx" in result.stderr
