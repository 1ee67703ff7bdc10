# SPDX-License-Identifier: Apache-2.0
"""Rows, views and splats on the device, and back as the stages for the CPU take them."""

from __future__ import annotations

import numpy as np
import torch
from raster_oracle import ATTRIBUTES
from raster_oracle import View as HostView
from torch import Tensor

import gs_raster
from gs_raster import Options, Rect, Rows, Splats, View, cpu

DEVICE = torch.device("cuda:0")
NAMES = ("means2d", "conics", "opacities", "colors", "depths")
GRADIENTS = {
    "means2d": slice(0, 2),
    "conics": slice(2, 5),
    "opacities": 5,
    "colors": slice(6, 9),
    "depths": 9,
    "absgrad": slice(10, 12),
}


def sent(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """float32 copies on the device."""
    return {name: values.detach().float().to(DEVICE) for name, values in rows.items()}


def rows_of(rows: dict[str, Tensor]) -> Rows:
    return Rows.of(sent(rows))


def view_of(view: HostView) -> View:
    viewmat, K = (m.float().to(DEVICE) for m in (view.viewmat, view.K))
    return View(viewmat, K, view.width, view.height)


def exact_rows(rows: dict[str, Tensor]) -> cpu.Rows:
    """float64 rows of the same float32 values."""
    return cpu.Rows(*(rows[name].float().double().numpy() for name in ATTRIBUTES))


def exact_camera(view: HostView) -> cpu.Camera:
    """The camera of the same float32 matrices."""
    viewmat, K = (m.float().double().numpy() for m in (view.viewmat, view.K))
    return cpu.Camera.of(viewmat, K, view.width, view.height)


def exact_splats(splats: Splats, radii: Tensor | None = None) -> cpu.Splats:
    """float64 splats of the same float32 values."""
    radii = splats.radii if radii is None else radii
    assert radii is not None
    fields = {name: getattr(splats, name).double().cpu().numpy() for name in NAMES}
    return cpu.Splats(radii=radii.cpu().numpy(), **fields)


def splats_of(rows: dict[str, Tensor], view: HostView, **how: object) -> Splats:
    """Splats on the device whose values the CPU has projected, in float32, as one record each."""
    options = Options(**{k: v for k, v in how.items() if k != "sh_degree"})  # type: ignore[arg-type]
    found = cpu.project(
        cpu.Rows(*(rows[name].float().numpy() for name in ATTRIBUTES)),
        exact_camera(view),
        sh_degree=how.get("sh_degree", 3),  # type: ignore[arg-type]
        options=options,
    )
    records = np.zeros((len(found.depths), 12), np.float32)
    records[:, 0:2], records[:, 2], records[:, 3] = found.means2d, found.opacities, found.depths
    records[:, 4:7], records[:, 8:11] = found.conics, found.colors
    words = records.view(np.uint32)
    size = np.array([view.width, view.height])
    n_tiles = -(-size // 16)
    first = np.clip(np.floor((found.means2d - found.radii) / 16), 0, n_tiles).astype(np.uint32)
    end = np.clip(np.ceil((found.means2d + found.radii) / 16), 0, n_tiles).astype(np.uint32)
    spans = np.where((found.radii > 0).all(1)[:, None], first | end << 16, 0)
    words[:, 7], words[:, 11] = spans[:, 0], spans[:, 1]
    records[~(found.radii > 0).all(1)] = 0
    on_device = torch.from_numpy(records.view(np.int32)).to(DEVICE)
    return Splats(on_device, view_of(view), radii=torch.from_numpy(found.radii).to(DEVICE))


def draw(
    splats: Splats, rect: Rect | None = None, **how: object
) -> tuple[gs_raster.TileLists, gs_raster.Pixels]:
    lists = gs_raster.sort(splats, rect)
    return lists, gs_raster.blend(splats, lists, **how)  # type: ignore[arg-type]


def noise(*shape: int, seed: int = 0) -> Tensor:
    """float32 on the device, the same on every machine."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return values.to(DEVICE)


def off(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm, which is not 0."""
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    assert expected.norm() > 0
    return ((found - expected).norm() / expected.norm()).item()


def bits(*tensors: Tensor | None) -> list[Tensor]:
    """What must be equal in every run: words, so that NaN equals itself."""
    return [t.detach().contiguous().view(torch.int32).cpu() for t in tensors if t is not None]


def assert_same_bits(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert torch.equal(a, b), f"number {i} of {len(found)} differs"
