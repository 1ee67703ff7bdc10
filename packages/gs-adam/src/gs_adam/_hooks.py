# SPDX-License-Identifier: Apache-2.0
"""Steps of optimizers without torch's wrapper, where nobody has asked for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch.optim.optimizer import (
    Optimizer,
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)

_Step = TypeVar("_Step", bound=Callable[..., Any])


def unwrapped(step: _Step) -> _Step:
    """Make a method the ``step`` of an optimizer class, with less around it.

    torch wraps the ``step`` of every class of optimizers, and the wrapper takes as long as some
    steps. This one calls torch's wrapper where an optimizer has hooks, where all optimizers have
    some, and where torch's profiler records; elsewhere it calls the method alone. Torch wraps the
    ``step`` of a subclass, which may call this one: hooks are not called again.
    """
    wrapped = Optimizer.profile_hook_step(step)

    @functools.wraps(step)
    def call(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if (
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or _global_optimizer_pre_hooks
            or _global_optimizer_post_hooks
            or torch._C._autograd._profiler_enabled()
        ) and type(self).step is call:
            return wrapped(self, *args, **kwargs)
        return step(self, *args, **kwargs)

    call.hooked = True  # type: ignore[attr-defined]  # so that torch wraps it no more
    return cast(_Step, call)
