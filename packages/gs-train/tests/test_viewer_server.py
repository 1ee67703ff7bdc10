# SPDX-License-Identifier: Apache-2.0
"""Whom the viewer's server answers."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import viser
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from gs_train.viewer.server import refusal, serve


@pytest.fixture
def server() -> Iterator[viser.ViserServer]:
    server = serve("127.0.0.1", 0)
    yield server
    server.stop()


def connected(server: viser.ViserServer, origin: str | None) -> ClientConnection:
    return connect(
        f"ws://127.0.0.1:{server.get_port()}",
        origin=origin,
        subprotocols=[f"viser-v{viser.__version__}"],
        compression=None,
    )


@pytest.mark.parametrize(
    ("hosts", "origins", "listening"),
    [
        (["127.0.0.1:8080"], [], "127.0.0.1"),
        (["127.0.0.1:8080"], ["http://127.0.0.1:8080"], "127.0.0.1"),
        (["LocalHost:9000"], ["http://localhost:9000"], "127.0.0.1"),
        (["[::1]:8080"], ["http://[::1]:8080"], "::1"),
        (["studio.lan:8080"], ["http://studio.lan:8080"], "0.0.0.0"),
        (["studio.lan"], ["https://studio.lan"], "0.0.0.0"),
    ],
)
def test_a_page_may_connect_to_where_it_came_from(
    hosts: list[str], origins: list[str], listening: str
) -> None:
    assert refusal(hosts, origins, listening) is None


@pytest.mark.parametrize(
    ("hosts", "origins", "listening", "line"),
    [
        (["127.0.0.1:8080"], ["https://other.example"], "127.0.0.1", "a page of another site"),
        (["127.0.0.1:8080"], ["http://127.0.0.1:9000"], "127.0.0.1", "a page of another site"),
        (["127.0.0.1:8080"], ["null"], "127.0.0.1", "a page of another site"),
        (["studio.lan:8080"], ["https://other.example"], "0.0.0.0", "a page of another site"),
        (["other.example:8080"], ["http://other.example:8080"], "127.0.0.1", "is reached as"),
        (["other.example:8080"], [], "localhost", "is reached as"),
        ([], [], "127.0.0.1", "must name one host"),
        (["127.0.0.1", "other.example"], [], "127.0.0.1", "must name one host"),
        (["[::1"], [], "127.0.0.1", "must name a host"),
    ],
)
def test_pages_and_names_of_other_sites_are_refused(
    hosts: list[str], origins: list[str], listening: str, line: str
) -> None:
    assert line in (refusal(hosts, origins, listening) or "")


def test_the_server_answers_its_own_page_alone(server: viser.ViserServer) -> None:
    url = f"http://127.0.0.1:{server.get_port()}"
    for origin in (url, None):
        with connected(server, origin) as page:
            assert page.recv()
    with pytest.raises(InvalidStatus, match="403"):
        connected(server, "https://other.example")
    with urllib.request.urlopen(url) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(urllib.request.Request(url, headers={"Host": "other.example"}))


def test_no_page_can_open_a_tunnel(
    server: viser.ViserServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tunnel(*_: object) -> None:
        raise AssertionError("a tunnel was opened")

    monkeypatch.setattr("viser._viser.ViserTunnel", tunnel)
    assert server.request_share_url() is None
    # And that is the method which answers a page.
    asked = threading.Event()
    monkeypatch.setattr(type(server), "request_share_url", lambda _: asked.set())
    with connected(server, None) as page:
        page.send(b"\x81\xa4type\xafShareUrlRequest")  # MessagePack
        asked.wait()
