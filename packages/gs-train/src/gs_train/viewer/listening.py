# SPDX-License-Identifier: Apache-2.0
"""Addresses that the viewer may listen on."""

from __future__ import annotations

import socket

from gs_train.errors import InputError


def is_loopback(host: str) -> bool:
    """Whether a name is one of this machine's own address, which no other machine reaches."""
    return host.lower() in ("127.0.0.1", "localhost", "::1")


def require_port(host: str, port: int) -> None:
    """Check that a server can listen there; port 0 is any free one.

    Raises:
        InputError: it cannot.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        raise InputError(
            f"--host {host} --port {port} cannot be listened on: {error.strerror or error}; "
            "--port 0 takes any free port"
        ) from None
