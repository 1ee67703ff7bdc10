# SPDX-License-Identifier: Apache-2.0
"""How far optimizer steps can move a row, so that batches can be culled before them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import gs_cull
from gs_train.rows.attributes import GEOMETRY


def largest_move(
    rates: Mapping[str, float], betas: tuple[float, float], step: int, n_steps: int = 1
) -> gs_cull.Inflate | None:
    """Bounds on what ``n_steps`` of Adam, the first of them ``step``, can add to one component.

    Adam moves by lr m^ / sqrt(v^) at most. By Cauchy and Schwarz
    |m| <= sqrt(sum over k of (1 - b1)^2 b1^(2 k) / ((1 - b2) b2^k)) sqrt(v), a geometric series:

        |step| <= lr (1 - b1) / sqrt((1 - b2) (1 - b1^2 / b2)) sqrt(1 - b2^t) / (1 - b1^t)

    which is 7.3 lr for the usual betas and large t, and several steps add up. It holds whatever a
    row's history, epsilon and forgotten moments included, for rates up to those given.

    Returns:
        None where there is no bound: b1^2 >= b2.
    """
    b1, b2 = betas
    if b1 * b1 >= b2:
        return None
    correction = sum(math.sqrt(1.0 - b2**t) / (1.0 - b1**t) for t in range(step, step + n_steps))
    reach = (1.0 - b1) / math.sqrt((1.0 - b2) * (1.0 - b1 * b1 / b2)) * correction
    # Rounding of the step itself and of the value it is added to.
    reach *= 1.0 + 1e-5
    return gs_cull.Inflate(**{name: rates[name] * reach for name in GEOMETRY})
