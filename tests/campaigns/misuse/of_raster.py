# SPDX-License-Identifier: Apache-2.0
"""gs_raster: good calls of everything public."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gs_raster
from campaigns.misuse.calls import Call, Entry, Room
from gs_raster import Rect, cpu

_WIDTH, _HEIGHT = 40, 24
_MOST_THREADS = 8
"""More are made one by one, as many as were asked for."""


def _options(room: Room) -> gs_raster.Options:
    return gs_raster.Options(antialiased=room.chance(), radius_clip=room.pick(0.0, 2.0))


def _matrices(room: Room) -> dict[str, Any]:
    viewmat = np.eye(4)
    viewmat[:3, 3] = room.rng.standard_normal(3) + np.array([0, 0, 5])
    K = np.array([[30.0, 0, _WIDTH / 2], [0, 30, _HEIGHT / 2], [0, 0, 1]])
    return {"viewmat": room.own(viewmat), "K": room.own(K), "width": _WIDTH, "height": _HEIGHT}


def _rows(room: Room, degree: int = 3) -> dict[str, Any]:
    n, dtype = room.pick(0, 1, 7, 60), room.pick(np.float32, np.float64)
    shapes = {
        "means": (n, 3),
        "scales": (n, 3),
        "quats": (n, 4),
        "opacities": (n,),
        "sh0": (n, 1, 3),
        "shN": (n, (degree + 1) ** 2 - 1, 3),
    }
    made = {name: room.rng.standard_normal(shape) for name, shape in shapes.items()}
    made["scales"] -= 1.5
    return {name: room.own(values, dtype) for name, values in made.items()}


def _spread(call: Callable[..., Any], kind: Any) -> Callable[..., Any]:
    """The call with the fields of its first argument by name, so that each may be spoiled."""

    def spread(**args: Any) -> Any:
        fields = {name: args.pop(name) for name in kind._fields if name in args}
        return call(kind(**fields), **args)

    return spread


class _Drawn:
    """What the stages before the one under test gave."""

    def __init__(self, room: Room) -> None:
        self.degree = room.below(4)
        self.camera = cpu.Camera.of(**_matrices(room))
        self.options = _options(room)
        self.rows = _rows(room, self.degree)
        self.how = {"sh_degree": self.degree, "options": self.options}
        self.splats = cpu.project(cpu.Rows(**self.rows), self.camera, **self.how)
        x, y = room.below(20), room.below(10)
        self.rect = room.pick(Rect(0, 0, _WIDTH, _HEIGHT), Rect(x, y, x + 17, y + 9))
        self.tiles = cpu.sort(self.splats, self.rect)

    def owned(self, room: Room) -> dict[str, Any]:
        return {name: room.own(values) for name, values in self.splats._asdict().items()}


def _camera(room: Room) -> Call:
    return Call(cpu.Camera.of, _matrices(room), limits={"width": 1e9, "height": 1e9})


def _project(room: Room) -> Call:
    drawn = _Drawn(room)
    args = {**drawn.rows, "camera": drawn.camera, **drawn.how, "n_threads": room.pick(None, 1, 2)}
    limits = {"n_threads": _MOST_THREADS}
    return Call(_spread(cpu.project, cpu.Rows), args, fixed=("camera",), limits=limits)


def _sort(room: Room) -> Call:
    drawn = _Drawn(room)
    args = {**drawn.owned(room), "rect": drawn.rect}
    if room.chance():
        n = len(drawn.splats.depths)
        args["keys"] = room.own(room.rng.permutation(n), np.int32)
    # Extents of 2^31 pixels touch all tiles, as they should.
    return Call(_spread(cpu.sort, cpu.Splats), args)


def _blend(room: Room) -> Call:
    drawn = _Drawn(room)
    args = {**drawn.owned(room), "tiles": drawn.tiles, "n_threads": room.pick(None, 1, 2)}
    args["with_depth"] = room.chance()
    if room.chance():
        args["background"] = room.own(room.rng.random(3), drawn.splats.depths.dtype)
    limits = {"n_threads": _MOST_THREADS}
    return Call(_spread(cpu.blend, cpu.Splats), args, limits=limits, show=_pixels)


def _pixels(blended: cpu.Blended) -> Any:
    return [blended.image, blended.alpha]


def _blend_backward(room: Room) -> Call:
    drawn = _Drawn(room)
    blended = cpu.blend(drawn.splats, drawn.tiles, with_depth=room.chance())
    shape, dtype = blended.image.shape, blended.image.dtype
    args = {
        "blended": blended,
        "grad_image": room.own(room.rng.standard_normal(shape), dtype),
        "grad_alpha": room.own(room.rng.standard_normal((*shape[:2], 1)), dtype),
        "absgrad": room.chance(),
        "n_threads": room.pick(None, 1, 2),
    }
    return Call(cpu.blend_backward, args, limits={"n_threads": _MOST_THREADS})


def _project_backward(room: Room) -> Call:
    drawn = _Drawn(room)
    dtype = drawn.splats.depths.dtype
    gradients = {
        f"grad_{name}": room.own(room.rng.standard_normal(values.shape), dtype)
        for name, values in drawn.splats._asdict().items()
        if name != "radii" and room.chance(0.8)
    }

    def project_backward(**args: Any) -> Any:
        names = [name for name in args if name.startswith("grad_")]
        given = {name.removeprefix("grad_"): args.pop(name) for name in names}
        call = _spread(cpu.project_backward, cpu.Rows)
        return call(gradients=cpu.SplatGradients(**given), **args)

    args = {
        **drawn.rows,
        **gradients,
        "radii": room.own(drawn.splats.radii),
        "camera": drawn.camera,
        **drawn.how,
    }
    return Call(project_backward, args, fixed=("camera",))


def _made_options(room: Room) -> Call:
    def checked(**args: Any) -> Any:
        return gs_raster.Options(**args).checked()

    return Call(checked, _options(room)._asdict())


def _rect(room: Room) -> Call:
    x, y = room.below(5), room.below(5)
    return Call(Rect, {"x0": x, "y0": y, "x1": x + room.below(9), "y1": y + room.below(9)})


def _halves(room: Room) -> Call:
    return Call(Rect(0, 0, room.below(9), room.below(9)).halves, {})


ENTRIES = (
    Entry("gs_raster.build_info", lambda room: Call(gs_raster.build_info, {})),
    Entry("gs_raster.Options", _made_options),
    Entry("gs_raster.Options.checked", _made_options),
    Entry("gs_raster.Rect", _rect),
    Entry("gs_raster.Rect.halves", _halves),
    Entry("gs_raster.cpu.Camera", _camera),
    Entry("gs_raster.cpu.Camera.of", _camera),
    Entry("gs_raster.cpu.Rows", _project),
    Entry("gs_raster.cpu.Splats", _sort),
    Entry("gs_raster.cpu.SplatGradients", _project_backward),
    Entry("gs_raster.cpu.project", _project),
    Entry("gs_raster.cpu.sort", _sort),
    Entry("gs_raster.cpu.blend", _blend),
    Entry("gs_raster.cpu.blend_backward", _blend_backward),
    Entry("gs_raster.cpu.project_backward", _project_backward),
)

_ON_A_DEVICE = {
    "gs_raster": (
        "CheckCache",
        "CheckCache.of",
        "Drawing",
        "Pixels",
        "ProjectedViews",
        "ProjectedViews.splats",
        "RoomCheck",
        "RoomCheck.begin",
        "RoomCheck.first_overflow",
        "RoomCheck.flag",
        "RoomCheck.go_on",
        "RoomCheck.note",
        "RoomCheck.places_of",
        "RoomCheck.wait_for",
        "RowGradients",
        "RowGradients.empty",
        "RowGradients.facts",
        "RowGradients.native",
        "Rows",
        "Rows.check_slots",
        "Rows.facts",
        "Rows.native",
        "Rows.of",
        "SplatDrawing",
        "Splats",
        "Statistics",
        "Statistics.native",
        "TileLists",
        "TileLists.native",
        "View",
        "View.checked_rect",
        "ViewRows",
        "Workspace",
        "Workspace.image",
        "Workspace.release",
        "Workspace.take",
        "blend",
        "blend_backward",
        "draw",
        "draw_backward",
        "draw_splats",
        "draw_splats_backward",
        "drawing_bytes",
        "perturb",
        "photometric_loss",
        "project",
        "project_backward",
        "project_views",
        "project_views_backward",
        "sort",
        "workspace_bytes",
    ),
    "gs_raster.torch": (
        "Image",
        "ProjectedSplats",
        "ProjectedSplats.splats",
        "project",
        "rasterization",
        "rasterize",
    ),
}
"""By package: what works on a CUDA device alone; gs-raster's tests spoil the arguments there."""

MADE_BY_OTHERS = (
    "gs_raster.cpu.TileLists",
    "gs_raster.cpu.Blended",
    *(f"{package}.{name}" for package, names in _ON_A_DEVICE.items() for name in names),
)
