# SPDX-License-Identifier: Apache-2.0
"""Models read back from where they were saved, straight into the memory in which they will live."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from gs_train.rows.attributes import APPEARANCE, GEOMETRY, NAMES, Semantics
from gs_train.rows.checks import check_rows
from gs_train.rows.gaussians import Gaussians, MakeOptimizer
from gs_train.rows.keys import KEYS, NEXT_KEY, RowKeys
from gs_train.rows.saved_state import LAST_STEP, SCHEDULE
from gs_train.rows.strands import STRANDS
from gs_train.rows.tiered import Home, TieredGaussians


class Source(Protocol):
    """Tensors that are somewhere else, by name."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of the tensors."""
        ...

    @property
    def dtypes(self) -> Mapping[str, torch.dtype]:
        """Of the tensors."""
        ...

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Read some of them into tensors that are there, of any device and strides."""
        ...


class InMemory:
    """A `Source` of tensors that are here."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self.shapes = {name: tuple(value.shape) for name, value in tensors.items()}
        self.dtypes = {name: value.dtype for name, value in tensors.items()}

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """See `Source.fill`."""
        for name, target in targets.items():
            target.copy_(self._tensors[name])


class Part:
    """The tensors of a source whose names begin alike, without that beginning."""

    def __init__(self, source: Source, prefix: str) -> None:
        self._source = source
        self._prefix = prefix
        names = {
            name: name.removeprefix(prefix) for name in source.shapes if name.startswith(prefix)
        }
        self.shapes = {short: source.shapes[name] for name, short in names.items()}
        self.dtypes = {short: source.dtypes[name] for name, short in names.items()}

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """See `Source.fill`."""
        self._source.fill({self._prefix + name: value for name, value in targets.items()})


def as_source(tensors: Source | Mapping[str, Tensor]) -> Source:
    """Tensors that are here, or a source as it is."""
    return InMemory(tensors) if isinstance(tensors, Mapping) else tensors


def read_all(source: Source) -> dict[str, Tensor]:
    """All tensors of a source, on the CPU."""
    tensors = {
        name: torch.empty(shape, dtype=source.dtypes[name]) for name, shape in source.shapes.items()
    }
    source.fill(tensors)
    return tensors


def has_sleeping_rows(source: Source) -> bool:
    """Whether a model's rows were saved as they sleep: with deferred semantics.

    Their values mean little without their optimizer's state.
    """
    return LAST_STEP in source.shapes


def awake(source: Source) -> Source:
    """The same model with all rows up to date, for optimizers that know no sleep.

    Cost: host memory for the model, where rows were saved as they sleep; nothing else.
    """
    if not has_sleeping_rows(source):
        return source
    model = restored_tiered(source, device=torch.device("cpu"), semantics="deferred")
    for name in APPEARANCE:
        model.read(name)  # catches rows up where they are
    kept = {
        name: value
        for name, value in model.tensors().items()
        if not name.startswith((LAST_STEP, SCHEDULE))
    }
    return InMemory(kept)


def restored_gaussians(
    source: Source,
    *,
    device: torch.device,
    make_optimizer: MakeOptimizer,
    capacity: int | None = None,
    to_look_at: bool = False,
) -> Gaussians:
    """A model in one memory.

    Args:
        source: what `Gaussians.tensors` named; rows must not sleep. Strands are not read.
        device, make_optimizer, capacity: as for `Gaussians`.
        to_look_at: leave out the optimizer's state.

    Raises:
        InputError: the source is damaged.
        TypeError: an attribute is not float32.
        ValueError: a name is unknown or missing, or shapes disagree.

    Cost: memory for the model alone; one read.
    """
    rows = _described(source, is_tiered=False)
    model = Gaussians(rows, device=device, make_optimizer=make_optimizer, capacity=capacity)
    targets = _targets(model, source, with_state=not to_look_at)
    _read(model, source, targets)
    model.take(targets)
    return model


def restored_tiered(
    source: Source,
    *,
    device: torch.device,
    semantics: Semantics,
    home: Home = "host",
    travels: bool = False,
    capacity: int | None = None,
    to_look_at: bool = False,
) -> TieredGaussians:
    """A model in two tiers.

    Args:
        source: what `TieredGaussians.tensors` or `Gaussians.tensors` named. Rows may sleep in it
            only where semantics is deferred. Strands are not read.
        device, semantics, home, travels, capacity: as for `TieredGaussians`.
        to_look_at: leave out the optimizers' state as far as rows have none to catch up with.

    Raises:
        InputError: the source is damaged.
        TypeError: an attribute, or a moment of the appearance, is not float32.
        ValueError: a name is unknown or missing, shapes disagree, or rows sleep and may not.

    Cost: memory for the model alone; one read.
    """
    rows = _described(source, is_tiered=True)
    model = TieredGaussians(
        rows,
        device=device,
        semantics=semantics,
        home=home,
        travels=travels,
        capacity=capacity,
    )
    targets = model.appearance.targets()
    part = {name: value for name, value in targets.items() if name in source.shapes}
    part |= {
        name: torch.empty(source.shapes[name], dtype=source.dtypes[name])
        for name in source.shapes
        if "." in name and name not in part and name.partition(".")[0] not in GEOMETRY
    }
    if to_look_at and not has_sleeping_rows(source):
        part = {name: part[name] for name in APPEARANCE}
    device_part = _targets(model.geometry, source, with_state=not to_look_at)
    _read(model.geometry, source, {**part, **device_part})
    model.appearance.take({name: value for name, value in part.items() if "." in name})
    model.geometry.take(device_part)
    return model


def restored_to_look_at(
    source: Source, *, device: torch.device, room: int
) -> Gaussians | TieredGaussians:
    """A model to draw, without state that only training needs.

    Appearance is in host memory where rows were saved asleep, and where the whole model would take
    more than half of ``room``.

    Args:
        source: what the models' ``tensors`` named.
        device: where the geometry shall be.
        room: bytes of the device that the model and drawing may take together.

    Raises:
        InputError: the source is damaged.
        TypeError, ValueError: as `restored_gaussians` and `restored_tiered`.

    Cost: memory for the model alone; one read.
    """
    if has_sleeping_rows(source):
        return restored_tiered(source, device=device, semantics="deferred", to_look_at=True)
    n_bytes = 4 * sum(math.prod(source.shapes[name]) for name in NAMES)
    if n_bytes > room // 2:
        return restored_tiered(source, device=device, semantics="dense", to_look_at=True)
    return restored_gaussians(
        source, device=device, make_optimizer=torch.optim.SGD, to_look_at=True
    )


def _described(source: Source, *, is_tiered: bool) -> dict[str, Tensor]:
    """Rows of a source's types and shapes that take no memory, once all its names, types and shapes
    have been checked.

    Raises:
        TypeError: an attribute, or a moment of the appearance, is not float32.
        ValueError: a name is unknown or missing, or shapes disagree.
    """
    rows = {
        name: torch.zeros((), dtype=source.dtypes[name]).expand(shape)
        for name, shape in source.shapes.items()
        if "." not in name and name not in (KEYS, NEXT_KEY, STRANDS)
    }
    check_rows(rows)
    for flat, shape in source.shapes.items():
        name, _, key = flat.partition(".")
        if not key or (is_tiered and (flat == LAST_STEP or flat.startswith(SCHEDULE))):
            continue
        if name not in rows:
            raise ValueError(f"tensors must belong to {', '.join(NAMES)}, got {flat}")
        has_rows = key != "step" if is_tiered and name in APPEARANCE else bool(shape)
        expected = tuple(rows[name].shape) if has_rows else ()
        if tuple(shape) != expected:
            raise ValueError(f"{flat} must be {expected}, got {tuple(shape)}")
        if shape and name in APPEARANCE and source.dtypes[flat] != torch.float32:
            raise TypeError(f"{flat} must be float32, got {source.dtypes[flat]}")
    return rows


def _targets(model: Gaussians, source: Source, *, with_state: bool) -> dict[str, Tensor]:
    """The parameters, and new tensors for state on the device where the optimizer has it."""
    device = getattr(model.optimizer, "state_device", model.device)
    targets: dict[str, Tensor] = {name: param.detach() for name, param in model.params.items()}
    for flat, shape in source.shapes.items() if with_state else ():
        name, _, key = flat.partition(".")
        if key and name in model.params:
            # A step count is on the CPU until the optimizer says otherwise.
            place = device if shape else "cpu"
            targets[flat] = torch.empty(shape, dtype=source.dtypes[flat], device=place)
    return targets


def _read(model: Gaussians, source: Source, targets: Mapping[str, Tensor]) -> None:
    """Fill tensors that are there, and give the model its rows' keys."""
    keys = {
        name: torch.empty(source.shapes[name], dtype=source.dtypes[name], device=device)
        for name, device in ((KEYS, model.device), (NEXT_KEY, "cpu"))
    }
    source.fill({**targets, **keys})
    model.keys = RowKeys.load(keys[KEYS], keys[NEXT_KEY])
    RowKeys.check(model.keys.values, model.n_rows)
