# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a trainer have one row for each Gaussian.

Format 2 says so in its manifest. A trainer's tensors say so by their names: the stored attributes
and their moments, the last steps of sleeping rows, keys, strands, and densification's statistics.
Step counts, schedules of rates and what each view costs to draw have no such rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

KEYS = "model/keys"
NEXT_KEY = "model/next_key"
STRANDS = "model/strands"
MEANS = "model/means"

_BY_ROW = re.compile(r"model/\w+(\.exp_avg|\.exp_avg_sq|\.last_step)?|densify/\w+", re.ASCII)


def row_names(shapes: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
    """The tensors of a trainer whose first dimension counts the Gaussians.

    None of them without ``model/keys`` or ``model/means``, which tell how many there are.
    """
    n_rows = shapes.get(KEYS, shapes.get(MEANS, ()))[:1]
    if not n_rows:
        return frozenset()
    return frozenset(
        name for name, shape in shapes.items() if shape[:1] == n_rows and _BY_ROW.fullmatch(name)
    )
