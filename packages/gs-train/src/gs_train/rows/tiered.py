# SPDX-License-Identifier: Apache-2.0
"""A model whose geometry is on the device, and its appearance there or in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, cast

import torch
from torch import Tensor

import gs_adam
from gs_train.renderers.protocol import Rows
from gs_train.rows.attributes import ADAM_EPS, APPEARANCE, GEOMETRY, NAMES, SH_DEGREES, Semantics
from gs_train.rows.checks import (
    check_appended,
    check_overwriting,
    check_rows,
    check_sorted,
)
from gs_train.rows.device_appearance import DeviceAppearance
from gs_train.rows.gaussians import Gaussians, MakeOptimizer
from gs_train.rows.host_rows import HostRows
from gs_train.rows.keys import KEYS, NEXT_KEY, RowKeys
from gs_train.rows.selective import SelectiveAdam

Home = Literal["host", "device"]
"""The tier of the appearance."""


class TieredGaussians:
    """N Gaussians in two parts, each with its optimizer.

    A `RowOperations`: to whoever edits rows it is one model. Arguments are checked
    as a whole before either part changes.

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
            device: where the geometry is and where ids and values are exchanged.
            semantics: of the appearance's optimizer; the geometry's is sparse with it, else dense.
            home: of the appearance.
            travels: rows of the host go to the device with their moments; see `HostRows`.
            capacity: the most rows ever; None for as many as the machine's memory holds.
            keys: of the rows, on ``device``, taken over; None numbers them from 0.

        Raises:
            TypeError, ValueError: rows of other names, types or shapes.
            MemoryError: the host's memory is not there.
        """
        check_rows(rows)
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

    def __len__(self) -> int:
        return self.n_rows

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
    def device(self) -> torch.device:
        """Where the geometry is and where ids and values are exchanged."""
        return self.geometry.device

    @property
    def n_rows(self) -> int:
        """N."""
        return self.geometry.n_rows

    @property
    def sh_degree(self) -> int:
        """The highest degree of spherical harmonics that ``shN`` has room for."""
        return SH_DEGREES[self.appearance.k]

    def read(self, name: str, ids: Tensor | None = None) -> Tensor:
        """Values of one attribute on `device`, as `Gaussians.read` and `HostRows.read`.

        Raises:
            KeyError, TypeError, ValueError, IndexError: no such attribute; ids of another type
                or shape, or out of range.

        Cost: with None an attribute of all rows is on the device: for sh0 and shN that is what
            this class exists to avoid.
        """
        _check_names((name,))
        return (
            self.appearance.read(name, ids) if name in APPEARANCE else self.geometry.read(name, ids)
        )

    def read_rows(self, ids: Tensor) -> dict[str, Tensor]:
        """Caught-up copies of the six attributes of rows ``ids`` on `device`; nothing is changed.

        Args:
            ids: (R,) in any order, repeats allowed.

        Raises:
            TypeError, ValueError, IndexError: as `read`.
        """
        return {**self.geometry.read_rows(ids), **self.appearance.read_rows(ids)}

    def snapshot(
        self, ids: slice | Tensor, *, device: torch.device | str | None = None
    ) -> dict[str, Tensor]:
        """Caught-up copies of the six attributes of some rows; nothing is changed.

        Args:
            ids: a slice of step 1, or (R,) sorted and unique ids on `device`.
            device: where the copies shall be; `device` of the model when None.
        """
        target = self.device if device is None else torch.device(device)
        if isinstance(ids, slice):
            geometry = {n: p.detach()[ids].to(target, copy=True) for n, p in self.params.items()}
            host = self.appearance.snapshot(ids)
        else:
            check_sorted(ids, self.n_rows, self.device, wait=True)
            geometry = {n: self.geometry.read(n, ids).to(target) for n in GEOMETRY}
            host = self.appearance.read_rows(ids)
        return {**geometry, **{name: values.to(target) for name, values in host.items()}}

    def replace(
        self, removed: Tensor, rows: Rows | None = None, keys: Tensor | None = None
    ) -> None:
        """Remove some rows and add others, with zero moments; see `RowOperations.replace`.

        Args:
            removed: (R,) sorted and unique rows, on `device`.
            rows: the six attributes of A rows, float32, on any device, K as here; None for none.
            keys: (A,) int32 of `RowKeys.born`; None for the next free ones.

        Raises:
            TypeError, ValueError, IndexError: as the constructor; ids not sorted and unique or out
                of range; nothing is changed.
            MemoryError: the memory is not there, or beyond the capacity. Nothing is changed
                in either case.
            InputError: no more keys are left; nothing is changed.
        """
        check_sorted(removed, self.n_rows, self.device, wait=True)
        if rows is None:
            rows = self.read_rows(removed[:0])
        check_appended(rows, NAMES, self.appearance.k)
        n_new = len(rows["means"])
        if keys is None:
            self.keys.require(n_new)
        else:
            RowKeys.check(keys, n_new)
        # First where memory may not be enough: on the device and, before it edits, by the host.
        self.geometry.reserve(self.n_rows - len(removed) + n_new)
        self.edits += 1
        self.appearance.replace(removed, {name: rows[name] for name in APPEARANCE})
        self.geometry.replace(removed, {name: rows[name] for name in GEOMETRY}, keys)

    def permute(self, order: Tensor) -> None:
        """Make row ``order[i]`` row i, with its moments.

        Raises:
            TypeError, ValueError: ``order`` is no permutation; nothing is changed.
        """
        self.edits += 1
        self.appearance.permute(order)
        self.geometry.permute(order)

    def overwrite(self, ids: Tensor | None, rows: Rows) -> None:
        """Write values of some attributes to rows ``ids`` (sorted, unique), or to all.

        Raises:
            TypeError, ValueError, IndexError: other names, types or shapes, ids not sorted and
                unique or out of range; nothing is changed.
        """
        if ids is not None:
            check_sorted(ids, self.n_rows, self.device, wait=True)
        n_expected = self.n_rows if ids is None else len(ids)
        check_overwriting(rows, NAMES, n_rows=n_expected, k=self.appearance.k)
        self.edits += 1
        for part, names in ((self.appearance, APPEARANCE), (self.geometry, GEOMETRY)):
            chosen = {name: values for name, values in rows.items() if name in names}
            if chosen:
                part.overwrite(ids, chosen)

    def zero_moments(
        self, ids: Tensor | None = None, *, names: Iterable[str] | None = None
    ) -> None:
        """Forget the optimizers' moments of some rows and attributes; all of them when None.

        Raises:
            KeyError, TypeError, ValueError, IndexError: no such attribute; ids as for
                `overwrite`. Nothing is changed.
        """
        wanted = NAMES if names is None else tuple(names)
        _check_names(wanted)
        if ids is not None:
            check_sorted(ids, self.n_rows, self.device, wait=True)
        for part, its_names in ((self.appearance, APPEARANCE), (self.geometry, GEOMETRY)):
            chosen = [name for name in wanted if name in its_names]
            if chosen:
                part.zero_moments(ids, names=chosen)

    def tensors(self) -> dict[str, Tensor]:
        """Rows and optimizers' state under flat names, not copied, sleeping rows as they are.

        As `Gaussians.tensors`; deferred semantics adds what `HostRows.tensors` says.
        """
        return {**self.geometry.tensors(), **self.appearance.tensors()}

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, Tensor],
        *,
        device: torch.device | str,
        semantics: Semantics,
        home: Home = "host",
        travels: bool = False,
        capacity: int | None = None,
    ) -> TieredGaussians:
        """The model whose `tensors` these were, bit for bit; or those of a `Gaussians`.

        Args:
            tensors: by flat name, on any device; copied.
            device, semantics, home, travels, capacity: as the constructor's.

        Raises:
            TypeError: a tensor is not float32.
            ValueError: a name is unknown or missing, shapes disagree, or rows sleep and semantics
                is not deferred.
        """
        parts: dict[bool, dict[str, Tensor]] = {True: {}, False: {}}
        for name, value in tensors.items():
            of_geometry = name.partition(".")[0] in (*GEOMETRY, KEYS, NEXT_KEY)
            parts[of_geometry][name] = value
        check_rows({name: tensors[name] for name in tensors if name in NAMES})
        model = cls.__new__(cls)
        if home == "device":
            model.appearance = DeviceAppearance.from_tensors(
                parts[False], semantics=semantics, device=device, capacity=capacity
            )
        else:
            model.appearance = HostRows.from_tensors(
                parts[False], semantics=semantics, device=device, travels=travels, capacity=capacity
            )
        model.geometry = Gaussians.from_tensors(
            parts[True],
            device=device,
            make_optimizer=_geometry_optimizer(semantics),
            names=GEOMETRY,
            capacity=capacity,
        )
        return model

    def close(self) -> None:
        """End the worker after the running task and give the host's memory back."""
        self.appearance.close()


def _geometry_optimizer(semantics: Semantics) -> MakeOptimizer:
    """Dense Adam, also for deferred semantics, whose results are dense; or the selective one."""
    if semantics == "sparse":
        return SelectiveAdam
    return lambda groups: gs_adam.DeviceAdam(groups, eps=ADAM_EPS)


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if name not in NAMES:
            raise KeyError(f"name must be one of {', '.join(NAMES)}, got {name}")
