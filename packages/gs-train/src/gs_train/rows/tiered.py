# SPDX-License-Identifier: Apache-2.0
"""A model whose geometry is on the device, and its appearance there or in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, cast

import torch
from torch import Tensor

import gs_adam
from gs_train.renderers.protocol import Rows
from gs_train.rows.attributes import ADAM_EPS, APPEARANCE, GEOMETRY, NAMES, SH_DEGREES, Semantics
from gs_train.rows.checked import CheckedRows
from gs_train.rows.checks import check_rows, check_sorted
from gs_train.rows.device_appearance import DeviceAppearance
from gs_train.rows.gaussians import Gaussians, MakeOptimizer
from gs_train.rows.host_rows import HostRows
from gs_train.rows.keys import RowKeys
from gs_train.rows.selective import SelectiveAdam
from gs_train.rows.shown import RowsAtHand

Home = Literal["host", "device"]
"""The tier of the appearance."""


class TieredGaussians(CheckedRows, RowsAtHand):
    """N Gaussians in two parts, each with its optimizer.

    A `RowOperations`: to whoever edits rows it is one model. Arguments are checked
    as a whole before either part changes, and not again.

    Attributes:
        geometry: means, scales, quats and opacities on `device`, updated by `gs_adam.DeviceAdam`
            from gradients of some rows.
        appearance: sh0 and shN: `HostRows`, updated by `gs_adam.HostAdam`, or `DeviceAppearance`.
        edits: grows with every row operation: what was derived from the rows before is stale.
    """

    edits = 0

    def __init__(
        self,
        rows: Rows,
        *,
        device: torch.device | str,
        semantics: Semantics,
        home: Home = "host",
        travels: bool = False,
        capacity: int | None = None,
        keys: RowKeys | None = None,
    ) -> None:
        """Copy rows to their tiers.

        Args:
            rows: the six attributes, float32, on any device.
            device, capacity: as of `CheckedRows`; the geometry is there.
            semantics: of the appearance's optimizer; the geometry's is sparse with it, else dense.
            home: of the appearance.
            travels: rows of the host go to the device with their moments; see `HostRows`.
            keys: of the rows, on ``device``, taken over; None numbers them from 0.

        Raises:
            TypeError, ValueError: rows of other names, types or shapes.
            MemoryError: the host's memory is not there.
        """
        check_rows(rows)
        super().__init__(NAMES, device=device, capacity=capacity)
        part = {name: rows[name] for name in APPEARANCE}
        self.appearance: HostRows | DeviceAppearance
        if home == "device":
            self.appearance = DeviceAppearance(
                part, semantics=semantics, device=device, capacity=capacity
            )
        else:
            self.appearance = HostRows(
                part, semantics=semantics, device=device, travels=travels, capacity=capacity
            )
        self.geometry = Gaussians(
            {name: rows[name] for name in GEOMETRY},
            device=device,
            make_optimizer=_geometry_optimizer(semantics),
            names=GEOMETRY,
            capacity=capacity,
            keys=keys,
        )

    def __repr__(self) -> str:
        return (
            f"TieredGaussians({self.n_rows} rows, sh_degree={self.sh_degree}, "
            f"device={self.device}, {self.appearance.adam.semantics})"
        )

    @property
    def params(self) -> dict[str, torch.nn.Parameter]:
        """The geometry's parameters by name; culling reads them."""
        return self.geometry.params

    @property
    def host(self) -> HostRows:
        """The appearance of a model whose appearance is in host memory."""
        return cast(HostRows, self.appearance)

    @property
    def local(self) -> DeviceAppearance:
        """The appearance of a model whose appearance is on the device."""
        return cast(DeviceAppearance, self.appearance)

    @property
    def keys(self) -> RowKeys:
        """Of the rows, on `device`."""
        return self.geometry.keys

    @property
    def expected(self) -> int | None:
        """See `Model`."""
        return self.geometry.expected

    @expected.setter
    def expected(self, n_rows: int | None) -> None:
        self.geometry.expected = n_rows
        if isinstance(self.appearance, DeviceAppearance):
            self.appearance.expected = n_rows

    @property
    def n_rows(self) -> int:
        """N."""
        return self.geometry.params["means"].shape[0]

    @property
    def k(self) -> int:
        """K, the width of ``shN``."""
        return self.appearance.k

    @property
    def sh_degree(self) -> int:
        """The highest degree of spherical harmonics that ``shN`` has room for."""
        return SH_DEGREES[self.k]

    def whole(self, name: str) -> Tensor:
        """See `RowOperations.read`. Cost: an attribute of all rows is on the device: for sh0 and
        shN that is what this class exists to avoid."""
        ((part, _),) = self._parts((name,))
        return part.whole(name)

    def picked(self, ids: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """See `RowOperations.read_rows`."""
        read: dict[str, Tensor] = {}
        for part, chosen in self._parts(names):
            read |= part.picked(ids, chosen)
        return {name: read[name] for name in names}

    def snapshot(
        self, ids: slice | Tensor, *, device: torch.device | str | None = None
    ) -> dict[str, Tensor]:
        """See `Model.snapshot`."""
        target = self.device if device is None else torch.device(device)
        if isinstance(ids, slice):
            taken = self.appearance.snapshot(ids)
        else:
            check_sorted(ids, self.n_rows, self.device, wait=True)
            taken = self.appearance.picked(ids, APPEARANCE)
        geometry = self.geometry.snapshot(ids, device=target)
        return {**geometry, **{name: values.to(target) for name, values in taken.items()}}

    def replace(
        self,
        removed: Tensor,
        rows: Rows | None = None,
        keys: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> None:
        """See `RowOperations.replace`."""
        change, rows = self._replacement(removed, rows)
        self.keys.check_new(keys, labels, len(change.placed))
        # First all that takes memory: of the geometry and, before it edits, of the appearance.
        self.geometry.reserve(change.n_after)
        new = self.geometry.brought(rows)
        self.edits += 1
        self.appearance.put(change, rows)
        self.geometry.put(change, new, keys, labels)

    def reorder(self, order: Tensor) -> None:
        """See `RowOperations.permute`."""
        self.edits += 1
        self.appearance.reorder(order)
        self.geometry.reorder(order)

    def write(self, ids: Tensor | None, rows: Rows) -> None:
        """See `RowOperations.overwrite`."""
        self.edits += 1
        for part, chosen in self._parts(rows):
            part.write(ids, {name: rows[name] for name in chosen})

    def in_place(self, name: str) -> Tensor:
        """See `RowOperations.in_place`."""
        values = self.geometry.in_place(name)
        self.edits += 1
        return values

    def forget(self, ids: Tensor | None, names: tuple[str, ...]) -> None:
        """See `RowOperations.zero_moments`."""
        for part, chosen in self._parts(names):
            part.forget(ids, chosen)

    def tensors(self) -> dict[str, Tensor]:
        """Rows and optimizers' state under flat names, not copied, sleeping rows as they are.

        As `Gaussians.tensors`; deferred semantics adds what `AppearanceRows.tensors` says.
        """
        return {**self.geometry.tensors(), **self.appearance.tensors()}

    def states(self, ids: Tensor) -> dict[str, Tensor]:
        """See `Model.states`. Cost: rows of the host that are away come home first."""
        return {**self.geometry.states(ids), **self.appearance.states(ids)}

    def write_states(self, ids: Tensor, states: Mapping[str, Tensor]) -> None:
        """See `Model.write_states`."""
        self.edits += 1
        of_appearance = {n: v for n, v in states.items() if n.partition(".")[0] not in GEOMETRY}
        self.appearance.write_states(ids, of_appearance)
        self.geometry.write_states(ids, {n: states[n] for n in states.keys() - of_appearance})

    def close(self) -> None:
        """End the worker after the running task and give the host's memory back."""
        self.appearance.close()

    def _parts(self, names: Iterable[str]) -> Iterator[tuple[CheckedRows, tuple[str, ...]]]:
        """The parts that hold some of these attributes, and which."""
        for part, its_names in ((self.appearance, APPEARANCE), (self.geometry, GEOMETRY)):
            if chosen := tuple(name for name in names if name in its_names):
                yield part, chosen


def _geometry_optimizer(semantics: Semantics) -> MakeOptimizer:
    """Dense Adam, also for deferred semantics, whose results are dense; or the selective one."""
    if semantics == "sparse":
        return SelectiveAdam
    return lambda groups: gs_adam.DeviceAdam(groups, eps=ADAM_EPS)
