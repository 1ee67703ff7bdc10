# SPDX-License-Identifier: Apache-2.0
"""How near does the photometric loss come to what its memory traffic needs?

Decides the layout of its kernels. The value alone, and value and gradient, of whole views with
photographs as bytes; ours takes the gradient in any case. Against: the loss in plain torch on the
same device. The ceiling is a copy: the bytes that must move are image and photograph once and,
where the gradient is asked for, the gradient once.

Views take turns, so that none is found in the cache. Kernels are queued behind a pause, so times
are the device's; what the host needs to launch them is its own column.

    PYTHONPATH=benchmarks python benchmarks/train/bench_loss.py --json loss.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gs_train.losses.loss import Crop, dssim_term, l1_term, photometric_loss
from gs_train.renderers import View
from harness import Record, add_json_option

SIZES = ((1920, 1080), (1436, 1076))
SSIM_LAMBDA = 0.2
N_VIEWS = 4
Loss = Callable[[Tensor, Tensor, Crop], Tensor]


def ours(image: Tensor, truth: Tensor, crop: Crop) -> Tensor:
    return photometric_loss(image, truth, crop, SSIM_LAMBDA)


def in_torch(image: Tensor, truth: Tensor, crop: Crop) -> Tensor:
    truth = truth.to(image.dtype).div_(255.0)
    value = (1 - SSIM_LAMBDA) * l1_term(image, truth, crop).share
    return value + SSIM_LAMBDA * dssim_term(image, truth, crop).share


def make_views(crop: Crop) -> list[tuple[Tensor, Tensor]]:
    """Images and their photographs, which differ by a little noise."""
    shape = (crop.view.height, crop.view.width, 3)
    generator = torch.Generator("cuda").manual_seed(0)
    made = []
    for _ in range(N_VIEWS):
        image = torch.rand(shape, generator=generator, device="cuda")
        noise = torch.rand(shape, generator=generator, device="cuda")
        made.append((image, ((0.8 * image + 0.2 * noise) * 255).to(torch.uint8)))
    return made


def value_only(loss: Loss, image: Tensor, truth: Tensor, crop: Crop) -> Tensor:
    return loss(image, truth, crop)


def with_gradient(loss: Loss, image: Tensor, truth: Tensor, crop: Crop) -> Tensor:
    leaf = image.detach().requires_grad_()
    loss(leaf, truth, crop).backward()
    assert leaf.grad is not None
    return leaf.grad


MODES = {"value": value_only, "value + gradient": with_gradient}


def run_one(run: Any, loss: Loss, views: list[tuple[Tensor, Tensor]], crop: Crop, k: int) -> None:
    run(loss, *views[k % N_VIEWS], crop)


def measure(call: Callable[[int], Any], n_samples: int, n_calls: int) -> dict[str, Any]:
    """Device and host milliseconds of a call, and the most memory that one takes."""
    call(0)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call(0)
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before
    device, host = [], []
    for _ in range(n_samples):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(20_000_000)
        begin.record()
        started = time.perf_counter()
        for k in range(n_calls):
            call(k)
        host.append(1e3 * (time.perf_counter() - started) / n_calls)
        end.record()
        end.synchronize()
        device.append(begin.elapsed_time(end) / n_calls)
    return {"device_ms": device, "host_ms": host, "extra_bytes": extra}


def copy_bytes_per_ms() -> float:
    """Bytes read and written per millisecond by a copy within the device."""
    source = torch.empty(2**28, device="cuda")
    target = torch.empty_like(source)
    found = measure(lambda _: target.copy_(source), 5, 4)
    return 2 * source.nbytes / statistics.median(found["device_ms"])


def check(losses: dict[str, Loss], crop: Crop, views: list[tuple[Tensor, Tensor]]) -> None:
    """Every loss and its gradient against torch in float64.

    Of the gradient not where image and photograph are equal but for rounding: the sign is open.
    """
    image, truth = views[0]
    exact = image.double().requires_grad_()
    expected = in_torch(exact, truth, crop)
    expected.backward()
    assert exact.grad is not None
    differs = (exact.detach() - truth.double() / 255).abs() > 1e-6
    for name, loss in losses.items():
        value, grad = loss(image, truth, crop), with_gradient(loss, image, truth, crop)
        value_error = abs(value.item() / expected.item() - 1)
        error = ((grad - exact.grad)[differs].abs().max() / exact.grad.abs().max()).item()
        print(f"{name}: relative error of the value {value_error:.1e}, of the gradient {error:.1e}")
        assert value_error < 2e-5
        assert error < 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=15)
    add_json_option(parser)
    arguments = parser.parse_args()
    record = Record(arguments.json)
    losses: dict[str, Loss] = {"ours": ours, "torch": in_torch}
    copy = copy_bytes_per_ms()
    print(f"{torch.cuda.get_device_name()}: a copy moves {copy / 1e9:.2f} TB/s")
    record.facts["copy_bytes_per_ms"] = copy
    for width, height in SIZES:
        view = View("view", torch.eye(4), torch.eye(3), width, height)
        crop, n = Crop(view, view.rect), width * height * 3
        views = make_views(crop)
        check(losses, crop, views)
        print(f"{width} x {height}:   device ms   host ms   of a copy   extra MB")
        for mode, run in MODES.items():
            least = n * (5 if mode == "value" else 9) / copy
            for name, loss in losses.items():
                call = partial(run_one, run, loss, views, crop)
                found = measure(call, arguments.samples, N_VIEWS)
                device, host = (statistics.median(found[f"{at}_ms"]) for at in ("device", "host"))
                print(
                    f"{name:>8} {mode:<17} {device:8.3f} {host:9.3f} {least / device:10.1%} "
                    f"{found['extra_bytes'] / 1e6:10.1f}"
                )
                axes = {"size": [width, height], "mode": mode}
                record.add(
                    name, found["device_ms"], "ms", axes=axes,
                    host_ms=found["host_ms"], extra_bytes=found["extra_bytes"],
                )  # fmt: skip
    record.write()


if __name__ == "__main__":
    main()
