# SPDX-License-Identifier: Apache-2.0
"""Scores of held-out images that several ranks draw and score together."""

from __future__ import annotations

import dataclasses
import io
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gs_train.data import BrokenPhotographError, read_image
from gs_train.files.agreement import by_each
from gs_train.losses.background import BLACK, Colour
from gs_train.losses.lpips import Lpips
from gs_train.machine.interrupt import StopRequest
from gs_train.machine.progress import task_progress
from gs_train.names import printable
from gs_train.ranks.pictures import sent_to_first
from gs_train.ranks.view_rounds import ViewRounds
from gs_train.renderers import Renderer, View
from gs_train.rows.operations import Model
from gs_train.runs.metrics import ImageScore
from gs_train.runs.scores import Picture, hidden, not_scored, picture_of, score_of, shown_of
from gs_train.scene.scene import Scene
from gs_train.world import World


def score_views_of_ranks(
    model: Model,
    scene: Scene,
    indices: Sequence[int],
    *,
    renderer: Renderer,
    lpips: Lpips | None,
    stop: StopRequest,
    world: World,
    skip_broken: bool = False,
    background: Colour = BLACK,
    fits_colours: bool = False,
    is_quiet: bool = False,
) -> tuple[list[ImageScore], list[Picture]]:
    """:func:`gs_train.runs.scores.score_views` by all ranks: each scores the views that it draws.
    A collective.

    On the CPU the scores are those of one rank to the bit.

    Args:
        model: this rank's rows.
        lpips: the same on all ranks.
        stop: of this process; all ranks stop where one is asked to.
        is_quiet: show no progress.

    Returns:
        All scores, in order and on all ranks; the pictures on rank 0, nothing elsewhere.

    Raises:
        BrokenPhotographError: a photograph that this rank scores cannot be read.
    """
    views = [scene.views[i] for i in indices]
    rounds = ViewRounds(model, renderer, world, stop=stop, work="evaluation", background=background)
    shown = shown_of(indices)
    stream = io.StringIO() if is_quiet else None
    own: list[dict[str, Any]] = []  # of the views that this rank draws
    own_pictures: dict[int, Picture] = {}
    with task_progress("evaluating image", len(indices), stream=stream) as progress:
        for k, image in enumerate(rounds.images(views)):
            progress.update(min((k + 1) * world.size, len(indices)))
            if image is None:
                continue
            index = indices[k * world.size + world.rank]
            name = printable(scene.views[index].name)
            try:
                photograph = torch.from_numpy(read_image(scene.capture.views[index]))
            except BrokenPhotographError as error:
                if not skip_broken:
                    raise
                own.append({"left out": not_scored(error)})
                continue
            score = score_of(index, name, image, photograph, lpips, fits_colours=fits_colours)
            if score is None:
                own.append({"left out": hidden(name)})
                continue
            own.append(dataclasses.asdict(score))
            if index in shown:
                own_pictures[index] = picture_of(name, image, photograph)
    by_rank = by_each(world, lambda: own)
    scores: list[ImageScore] = []
    pictures: list[Picture] = []
    for place, index in enumerate(indices):
        drawer = place % world.size
        found = by_rank[drawer][place // world.size]
        if "left out" in found:
            print(found["left out"], file=sys.stderr)
            continue
        scores.append(ImageScore(**found))
        if index in shown:
            pictures += _on_first(
                own_pictures.get(index), scores[-1].name, views[place], drawer, world
            )
    return scores, pictures


def _on_first(
    picture: Picture | None, name: str, view: View, drawer: int, world: World
) -> list[Picture]:
    """A picture of one rank, on rank 0; nothing elsewhere. A collective."""
    shapes = [(2 * view.height, view.width) if r == drawer else None for r in range(world.size)]
    both = None if picture is None else np.concatenate(picture[1:])
    return [
        (name, each[: view.height], each[view.height :])
        for each in sent_to_first(both, shapes, world)
    ]
