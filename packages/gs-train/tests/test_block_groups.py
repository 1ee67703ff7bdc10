# SPDX-License-Identifier: Apache-2.0
"""Of many blocks, groups are looked at first: what views see is the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gs_train.blocks import boxes as boxes_module
from gs_train.blocks.boxes import BlockBoxes, Moving, SleepingValues
from gs_train.blocks.sleep_reach import SleepReach
from gs_train.renderers import RenderOptions, View

N = 1003
"""Blocks, of one row each; no multiple of a group."""


class Both:
    """The same boxes twice: looked at in groups of groups of groups, and all of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chance = np.random.default_rng(0)
        self.reaches = [SleepReach((0.9, 0.999), 1e-15, rate) for rate in (1e-2, 5e-3)]
        self._patch = monkeypatch
        self._limit(True)
        self.grouped = BlockBoxes(N)
        self._limit(False)
        self.plain = BlockBoxes(N)
        self.fit(np.arange(N - 5))  # the last ones stay empty

    def _limit(self, is_low: bool) -> None:
        self._patch.setattr(boxes_module, "GROUP", 6 if is_low else 64)
        self._patch.setattr(boxes_module, "MOST_ALONE", 5 if is_low else N)

    def fit(self, blocks: NDArray[np.int64], far: float = 0.5) -> None:
        """Put the rows of some blocks so far from where neighbours by number lie side by side."""
        place = np.stack([blocks % 40, blocks // 40, 0.0 * blocks], 1) - (20.0, 12.0, 0.0)
        place += self.chance.normal(0.0, far, place.shape)
        moments = torch.from_numpy(self.chance.normal(0.0, 1.0, (2, len(blocks), 3))).float()
        squares = torch.ones(len(blocks), 3)
        last = torch.full((len(blocks),), self.reaches[0].step, dtype=torch.int32)
        means = torch.from_numpy(place).float()
        scales = torch.from_numpy(self.chance.normal(-2.0, 0.5, (len(blocks), 3))).float()
        for is_low, boxes in ((True, self.grouped), (False, self.plain)):
            self._limit(is_low)
            boxes.fit(
                blocks,
                np.ones(len(blocks), np.int64),
                means=SleepingValues(means, moments[0], squares, last, self.reaches[0]),
                scales=SleepingValues(scales, moments[1], squares, last, self.reaches[1]),
            )

    def step(self, rate: float) -> None:
        """Take a step; rates to come are no larger."""
        for reach in self.reaches:
            reach.set_ceiling(max(rate, reach.ceiling))
            reach.record_step(rate)
            reach.set_ceiling(rate)

    def assert_same(
        self, moving: Moving | None = None, rects: list[list[int]] | None = None
    ) -> int:
        """Returns how many blocks are seen."""
        views = [self.view(x) for x in (-9.0, 0.0, 300.0)]
        crops = None if rects is None else np.array(rects * len(views), np.int64)
        found = []
        for is_low, boxes in ((True, self.grouped), (False, self.plain)):
            self._limit(is_low)
            found.append(
                boxes.candidates(views, RenderOptions(), *self.reaches, moving=moving, rects=crops)
            )
        ours, theirs = found
        assert ours.ids.dtype == theirs.ids.dtype
        assert ours.ids.tolist() == theirs.ids.tolist()
        assert ours.mask.tolist() == theirs.mask.tolist()
        assert ours.counts.tolist() == theirs.counts.tolist()
        assert theirs.counts[2] == 0
        return len(ours.ids)

    @staticmethod
    def view(x: float) -> View:
        """From above, four units to each side."""
        pose = torch.eye(4)
        pose[:3, :3] = torch.diag(torch.tensor([1.0, -1.0, -1.0]))
        pose[:3, 3] = -(pose[:3, :3] @ torch.tensor([x, 0.0, 8.0]))
        K = torch.tensor([[64.0, 0.0, 32.0], [0.0, 64.0, 32.0], [0.0, 0.0, 1.0]])
        return View(str(x), pose, K, 64, 64)


def test_groups_lead_to_what_all_blocks_do(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(monkeypatch)
    assert 0 < both.assert_same() < N // 3
    assert 0 < both.assert_same(rects=[[0, 0, 16, 64]]) < both.assert_same()


def test_groups_follow_their_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(monkeypatch)
    numbers = set()
    for rate in (1e-2, 3e-3, 2e-2, 1e-3, 5e-2):  # rises widen the boxes of earlier fits
        both.step(rate)
        numbers.add(both.assert_same())
        both.fit(np.sort(both.chance.choice(N, 40, replace=False)), far=15.0)
        numbers.add(both.assert_same())
    assert len(numbers) > 3


def test_groups_move_with_their_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(monkeypatch)
    still = both.assert_same()
    blocks = np.sort(both.chance.choice(N - 5, 60, replace=False))
    assert both.assert_same(Moving(blocks, (3.0, 0.1))) > still
