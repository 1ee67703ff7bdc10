# SPDX-License-Identifier: Apache-2.0
"""gsplat's strategies of densification, for parameters that a host optimizer updates."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, MutableMapping
from typing import Any, TypeVar

import torch

from gs_adam._edited_params import EditedParams
from gs_adam._tensors import as_ids
from gs_adam.host import HostAdam

Strategy = TypeVar("Strategy")


def follow(strategy: Strategy) -> Strategy:
    """A gsplat strategy whose refinement edits the rows of `HostAdam` optimizers, too.

    Without it a strategy edits tensors and moments itself, which rows that sleep, and rows on the
    CPU beside masks on a CUDA device, do not allow. The copy's ``step_post_backward`` shows the
    strategy the other parameters and numbers of rows, and does with the rows of each `HostAdam`
    what the strategy has done with their numbers: rows that are copied or whose moments are
    dropped are caught up first, other rows sleep on.

    ``means``, ``scales``, ``quats`` and ``opacities`` may belong to a `HostAdam` as well. The
    strategy then gets them caught up and on the device of ``info``, whenever it asks for them,
    which `MCMCStrategy` does at each step.

    Args:
        strategy: `gsplat.DefaultStrategy`, `gsplat.MCMCStrategy`, or another one that edits rows by
            the functions of `gsplat.strategy.ops`. Left as it is.

    Returns:
        A copy of ``strategy``, of a class derived from its class. Its ``step_post_backward`` takes
        arguments after ``info`` by keyword, and ``rows``: where only some rows were rendered, their
        numbers, (R,) sorted ids or an (N,) mask.

    Raises:
        TypeError: ``strategy`` has no ``step_post_backward``.
        RuntimeError: on refinement, where a step of a `HostAdam` is open or its storage adopted.
        ValueError: on any call, where a `HostAdam` has a tensor that ``params`` lack.

    Cost: a refinement copies each table of a `HostAdam` once for its values and at most three times
        for each moment; relocation works in place. Nothing where a step refines nothing, but with
        ``MCMCStrategy``: its noise reads geometry in each step, so that tables of a `HostAdam` with
        means, scales, quats or opacities are caught up, and copied to the device and back.
    """
    kind: Any = type(strategy)
    if not callable(getattr(strategy, "step_post_backward", None)):
        raise TypeError(
            f"strategy must be a gsplat strategy with step_post_backward, got {kind.__name__}"
        )
    if isinstance(strategy, _Follower):
        return strategy
    follower = copy.copy(strategy)
    follower.__class__ = _follower_class(kind)
    return follower


class _Follower:
    """`follow` puts this in front of a strategy's class."""

    def step_post_backward(
        self,
        params: MutableMapping[str, torch.nn.Parameter],
        optimizers: Mapping[str, torch.optim.Optimizer],
        state: dict[str, Any],
        step: int,
        info: dict[str, Any],
        *,
        rows: Any = None,
        **options: Any,
    ) -> None:
        """The strategy's own, on the rows of all optimizers; see `follow`."""
        step_post_backward = super().step_post_backward  # type: ignore[misc]
        key = getattr(self, "key_for_gradient", None)
        if rows is not None and key is not None:
            n_rows = len(next(iter(params.values())))
            info = _numbered(info, key, rows, n_rows, is_packed=options.get("packed", False))
            options["packed"] = True
        if not any(isinstance(optimizer, HostAdam) for optimizer in optimizers.values()):
            return step_post_backward(params, optimizers, state, step, info, **options)
        edited = EditedParams(params, optimizers, _device_of(info, params))
        step_post_backward(edited, edited.optimizers, state, step, info, **options)
        edited.apply()


@functools.cache
def _follower_class(kind: Any) -> type:
    return type(f"Following{kind.__name__}", (_Follower, kind), {"__doc__": kind.__doc__})


def _device_of(info: dict[str, Any], params: Mapping[str, torch.Tensor]) -> torch.device:
    """Where a strategy computes: where it was rendered."""
    tensors = (value for value in (*info.values(), *params.values()))
    return next(value.device for value in tensors if isinstance(value, torch.Tensor))


def _numbered(
    info: dict[str, Any], key: str, rows: Any, n_rows: int, *, is_packed: bool
) -> dict[str, Any]:
    """What rendering some rows gave, as gsplat packs it, with numbers among all rows."""
    means2d, radii = info[key], info["radii"]
    numbers = torch.as_tensor(as_ids(rows, n_rows)).to(means2d.device)
    if is_packed:
        return {**info, "gaussian_ids": numbers[info["gaussian_ids"]]}
    is_seen = (radii > 0).all(dim=-1)  # (C, R)
    if is_seen.shape[-1] != len(numbers):
        raise ValueError(f"rows must be the {is_seen.shape[-1]} rendered, got {len(numbers)}")
    seen = means2d.detach()[is_seen]
    for name in ("grad", "absgrad"):
        if getattr(means2d, name, None) is not None:
            setattr(seen, name, getattr(means2d, name)[is_seen])
    ids = numbers[torch.where(is_seen)[-1]]
    return {**info, key: seen, "radii": radii[is_seen], "gaussian_ids": ids}
