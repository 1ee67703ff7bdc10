# SPDX-License-Identifier: Apache-2.0
"""A view in one call each way: the bits of the stages, and what happens without enough room."""

from __future__ import annotations

from typing import Any

import pytest
import raster_oracle as oracle
import torch
from raster_device import DEVICE, assert_same_bits, bits, noise, sent, view_of
from torch import Tensor

import gs_raster
from gs_raster import (
    CheckCache,
    Options,
    Rect,
    RoomCheck,
    RowGradients,
    Rows,
    Statistics,
    View,
    Workspace,
)

pytestmark = pytest.mark.gpu
HOW: dict[str, Any] = {"sh_degree": 3, "options": Options(antialiased=True)}
AMPLE = 100_000


def scene(seed: int = 70, n_rows: int = 900) -> tuple[dict[str, Tensor], View]:
    view = oracle.random_view(seed, width=150, height=101)
    return sent(oracle.random_rows(seed, view, n_rows=n_rows)), view_of(view)


def sums(n: int) -> RowGradients:
    out = RowGradients.empty(n, 15, DEVICE)
    for column in out.columns.values():
        column.zero_()
    return out


def grads_of(rect: Rect, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    h, w = rect.height, rect.width
    return noise(h, w, 3, seed=seed), noise(h, w, seed=seed + 1), noise(h, w, seed=seed + 2)


def by_stages(rows: Rows, view: View, rect: Rect, keys: Tensor | None, background: Tensor) -> Any:
    splats = gs_raster.project(rows, view, keys=keys, radii=True, **HOW)
    lists = gs_raster.sort(splats, rect)
    pixels = gs_raster.blend(splats, lists, background=background, depth=True)
    gradients = gs_raster.blend_backward(
        splats, lists, pixels, *grads_of(rect), background=background, absgrad=True
    )
    out = gs_raster.project_backward(rows, view, splats, gradients, out=sums(rows.n), **HOW)
    return splats, lists, pixels, gradients, out


@pytest.mark.parametrize("rect", [Rect(0, 0, 150, 101), Rect(37, 21, 140, 90)])
def test_one_call_gives_the_bits_of_the_stages(rect: Rect) -> None:
    values, view = scene()
    rows = Rows.of(values)
    keys = torch.randperm(900, generator=torch.Generator().manual_seed(0)).int().to(DEVICE)
    background = noise(3)
    _, lists, pixels, gradients, expected = by_stages(rows, view, rect, keys, background)
    assert 1000 < lists.n_instances < AMPLE
    for room in (lists.n_instances, AMPLE):
        drawing = gs_raster.draw(
            rows, view, rect=rect, room=room, keys=keys, background=background, depth=True, **HOW
        )
        out = sums(rows.n)
        of_splats = gs_raster.draw_backward(drawing, *grads_of(rect), out=out, absgrad=True)
        found = drawing.image, drawing.alpha, drawing.depth, of_splats, *out.columns.values()
        wanted = pixels.image, pixels.alpha, pixels.depth, gradients, *expected.columns.values()
        assert_same_bits(bits(*found), bits(*wanted))


@pytest.mark.parametrize(("absgrad", "reserves"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("depth", [False, True])
def test_one_drawing_after_the_other_lies_in_a_workspace(
    depth: bool, absgrad: bool, reserves: bool
) -> None:
    values, view = scene()
    rows, workspace = Rows.of(values), Workspace()
    rooms = 20_000, AMPLE, 30_000
    for rect, room in zip(
        (Rect(37, 21, 140, 90), view.rect, Rect(3, 0, 40, 20)), rooms, strict=True
    ):
        of_image, of_alpha, of_depth = grads_of(rect)
        found = []
        for place in (None, workspace):
            drawing = gs_raster.draw(
                rows, view, rect=rect, room=room, depth=depth, workspace=place, absgrad=reserves,
                **HOW,
            )  # fmt: skip
            assert (drawing.for_gradient is None) == (place is None)
            if drawing.for_gradient is not None:
                of_image = drawing.for_gradient.copy_(of_image)
            given = of_image, of_alpha, of_depth if depth else None
            outs = sums(rows.n), sums(rows.n)
            image = drawing.image.clone()  # the gradient writes over it
            of_splats = gs_raster.draw_backward(drawing, *given, out=outs[0], absgrad=absgrad)
            nothing = gs_raster.draw_backward(
                drawing, *given, out=outs[1], absgrad=absgrad, gives_splats=False
            )
            assert nothing is None
            splats = drawing.splats
            assert splats.radii is not None
            some = [image, drawing.alpha, of_splats, splats.records, splats.radii]
            some += [column for out in outs for column in out.columns.values()]
            found.append(bits(*some, *([] if drawing.depth is None else [drawing.depth])))
        assert_same_bits(*found)
    held = workspace.n_bytes
    assert held > 8 * AMPLE
    workspace.release()
    assert workspace.n_bytes == 0


@pytest.mark.parametrize("own_stream", [False, True])
def test_sorts_that_come_again_are_replayed_with_the_same_bits(own_stream: bool) -> None:
    """Few rows, which one block sorts, and many; rooms, views and rows take turns."""
    values, view = scene(n_rows=30_000)
    half_turn = torch.tensor([[-1.0], [-1.0], [1.0], [1.0]], device=DEVICE)
    turned = View(view.viewmat * half_turn, view.K, view.width, view.height)
    keys = torch.randperm(30_000, generator=torch.Generator().manual_seed(1)).int().to(DEVICE)
    of_image, workspace, n_graphs = noise(101, 150, 3), Workspace(), [0]
    sizes = (0, 5000), (1, 5000), (60, 0), (900, 40_000), (20_001, 10), (29_999, 1 << 20)
    cases = [
        (*size, rect, camera)
        for size in sizes
        for rect, camera in ((view.rect, view), (Rect(37, 21, 140, 90), turned))
    ]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream() if own_stream else torch.cuda.default_stream()):
        for _ in range(4):
            for n, room, rect, camera in cases:
                slots = torch.arange(n, dtype=torch.int32, device=DEVICE)
                rows, found = Rows.of(values, slots), []
                gradient = of_image[rect.y0 : rect.y1, rect.x0 : rect.x1].contiguous()
                for place in (None, workspace):
                    check = RoomCheck(1, DEVICE)
                    drawing = gs_raster.draw(
                        rows, camera, rect=rect, room=room, keys=keys, check_room=check,
                        workspace=place, **HOW,
                    )  # fmt: skip
                    out, image = sums(max(n, 1)), drawing.image.clone()
                    gs_raster.draw_backward(drawing, gradient, out=out, gives_splats=place is None)
                    found.append(bits(image, drawing.alpha, *out.columns.values()))
                    found[-1].append(torch.tensor(check.wait_for(0)))
                assert_same_bits(*found)
            n_graphs.append(len(workspace.graphs))
    assert 0 < n_graphs[1] <= n_graphs[2] == n_graphs[3] == n_graphs[4]


def test_views_with_and_without_keys_are_replayed_from_graphs_of_their_own() -> None:
    """Of rows in pairs of equal depth, keys put the second one first."""
    values, view = scene()
    pairs = {name: column.repeat_interleave(2, 0) for name, column in values.items()}
    pairs["sh0"][1::2] = -pairs["sh0"][1::2]
    rows, workspace = Rows.of(pairs), Workspace()
    swapped = torch.arange(1800, dtype=torch.int32, device=DEVICE) ^ 1
    keyed: dict[bool, list[torch.Tensor]] = {}
    for _ in range(4):
        for has_keys in (False, True):
            found = []
            for place in (None, workspace):
                drawing = gs_raster.draw(
                    rows, view, room=AMPLE, keys=swapped if has_keys else None, workspace=place,
                    **HOW,
                )  # fmt: skip
                out, image = sums(1800), drawing.image.clone()
                gs_raster.draw_backward(drawing, noise(101, 150, 3), out=out, gives_splats=False)
                found.append(bits(image, *out.columns.values()))
            assert_same_bits(*found)
            assert_same_bits(keyed.setdefault(has_keys, found[0]), found[0])
    assert len(workspace.graphs) == 2
    assert not torch.equal(keyed[False][0], keyed[True][0])


def test_rows_that_are_about_as_many_share_a_graph() -> None:
    values, view = scene()
    workspace = Workspace()
    for n in (900, 899, 870, 900, 898):
        rows = Rows.of(values, torch.arange(n, dtype=torch.int32, device=DEVICE))
        gs_raster.draw(rows, view, room=AMPLE, workspace=workspace, **HOW)
    assert len(workspace.graphs) == 2
    for room in range(1000, 1400):
        gs_raster.draw(rows, view, room=room, workspace=workspace, **HOW)
    assert len(workspace.graphs) <= 128


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
def test_a_workspace_that_changes_devices_forgets_its_graphs() -> None:
    values, view = scene()
    workspace = Workspace()
    for k, n_graphs in ((0, 1), (0, 1), (1, 1), (0, 1)):
        device = torch.device("cuda", k)
        rows = Rows.of({name: value.to(device) for name, value in values.items()})
        there = View(view.viewmat.to(device), view.K.to(device), view.width, view.height)
        gs_raster.draw(rows, there, room=AMPLE, workspace=workspace, **HOW)
        assert len(workspace.graphs) == n_graphs


def test_a_drawing_whose_workspace_has_another_is_refused() -> None:
    values, view = scene()
    rows, workspace = Rows.of(values), Workspace()
    drawing, _ = (
        gs_raster.draw(rows, view, room=AMPLE, workspace=workspace, **HOW) for _ in range(2)
    )
    with pytest.raises(RuntimeError, match="drawing must be the last one of its workspace"):
        gs_raster.draw_backward(drawing, noise(101, 150, 3), out=sums(900))
    with pytest.raises(RuntimeError, match="drawing must be the last one of its workspace"):
        _ = drawing.splats


@pytest.mark.parametrize("depth", [False, True])
@pytest.mark.parametrize("absgrad", [False, True])
@pytest.mark.parametrize("radii", [False, True])
def test_the_bytes_of_a_workspace_are_foretold(depth: bool, absgrad: bool, radii: bool) -> None:
    values, view = scene()
    for n in (1, 900):
        rows = Rows.of(values, torch.arange(n, dtype=torch.int32, device=DEVICE))
        for room in (0, 1, AMPLE):
            how: dict[str, Any] = {"room": room, "depth": depth, "absgrad": absgrad, "radii": radii}
            for holds in (True, False):
                workspace = Workspace(holds_gradient=holds)
                drawing = gs_raster.draw(rows, view, workspace=workspace, **how, **HOW)
                assert (drawing.for_gradient is not None) == holds
                foretold = gs_raster.drawing_bytes(
                    n, width=150, height=101, holds_gradient=holds, **how
                )
                assert workspace.n_bytes == foretold


def test_a_drawing_without_radii_has_the_same_bits_and_takes_no_statistics() -> None:
    values, view = scene()
    rows, gradient = Rows.of(values), noise(101, 150, 3)
    found = []
    for radii in (True, False):
        for place in (None, Workspace()):
            drawing = gs_raster.draw(rows, view, room=AMPLE, workspace=place, radii=radii, **HOW)
            image, out = drawing.image.clone(), sums(900)
            gs_raster.draw_backward(drawing, gradient, out=out)
            found.append(bits(image, *out.columns.values()))
            assert (drawing.splats.radii is not None) == radii
    for other in found[1:]:
        assert_same_bits(other, found[0])
    told = gs_raster.Statistics(torch.zeros(900, device=DEVICE), torch.zeros(900, device=DEVICE))
    with pytest.raises(ValueError, match="drawing must have radii for statistics"):
        gs_raster.draw_backward(drawing, gradient, out=sums(900), statistics=told)


def test_a_gradient_in_the_memory_of_the_image_is_refused() -> None:
    values, view = scene()
    drawing = gs_raster.draw(Rows.of(values), view, room=AMPLE, workspace=Workspace(), **HOW)
    with pytest.raises(ValueError, match="grad_image must have memory of its own"):
        gs_raster.draw_backward(drawing, drawing.image, out=sums(900))


def test_tables_that_come_again_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    values, view = scene()
    slots = torch.arange(0, 900, 2, dtype=torch.int32, device=DEVICE)
    of_rows, of_sums = CheckCache(Rows), CheckCache(RowGradients)
    out = sums(450)
    found = []
    for _ in range(3):
        rows = of_rows.of(dict(values), slots=slots, sh_slots=slots)
        for column in out.columns.values():
            column.zero_()
        again = of_sums.of(out.columns)
        drawing = gs_raster.draw(rows, view, room=AMPLE, **HOW)
        gs_raster.draw_backward(drawing, grads_of(view.rect)[0], out=again)
        found.append(bits(drawing.image, *again.columns.values()))
    assert_same_bits(found[1], found[0])
    assert_same_bits(found[2], found[0])
    assert all(part.count_nonzero() for part in found[0])
    with pytest.raises(TypeError, match="means must be float32, got float64"):
        of_rows.of(values | {"means": values["means"].double()}, slots=slots, sh_slots=slots)
    with pytest.raises(ValueError, match=r"out.quats must have shape \(any, 4\)"):
        of_sums.of(out.columns | {"quats": out.means})
    with pytest.raises(ValueError, match=r"sh_slots must have shape \(449\), got \(450,\)"):
        of_rows.of(values, slots=slots[1:], sh_slots=slots)
    others = slots.flip(0)
    for at in (others, slots):  # in the tables that were checked
        rows = of_rows.of(values, slots=at, sh_slots=at)
        image = gs_raster.draw(rows, view, room=AMPLE, **HOW).image
        fresh = Rows.of(values, slots=at, sh_slots=at)
        assert_same_bits(image, gs_raster.draw(fresh, view, room=AMPLE, **HOW).image)
    every = of_rows.of({name: column[:450] for name, column in values.items()})
    assert every.slots is None
    assert every.n == 450
    slots.fill_(900)
    of_rows.of(values, slots=slots, sh_slots=slots)
    monkeypatch.setenv("GS_CHECK_INDEX", "1")
    with pytest.raises(IndexError, match=r"slots must be in \[0, 900\), got 900"):
        of_rows.of(values, slots=slots, sh_slots=slots)


def test_harmonics_and_keys_lie_in_slots_of_their_own() -> None:
    values, view = scene()
    generator = torch.Generator().manual_seed(1)
    slots, sh_slots = (
        torch.randperm(900, generator=generator)[:500].int().to(DEVICE) for _ in range(2)
    )
    keys = torch.randperm(900, generator=generator).int().to(DEVICE)
    # Half of the rows share a depth, so that keys decide.
    axis = view.viewmat[2, :3]
    values["means"][::2] += (2.0 - values["means"][::2] @ axis)[:, None] * axis
    chosen = {name: table[slots.long()] for name, table in values.items()}
    chosen |= {name: values[name][sh_slots.long()] for name in ("sh0", "shN")}
    _, _, pixels, _, expected = by_stages(
        Rows.of(chosen), view, view.rect, keys[slots.long()].contiguous(), noise(3)
    )
    rows = Rows.of(values, slots, sh_slots)
    drawing = gs_raster.draw(rows, view, room=AMPLE, keys=keys, background=noise(3), **HOW)
    places = torch.randperm(600, generator=generator)[:500].int().to(DEVICE)
    out = sums(600)
    gs_raster.draw_backward(drawing, *grads_of(view.rect), out=out, places=places, absgrad=True)
    assert_same_bits(bits(drawing.image), bits(pixels.image))
    for name, column in out.columns.items():
        assert_same_bits(bits(column[places.long()]), bits(expected.columns[name]))
        left = torch.ones(600, dtype=torch.bool, device=DEVICE)
        left[places.long()] = False
        assert not column[left].any()


class Batch:
    """Views of one scene, drawn one after the other with the rooms that are given."""

    def __init__(self, n_views: int) -> None:
        values, view = scene()
        self.rows = Rows.of(values)
        self.views = []
        for k in range(n_views):  # from places beside each other
            viewmat = view.viewmat.clone()
            viewmat[0, 3] += 0.02 * k
            self.views.append(View(viewmat, view.K, view.width, view.height))
        self.check = RoomCheck(n_views, DEVICE)

    def draw(self, rooms: list[int], out: RowGradients, first: int = 0) -> list[Tensor]:
        images = []
        for k, view in enumerate(self.views[first:], first):
            drawing = gs_raster.draw(
                self.rows, view, room=rooms[k], check_room=self.check, index=k, **HOW
            )
            gs_raster.draw_backward(
                drawing, grads_of(view.rect, seed=k)[0], out=out, check_room=self.check
            )
            images.append(drawing.image)
        return images


@pytest.mark.parametrize(("n_views", "short"), [(1, 0), (8, 0), (8, 3), (8, 7)])
def test_too_little_room_adds_nothing_from_that_view_on(n_views: int, short: int) -> None:
    batch, ample = Batch(n_views), [AMPLE] * n_views
    expected = sums(900)
    images = batch.draw(ample, expected)
    assert batch.check.first_overflow(n_views) is None
    counts = batch.check.n_instances.tolist()
    assert min(counts) > 100

    batch.check.begin()
    out, before = sums(900), sums(900)
    rooms = [*counts[:short], counts[short] - 1, *counts[short + 1 :]]
    found = batch.draw(rooms, out)
    assert batch.check.first_overflow(n_views) == short
    assert [batch.check.wait_for(k) for k in range(n_views)] == counts
    assert batch.check.n_instances.tolist() == counts
    assert not found[short].any()
    for k in (k for k in range(n_views) if k != short):
        assert_same_bits(bits(found[k]), bits(images[k]))
    some = Batch(n_views)
    some.views = some.views[:short]
    some.draw(ample, before)
    assert_same_bits(bits(*out.columns.values()), bits(*before.columns.values()))

    # Drawn again from that view on, the batch has the bits that it has with ample room.
    batch.check.begin()
    again = batch.draw(ample, out, first=short)
    assert batch.check.first_overflow(n_views) is None
    assert_same_bits(bits(*again), bits(*images[short:]))
    assert_same_bits(bits(*out.columns.values()), bits(*expected.columns.values()))


def test_statistics_are_those_of_the_splats_gradients() -> None:
    values, view = scene()
    slots = torch.arange(0, 900, 2, dtype=torch.int32, device=DEVICE)
    rows = Rows.of(values, slots)
    splats = gs_raster.project(rows, view, radii=True, **HOW)
    assert splats.radii is not None
    assert 50 < splats.shows.sum() < 450
    for absgrad, columns in ((False, slice(0, 2)), (True, slice(10, 12))):
        grad2d, count, extents = noise(3, 900).abs().unbind()
        expected = [grad2d.clone(), count.clone(), extents.clone()]
        statistics = Statistics(grad2d, count, extents, (75.0, 50.5), absgrad)
        drawing = gs_raster.draw(rows, view, room=AMPLE, **HOW)
        of_splats = gs_raster.draw_backward(
            drawing,
            grads_of(view.rect)[0],
            out=sums(450),
            absgrad=absgrad,
            statistics=statistics,
        )
        ids, shows = slots.long(), splats.shows
        scaled = of_splats[:, columns] * torch.tensor([75.0, 50.5], device=DEVICE)
        expected[0][ids] += torch.hypot(*scaled.unbind(1)).where(shows, 0.0)
        expected[1][ids] += shows.float()
        # By a tensor: torch divides by a number as it multiplies with what is one over it.
        share = splats.radii.amax(1).float() / torch.tensor(150.0, device=DEVICE)
        expected[2][ids] = torch.maximum(expected[2][ids], share.where(shows, 0.0))
        torch.testing.assert_close(grad2d, expected[0], rtol=1e-6, atol=0)
        assert_same_bits(bits(count, extents), bits(*expected[1:]))


@pytest.mark.parametrize("n_rows", [0, 1])
def test_nothing_to_draw(n_rows: int) -> None:
    values, view = scene(n_rows=max(n_rows, 1))
    rows = Rows.of({name: table[:n_rows] for name, table in values.items()})
    check, background = RoomCheck(1, DEVICE), noise(3)
    drawing = gs_raster.draw(
        rows, view, rect=Rect(0, 0, 0, 5), room=0, check_room=check, background=background, **HOW
    )
    assert drawing.image.shape == (5, 0, 3)
    drawing = gs_raster.draw(
        Rows.of({name: table[:0] for name, table in values.items()}),
        view,
        room=0,
        check_room=check,
        background=background,
        **HOW,
    )
    gs_raster.draw_backward(drawing, noise(101, 150, 3), out=sums(1), check_room=check)
    assert check.first_overflow(1) is None
    assert torch.equal(drawing.image, background.expand(101, 150, 3))


def test_a_batch_begins_anew_though_nobody_looked_at_the_one_before() -> None:
    batch = Batch(2)
    expected, found = sums(900), sums(900)
    batch.draw([AMPLE, AMPLE], expected)
    batch.check.begin()
    batch.draw([AMPLE, 5], sums(900))
    batch.check.begin()
    batch.draw([AMPLE, AMPLE], found)
    assert batch.check.first_overflow(2) is None
    assert_same_bits(bits(*found.columns.values()), bits(*expected.columns.values()))
    # A view that had too little room, and was drawn once more before anybody looked.
    batch.check.begin()
    batch.draw([5, 5], sums(900))
    batch.draw([AMPLE, AMPLE], sums(900))
    assert batch.check.first_overflow(2) is None
    batch.check.begin()
    assert batch.check.overflowed.item() == 0


def test_a_view_without_rows_has_room_after_one_with_rows() -> None:
    values, view = scene()
    check = RoomCheck(1, DEVICE)
    gs_raster.draw(Rows.of(values), view, room=AMPLE, check_room=check, **HOW)
    assert check.wait_for(0) > 1000
    check.begin()
    none = Rows.of({name: table[:0] for name, table in values.items()})
    gs_raster.draw(none, view, room=0, check_room=check, **HOW)
    assert check.wait_for(0) == 0
    assert check.first_overflow(1) is None


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_for_the_device() -> None:
    values, view = scene()
    rows, out, grad = Rows.of(values), sums(900), noise(101, 150, 3)
    check = RoomCheck(1, DEVICE)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        drawing = gs_raster.draw(rows, view, room=AMPLE, check_room=check, **HOW)
        gs_raster.draw_backward(drawing, grad, out=out, check_room=check)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_bad_arguments_are_named() -> None:
    values, view = scene()
    rows = Rows.of(values)
    with pytest.raises(ValueError, match=r"room must be from 0 to 2147483647, got -1"):
        gs_raster.draw(rows, view, room=-1, **HOW)
    with pytest.raises(ValueError, match=r"keys must have shape \(900\), got \(3,\)"):
        gs_raster.draw(rows, view, room=9, keys=torch.zeros(3, device=DEVICE).int(), **HOW)
    with pytest.raises(ValueError, match="sh_slots must come with slots, got slots=None"):
        Rows.of(values, None, torch.zeros(900, device=DEVICE).int())
    drawing = gs_raster.draw(rows, view, room=AMPLE, **HOW)
    grad = noise(101, 150, 3)
    with pytest.raises(ValueError, match=r"grad_image must have shape \(101, 150, 3\)"):
        gs_raster.draw_backward(drawing, grad[:5], out=sums(900))
    n = torch.zeros(900, device=DEVICE)
    told = Statistics(n, n, absgrad=True)
    with pytest.raises(ValueError, match="absgrad must be True for statistics of absolute"):
        gs_raster.draw_backward(drawing, grad, out=sums(900), statistics=told)
    with pytest.raises(ValueError, match=r"statistics.count must have shape \(900\)"):
        gs_raster.draw_backward(drawing, grad, out=sums(900), statistics=Statistics(n, n[:4]))
    with pytest.raises(ValueError, match="n_views must be at least 1, got 0"):
        RoomCheck(0, DEVICE)
