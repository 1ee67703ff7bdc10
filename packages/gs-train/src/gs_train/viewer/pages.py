# SPDX-License-Identifier: Apache-2.0
"""The pages that are open, of all browsers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from gs_train.viewer.page import Page
from gs_train.viewer.path_keys import PathKeys
from gs_train.viewer.render_loop import RenderLoop

_Shown = TypeVar("_Shown")


class Server(Protocol):
    """What pages need of viser's server."""

    def get_clients(self) -> dict[int, Any]:
        """The clients that are connected, by number."""
        ...


class Pages:
    """Gives each client a page, and forgets the page when the client leaves.

    viser calls :meth:`join` and :meth:`leave` in a pool of threads, in any order.

    Args:
        server: whose clients they are.
        loop: draws for the pages.
        keys: of the camera path.
        make: makes the page of a client.
    """

    def __init__(
        self, server: Server, loop: RenderLoop, keys: PathKeys, make: Callable[[Any], Page]
    ) -> None:
        self._server = server
        self._loop = loop
        self._keys = keys
        self._make = make

    def join(self, client: Any) -> None:
        """Have a page for a client that has connected."""
        number, page = client.client_id, self._make(client)
        self._loop.join(
            number, self._while_open(number, page.show), self._while_open(number, page.show_error)
        )
        self._keys.join(number, self._while_open(number, page.show_keys))
        if not self._is_open(number):  # `leave` may have come first
            self.leave(client)
            return
        page.begin()

    def leave(self, client: Any) -> None:
        """Forget the page of a client that has disconnected."""
        self._loop.leave(client.client_id)
        self._keys.leave(client.client_id)

    def _is_open(self, number: int) -> bool:
        return number in self._server.get_clients()

    def _while_open(self, number: int, show: Callable[[_Shown], None]) -> Callable[[_Shown], None]:
        """``show``, whose errors count only while the page is open."""

        def shown(what: _Shown) -> None:
            try:
                show(what)
            except Exception:  # of a page that closes now, or of viser
                if self._is_open(number):
                    raise

        return shown
