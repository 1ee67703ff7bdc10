# SPDX-License-Identifier: Apache-2.0
"""Rows of all six attributes by one Triton kernel each way; see `gs_train.rows.copies`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gs_train.rows.attributes import APPEARANCE, NAMES
from gs_train.rows.copies_kernels import add_kernel, take_kernel
from gs_train.rows.initial_sums import InitialSums

_BLOCK = 32


def take(values: Mapping[str, Tensor], ids: Tensor, slots: Tensor) -> dict[str, Tensor]:
    """See `gs_train.rows.copies.take_rows`."""
    n, ids, slots = len(ids), ids.contiguous(), slots.contiguous()
    out = {name: values[name].new_empty((n, *values[name].shape[1:])) for name in NAMES}
    with torch.cuda.device(ids.get_device()):
        take_kernel[(-(-n // _BLOCK),)](
            *_pointers(values), ids, slots, *_pointers(out), n, **_layout(values), BLOCK=_BLOCK
        )
    return out


def add(
    totals: Mapping[str, Tensor],
    parts: Mapping[str, Tensor],
    ids: Tensor | None,
    slots: Tensor | None,
    begun: InitialSums | None,
) -> None:
    """See `gs_train.rows.copies.add_rows`."""
    n, nothing = len(parts["means"]), totals["means"]
    parts = {name: parts[name].contiguous() for name in NAMES}
    before = [nothing] * 5
    if begun is not None:
        before = [begun.at.contiguous(), *_appearance(begun.carried), *_appearance(begun.noted)]
    with torch.cuda.device(nothing.get_device()):
        add_kernel[(-(-n // _BLOCK),)](
            *_pointers(totals),
            nothing if ids is None else ids.contiguous(),
            nothing if slots is None else slots.contiguous(),
            *_pointers(parts),
            *before,
            n,
            **_layout(totals),
            HAS_IDS=ids is not None,
            HAS_SLOTS=slots is not None,
            HAS_BEGUN=begun is not None,
            BLOCK=_BLOCK,
        )


def is_taken(values: Mapping[str, Tensor]) -> bool:
    """Whether the kernels know this layout: float32, the last two perhaps columns of one table."""
    return (
        tuple(values) == NAMES
        and all(part.dtype == torch.float32 for part in values.values())
        and all(values[name].is_contiguous() for name in NAMES[:4])
        and all(values[name].stride()[1:] == (3, 1) for name in APPEARANCE)
    )


def is_begun(totals: Mapping[str, Tensor], begun: InitialSums) -> bool:
    """Whether they know where sums begin as well: rows as far apart as those of the sums."""
    return all(
        not others[name].numel()
        or (others[name].dtype == torch.float32 and others[name].stride() == totals[name].stride())
        for others in (begun.carried, begun.noted)
        for name in APPEARANCE
    )


def _pointers(values: Mapping[str, Tensor]) -> list[Tensor]:
    return [*(values[name] for name in NAMES[:4]), *_appearance(values)]


def _appearance(values: Mapping[str, Tensor]) -> list[Tensor]:
    # What stands for an empty shN is not read.
    return [values[name] if values[name].numel() else values["sh0"] for name in APPEARANCE]


def _layout(values: Mapping[str, Tensor]) -> dict[str, Any]:
    rest = 3 * values["shN"].shape[1]
    return {
        "sh0_stride": values["sh0"].stride(0),
        "sh_n_stride": values["shN"].stride(0),
        "REST": rest,
        "WIDE": 1 << max(rest - 1, 0).bit_length(),
    }
