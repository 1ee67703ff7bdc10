# SPDX-License-Identifier: Apache-2.0
"""What a snapshot of stored rows holds beside the rows, as bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gs_train.blocks.sleep_reach import SleepReach
from gs_train.errors import InputError

_FORMAT = 1


def scene_state(
    k: int,
    betas: tuple[float, float],
    eps: float,
    boxes: Mapping[str, np.ndarray],
    reach: Mapping[str, SleepReach],
    schedules: Mapping[str, Any],
) -> bytes:
    """The state of a scene.

    Args:
        k: harmonics of a row beside the first.
        betas, eps: Adam's, of all steps.
        boxes: the arrays of `BlockBoxes`.
        reach: of means and scales.
        schedules: states of the groups' schedules; empty before the first step.
    """
    return to_bytes(
        {
            "k": k,
            "b1": betas[0],
            "b2": betas[1],
            "eps": eps,
            "n_blocks": len(boxes["scale"]),
            "boxes": boxes,
            "reach": {
                name: {"ceiling": one.ceiling, "rates": one.rates} for name, one in reach.items()
            },
            "schedule": schedules,
        }
    )


def to_bytes(values: Mapping[str, Any]) -> bytes:
    """Numbers, arrays and tensors by name, in mappings and lists of these, as bytes without pickle.

    The names of what lies in others are joined by ``/``.
    """
    flat: dict[str, Any] = {"format": np.array(_FORMAT), **_flat("", values)}
    file = io.BytesIO()
    np.savez(file, **flat)
    return file.getvalue()


def from_bytes(data: bytes) -> dict[str, np.ndarray]:
    """The arrays by their joined names.

    Raises:
        InputError: the bytes are not from `to_bytes`, or of another version.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            values = {name: file[name] for name in file.files}
        number = int(values.pop("format"))
    except (ValueError, OSError, KeyError, EOFError) as error:
        raise InputError(f"the snapshot must hold the state of a scene, got {error}") from None
    if number != _FORMAT:
        raise InputError(f"the snapshot must be of format {_FORMAT}, got {number}")
    return values


def within(values: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """What lies in one of the mappings or lists."""
    start = f"{name}/"
    return {k.removeprefix(start): v for k, v in values.items() if k.startswith(start)}


def _flat(start: str, value: Any) -> dict[str, np.ndarray]:
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        inner = [_flat(f"{start}{name}/", item) for name, item in value.items()]
        return {name: array for one in inner for name, array in one.items()}
    array = value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    return {start.removesuffix("/"): array}
