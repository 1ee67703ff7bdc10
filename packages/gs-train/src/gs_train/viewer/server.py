# SPDX-License-Identifier: Apache-2.0
"""The web server of the viewer: viser's, for its own pages alone, and without a way out."""

from __future__ import annotations

import contextlib
import http
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import viser
from websockets.asyncio import server as websocket_server

from gs_train.viewer.listening import is_loopback


def serve(host: str, port: int) -> viser.ViserServer:
    """A server that listens; port 0 takes any free one.

    viser answers whoever asks, and any web page may open a websocket to the loopback address. Here
    requests of other sites are refused, see :func:`refusal`.
    """
    with _checked_requests(host) as started:
        server = _Server(host=host, port=port, verbose=False)
    if not started:
        server.stop()
        raise RuntimeError(f"viser {viser.__version__} starts its server in another way")
    return server


def refusal(hosts: list[str], origins: list[str], listening: str) -> str | None:
    """Why a request is refused; None: it is answered.

    A page may connect to the address that it came from. On the loopback address the page must have
    come from there under one of its own names: the name of another site may lead there, too.

    Args:
        hosts: values of the request's Host.
        origins: values of its Origin, which browsers send; others may leave it out.
        listening: the host that the server was told to listen on.
    """
    if len(hosts) != 1:
        return "a request must name one host"
    try:
        name = urlsplit(f"//{hosts[0]}").hostname
        pages = [urlsplit(origin).netloc for origin in origins]
    except ValueError:
        return "a request must name a host"
    if is_loopback(listening) and not is_loopback(name or ""):
        return "this server is reached as localhost or 127.0.0.1 alone"
    if any(page.lower() != hosts[0].lower() for page in pages):
        return "a page of another site must not connect"
    return None


@contextlib.contextmanager
def _checked_requests(host: str) -> Iterator[list[bool]]:
    """Have requests checked by a websocket server that starts meanwhile. viser has no option for
    it.

    Yields:
        A list that is not empty once a server has started.
    """
    started: list[bool] = []
    module: Any = websocket_server
    plain = module.serve

    def serve(*arguments: Any, process_request: Any, **options: Any) -> Any:
        def answer(connection: Any, request: Any) -> Any:
            hosts, origins = (request.headers.get_all(name) for name in ("Host", "Origin"))
            line = refusal(hosts, origins, host)
            if line is not None:
                return connection.respond(http.HTTPStatus.FORBIDDEN, f"{line}\n")
            return process_request(connection, request)

        started.append(True)
        return plain(*arguments, process_request=answer, **options)

    module.serve = serve
    try:
        yield started
    finally:
        module.serve = plain


def _no_tunnel(_: Any, verbose: bool = True) -> None:
    """viser opens a tunnel from its makers' site to the server where any page asks for it."""


_Server = type("_Server", (viser.ViserServer,), {"request_share_url": _no_tunnel})
