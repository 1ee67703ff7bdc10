# SPDX-License-Identifier: Apache-2.0
"""What was found out early about the next batch, as tensors of a checkpoint.

It was culled with the geometry before the last step. A run that is resumed could not repeat that:
it would find another superset, and other rounding in rows that have no gradient.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from gs_train.engine.microbatches import Microbatch, Seen
from gs_train.loss import Crop
from gs_train.renderers import View
from gs_train.renderers.protocol import Rect


def pack(names: Sequence[str], seen: Seen, order: np.ndarray) -> dict[str, Tensor]:
    """Tensors that :func:`unpack` takes: ``views``, ``ids``, ``mask``, ``parts`` and ``order``.

    Args:
        names: of the batch's views.
    """
    parts = [
        [part.index, *vars(part.crop.core).values(), part.n_crops, count]
        for part, count in zip(seen.microbatches, seen.counts)
    ]
    return {
        "views": _digest(names),
        "ids": seen.ids,
        "mask": seen.mask,
        "parts": torch.tensor(parts, dtype=torch.int64),
        "order": torch.from_numpy(np.asarray(order, np.int64)),
    }


def unpack(
    tensors: Mapping[str, Tensor], views: Sequence[View], device: torch.device
) -> tuple[Seen, np.ndarray] | None:
    """What was packed, for the views that it was found for; None when these are others."""
    of = tensors.get("views")  # checkpoints from before they said so have none
    if of is None or not torch.equal(of.cpu(), _digest([view.name for view in views])):
        return None
    parts = tensors["parts"].tolist()
    microbatches = tuple(
        Microbatch(index, Crop(views[index], Rect(*core)), n_crops)
        for index, *core, n_crops, _ in parts
    )
    seen = Seen(
        microbatches,
        tensors["ids"].to(device),
        tensors["mask"].to(device),
        tuple(count for *_, count in parts),
    )
    return seen, tensors["order"].cpu().numpy()


def _digest(names: Sequence[str]) -> Tensor:
    """(32,) uint8, of the names in their order."""
    digest = hashlib.sha256(json.dumps(list(names)).encode()).digest()
    return torch.tensor(list(digest), dtype=torch.uint8)
