# SPDX-License-Identifier: Apache-2.0
"""How long does one view take, forward and backward, against gsplat and Faster-GS?

Decides which renderer a trainer takes, and which stage is worth work. Rows that a view sees are
known and lie together, as a trainer's do; gradients of pixels are given, without a loss. Ours are
the five stages one after the other, the same in one call each way, one call each way in a workspace
where gradients lie over the image, differentiable functions, and splats that two ranks projected,
without their travel. The peers are gsplat's kernels behind gs-train's activation, as the renderer
``gsplat`` draws, ``gsplat.rasterization``, and Faster-GS where it is installed. Faster-GS and the
splats of ranks have no alpha: they are given the gradients of the colours alone. The ceiling is
what each kernel would take at the memory's rate.

Wall time includes what the host takes to launch and to wait; busy time is the sum of the kernels'
own times, by the profiler; launches are kernels, copies and fills. With ``--stages`` each kernel's
share is printed too.

    PYTHONPATH=benchmarks python benchmarks/raster/bench_view.py --json view.json
    PYTHONPATH=benchmarks python benchmarks/raster/bench_view.py --run RUN --json view.json
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import faster_gs
import gs_cull
import gs_raster
from gs_raster.torch import project, rasterize
from gs_train.renderers import RenderOptions, View
from gs_train.renderers.gsplat import GsplatRenderer
from gs_train.renderers.raster_records import RasterRecords
from gs_train.renderers.records import Outgoing, SplatRecords
from gs_train.renderers.tables import TableRows
from harness import Record, add_json_option
from workloads import attributes, city, scattered

DEGREE = 3
SCENES = {"20M": 20_000_000, "5M": 5_000_000}
"""Rows of a city, of which a view shows some 470,000 and 120,000."""

Drawn = tuple[Tensor, dict[str, Tensor]]
Draw = Callable[["Case"], Drawn]


@dataclass(frozen=True)
class Case:
    """One view, the rows that it sees, and the gradients of its pixels.

    Attributes:
        room: for its instances, an eighth more than it has.
        keeps_image: whether the image is looked at after the gradient has been taken.
    """

    rows: dict[str, Tensor]
    view: View
    grad_image: Tensor
    grad_alpha: Tensor
    room: int
    keeps_image: bool = False

    def leaves(self) -> dict[str, Tensor]:
        return {name: values.detach().requires_grad_() for name, values in self.rows.items()}

    @property
    def camera(self) -> gs_raster.View:
        return gs_raster.View(self.view.viewmat, self.view.K, self.view.width, self.view.height)

    @cached_property
    def settings(self) -> Any:
        """Faster-GS's, which it wants on the host."""
        return faster_gs.camera(self.view, DEGREE)

    @cached_property
    def grad_planes(self) -> Tensor:
        """(3, H, W): ``grad_image`` as Faster-GS wants it."""
        return self.grad_image.permute(2, 0, 1).contiguous()


def stages(case: Case) -> Drawn:
    rows, camera = gs_raster.Rows.of(case.rows), case.camera
    splats = gs_raster.project(rows, camera, sh_degree=DEGREE, radii=True)
    lists = gs_raster.sort(splats)
    pixels = gs_raster.blend(splats, lists)
    gradients = gs_raster.blend_backward(splats, lists, pixels, case.grad_image, case.grad_alpha)
    image = pixels.image
    del lists, pixels  # as autograd frees what has been used
    found = gs_raster.project_backward(rows, camera, splats, gradients, sh_degree=DEGREE)
    return image, found.columns


def one_call(case: Case) -> Drawn:
    rows = gs_raster.Rows.of(case.rows)
    drawing = gs_raster.draw(rows, case.camera, sh_degree=DEGREE, room=case.room)
    out = gs_raster.RowGradients(**{k: torch.zeros_like(v) for k, v in case.rows.items()})
    gs_raster.draw_backward(drawing, case.grad_image, case.grad_alpha, out=out, gives_splats=False)
    return drawing.image, out.columns


def in_workspace(case: Case) -> Drawn:
    """As a trainer draws, whose loss has done with the image."""
    rows, workspace = gs_raster.Rows.of(case.rows), gs_raster.Workspace(holds_gradient=False)
    drawing = gs_raster.draw(
        rows, case.camera, sh_degree=DEGREE, room=case.room, workspace=workspace, radii=False
    )
    image = drawing.image.clone() if case.keeps_image else drawing.image
    out = gs_raster.RowGradients(**{k: torch.zeros_like(v) for k, v in case.rows.items()})
    gs_raster.draw_backward(drawing, case.grad_image, case.grad_alpha, out=out, gives_splats=False)
    return image, out.columns


def functions(case: Case) -> Drawn:
    leaves = case.leaves()
    drawn = rasterize(project(leaves, case.camera, sh_degree=DEGREE, radii=True))
    image, alpha = drawn.image, drawn.alpha
    del drawn  # with its lists
    return _backward(case, leaves, image, alpha)


def as_records(case: Case) -> Drawn:
    """Rows of two ranks, whose splats lie where an exchange would bring them."""
    n, device = len(case.rows["means"]), case.view.viewmat.device
    keys = torch.arange(n, dtype=torch.int32, device=device)
    sums = {name: torch.zeros_like(values) for name, values in case.rows.items()}
    records = SplatRecords.room_for(n, device)
    renderer = RasterRecords(RenderOptions(), absgrad=False)
    halves = (0, n // 2), (n // 2, n)
    projected = []
    for start, stop in halves:
        ids = keys[start:stop]
        rows = TableRows(case.rows, ids, ids, keys, sums, ids)
        out = Outgoing(rows, case.view, range(start, stop))
        projected.append(renderer.project_views([out], records, sh_degree=DEGREE))
    drawn = renderer.draw(records, case.view, case.view.rect)
    sent = renderer.send_back(drawn, case.grad_image)
    for one in projected:
        renderer.project_views_backward(one, sent)
    return drawn.image, sums


def gsplat_renderer(case: Case) -> Drawn:
    leaves, renderer = case.leaves(), GsplatRenderer(RenderOptions())
    splats = renderer.project(leaves, case.view, sh_degree=DEGREE)
    return _backward(case, leaves, *renderer.rasterize(splats))


def gsplat_rasterization(case: Case) -> Drawn:
    from gsplat import rasterization

    leaves, view = case.leaves(), case.view
    image, alpha, _ = rasterization(
        leaves["means"], leaves["quats"], leaves["scales"].exp(), leaves["opacities"].sigmoid(),
        torch.cat([leaves["sh0"], leaves["shN"]], 1), view.viewmat[None], view.K[None],
        view.width, view.height, sh_degree=DEGREE, packed=False,
    )  # fmt: skip
    return _backward(case, leaves, image[0], alpha[0])


def faster_gs_rasterization(case: Case) -> Drawn:
    leaves = case.leaves()
    planes = faster_gs.draw(leaves, case.settings)
    planes.backward(case.grad_planes)
    return planes.detach().permute(1, 2, 0), _gradients(leaves)


def _backward(case: Case, leaves: dict[str, Tensor], image: Tensor, alpha: Tensor) -> Drawn:
    torch.autograd.backward([image, alpha], [case.grad_image, case.grad_alpha[..., None]])
    return image.detach(), _gradients(leaves)


def _gradients(leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


FASTER_GS = "Faster-GS"
RECORDS = "gs-raster, two ranks' splats"
WITHOUT_ALPHA = (FASTER_GS, RECORDS)


CALLS: dict[str, Draw] = {
    "gs-raster, stages": stages,
    "gs-raster, one call each way": one_call,
    "gs-raster, in a workspace": in_workspace,
    "gs-raster, functions": functions,
    RECORDS: as_records,
    "gsplat, gs-train's renderer": gsplat_renderer,
    "gsplat.rasterization": gsplat_rasterization,
    **({FASTER_GS: faster_gs_rasterization} if faster_gs.is_installed() else {}),
}


def made_up(name: str, n_views: int) -> Iterator[Case]:
    """Views of a synthetic city, 1920 x 1080."""
    scene = city(SCENES[name], device="cuda")
    # Rows lie as a trainer's do, along a space-filling curve.
    scene = scene.reordered(gs_cull.Blocks.build(*scene.rows, 4096).order)
    views = scattered(scene, n_views)
    rows = attributes(scene, sh_degree=DEGREE)
    for i in range(n_views):
        view = View(str(i), views.viewmats[i], views.Ks[i], views.width, views.height)
        yield make_case(rows, view, seed=i)


def of_run(folder: Path, n_views: int) -> Iterator[Case]:
    """Views that a finished run was trained on."""
    from gs_train.machine.interrupt import StopRequest
    from gs_train.runs.fitted import Fitted
    from gs_train.runs.run import Run
    from gs_train.scene.scene import view_in_frame

    rows = {name: v.cuda() for name, v in Fitted.open(folder).rows(frame="trained").items()}
    run = Run.open(folder)
    with StopRequest() as stop:
        record = run.cameras(stop)
    for i in record.train[:: max(1, len(record.train) // n_views)][:n_views]:
        view = view_in_frame(record.views[i], run.frame).to("cuda")
        yield make_case(rows, view, seed=i)


def make_case(rows: dict[str, Tensor], view: View, seed: int) -> Case:
    ids = gs_cull.visible_ids(
        rows["means"], rows["scales"], rows["quats"], view.viewmat, view.K, view.width,
        view.height, opacities=rows["opacities"],
    ).long()  # fmt: skip
    generator = torch.Generator("cuda").manual_seed(seed)
    noise = torch.randn((view.height, view.width, 4), generator=generator, device="cuda")
    # As large as those of a mean over pixels.
    noise /= view.height * view.width
    seen = {name: values[ids].contiguous() for name, values in rows.items()}
    camera = gs_raster.View(view.viewmat, view.K, view.width, view.height)
    splats = gs_raster.project(gs_raster.Rows.of(seen), camera, sh_degree=DEGREE)
    room = gs_raster.sort(splats).n_instances * 9 // 8
    return Case(seen, view, noise[..., :3].contiguous(), noise[..., 3].contiguous(), room)


def check(case: Case) -> None:
    """That all draw the same picture with the same gradients.

    Not to the last bit: a row whose alpha is at the threshold shows with one renderer and not with
    another, and of two rows whose depths round differently either may be in front. In a city far
    away, depths a millimetre apart do. Faster-GS does not cap alpha, and it draws the row at which
    a pixel becomes opaque, where the others stop before that row.
    """
    case = replace(case, keeps_image=True)
    without_alpha = replace(case, grad_alpha=torch.zeros_like(case.grad_alpha))
    for name, call in CALLS.items():
        same, most_pixels, most_apart = case, 1e-3, 1e-2
        if name in WITHOUT_ALPHA:
            same = without_alpha
        if name == FASTER_GS:
            most_pixels, most_apart = 5e-2, 0.2
        image, grads = stages(same)
        other, others = call(same)
        off = ((other - image).abs().amax(-1) > image.max() / 255).float().mean().item()
        assert off < most_pixels, f"{name}: {off:.2g} of the pixels differ"
        for key, grad in grads.items():
            apart = ((others[key] - grad).norm() / grad.norm()).item()
            message = f"{name}: gradients of {key} differ by {apart:.2g} of their norm"
            assert apart < most_apart, message


def wall_ms(call: Draw, cases: list[Case], n_samples: int) -> list[float]:
    """Milliseconds a view, the device's work included; every sample is all views."""
    found = []
    for sample in range(n_samples + 2):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for case in cases:
            call(case)
        torch.cuda.synchronize()
        if sample >= 2:
            found.append(1e3 * (time.perf_counter() - started) / len(cases))
    return found


def busy(call: Draw, cases: list[Case]) -> tuple[float, float, dict[str, float]]:
    """Milliseconds a view that kernels take, launches a view, and milliseconds by kernel."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for case in cases:
            call(case)
        torch.cuda.synchronize()
    by_kernel: Counter[str] = Counter()
    launches = 0
    for event in profiled.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            by_kernel[_short(event.name)] += event.time_range.elapsed_us() / 1e3 / len(cases)
            launches += 1
    return sum(by_kernel.values()), launches / len(cases), dict(by_kernel.most_common())


def _short(kernel: str) -> str:
    """A kernel's name without namespaces and arguments."""
    plain = kernel.replace("(anonymous namespace)::", "").removeprefix("void ")
    return re.split(r"[<(]", plain)[0].split("::")[-1].strip()


def peak_mb(call: Draw, cases: list[Case]) -> float:
    """Device memory that a view takes beyond its rows, gradients included."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for case in cases:
        call(case)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenes", nargs="*", choices=list(SCENES), default=list(SCENES))
    parser.add_argument("--run", type=Path, help="a finished run of gs-train, drawn too")
    parser.add_argument("--views", type=int, default=4)
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--stages", action="store_true", help="print each kernel's time")
    add_json_option(parser)
    args = parser.parse_args()
    record = Record(args.json)
    scenes: dict[str, Callable[[], Iterator[Case]]] = {
        name: lambda name=name: made_up(name, args.views) for name in args.scenes
    }
    if args.run is not None:
        scenes[args.run.name] = lambda: of_run(args.run, args.views)
    for name, make in scenes.items():
        cases = list(make())
        check(cases[0])
        n_rows = sum(len(case.rows["means"]) for case in cases) / len(cases)
        print(f"{name}: {n_rows:,.0f} rows a view, {len(cases)} views")
        print(f"{'':28s} {'wall ms':>8s} {'busy ms':>8s} {'launches':>8s} {'peak MB':>8s}")
        for called, call in CALLS.items():
            samples = wall_ms(call, cases, args.samples)
            busy_ms, launches, by_kernel = busy(call, cases)
            peak = peak_mb(call, cases)
            wall = statistics.median(samples)
            print(f"{called:28s} {wall:8.2f} {busy_ms:8.2f} {launches:8.0f} {peak:8.0f}")
            if args.stages:
                for kernel, ms in by_kernel.items():
                    print(f"    {ms:8.3f} {kernel}")
            record.add(
                called, samples, "ms a view", axes={"scene": name, "rows": round(n_rows)},
                busy_ms=busy_ms, launches=launches, peak_bytes=1e6 * peak, kernels_ms=by_kernel,
            )  # fmt: skip
        record.write()
        del cases
        torch.cuda.empty_cache()
    record.write()


if __name__ == "__main__":
    main()
