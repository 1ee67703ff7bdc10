# SPDX-License-Identifier: Apache-2.0
"""Objects of another kind than an argument's get one line that names the argument."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gs_cull
from gs_cull import Blocks

from .oracle import random_scene

SCENE = random_scene(1, 50, 1)
ROWS = SCENE.arguments[:3]
VIEW = (SCENE.viewmats[0], SCENE.Ks[0], SCENE.width, SCENE.height)
VISIBLE = gs_cull.cull(*SCENE.arguments)
BLOCKS = Blocks.build(*ROWS, 32, sort=False)
WRONG = [object(), "x", 1.5j, {}, [[1], [2, 3]], np.zeros((2, 2))]


def cull(**options: Any) -> Any:
    return gs_cull.cull(*SCENE.arguments, **options)


def mark(**options: Any) -> Any:
    return gs_cull.mark(*SCENE.arguments, **{"ids": VISIBLE.ids, "mask": VISIBLE.mask, **options})


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        *(
            (lambda wrong, name=name: cull(**{name: wrong}), name)
            for name in ("near", "far", "eps2d", "radius_clip", "camera_model", "activated",
                         "antialiased", "inflate", "blocks", "rects", "opacities")
        ),
        (lambda wrong: gs_cull.cull(*ROWS, SCENE.viewmats, SCENE.Ks, wrong, 9), "width"),
        *(
            (lambda wrong, name=name: mark(**{name: wrong}), name)
            for name in ("near", "far", "eps2d", "radius_clip", "camera_model", "activated",
                         "antialiased", "rects", "opacities", "ids", "mask", "out")
        ),
        (lambda wrong: gs_cull.visible_ids(*ROWS, wrong, *VIEW[1:]), "viewmats?"),
        (lambda wrong: gs_cull.balanced_split(*ROWS, *VIEW, n=wrong), "n"),
        (lambda wrong: gs_cull.balanced_split(*ROWS, *VIEW, halo=wrong), "halo"),
        (lambda wrong: gs_cull.Inflate(means=wrong), "inflate.means"),
        (lambda wrong: Blocks.build(*ROWS, wrong), "block_size"),
        (lambda wrong: Blocks.build(*ROWS, sort=wrong), "sort"),
        (lambda wrong: Blocks.build(*ROWS, activated=wrong), "activated"),
        (lambda wrong: Blocks.build(*ROWS, slack_means=wrong), "slack_means"),
        (lambda wrong: Blocks.from_chunks([wrong], 50), "chunks"),
        (lambda wrong: Blocks.from_chunks([ROWS], wrong), "n_rows"),
        (lambda wrong: BLOCKS.widen(means=wrong), "means"),
        (lambda wrong: BLOCKS.refit(*ROWS, blocks=wrong), "blocks"),
        (lambda wrong: BLOCKS.fit(wrong, np.zeros(1, "i4")), "rows"),
        (lambda wrong: BLOCKS.fit(ROWS, np.zeros(1, "i4"), end=wrong), "end"),
        (lambda wrong: BLOCKS.in_slots(wrong), "slots"),
        (lambda wrong: gs_cull.ResidentBlocks(wrong, [0]), "blocks"),
        (lambda wrong: gs_cull.Visibility.of_mask(VISIBLE.ids, VISIBLE.mask, wrong, 0), "n_views"),
        (lambda wrong: VISIBLE.view(wrong), "view"),
    ],
)  # fmt: skip
def test_a_wrong_kind_is_named_in_one_line(call: Any, argument: str) -> None:
    for wrong in WRONG:
        with pytest.raises((TypeError, ValueError), match=rf"^{argument}\b.* must .*") as caught:
            call(wrong)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("n_views", [-63, -1, 2**14 + 1, 2**40])
def test_numbers_of_views_that_no_mask_can_have_are_refused(n_views: int) -> None:
    with pytest.raises(ValueError, match=f"n_views must be from 0 to 16384, got {n_views}"):
        gs_cull.Visibility.of_mask(VISIBLE.ids, VISIBLE.mask, n_views, 0)


@pytest.mark.parametrize(
    ("which", "stored", "message"),
    [
        ([2], [0], "blocks must be from 0 to 1, got 2"),
        ([-1], [0], "blocks must be from 0 to 1, got -1"),
        ([0], [2], "means must hold the rows of block 0, got 50 rows"),
        ([0], [-1], "means must hold the rows of block 0, got 50 rows"),
    ],
)
def test_blocks_are_fitted_only_where_they_are(which: Any, stored: Any, message: str) -> None:
    which, stored = (np.array(ids, "i4") for ids in (which, stored))
    with pytest.raises(IndexError, match=message):
        BLOCKS.fit(ROWS, which, stored=stored)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("block_size", 0, "block_size must be a positive multiple of 32, got 0"),
        ("order", np.full(50, 10**6, "i4"), "path must hold an order of 50 rows"),
    ],
)
def test_files_of_blocks_are_checked(tmp_path: Path, name: str, value: Any, message: str) -> None:
    path = tmp_path / "blocks.npz"
    Blocks.build(*ROWS, 32).save(path)
    with np.load(path) as file:
        parts = {key: file[key] for key in file.files}
    np.savez(path, **{**parts, name: value})
    with pytest.raises(ValueError, match=message):
        Blocks.load(path)


@pytest.mark.parametrize("device", ["nowhere", [], object()])
def test_a_device_that_torch_does_not_know_is_refused(device: object) -> None:
    rows = np.zeros((4, 3), np.float32)
    blocks = Blocks.build(rows, rows, np.ones((4, 4), np.float32), 32)
    with pytest.raises(ValueError, match=r"^device must be one of torch's, got "):
        blocks.to(device)
