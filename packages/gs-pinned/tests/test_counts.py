# SPDX-License-Identifier: Apache-2.0
"""Objects of another kind than an argument's get one line that names the argument."""

from typing import Any

import numpy as np
import pytest

from gs_pinned import Ring, Signal, Table, gather

TABLE = Table(4, 3, pinned=False, fields={"xyz": 3})
IDS, OUT = np.array([2, 0]), np.empty((2, 3), "f4")
WRONG = [object(), 1.5j, {}, [[1], [2, 3]], np.zeros((2, 2))]


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda wrong: Table(wrong, 3, pinned=False), "rows"),
        (lambda wrong: Table(1, wrong, pinned=False), "width"),
        (lambda wrong: Table(1, 3, wrong, pinned=False), "dtype"),
        (lambda wrong: Table(1, 3, pinned=wrong), "pinned"),
        (lambda wrong: TABLE[wrong], "'?\"?field"),
        (lambda wrong: TABLE.native_rows(wrong), "first"),
        (lambda wrong: TABLE.native_rows(0, wrong), "count"),
        (lambda wrong: gather(TABLE, IDS, OUT, stream=wrong), "stream"),
        (lambda wrong: gather(TABLE, IDS, OUT, max_blocks=wrong), "max_blocks"),
        (lambda wrong: Ring(wrong), "bytes"),
        (lambda wrong: Signal().wait(wrong), "value"),
        (lambda wrong: Signal().wait(0, wrong), "timeout_s"),
    ],
)
def test_a_wrong_kind_is_named_in_one_line(call: Any, argument: str) -> None:
    for wrong in WRONG:
        expected = (TypeError, ValueError, KeyError)
        with pytest.raises(expected, match=rf"^{argument}\b.* must .*") as caught:
            call(wrong)
        assert "\n" not in str(caught.value)
