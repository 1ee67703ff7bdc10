# SPDX-License-Identifier: Apache-2.0
"""Which rank this process is, by the variables that torchrun and ``launch`` set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gs_train.errors import InputError

OWN_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""``True`` where the launcher has the store, which then outlives every rank."""


@dataclass(frozen=True)
class Standing:
    """A process among the ranks.

    Attributes:
        rank: of all ``size``.
        local_rank: of the ``local_size`` of this host.
        address, port: of the store.
        launcher_has_store: else rank 0 has it, and its end takes the store away.
        attempt: how often the launcher has started all ranks before.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    port: int
    launcher_has_store: bool
    attempt: int = 0

    @property
    def has_store(self) -> bool:
        """Whether the store is this rank's."""
        return self.rank == 0 and not self.launcher_has_store


def standing(environment: Mapping[str, str]) -> Standing | None:
    """Which rank a process with these variables is; None: it is the only one.

    Raises:
        InputError: some of the variables are missing, or do not fit.
    """
    if environment.get("WORLD_SIZE", "1") == "1":
        return None
    size = _integer(environment, "WORLD_SIZE", 1)
    rank = _integer(environment, "RANK", 0, size - 1)
    local_size = _integer(environment, "LOCAL_WORLD_SIZE", 1, size)
    return Standing(
        rank=rank,
        size=size,
        local_rank=_integer(environment, "LOCAL_RANK", 0, local_size - 1),
        local_size=local_size,
        address=_text(environment, "MASTER_ADDR"),
        port=_integer(environment, "MASTER_PORT", 0, 2**16 - 1),
        launcher_has_store=environment.get(OWN_STORE) == "True",
        attempt=int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
    )


def has_the_word(environment: Mapping[str, str]) -> bool:
    """Whether a process with these variables prints what all ranks would say."""
    return environment.get("WORLD_SIZE", "1") == "1" or environment.get("RANK") == "0"


def device_of(place: Standing, kind: str) -> torch.device:
    """The device of a rank, which becomes the current one of this thread.

    Args:
        kind: ``cuda`` or ``cpu``.

    Raises:
        InputError: there are fewer devices than ranks of this host.
    """
    if kind != "cuda":
        return torch.device(kind)
    n_devices = torch.cuda.device_count()
    if place.local_size > n_devices:
        raise InputError(
            f"the ranks of a host must be at most its {n_devices} CUDA devices, "
            f"got LOCAL_WORLD_SIZE={place.local_size}"
        )
    device = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(device)
    return device


def _text(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise InputError(
            f"{name} must be set where WORLD_SIZE is (WORLD_SIZE={environment['WORLD_SIZE']}): "
            "torchrun sets both"
        )
    return value


def _integer(environment: Mapping[str, str], name: str, least: int, most: int | None = None) -> int:
    text = _text(environment, name)
    rule = f"at least {least}" if most is None else f"{least} to {most}"
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        raise InputError(f"{name} must be {rule}, got {text!r}")
    return int(text)
