# SPDX-License-Identifier: Apache-2.0
"""Views that are kept see what the same cameras see when they are given anew."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import gs_cull
from gs_cull import Rules, Views

from .oracle import Scene, random_scene
from .test_mark import listed, marks, on_torch, rects_of

SCENE = random_scene(1, 3_000, 40)
EARLY = listed(SCENE)
GIVEN = {"near": 0.5, "far": 7.0, "radius_clip": 2.0, "antialiased": True}


def kept(scene: Scene, tensors: bool = False) -> tuple[Views, tuple[Any, ...], Any]:
    """Views, rows and opacities of a scene."""
    arguments, opacities = scene.arguments, scene.opacities
    if tensors:
        arguments, opacities = tuple(map(on_torch, arguments)), on_torch(opacities)
    return Views(*arguments[3:]), arguments[:3], opacities


def parts_of(scene: Scene, sizes: list[int], tensors: bool) -> list[Views]:
    viewmats, Ks, width, height = scene.arguments[3:]
    parts, first = [], 0
    for n in sizes:
        some = slice(first, first + n)
        matrices = (viewmats[some], Ks[some])
        if tensors:
            matrices = (on_torch(matrices[0]), on_torch(matrices[1]))
        parts.append(Views(*matrices, width, height))
        first += n
    return parts


def same(one: gs_cull.Visibility, other: gs_cull.Visibility) -> bool:
    pairs = zip((one.ids, one.mask, one.counts), (other.ids, other.mask, other.counts), strict=True)
    return all(np.array_equal(np.asarray(a).view("i4"), np.asarray(b).view("i4")) for a, b in pairs)


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("options", [{}, GIVEN])
def test_kept_views_cull_and_mark_to_the_same_bits(tensors: bool, options: dict[str, Any]) -> None:
    views, rows, opacities = kept(SCENE, tensors)
    rules, wide = Rules(**options), gs_cull.Inflate(means=0.3)
    for inflate in (None, wide):
        exact = gs_cull.cull(
            *SCENE.arguments, opacities=SCENE.opacities, inflate=inflate, **options
        )
        for _ in range(2):
            assert same(views.cull(*rows, opacities=opacities, rules=rules, inflate=inflate), exact)
    ids, mask = (on_torch(EARLY.ids), on_torch(EARLY.mask)) if tensors else (EARLY.ids, EARLY.mask)
    expected = marks(SCENE, EARLY, **options)
    assert 0 < expected.sum() < len(expected)
    for _ in range(2):
        found = views.mark(*rows, ids, mask, opacities=opacities, rules=rules)
        assert found.tolist() == expected.tolist()
    out = found | True
    assert views.mark(*rows, ids, mask, opacities=opacities, rules=rules, out=out) is out
    assert out.tolist() == expected.tolist()


def test_activated_rows_and_blocks_are_taken() -> None:
    scene = random_scene(2, 2_000, 3)
    scene.scales, scene.opacities = np.exp(scene.scales), 1 / (1 + np.exp(-scene.opacities))
    views, rows, opacities = kept(scene)
    blocks = gs_cull.Blocks.build(*rows, block_size=64, activated=True)
    seen = views.cull(*rows, opacities=opacities, rules=Rules(activated=True), blocks=blocks)
    assert same(seen, gs_cull.cull(*scene.arguments, opacities=opacities, activated=True))
    with pytest.raises(ValueError, match="blocks must be built with activated=False"):
        views.cull(*rows, opacities=opacities, blocks=blocks)


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("sizes", [[40], [1] * 40, [3, 0, 30, 7]])
def test_joined_views_are_those_of_all_parts(tensors: bool, sizes: list[int]) -> None:
    joined = Views.joined(iter(parts_of(SCENE, sizes, tensors)))
    rows, opacities = kept(SCENE, tensors)[1:]
    assert len(joined) == 40
    exact = gs_cull.cull(*SCENE.arguments, opacities=SCENE.opacities)
    assert same(joined.cull(*rows, opacities=opacities), exact)
    assert np.array_equal(joined.viewmats, SCENE.viewmats)
    assert np.array_equal(joined.Ks, SCENE.Ks)
    again = Views.joined([joined, joined])
    assert len(again) == 80


def test_parts_keep_their_sizes_and_rectangles() -> None:
    viewmats, Ks = SCENE.viewmats[:2], SCENE.Ks[:2]
    sizes, rects = np.array([[200, 100], [300, 400]]), rects_of(np.random.default_rng(3), 2)
    rects[:] = [[5, 6, 90, 80], [100, 0, 300, 400]]
    parts = [
        Views(viewmats[k : k + 1], Ks[k : k + 1], *sizes[k].tolist()).cropped(rects[k : k + 1])
        for k in range(2)
    ]
    exact = gs_cull.cull(*SCENE.arguments[:3], viewmats, Ks, sizes[:, 0], sizes[:, 1], rects=rects)
    assert same(Views.joined(parts).cull(*SCENE.arguments[:3]), exact)


def test_values_written_to_rows_and_matrices_count() -> None:
    scene = random_scene(4, 2_000, 2)
    views, rows, opacities = kept(scene, True)
    views.cull(*rows, opacities=opacities)
    scene.viewmats[:, 2, 3] += 1.0
    scene.means[::2] += 0.5
    exact = gs_cull.cull(*scene.arguments, opacities=scene.opacities)
    assert same(views.cull(*rows, opacities=opacities), exact)


def test_other_rows_are_noticed() -> None:
    views, rows, opacities = kept(SCENE, True)
    for n in (3_000, 500, 2_000):
        some = random_scene(n, n, 40)
        some.viewmats, some.Ks = SCENE.viewmats, SCENE.Ks
        other = tuple(map(on_torch, some.arguments[:3]))
        exact = gs_cull.cull(*some.arguments, opacities=some.opacities)
        assert same(views.cull(*other, opacities=on_torch(some.opacities)), exact)
    means = rows[0].clone()
    ids, mask = on_torch(EARLY.ids), on_torch(EARLY.mask)
    views.mark(means, *rows[1:], ids, mask, opacities=opacities)
    means.resize_(2_999, 3)
    with pytest.raises(ValueError, match=r"scales must have shape \(2999, 3\), got \(3000, 3\)"):
        views.mark(means, *rows[1:], ids, mask, opacities=opacities)


def test_matrices_that_get_another_memory_or_shape_leave_views_as_they_were() -> None:
    scene = random_scene(5, 1_000, 2)
    arguments = tuple(map(on_torch, scene.arguments))
    viewmats, Ks = arguments[3].clone(), arguments[4].clone().requires_grad_()
    views = Views(viewmats, Ks, *scene.arguments[5:])
    viewmats.transpose_(1, 2)
    Ks.data = torch.zeros(7)
    exact = gs_cull.cull(*scene.arguments)
    assert same(views.cull(*arguments[:3]), exact)
    assert not views.Ks.requires_grad


def test_float64_matrices_are_copied() -> None:
    scene = random_scene(6, 1_000, 2)
    viewmats = scene.viewmats.astype("f8")
    views = Views(viewmats, scene.Ks, *scene.arguments[5:])
    viewmats[:] = 0
    assert same(views.cull(*scene.arguments[:3]), gs_cull.cull(*scene.arguments))


@pytest.mark.parametrize("tensors", [False, True])
def test_copies_see_the_same(tensors: bool) -> None:
    views, rows, _ = kept(SCENE, tensors)
    rules = Rules(**GIVEN)
    exact = gs_cull.cull(*SCENE.arguments, **GIVEN)
    for copied in (copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
        assert copied(rules) == rules
        assert same(copied(views).cull(*rows, rules=copied(rules)), exact)


def test_rules_take_integers_beyond_the_largest_float() -> None:
    rules = Rules(far=10**400, radius_clip=-(10**400))
    assert (rules.far, rules.radius_clip) == (float("inf"), float("-inf"))


def test_repr_says_how_many_views_of_which_size() -> None:
    one = Views(SCENE.viewmats, SCENE.Ks, 640, 480)
    assert repr(one) == "Views(40 of 640 x 480 pixels; numpy)"
    other = Views(torch.eye(4)[None], torch.eye(3)[None], 8, 9)
    assert repr(other) == "Views(1 of 8 x 9 pixels; torch, cpu)"
    small = Views(SCENE.viewmats[:1], SCENE.Ks[:1], 8, 9)
    assert repr(Views.joined([one, small])) == "Views(41 of 2 sizes; numpy)"


VIEWS, ROWS, OPACITIES = kept(SCENE)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Views(SCENE.viewmats, torch.eye(3)[None], 9, 9), TypeError,
         "Ks must be a numpy array like viewmats, got Tensor"),
        (lambda: Views([[1]], SCENE.Ks, 9, 9), TypeError, "viewmats must be a numpy array or a"),
        (lambda: Views(SCENE.viewmats[0], SCENE.Ks, 9, 9), ValueError,
         r"viewmats must have shape \(B, 4, 4\)"),
        (lambda: Views(SCENE.viewmats, SCENE.Ks, 0, 9), ValueError, "width must be from 1 to"),
        (lambda: Views(SCENE.viewmats, SCENE.Ks, 9, 9.5), TypeError, "height must be a whole"),
        (lambda: VIEWS.cropped(np.zeros((2, 4), int)), ValueError,
         r"rects must have shape \(40, 4\), got \(2, 4\)"),
        (lambda: VIEWS.cropped(np.zeros((40, 4))), TypeError, "rects must be whole numbers"),
        (lambda: Views.joined([]), ValueError, "parts must be one Views or more, got none"),
        (lambda: Views.joined(5), TypeError, "parts must be of Views, got 5"),
        (lambda: Views.joined([VIEWS, 5]), TypeError, "parts must be of Views, got 5"),
        (lambda: Views.joined([VIEWS, kept(SCENE, True)[0]]), TypeError,
         r"parts must be a numpy array like parts\[0\], got Tensor"),
        (lambda: Views.joined([kept(SCENE, True)[0],
                               Views(torch.eye(4, device="meta")[None],
                                     torch.eye(3, device="meta")[None], 9, 9)]),
         ValueError, "parts must be on cpu, got one on meta"),
        (lambda: VIEWS.cull(*kept(SCENE, True)[1]), TypeError,
         "viewmats must be a torch tensor like means, got ndarray"),
        (lambda: VIEWS.cull(*ROWS, opacities=[1]), TypeError, "opacities must be a numpy array"),
        (lambda: VIEWS.cull(ROWS[0][:9], *ROWS[1:]), ValueError,
         r"scales must have shape \(9, 3\), got \(3000, 3\)"),
        (lambda: VIEWS.cull(*ROWS, rules={}), TypeError, "rules must be Rules, got {}"),
        (lambda: VIEWS.cull(*ROWS, inflate=1), TypeError, "inflate must be an Inflate or None"),
        (lambda: VIEWS.cull(*ROWS, blocks=1), TypeError, "blocks must be Blocks or Resident"),
        (lambda: VIEWS.mark(*ROWS, None, EARLY.mask), TypeError, "ids must be a numpy array"),
        (lambda: VIEWS.mark(*ROWS, EARLY.ids, on_torch(EARLY.mask)), TypeError,
         "mask must be a numpy array like viewmats, got Tensor"),
        (lambda: VIEWS.mark(*ROWS, EARLY.ids, EARLY.mask[:, :1].copy()), ValueError,
         r"mask must have shape \(\d+, 2\)"),
        (lambda: VIEWS.mark(*ROWS, EARLY.ids + 3000, EARLY.mask), IndexError, "ids must lie in"),
        (lambda: VIEWS.mark(*ROWS, EARLY.ids, EARLY.mask, out=[1]), TypeError, "out must be a nu"),
        (lambda: Rules(near=0.0), ValueError, "near must be positive for pinhole cameras"),
        (lambda: Rules(eps2d=-1), ValueError, "eps2d must be finite and at least 0, got -1"),
        (lambda: Rules(activated=1), TypeError, "activated must be True or False, got 1"),
        (lambda: Rules(camera_model="x"), ValueError, "camera_model must be .* got 'x'"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("value", "asked"), [(None, False), ("", False), ("0", False), ("1", True), ("00", True)]
)
def test_the_environment_is_asked_at_each_call(
    value: str | None, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gs_cull import _core

    if value is None:
        monkeypatch.delenv("GS_CHECK_INDEX", raising=False)
    else:
        monkeypatch.setenv("GS_CHECK_INDEX", value)
    assert _core.checks_indices() is asked
