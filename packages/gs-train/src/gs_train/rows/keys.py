# SPDX-License-Identifier: Apache-2.0
"""Keys: the numbers that rows are born with, and that results depend on instead of places."""

from __future__ import annotations

import torch
from torch import Tensor

from gs_train.errors import CommonError
from gs_train.rows.replacement import Replacement, grown
from gs_train.rows.strands import STRANDS

KEYS = "keys"
"""Name of the rows' keys among a model's tensors: (N,) int32."""

NEXT_KEY = "next_key"
"""Name of the next free key there: () int64."""

END_OF_KEYS = 2**31
"""Keys are below this number."""


class RowKeys:
    """The keys of N rows, and the next free one.

    A key is unique in a run: the row's index in the initial cloud, the key that it had in the run
    that this one began with, or the next free number when it is born. A key of a pruned row is
    never given again. Where ranks share the rows, a label beside each key says who owns the row.

    Attributes:
        values: (N,) int32, distinct, at least 0, in the rows' order.
        next: the next free key, above all values.
        labels: (N,) uint8, the rows' strands; None where one rank has all rows.
    """

    def __init__(self, values: Tensor, next_key: int, labels: Tensor | None = None) -> None:
        self.values = values
        self.next = next_key
        self.labels = labels
        self._order: Tensor | None = None

    @classmethod
    def numbered(cls, n_rows: int, device: torch.device) -> RowKeys:
        """Of an initial cloud: each row's key is its index.

        Raises:
            CommonError: there are more rows than keys.
        """
        keys = cls(torch.empty(0, dtype=torch.int32, device=device), 0)
        keys.values = keys.born(n_rows)
        return keys

    @property
    def order(self) -> Tensor:
        """(N,) int32: the rows in the order of their keys; kept until rows change."""
        if self._order is None:
            self._order = torch.argsort(self.values).int()
        return self._order

    def born(self, n: int) -> Tensor:
        """Take the next n free keys.

        Returns:
            (n,) int32, ascending.

        Raises:
            CommonError: so many are not left; none is taken. All ranks count keys alike.
        """
        self.require(n)
        first, self.next = self.next, self.next + n
        return torch.arange(first, self.next, dtype=torch.int32, device=self.values.device)

    def require(self, n: int) -> None:
        """Check that n more keys are left, and take none.

        Raises:
            CommonError: so many are not left.
        """
        if self.next + n > END_OF_KEYS:
            raise CommonError(
                f"{n:,} Gaussians more need keys up to {self.next + n - 1:,}, and keys are below "
                f"{END_OF_KEYS:,}: too many were born in this run; export its last checkpoint and "
                "start a new run from that"
            )

    def labels_of(self, ids: Tensor) -> Tensor | None:
        """(R,) uint8 strands of rows, for their children; None where rows have none."""
        return None if self.labels is None else self.labels.index_select(0, ids)

    def check_new(self, keys: Tensor | None, labels: Tensor | None, n: int) -> None:
        """Check keys of n rows that shall be added, or that as many are left where they are None.

        Where the rows have labels, new rows must have keys, which other ranks know of, and labels.

        Raises:
            TypeError, ValueError: as `check`; keys are missing; labels are missing, or of another
                type or number.
            CommonError: as `require`.
        """
        if self.labels is not None and n:
            if keys is None:
                raise ValueError("keys must be given where ranks share the rows, got None")
            _check_labels(labels, n)
        if keys is None:
            self.require(n)
        else:
            self.check(keys, n)

    def to(self, device: torch.device) -> RowKeys:
        """The same on another device."""
        labels = None if self.labels is None else self.labels.to(device)
        return RowKeys(self.values.to(device), self.next, labels)

    def reserve(self, n_rows: int, most: int | None) -> None:
        """Take memory for so many rows, see `grown`."""
        n = len(self.values)
        self.values = grown(self.values, n_rows, most)[:n]
        if self.labels is not None:
            self.labels = grown(self.labels, n_rows, most)[:n]

    def replace(self, change: Replacement, keys: Tensor, labels: Tensor | None = None) -> None:
        """Put keys and labels of new rows in places.

        Args:
            keys: (A,) int32 that `born` gave, see `check`.
            labels: (A,) uint8; not looked at where the rows have none.
        """
        if self.labels is not None:
            self.labels = change.edited(self.labels, self.labels[:0] if labels is None else labels)
        self._become(change.edited(self.values, keys))

    def select(self, ids: Tensor) -> None:
        """Make row ``ids[i]`` row i, and drop the others. ``ids``: (R,) int32 or int64."""
        self.labels = self.labels_of(ids)
        self._become(self.values.index_select(0, ids))

    @staticmethod
    def check(keys: Tensor, n_rows: int) -> None:
        """Check keys of rows that shall be added.

        Raises:
            TypeError, ValueError: they are not (R,) int32.
        """
        if keys.dtype != torch.int32:
            raise TypeError(f"keys must be int32, got {keys.dtype}")
        if tuple(keys.shape) != (n_rows,):
            raise ValueError(f"keys must have shape ({n_rows},), got {tuple(keys.shape)}")

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint, as `load` takes them; not copied. Labels where rows have some."""
        strands = {} if self.labels is None else {STRANDS: self.labels}
        return {KEYS: self.values, NEXT_KEY: torch.tensor(self.next), **strands}

    @classmethod
    def load(cls, values: Tensor, next_key: Tensor) -> RowKeys:
        """Those whose `tensors` these were, without labels; the values are taken over.

        Raises:
            ValueError: they are no keys.
        """
        if values.dtype != torch.int32 or values.ndim != 1:
            raise ValueError(f"{KEYS} must be (N,) int32, got {tuple(values.shape)} {values.dtype}")
        if next_key.dtype != torch.int64 or next_key.ndim:
            raise ValueError(
                f"{NEXT_KEY} must be () int64, got {tuple(next_key.shape)} {next_key.dtype}"
            )
        end = int(next_key)
        if not 0 <= end <= END_OF_KEYS:
            raise ValueError(f"{NEXT_KEY} must be at least 0 and at most 2^31, got {end}")
        in_order = values.sort().values
        is_distinct = bool((in_order[1:] > in_order[:-1]).all())
        if len(values) and not (is_distinct and 0 <= in_order[0] <= in_order[-1] < end):
            raise ValueError(f"{KEYS} must be distinct, at least 0 and below {end}")
        return cls(values, end)

    def _become(self, values: Tensor) -> None:
        self.values = values
        self._order = None


def _check_labels(labels: Tensor | None, n: int) -> None:
    if labels is None or labels.dtype != torch.uint8 or tuple(labels.shape) != (n,):
        found = "None" if labels is None else f"{tuple(labels.shape)} {labels.dtype}"
        raise ValueError(f"labels must be ({n},) uint8, got {found}")
