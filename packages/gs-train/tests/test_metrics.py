# SPDX-License-Identifier: Apache-2.0
import json
import math
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import correlate1d
from torchmetrics.functional.image import (
    peak_signal_noise_ratio,
    structural_similarity_index_measure,
)

from gs_train.machine.memory import peak_host_bytes, resident_bytes
from gs_train.runs.metrics import (
    ImageScore,
    psnr,
    ssim,
    write_metrics,
)


def pair(height, width, *, seed=0, noise=0.1, dtype=torch.float64):
    """A smooth image with structure, and a noisy copy."""
    generator = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    phases = torch.rand(3, generator=generator) * 6
    truth = 0.5 + 0.4 * torch.sin(x[..., None] / 5 + phases) * torch.cos(y[..., None] / 7 + phases)
    image = truth + noise * torch.randn(height, width, 3, generator=generator)
    return image.clamp(0, 1).to(dtype), truth.to(dtype)


def planar(image):
    return image.permute(2, 0, 1)[None]


def ssim_formula(image, truth):
    """Wang et al. 2004, equation 13, with numpy; mirror: the border is reflected, not repeated."""
    x, y = image.numpy(), truth.numpy()
    window = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    window /= window.sum()

    def mean(values):
        rows = correlate1d(values, window, axis=0, mode="mirror")
        return correlate1d(rows, window, axis=1, mode="mirror")

    mx, my = mean(x), mean(y)
    vx, vy, cov = mean(x * x) - mx**2, mean(y * y) - my**2, mean(x * y) - mx * my
    c1, c2 = 0.01**2, 0.03**2
    return np.mean((2 * mx * my + c1) * (2 * cov + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2)))


def ssim_oracle(image, truth):
    return float(structural_similarity_index_measure(planar(image), planar(truth), data_range=1.0))


@settings(max_examples=40, deadline=None)
@given(
    height=st.integers(6, 140), width=st.integers(6, 140), noise=st.sampled_from([0.0, 0.01, 0.3])
)
def test_ssim_is_the_paper_s_for_any_size(height, width, noise):
    image, truth = pair(height, width, noise=noise)
    # Float64 on both sides; only the order of sums differs.
    assert ssim(image, truth) == pytest.approx(ssim_formula(image, truth), abs=1e-10)


@pytest.mark.parametrize("size", [(6, 9), (33, 70), (65, 64)])
def test_ssim_is_that_of_torchmetrics(size):
    image, truth = pair(*size)
    assert ssim(image, truth) == pytest.approx(ssim_oracle(image, truth), abs=1e-10)
    # Variances are differences of float32 means of squares, good to about 1e-7 against c2 = 9e-4.
    in_float32 = ssim(image.float(), truth.float())
    assert in_float32 == pytest.approx(ssim_oracle(image, truth), abs=2e-5)


@pytest.mark.parametrize("size", [(128, 64), (200, 131)])
def test_ssim_in_float32_is_close_to_float64(size):
    image, truth = pair(*size)
    # As above.
    assert ssim(image.float(), truth.float()) == pytest.approx(ssim_formula(image, truth), abs=2e-5)


def test_ssim_of_flat_and_extreme_images():
    black, white = torch.zeros(20, 20, 3), torch.ones(20, 20, 3)
    assert ssim(black, black) == pytest.approx(1, abs=1e-6)
    assert ssim(black, white) == pytest.approx(ssim_formula(black, white), abs=1e-6)
    assert ssim(black, white) < 1e-3


def test_ssim_memory_does_not_grow_with_the_image():
    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                self.size = max(self.size, result.untyped_storage().nbytes())
            return result

    sizes = []
    for height in (128, 512):
        image, truth = pair(height, 100, dtype=torch.float32)
        with Largest() as largest:
            ssim(image.clone(), truth)
        sizes.append(largest.size)
    # The image itself, an input, is the one thing that grows; every intermediate is of one strip.
    assert max(sizes) <= max(512 * 100 * 3 * 4, 5 * 3 * 74 * 3 * 74 * 4)


def test_psnr_is_that_of_torchmetrics():
    for noise in (0.001, 0.1, 0.5):
        image, truth = pair(40, 30, noise=noise)
        expected = peak_signal_noise_ratio(image, truth, data_range=1.0)
        # torchmetrics takes the logarithm in float32.
        assert psnr(image, truth) == pytest.approx(float(expected), rel=1e-7)
        error = np.mean((image.numpy() - truth.numpy()) ** 2)
        assert psnr(image, truth) == pytest.approx(-10 * np.log10(error), rel=1e-12)
        # Float32 squares, relative error 1e-7: far below 1e-4 dB.
        assert psnr(image.float(), truth.float()) == pytest.approx(float(expected), abs=1e-4)


def test_psnr_of_known_errors():
    truth = torch.zeros(4, 5, 3)
    assert psnr(truth + 0.1, truth) == pytest.approx(20, abs=1e-5)
    assert psnr(truth + 1, truth) == 0
    assert psnr(truth, truth) == math.inf


@pytest.mark.parametrize("score", [psnr, ssim])
def test_images_of_different_or_other_shapes_are_refused(score):
    with pytest.raises(
        ValueError, match=r"same shape \(H, W, C\), got \(8, 8, 3\) and \(8, 9, 3\)"
    ):
        score(torch.zeros(8, 8, 3), torch.zeros(8, 9, 3))
    with pytest.raises(ValueError, match="same shape"):
        score(torch.zeros(8, 8), torch.zeros(8, 8))


def test_images_too_small_for_a_reflected_border_are_refused():
    with pytest.raises(ValueError, match="at least 6 pixels high and wide, got 5 x 9"):
        ssim(torch.zeros(5, 9, 3), torch.zeros(5, 9, 3))


@pytest.mark.gpu
def test_scores_on_the_device_are_those_of_the_cpu():
    image, truth = pair(300, 200, dtype=torch.float32)
    assert psnr(image.cuda(), truth.cuda()) == pytest.approx(psnr(image, truth), abs=1e-4)
    assert ssim(image.cuda(), truth.cuda()) == pytest.approx(ssim(image, truth), abs=2e-5)


RUN = {
    "steps": 300,
    "seconds": 12.5,
    "images_per_second": 24.0,
    "n_gaussians": 1000,
    "peak_device_bytes": 0,
    "peak_device_reserved_bytes": 0,
    "peak_host_bytes": 123_456_789,
    "preset": "none",
    "renderer": "cpu",
    "seed": 42,
}


def test_metrics_are_the_means_over_images_with_all_that_a_result_depends_on(tmp_path):
    images = [ImageScore(0, "a.jpg", 20, 0.5, 0.25), ImageScore(8, "b/c.jpg", 30, 0.75, 0.75)]
    written = write_metrics(tmp_path / "metrics.json", images=images, lpips_net="alex", **RUN)
    read = json.loads((tmp_path / "metrics.json").read_text())
    assert read == written
    assert (read["psnr"], read["ssim"], read["lpips"]) == (25, 0.625, 0.5)
    assert read["lpips_net"] == "alex"
    assert {key: read[key] for key in RUN} == RUN
    assert read["images"][1] == {"name": "b/c.jpg", "psnr": 30, "ssim": 0.75, "lpips": 0.75}
    assert read["versions"]["python"] == platform.python_version()
    # A wheel's metadata may lack the local part, which says what it was built for.
    public = torch.__version__.partition("+")[0]
    assert read["versions"]["torch"].partition("+")[0] == public
    assert {"gsplat", "numba", "gs-train"} <= set(read["versions"])


def test_what_training_took_is_written_beside_the_scores(tmp_path):
    figures = {"real": {"device_bytes": 5}, "batches": {"rows_updated": 2.5}}
    read = write_metrics(tmp_path / "m.json", images=[], figures=figures, **RUN)
    assert {name: read[name] for name in figures} == figures
    assert read["psnr"] == "n/a"


def test_a_score_that_does_not_exist_is_not_available_and_never_zero(tmp_path):
    scores = [ImageScore(0, "a", 20, 0.5, None), ImageScore(1, "b", math.inf, 1.0, 0.5)]
    read = write_metrics(tmp_path / "m.json", images=scores, **RUN)
    assert (read["psnr"], read["lpips"], read["lpips_net"]) == ("inf", "n/a", "n/a")
    assert read["images"][0]["lpips"] == "n/a"
    assert read["images"][1]["psnr"] == "inf"
    json.loads((tmp_path / "m.json").read_text(), parse_constant=pytest.fail)  # strict JSON
    nothing = write_metrics(tmp_path / "m.json", images=[], **RUN)
    assert (nothing["psnr"], nothing["ssim"], nothing["lpips"]) == ("n/a", "n/a", "n/a")


def test_peak_host_memory_is_not_that_of_the_parent():
    block = np.ones(100_000_000)  # 0.8 GB
    code = "from gs_train.machine.memory import peak_host_bytes; print(peak_host_bytes())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(child.stdout) < block.nbytes < peak_host_bytes()


def test_peak_host_memory_sees_an_allocation():
    before = peak_host_bytes()
    # Beyond anything resident so far, whatever ran earlier in this process.
    block = np.ones(before // 8 + 4_000_000)
    assert peak_host_bytes() - before > 16_000_000
    del block


def test_resident_memory_is_what_is_held_now():
    before = resident_bytes()
    block = np.ones(40_000_000)
    during = resident_bytes()
    assert 0 < before < during - 0.9 * block.nbytes
    assert during <= peak_host_bytes()
    del block
    assert resident_bytes() < during - 200_000_000
