# SPDX-License-Identifier: Apache-2.0
"""The exposures of training photographs that a checkpoint holds."""

from __future__ import annotations

import torch
from torch import Tensor

from gs_train.engine.exposures import N_VALUES
from gs_train.runs.run import Run

_VALUES = "exposure/values"


def exposures_of(run: Run, device: torch.device) -> dict[int, Tensor]:
    """The exposure of each training photograph of a run, as of its checkpoint.

    Returns:
        (3, 4) float32 by the index of the view in the run's record, as
        :func:`gs_train.losses.exposure.exposed` takes it; empty where the run trained none, or has
        no record that tells whose they are.

    Raises:
        InputError: the checkpoint is damaged.
    """
    saved, record = run.checkpoint, run.record
    if record is None or _VALUES not in saved.shapes:
        return {}
    values = saved.read([_VALUES], device=device)[_VALUES]
    if values.shape != (len(record.train), N_VALUES) or values.dtype != torch.float32:
        raise saved.damaged()
    return {index: row.view(3, 4) for index, row in zip(record.train, values)}
