# SPDX-License-Identifier: Apache-2.0
"""The rows whose gradient is complete after each microbatch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

import gs_order


class Final(NamedTuple):
    """Rows of a microbatch.

    Attributes:
        slots: in the device buffer.
        ids: on the host.
    """

    slots: Tensor
    ids: np.ndarray


class Finals:
    """Final sets of a batch.

    Asynchrony: the ids are copied to the host on the current stream; who asks for them waits.
    """

    def __init__(self, plan: gs_order.Plan) -> None:
        self._plan = plan
        self._on_host = plan.to_host()

    def of_microbatch(self, i: int) -> Final:
        """Final set i."""
        return Final(self._plan[i].slots_of("final"), self._on_host.wait().final[i])
