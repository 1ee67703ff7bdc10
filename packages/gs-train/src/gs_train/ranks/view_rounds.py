# SPDX-License-Identifier: Apache-2.0
"""Whole views of rows that ranks share, for looking at: no loss, no gradient.

    round 0   views 0 .. W - 1     rank r draws view r
    round 1   views W .. 2 W - 1   rank r draws view W + r
    ...       the last round may have fewer: some ranks draw nothing, and send what they own

Splats travel as the records of training, in `gs_train.ranks.exchange`. While a round is drawn, the
next one is on its way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gs_train.losses.background import BLACK, Colour, nothing_over, over
from gs_train.machine.interrupt import StopRequest
from gs_train.ranks.buffers import RoundBuffers
from gs_train.ranks.exchange import RoundExchange
from gs_train.ranks.turns import NOTHING, Round, Turns
from gs_train.renderers.culling import visible_ids
from gs_train.renderers.protocol import Rect, Renderer, View
from gs_train.renderers.records import RecordRenderer, SplatRecords
from gs_train.rows.operations import Model
from gs_train.rows.visible import in_halves
from gs_train.world import SharedStop
from gs_train.world.protocol import World

_AHEAD = 2  # rounds that are sent before the first is drawn; each has buffers of its own


def n_rounds(n_views: int, n_ranks: int) -> int:
    """Rounds in which so many views are drawn."""
    return -(-n_views // n_ranks)


class ViewRounds:
    """Draws views together with all other ranks.

    Args:
        model: this rank's rows; left as they are.
        renderer: the same on all ranks; it has ``records``.
        world: the ranks.
        stop: of all ranks; None: nobody may stop the work.
        work: its name, for whoever stops it.
        background: behind the scene.
    """

    def __init__(
        self,
        model: Model,
        renderer: Renderer,
        world: World,
        *,
        stop: StopRequest | None = None,
        work: str = "rendering",
        background: Colour = BLACK,
    ) -> None:
        self._model = model
        self._renderer = renderer
        self._records: RecordRenderer = renderer.records  # type: ignore[attr-defined]
        self._world = world
        self._stop = None if stop is None else SharedStop(stop)
        self._work = work
        self._background = background

    @torch.no_grad()
    def images(self, views: Sequence[View]) -> Iterator[Tensor | None]:
        """One image a round: of the view that this rank draws, as
        :func:`gs_train.rows.visible.render_view` draws it from all rows. A collective; all ranks
        take all images, in order, and make no other collective between two rounds unless all do.

        Args:
            views: the same on all ranks; their matrices are on the renderer's device.

        Returns:
            Iterator over (H, W, 3) float32 on the renderer's device; None where this rank draws no
            view in a round.

        Raises:
            Interrupted: a rank was asked to stop; on all ranks.

        Cost: a gather a round on the host. Records of two rounds, see
            :class:`gs_train.ranks.buffers.RoundBuffers`.
        """
        sets = [RoundBuffers(self._world.device, 0) for _ in range(_AHEAD)]
        on_their_way: list[RoundExchange] = []
        size, n = self._world.size, n_rounds(len(views), self._world.size)

        def send(index: int) -> None:
            of = views[index * size : (index + 1) * size]
            on_their_way.append(self._sent(of, sets[index % _AHEAD], on_their_way))

        for index in range(min(_AHEAD, n)):
            send(index)
        for index in range(n):
            records = on_their_way.pop(0).receive()
            mine = index * size + self._world.rank
            image = self._drawn(records, views[mine]) if mine < len(views) else None
            if index + _AHEAD < n:
                send(index + _AHEAD)
            yield image

    def _sent(
        self, views: Sequence[View], buffers: RoundBuffers, earlier: Sequence[RoundExchange]
    ) -> RoundExchange:
        """Project this rank's rows into the views of a round, and send their splats.

        Args:
            earlier: rounds that are on their way.
        """
        seen = [visible_ids(self._model.params, view, self._renderer) for view in views]
        words = [0] if self._stop is None else self._stop.words()
        table = self._world.gather([*words, *map(len, seen)])
        if self._stop is not None:
            self._stop.take(table[:, :1])
            if self._stop.signal_number is not None:
                for parcels in earlier:
                    parcels.receive()
                self._stop.check(self._work)
        drawn = tuple(k if k < len(views) else NOTHING for k in range(self._world.size))
        turns = Turns(table[:, 1:], (Round(range(len(views)), drawn),))
        parcels = RoundExchange(0, turns, self._world, buffers)
        for view, ids, segment in zip(views, seen, parcels.segments, strict=True):
            self._write(view, ids, parcels.sent.part(segment))
        parcels.send()
        return parcels

    def _write(self, view: View, ids: Tensor, out: SplatRecords) -> None:
        if not len(ids):
            return
        model = self._model
        keys = model.keys.values.index_select(0, ids)
        rows = model.snapshot(ids)
        splats = self._renderer.project(rows, view, sh_degree=model.sh_degree, keys=keys)
        self._records.write(splats, out)

    def _drawn(self, records: SplatRecords, view: View) -> Tensor:
        if not records.n:
            return nothing_over(self._background, view.height, view.width, self._world.device)

        def draw(rect: Rect) -> Tensor:
            drawn = self._records.draw(records, view, rect)
            image = drawn.image
            if self._background != BLACK:
                image = over(image, drawn.alpha, self._background)
            return image.clamp(0.0, 1.0)  # a copy: the next part is drawn where this one was

        return in_halves(view.rect, draw)
