# SPDX-License-Identifier: Apache-2.0
"""Tables whose rows are drawn again and again, checked once."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from operator import is_
from typing import Any, Generic, TypeVar

from torch import Tensor

from gs_raster.cuda.rows import RowGradients, Rows

Made = TypeVar("Made", Rows, RowGradients)


class CheckCache(Generic[Made]):
    """Makes :class:`Rows` or :class:`RowGradients` of the same tables again and again, and checks
    them the first time alone. Slots are others from view to view, and are checked each time.

    The cache holds no tensor. For callers who keep the shape and the place of a tensor while they
    use it: ``resize_``, ``set_`` and ``data`` would not be noticed.

    Args:
        kind: what is made.
    """

    def __init__(self, kind: type[Made]) -> None:
        self._kind: type[Made] = kind
        self._names: tuple[str, ...] = ()
        self._tensors: tuple[weakref.ref[Tensor], ...] = ()
        self._facts: dict[str, Any] = {}

    def of(self, columns: Mapping[str, Tensor], **slots: Tensor) -> Made:
        """What ``kind`` makes of these arguments.

        Args:
            columns: the six attributes by name.
            slots: ``slots`` and ``sh_slots`` of :class:`Rows`.

        Raises:
            TypeError, ValueError, IndexError: as ``kind``.
        """
        names, tensors = tuple(columns), tuple(columns.values())
        before = [reference() for reference in self._tensors]
        if names == self._names and all(map(is_, before, tensors)):
            again = object.__new__(self._kind)
            again.__dict__.update(columns, **slots, **self._facts)
            if isinstance(again, Rows):
                again.check_slots()
            return again
        made = self._kind(**columns, **slots)
        self._names, self._facts = names, made.facts()
        made.__dict__.update(self._facts)
        self._tensors = tuple(map(weakref.ref, tensors))
        return made
