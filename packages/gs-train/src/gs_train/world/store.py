# SPDX-License-Identifier: Apache-2.0
"""The store of a run: short texts by name, which the launcher or rank 0 keeps for all ranks."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any, Protocol

from gs_train.errors import InputError
from gs_train.world.standing import Standing

LOOPBACK = "127.0.0.1"
"""The address of a store that :func:`served` makes."""

_CONNECTING_S = 60


class Store(Protocol):
    """What is used of torch.distributed's."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...


def served() -> tuple[Store, int]:
    """A store that this process has for the ranks that it starts, and its port. Only processes of
    this host reach it."""
    listening = socket.create_server((LOOPBACK, 0))
    port = listening.getsockname()[1]
    store = _tcp_store(LOOPBACK, port, is_master=True, master_listen_fd=listening.detach())
    return _of_attempt(store, 0), port


def connected(place: Standing) -> Store:
    """A connection to the store, of the caller's own: a call that waits holds up no other's.

    Raises:
        InputError: nothing answers.
    """
    try:
        store = _tcp_store(place.address, place.port, is_master=place.has_store)
    except RuntimeError as error:
        lines = str(error).splitlines()
        raise InputError(
            f"MASTER_ADDR and MASTER_PORT must name the store of the ranks, got {place.address} "
            f"and {place.port} ({lines[0] if lines else type(error).__name__})"
        ) from None
    return _of_attempt(store, place.attempt)


def _tcp_store(address: str, port: int, *, is_master: bool, **options: Any) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(
        address,
        port,
        is_master=is_master,
        timeout=timedelta(seconds=_CONNECTING_S),
        wait_for_workers=False,
        multi_tenant=True,
        **options,
    )


def _of_attempt(store: Any, attempt: int) -> Store:
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    own: Store = PrefixStore(f"gs-train/{attempt}", store)
    return own
