# SPDX-License-Identifier: Apache-2.0
"""gs_cull: good calls of everything public."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import gs_cull
from campaigns.misuse.calls import Call, Entry, Room
from campaigns.misuse.threads import Shared

_WIDTH, _HEIGHT = 64, 48


def _rows(room: Room) -> dict[str, Any]:
    n = room.pick(0, 1, 31, 32, 33, 100, 300)
    return {
        "means": room.own(room.rng.standard_normal((n, 3)) * 3, np.float32),
        "scales": room.own(room.rng.standard_normal((n, 3)) * 0.5 - 3, np.float32),
        "quats": room.normal(n, 4),
    }


def _views(room: Room, n: int) -> dict[str, Any]:
    viewmats = np.stack([np.eye(4)] * n)
    viewmats[:, :3, 3] = room.rng.standard_normal((n, 3)) + np.array([0, 0, 5])
    Ks = np.stack([np.array([[60.0, 0, 32], [0, 60, 24], [0, 0, 1]])] * n)
    return {
        "viewmats": room.own(viewmats, np.float32),
        "Ks": room.own(Ks, np.float32),
        "width": _WIDTH,
        "height": _HEIGHT,
    }


def _view(room: Room) -> dict[str, Any]:
    many = _views(room, 1)
    return {
        "viewmat": room.own(np.asarray(many["viewmats"])[0], np.float32),
        "K": room.own(np.asarray(many["Ks"])[0], np.float32),
        "width": _WIDTH,
        "height": _HEIGHT,
    }


def _options(room: Room, n: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "opacities": room.normal(n),
        "near": 0.01,
        "far": 1e10,
        "eps2d": 0.3,
        "radius_clip": 0.0,
        "camera_model": room.pick("pinhole", "ortho", "fisheye"),
        "activated": False,
        "antialiased": room.chance(),
        "blocks": None,
    }
    return {name: value for name, value in options.items() if room.chance(0.6)}


def _blocks(room: Room, rows: dict[str, Any], *, sort: bool = True) -> gs_cull.Blocks:
    return gs_cull.Blocks.build(**rows, block_size=32, sort=sort)


def _cull(room: Room) -> Call:
    rows = _rows(room)
    n, n_views = len(rows["means"]), room.pick(1, 2, 5, 33)
    views, options = _views(room, n_views), _options(room, n)
    if room.chance(0.3):
        x, y = room.below(20), room.below(20)
        options["rects"] = room.own([[x, y, x + 20, y + 20]] * n_views, np.int32)
    if room.chance(0.3):
        options["inflate"] = gs_cull.Inflate(means=0.01)
    if room.chance(0.3):
        options["blocks"] = _blocks(room, rows)
        options["activated"] = False
    return Call(gs_cull.cull, {**rows, **views, **options})


def _marked(ids: Any, mask: Any, **exact: Any) -> np.ndarray:
    """The plain definition of mark: listed pairs of a row and a view that cull finds as well."""
    seen = gs_cull.cull(**exact)
    words = np.zeros((len(exact["means"]), np.asarray(seen.mask).shape[1]), np.uint32)
    words[np.asarray(seen.ids)] = np.asarray(seen.mask).view(np.uint32)
    listed = np.ascontiguousarray(np.asarray(mask)).view(np.uint32)
    if np.asarray(ids).min(initial=0) < 0:
        raise ValueError(ids)
    return (words[np.asarray(ids)] & listed).any(1)


def _mark(room: Room) -> Call:
    rows = _rows(room)
    n, n_views = len(rows["means"]), room.pick(1, 2, 5, 33, 70)
    views, options = _views(room, n_views), _options(room, n)
    options.pop("blocks", None)
    if room.chance(0.3):
        x, y = room.below(20), room.below(20)
        options["rects"] = room.own([[x, y, x + 20, y + 20]] * n_views, np.int32)
    wide = gs_cull.cull(**rows, **views, **options, inflate=gs_cull.Inflate(means=0.3))
    args = {"ids": room.own(wide.ids), "mask": room.own(np.asarray(wide.mask).view(np.uint32))}
    writes: tuple[str, ...] = ()
    if room.chance(0.4):
        args["out"] = room.own(room.rng.random(len(wide)) < 0.5)
        writes = ("out",)

    def expect(**args: Any) -> Any:
        args.pop("out", None)
        return _marked(**args)

    return Call(gs_cull.mark, {**rows, **views, **options, **args}, writes=writes, expect=expect)


def _made_views(room: Room) -> Call:
    rows = _rows(room)

    def see(**views: Any) -> Any:
        return gs_cull.Views(**views).cull(**rows).ids

    def expect(**views: Any) -> Any:
        return gs_cull.cull(**rows, **views).ids

    return Call(see, _views(room, room.pick(1, 2, 33)), expect=expect)


def _joined(room: Room) -> Call:
    rows = _rows(room)
    parts = [_views(room, n) for n in (1, 2, 1)][: room.between(1, 3)]

    def see(parts: Any) -> Any:
        return gs_cull.Views.joined(parts).cull(**rows).ids

    return Call(see, {"parts": tuple(gs_cull.Views(**part) for part in parts)})


def _cropped(room: Room) -> Call:
    rows, views, n = _rows(room), _views(room, 3), room.below(20)

    def see(rects: Any) -> Any:
        return gs_cull.Views(**views).cropped(rects).cull(**rows).ids

    def expect(rects: Any) -> Any:
        return gs_cull.cull(**rows, **views, rects=rects).ids

    return Call(see, {"rects": room.own([[n, n, n + 20, n + 20]] * 3, np.int32)}, expect=expect)


def _rules(room: Room) -> Call:
    rows, views = _rows(room), _views(room, 2)
    options = _options(room, 0)
    args = {name: options[name] for name in options if name not in ("opacities", "blocks")}

    def see(**args: Any) -> Any:
        return gs_cull.Views(**views).cull(**rows, rules=gs_cull.Rules(**args)).ids

    def expect(**args: Any) -> Any:
        return gs_cull.cull(**rows, **views, **args).ids

    return Call(see, args, expect=expect)


def _seen_by_views(room: Room) -> Call:
    rows, views = _rows(room), _views(room, room.pick(1, 2, 33))
    more = {"opacities": room.normal(len(rows["means"]))} if room.chance() else {}

    def expect(**args: Any) -> Any:
        return gs_cull.cull(**args, **views).ids

    made = gs_cull.Views(**views).cull
    return Call(made, {**rows, **more}, show=lambda seen: seen.ids, expect=expect)


def _marked_by_views(room: Room) -> Call:
    rows, views = _rows(room), _views(room, room.pick(1, 2, 33, 70))
    wide = gs_cull.cull(**rows, **views, inflate=gs_cull.Inflate(means=0.3))
    args = {"ids": room.own(wide.ids), "mask": room.own(np.asarray(wide.mask).view(np.uint32))}

    def expect(**args: Any) -> Any:
        return _marked(**args, **views)

    return Call(gs_cull.Views(**views).mark, {**rows, **args}, expect=expect)


def _one(function: Any) -> Any:
    def make(room: Room) -> Call:
        rows = _rows(room)
        return Call(function, {**rows, **_view(room), **_options(room, len(rows["means"]))})

    return make


def _balanced_split(room: Room) -> Call:
    more = {"n": room.between(1, 4), "axis": room.pick("x", "y"), "halo": 5}
    rows = _rows(room)
    options = _options(room, len(rows["means"]))
    options.pop("camera_model", None)
    return Call(gs_cull.balanced_split, {**rows, **_view(room), **options, **more})


def _build(room: Room) -> Call:
    more: dict[str, Any] = {
        "block_size": 32 * room.between(1, 3),
        "sort": room.chance(),
        "activated": False,
    }
    more |= {"slack_means": 0.1, "slack_scales": 0.0}
    return Call(gs_cull.Blocks.build, {**_rows(room), **more}, show=_parts)


def _parts(blocks: gs_cull.Blocks) -> Any:
    return [blocks.n_rows, blocks.block_size, blocks.order, *blocks.bounds, blocks.activated]


def _from_chunks(room: Room) -> Call:
    chunks, n_rows = [], 0
    for _ in range(room.between(1, 3)):
        n_rows += 64
        arrays = (room.normal(64, 3), room.normal(64, 3), room.normal(64, 4))
        chunks.append(arrays)
    args = {"chunks": chunks, "n_rows": n_rows, "block_size": 32, "slack_means": 0.5}
    return Call(gs_cull.Blocks.from_chunks, args, show=_parts)


def _saved(room: Room) -> Call:
    """Written and read again."""
    blocks = _blocks(room, _rows(room))

    def save_and_load(path: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / path
            blocks.save(place)
            return gs_cull.Blocks.load(place)

    return Call(save_and_load, {"path": "blocks.npz"}, fixed=("path",), show=_parts)


def _load(room: Room) -> Call:
    path = Path(tempfile.gettempdir()) / "no such folder" / "blocks.npz"

    def load(path: Any) -> Any:
        try:
            return gs_cull.Blocks.load(path)
        except FileNotFoundError:
            return "not found"

    return Call(load, {"path": path})


def _to(room: Room) -> Call:
    blocks = _blocks(room, _rows(room))
    return Call(blocks.to, {"device": "cpu"}, show=_parts)


def _widen(room: Room) -> Call:
    blocks = _blocks(room, _rows(room))
    args = {"means": 0.25, "scales": 0.5, "blocks": room.pick(None, room.ids(1, 1))}
    if not len(blocks):
        args["blocks"] = None

    def widen(**args: Any) -> Any:
        blocks.widen(**args)
        return blocks.slack

    return Call(widen, args, state=lambda: _parts(blocks))


def _refit(room: Room) -> Call:
    rows = _rows(room)
    blocks = _blocks(room, rows)
    some = room.ids(1, 1) if len(blocks) and room.chance() else None

    def refit(**args: Any) -> Any:
        blocks.refit(**args)
        return _parts(blocks)

    return Call(refit, {**rows, "blocks": some}, state=lambda: _parts(blocks))


def _fit(room: Room) -> Call:
    rows = _rows(room)
    blocks = _blocks(room, rows)
    which = room.own(np.arange(len(blocks)), np.int32)
    args = {"rows": tuple(rows.values()), "which": which, "stored": None, "end": None}

    def fit(**args: Any) -> Any:
        blocks.fit(**args)
        return _parts(blocks)

    return Call(fit, args, state=lambda: _parts(blocks))


def _layout(room: Room) -> Call:
    rows = _rows(room)
    return Call(_blocks(room, rows).layout, {"means": rows["means"]}, fixed=("means",))


def _visible(room: Room) -> Call:
    blocks = _blocks(room, _rows(room))
    more = {"near": 0.01, "eps2d": 0.3, "camera_model": "pinhole", "inflate": None}
    args = {**_views(room, room.pick(1, 3, 40)), **more}
    return Call(blocks.visible, args)


def _slots(room: Room) -> tuple[gs_cull.Blocks, Any]:
    blocks = _blocks(room, _rows(room), sort=False)
    slots = np.full(len(blocks) + 2, -1, np.int32)
    slots[: len(blocks)] = np.arange(len(blocks))
    return blocks, room.own(room.rng.permutation(slots))


def _in_slots(room: Room) -> Call:
    blocks, slots = _slots(room)
    return Call(blocks.in_slots, {"slots": slots}, show=lambda made: made.block_in_slot)


def _resident(room: Room) -> Call:
    blocks, slots = _slots(room)
    args = {"blocks": blocks, "slots": slots}
    return Call(gs_cull.ResidentBlocks, args, show=lambda made: made.block_in_slot)


def _resident_refit(room: Room) -> Call:
    blocks, slots = _slots(room)
    resident = blocks.in_slots(slots)
    n = 32 * len(slots)
    args = {"means": room.normal(n, 3), "scales": room.normal(n, 3), "quats": room.normal(n, 4)}

    def refit(**args: Any) -> Any:
        resident.refit(**args)
        return _parts(blocks)

    return Call(refit, args, state=lambda: _parts(blocks))


def _resident_layout(room: Room) -> Call:
    blocks, slots = _slots(room)
    args = {"means": room.normal(32 * len(slots), 3)}
    return Call(blocks.in_slots(slots).layout, args, fixed=("means",))


def _mask(room: Room) -> tuple[Any, Any, int]:
    n_rows, n_views = room.pick(0, 1, 7, 64, 500, 4096), room.pick(1, 2, 31, 32, 33, 64, 70)
    bits = room.rng.random((n_rows, n_views)) < 0.3
    padded = np.zeros((n_rows, 32 * -(-n_views // 32)), np.uint8)
    padded[:, :n_views] = bits
    words = np.packbits(padded, axis=1, bitorder="little").view(np.uint32)
    ids = room.own(np.arange(n_rows), np.int32)
    return ids, room.own(words), n_views


def and_counts_of(mask: Any, n_views: int) -> np.ndarray:
    """The plain definition."""
    words = np.ascontiguousarray(np.asarray(mask)).view(np.uint32)
    if words.ndim != 2 or words.shape[1] != -(-n_views // 32):
        raise ValueError(mask)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").astype(np.int64)
    assert not bits[:, n_views:].any(), "bits that belong to no view"
    return bits[:, :n_views].T @ bits[:, :n_views]


def _of_mask(room: Room) -> Call:
    ids, mask, n_views = _mask(room)

    def expect(ids: Any, mask: Any, n_views: int, n_not_finite: int) -> Any:
        return np.diagonal(and_counts_of(mask, n_views))

    args = {"ids": ids, "mask": mask, "n_views": n_views, "n_not_finite": 0}
    made = gs_cull.Visibility.of_mask
    return Call(made, args, show=lambda seen: seen.counts, expect=expect)


def _visibility(room: Room) -> Call:
    ids, mask, n_views = _mask(room)
    counts = room.own(np.diagonal(and_counts_of(mask, n_views)), np.int32)

    def pairs(**args: Any) -> Any:
        seen = gs_cull.Visibility(**args)
        return seen.and_counts(), seen.xor_counts()

    def expect(ids: Any, mask: Any, counts: Any, n_not_finite: int) -> Any:
        shared = and_counts_of(mask, len(counts))
        sizes = np.diagonal(shared)
        return shared, sizes[:, None] + sizes[None] - 2 * shared

    args = {"ids": ids, "mask": mask, "counts": counts, "n_not_finite": 0}
    return Call(pairs, args, expect=expect)


def _view_of(room: Room) -> Call:
    ids, mask, n_views = _mask(room)
    seen = gs_cull.Visibility.of_mask(ids, mask, n_views, 0)
    return Call(seen.view, {"i": room.below(n_views)})


def _inflate(room: Room) -> Call:
    args = dict.fromkeys(("means", "scales", "quats", "opacities"), 0.5)
    return Call(gs_cull.Inflate, args)


def _nothing(function: Any) -> Any:
    return lambda room: Call(function, {}, show=lambda _: None)


ENTRIES = (
    Entry("gs_cull.cull", _cull),
    Entry("gs_cull.mark", _mark),
    Entry("gs_cull.Views", _made_views),
    Entry("gs_cull.Views.joined", _joined),
    Entry("gs_cull.Views.cropped", _cropped),
    Entry("gs_cull.Views.cull", _seen_by_views),
    Entry("gs_cull.Views.mark", _marked_by_views),
    Entry("gs_cull.Rules", _rules),
    Entry("gs_cull.visible_ids", _one(gs_cull.visible_ids)),
    Entry("gs_cull.visible_mask", _one(gs_cull.visible_mask)),
    Entry("gs_cull.balanced_split", _balanced_split),
    Entry("gs_cull.Blocks.build", _build),
    Entry("gs_cull.Blocks.from_chunks", _from_chunks),
    Entry("gs_cull.Blocks.save", _saved),
    Entry("gs_cull.Blocks.load", _load),
    Entry("gs_cull.Blocks.to", _to),
    Entry("gs_cull.Blocks.widen", _widen),
    Entry("gs_cull.Blocks.refit", _refit),
    Entry("gs_cull.Blocks.fit", _fit),
    Entry("gs_cull.Blocks.layout", _layout),
    Entry("gs_cull.Blocks.visible", _visible),
    Entry("gs_cull.Blocks.in_slots", _in_slots),
    Entry("gs_cull.ResidentBlocks", _resident),
    Entry("gs_cull.ResidentBlocks.refit", _resident_refit),
    Entry("gs_cull.ResidentBlocks.layout", _resident_layout),
    Entry("gs_cull.Visibility", _visibility),
    Entry("gs_cull.Visibility.of_mask", _of_mask),
    Entry("gs_cull.Visibility.and_counts", _visibility),
    Entry("gs_cull.Visibility.xor_counts", _visibility),
    Entry("gs_cull.Visibility.view", _view_of),
    Entry("gs_cull.Inflate", _inflate),
    Entry("gs_cull.build_info", _nothing(gs_cull.build_info)),
)

MADE_BY_OTHERS = ("gs_cull.Blocks", "gs_cull.Split")
"""Classes that callers get from functions and do not make."""


def _used_together(room: Room) -> dict[str, Any]:
    rows = _rows(room)
    blocks = _blocks(room, rows)
    views = _views(room, 3)
    return {
        "widen": lambda: blocks.widen(means=0.1),
        "refit": lambda: blocks.refit(**rows),
        "visible": lambda: blocks.visible(**views),
        "cull": lambda: gs_cull.cull(**rows, **views, blocks=blocks),
        "to": lambda: blocks.to("cpu"),
    }


SHARED = (Shared("gs_cull.Blocks", _used_together),)
