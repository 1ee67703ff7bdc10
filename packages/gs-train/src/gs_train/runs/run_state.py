# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint of a run keeps beside its tensors: written by one run, checked by the next."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gs_train.data.frame import Frame
from gs_train.files.whole import whole
from gs_train.options.limits import Limits
from gs_train.options.presets import NAMED
from gs_train.rows.own_rows import LATTICE, plain_lattice
from gs_train.rows.strands import Lattice
from gs_train.runs.parts import PARTS
from gs_train.runs.record import RunRecord
from gs_train.sizing.choice import Choice
from gs_train.tide.store_folder import SavedStore


@dataclass(frozen=True)
class Spent:
    """What a run has cost so far, carried across resumes.

    Attributes:
        seconds: of training, without loading and evaluation.
        images: trained on.
        peak_device_bytes: the most device memory that tensors held; 0 on the CPU.
        peak_device_reserved_bytes: the most that torch's allocator held; 0 on the CPU.
        peak_host_bytes: the most memory that a training process had resident.
        figures: what the process that did the last step took and moved, and what was predicted of
            it; see :func:`gs_train.runs.figures.figures`. Empty before.
    """

    seconds: float = 0.0
    images: int = 0
    peak_device_bytes: int = 0
    peak_device_reserved_bytes: int = 0
    peak_host_bytes: int = 0
    figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class RunState:
    """What :func:`checkpoint_state` gave, checked.

    Attributes:
        frame: that the run was trained in.
        spent: until the checkpoint.
        placing: what :meth:`gs_train.sizing.choice.Choice.to_plain` said then.
        id: of the run; None where an older version started it.
        given: full names of the parts that were given from Python, by name of the part.
        store: where the rows are; None: in the checkpoint.
    """

    frame: Frame
    spent: Spent
    placing: dict[str, Any]
    id: str | None
    given: Mapping[str, str]
    store: SavedStore | None

    @classmethod
    def of(cls, plain: Mapping[str, Any], record: RunRecord | None) -> RunState:
        """Check the state of a checkpoint.

        Args:
            plain: what :func:`checkpoint_state` gave, of this version or of an earlier one.
            record: of the run's cameras; None where an older version started it.

        Raises:
            LookupError, TypeError, ValueError, AttributeError: it is something else.
        """
        frame, spent = frame_of(plain["frame"]), _spent(plain["spent"])
        placing = _placing(plain["placing"])
        dict.keys(plain.get("recipe", {}))
        str.encode(plain["capture"])
        _check_data(plain.get("data"), record)
        given = _given(plain.get("given", {}))
        plain_store = plain.get("store")
        store = None if plain_store is None else SavedStore.from_plain(plain_store)
        return cls(frame, spent, placing, plain.get("run_id"), given, store)


def checkpoint_state(
    frame: Frame,
    spent: Spent,
    capture: str,
    choice: Choice,
    *,
    data: Mapping[str, Any],
    run_id: str | None,
    recipe: Mapping[str, Any],
    given: Mapping[str, str],
    lattice: Lattice | None = None,
    apart: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a checkpoint keeps beside the tensors; read by :meth:`RunState.of`.

    Args:
        capture: digest of the capture that it was trained on.
        data: what :meth:`gs_train.data.PhotoReader.fingerprint` gave.
        run_id, recipe: of the run: a checkpoint goes on with no other.
        given: :attr:`gs_train.runs.parts.Parts.given`.
        lattice: of the rows' strands, where there are ranks.
        apart: what :meth:`gs_train.rows.shown.SavingRows.wait` gave.
    """
    return {
        **(apart or {}),
        **({} if lattice is None else {LATTICE: plain_lattice(lattice)}),
        "run_id": run_id,
        "recipe": dict(recipe),
        "given": dict(given),
        "frame": dataclasses.asdict(frame),
        "spent": dataclasses.asdict(spent),
        "capture": capture,
        "placing": choice.to_plain(),
        "data": data,
    }


def _given(plain: Mapping[str, str]) -> dict[str, str]:
    return {name: "".join(plain[name]) for name in PARTS if name in plain}


def frame_of(plain: Mapping[str, Any]) -> Frame:
    """The frame that the state of a checkpoint holds.

    Raises:
        LookupError, TypeError, ValueError: it holds none.
    """
    x, y, z = (_number(value) for value in plain["shift"])
    means_extent = plain.get("means_extent")  # which earlier versions did not have
    own = None if means_extent is None else _number(means_extent)
    frame = Frame((x, y, z), _number(plain["scale"]), _number(plain["extent"]), own)
    if not (frame.scale > 0 and frame.extent > 0 and (own is None or own > 0)):
        raise ValueError("a frame must have a size")
    return frame


def _spent(plain: Mapping[str, Any]) -> Spent:
    spent = Spent(**plain)
    _number(spent.seconds)
    dict.keys(spent.figures)  # type: ignore[arg-type]
    for name in ("images", "peak_device_bytes", "peak_device_reserved_bytes", "peak_host_bytes"):
        whole(getattr(spent, name))
    return spent


def _check_data(plain: Any, record: RunRecord | None) -> None:
    """Raise unless it is what :meth:`gs_train.data.PhotoReader.fingerprint` gave of these views."""
    if plain is None:
        return
    str.encode(plain["points"])
    photographs = list(plain["photographs"])
    for of_one in photographs:
        if of_one is not None:
            n_bytes, time_ns, crc = of_one
            whole(n_bytes), whole(time_ns), whole(0 if crc is None else crc)
    n_views = len(photographs) if record is None else len(record.views)
    if len(photographs) != n_views or any(whole(i) >= n_views for i in plain["skipped"]):
        raise ValueError("photographs must be those of the views")


def _placing(plain: Mapping[str, Any]) -> dict[str, Any]:
    NAMED[plain["preset"]]
    for limit in dataclasses.asdict(Limits(**plain["limits"])).values():
        if limit is not None:
            whole(limit)
    return dict(plain)


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not -1e300 < value < 1e300:
        raise ValueError("a number must be finite")
    return float(value)
