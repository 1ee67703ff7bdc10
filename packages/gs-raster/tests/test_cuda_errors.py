# SPDX-License-Identifier: Apache-2.0
"""What the stages for a device refuse, and in which words; most of it needs no device."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import gs_raster
from gs_raster import CudaError, Rect, RowGradients, Rows, Splats, View

HAS_CUDA = gs_raster.build_info()["cuda_toolkit"] is not None


def columns(n: int = 4, n_bases: int = 3) -> dict[str, Tensor]:
    return {
        "means": torch.zeros(n, 3),
        "scales": torch.zeros(n, 3),
        "quats": torch.ones(n, 4),
        "opacities": torch.zeros(n),
        "sh0": torch.zeros(n, 1, 3),
        "shN": torch.zeros(n, n_bases, 3),
    }


def plain_view(**other: Any) -> View:
    given = {"viewmat": torch.eye(4), "K": torch.eye(3), "width": 8, "height": 8}
    return View(**given | other)


@pytest.mark.parametrize(
    ("other", "error", "message"),
    [
        ({"means": [1.0]}, TypeError, "means must be a torch tensor, got list"),
        ({"scales": torch.zeros(4, 3).double()}, TypeError, "scales must be float32, got float64"),
        (
            {"quats": torch.ones(4, 3)},
            ValueError,
            r"quats must have shape \(any, 4\), got \(4, 3\)",
        ),
        ({"opacities": torch.ones(4, 1)}, ValueError, r"opacities must have shape \(any\), got"),
        (
            {"sh0": torch.zeros(4, 3)},
            ValueError,
            r"sh0 must have shape \(any, 1, 3\), got \(4, 3\)",
        ),
        ({"shN": torch.zeros(4, 5, 3)}, ValueError, "shN must have 0, 3, 8 or 15 bases, got 5"),
        (
            {"scales": torch.zeros(5, 3)},
            ValueError,
            "scales must have as many rows as means, 4, got 5",
        ),
        (
            {"means": torch.zeros(3, 4).T},
            ValueError,
            r"means must have contiguous rows, got strides \(1, 4\)",
        ),
        (
            {"shN": torch.zeros(4, 3, 6)[..., ::2]},
            ValueError,
            r"shN must have contiguous rows, got strides \(18, 6, 2\)",
        ),
        (
            {"quats": torch.ones(4, 4, device="meta")},
            ValueError,
            "quats must be on the CPU, got meta",
        ),
        (
            {"slots": torch.zeros(2, dtype=torch.int64)},
            TypeError,
            "slots must be int32, got int64",
        ),
        (
            {"slots": torch.zeros(4, 2).int()[:, 0]},
            ValueError,
            r"slots must be contiguous, got str",
        ),
    ],
)
def test_rows_are_checked(other: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Rows(**columns() | other)


def test_rows_that_are_missing_are_named() -> None:
    given = columns()
    del given["sh0"], given["quats"]
    with pytest.raises(ValueError, match=r"got none for \['quats', 'sh0'\]"):
        Rows.of(given)


def test_an_address_off_its_alignment_is_refused() -> None:
    shifted = torch.frombuffer(bytearray(20), dtype=torch.float32, count=4, offset=1)
    with pytest.raises(ValueError, match="opacities must be aligned to 4 bytes, got an address"):
        Rows(**columns() | {"opacities": shifted})


def test_gradients_of_rows_must_not_overlap() -> None:
    with pytest.raises(ValueError, match=r"out.means must have rows that do not overlap"):
        RowGradients(**columns() | {"means": torch.zeros(1, 3).expand(4, 3)})
    Rows(**columns() | {"means": torch.zeros(1, 3).expand(4, 3)})  # rows may


@pytest.mark.parametrize(
    ("other", "error", "message"),
    [
        ({"viewmat": torch.eye(3)}, ValueError, r"viewmat must have shape \(4, 4\), got \(3, 3\)"),
        ({"K": torch.eye(3).double()}, TypeError, "K must be float32, got float64"),
        ({"viewmat": torch.ones(4, 8)[:, ::2]}, ValueError, "viewmat must be contiguous"),
        ({"K": torch.ones(3, 3, device="meta")}, ValueError, "K must be on the CPU, got meta"),
        ({"width": 0}, ValueError, "width must be from 1 to 1048560, got 0"),
        ({"height": 1048561}, ValueError, "height must be from 1 to 1048560, got 1048561"),
        ({"height": 8.5}, TypeError, r"height must be a whole number, got 8\.5"),
    ],
)
def test_views_are_checked(other: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        plain_view(**other)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"records": torch.zeros(4, 12)}, TypeError, "records must be int32, got float32"),
        ({"records": torch.zeros(4, 11).int()}, ValueError, r"records must have shape \(any, 12\)"),
        ({"keys": torch.zeros(4).long()}, TypeError, "keys must be int32, got int64"),
        ({"keys": torch.zeros(3).int()}, ValueError, r"keys must have shape \(4\), got \(3,\)"),
        (
            {"radii": torch.zeros(4).int()},
            ValueError,
            r"radii must have shape \(4, 2\), got \(4,\)",
        ),
        (
            {"records": torch.zeros(52, dtype=torch.int32)[1:49].view(4, 12)},
            ValueError,
            "records must be aligned to 16 bytes, got an address 4 beyond",
        ),
    ],
)
def test_splats_are_checked(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Splats(**{"records": torch.zeros(4, 12).int(), "view": plain_view()} | given)


def test_a_rectangle_outside_of_the_view_is_refused() -> None:
    splats = Splats(torch.zeros(4, 12).int(), plain_view())
    with pytest.raises(ValueError, match=r"rect must lie within 8 x 8, got Rect\(x0=0, y0=0, x1=9"):
        gs_raster.sort(splats, Rect(0, 0, 9, 8))


STAGES = [
    lambda: gs_raster.project(Rows(**columns()), plain_view(), sh_degree=0),
    lambda: gs_raster.sort(Splats(torch.zeros(4, 12).int(), plain_view())),
    lambda: Splats(torch.zeros(4, 12).int(), plain_view()).order,
]


@pytest.mark.skipif(HAS_CUDA, reason="this build has CUDA")
@pytest.mark.parametrize("stage", [*STAGES, lambda: gs_raster.workspace_bytes(10, 10, 8, 8)])
def test_a_build_without_cuda_says_so_with_the_remedy(stage: Any) -> None:
    with pytest.raises(CudaError, match=r"has no CUDA. Reinstall it where nvcc is on the PATH"):
        stage()


@pytest.mark.skipif(not HAS_CUDA, reason="this build has no CUDA")
@pytest.mark.parametrize("stage", STAGES)
def test_tensors_on_the_cpu_are_refused(stage: Any) -> None:
    message = r"(rows|splats|records) must be on a CUDA device, got the CPU; gs_raster.cpu renders"
    with pytest.raises(ValueError, match=message):
        stage()


def test_torch_is_imported_with_the_first_stage_alone() -> None:
    probe = (
        "import sys, gs_raster, gs_raster.types\n"
        "assert 'torch' not in sys.modules\n"
        "assert 'numba' not in sys.modules\n"
        "assert gs_raster.Options() == (False, 0.3, 0.01, 1e10, 0.0)\n"
        "gs_raster.project\n"
        "assert 'torch' in sys.modules\n"
        "assert set(gs_raster.__all__) <= {name for name in gs_raster.__all__\n"
        "                                  if getattr(gs_raster, name) is not None}\n"
    )
    subprocess.run([sys.executable, "-c", probe], check=True)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'gs_raster' has no attribute 'rasterise'"):
        _ = gs_raster.rasterise  # type: ignore[attr-defined]


on_device = pytest.mark.gpu


@on_device
@pytest.mark.parametrize(
    ("sh_degree", "error", "message"),
    [
        (2, ValueError, "sh_degree must be 0 to 3 and need at most the 3 bases of shN, got 2"),
        (-1, ValueError, "sh_degree must be 0 to 3 .*, got -1"),
        (1.0, TypeError, "sh_degree must be a whole number, got 1.0"),
    ],
)
def test_degrees_are_checked(sh_degree: Any, error: type[Exception], message: str) -> None:
    rows = Rows.of({name: values.cuda() for name, values in columns().items()})
    view = plain_view(viewmat=torch.eye(4).cuda(), K=torch.eye(3).cuda())
    with pytest.raises(error, match=message):
        gs_raster.project(rows, view, sh_degree=sh_degree)


@on_device
def test_what_does_not_fit_together_is_refused() -> None:
    rows = Rows.of({name: values.cuda() for name, values in columns().items()})
    with pytest.raises(ValueError, match="view must be on cuda:0 as rows are, got the CPU"):
        gs_raster.project(rows, plain_view(), sh_degree=0)
    view = plain_view(viewmat=torch.eye(4).cuda(), K=torch.eye(3).cuda())
    splats = gs_raster.project(rows, view, sh_degree=0)
    lists = gs_raster.sort(splats)
    pixels = gs_raster.blend(splats, lists)
    other = Splats(torch.zeros(5, 12).int().cuda(), view)
    with pytest.raises(ValueError, match=r"lists.counts must have shape \(5\), got \(4,\)"):
        gs_raster.blend(other, lists)
    with pytest.raises(TypeError, match="background must be float32, got float64"):
        gs_raster.blend(splats, lists, background=torch.zeros(3).double().cuda())
    with pytest.raises(ValueError, match=r"grad_image must have shape \(8, 8, 3\), got \(8, 8\)"):
        gs_raster.blend_backward(splats, lists, pixels, pixels.alpha)
    with pytest.raises(ValueError, match=r"out must have shape \(4, 12\), got \(4, 9\)"):
        gs_raster.blend_backward(splats, lists, pixels, pixels.image, out=torch.zeros(4, 9).cuda())
    gradients = torch.zeros(4, 12).cuda()
    with pytest.raises(ValueError, match="places must come with out, got out=None"):
        gs_raster.project_backward(
            rows, view, splats, gradients, sh_degree=0, places=torch.zeros(4).int().cuda()
        )
    few = RowGradients(**{name: values.cuda() for name, values in columns(3).items()})
    with pytest.raises(ValueError, match=r"out.means must have at least 4 rows, got 3"):
        gs_raster.project_backward(rows, view, splats, gradients, sh_degree=0, out=few)
    bases = RowGradients(**{name: values.cuda() for name, values in columns(4, 8).items()})
    with pytest.raises(ValueError, match=r"out.shN must have 3 bases, got 8"):
        gs_raster.project_backward(rows, view, splats, gradients, sh_degree=0, out=bases)
