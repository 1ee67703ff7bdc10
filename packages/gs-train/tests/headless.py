# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_PATIENCE_S = 60.0


def chromium() -> str | None:
    """Where it is; None: nowhere."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Patience:
    """What is left of a minute, after which a test that hangs is given up. Nothing else depends on
    it."""

    def __init__(self) -> None:
        self._end = time.monotonic() + _PATIENCE_S

    def left_s(self, wanted: str) -> float:
        """Seconds that are left."""
        left = self._end - time.monotonic()
        assert left > 0, f"{_PATIENCE_S:g} s have passed without {wanted}"
        return left


class Browser:
    """One page of a browser of its own.

    Attributes:
        requests: addresses that the page has asked for.
        errors: what its scripts threw, or wrote to the console as errors.
    """

    def __init__(self, profile: Path, *, width: int = 1280, height: int = 720) -> None:
        from websockets.sync.client import connect

        program = chromium()
        assert program is not None, "no Chromium on the PATH"
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._process = subprocess.Popen(
            [
                program,
                *("--headless=new", "--no-sandbox", "--no-first-run", "--disable-extensions"),
                *("--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--mute-audio"),
                *("--disable-dev-shm-usage", "--disable-background-networking"),
                *(f"--user-data-dir={profile}", f"--window-size={width},{height}"),
                *("--remote-debugging-port=0", "about:blank"),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        self._n = 0
        self._loaded = False
        address = self._address()
        self._socket = connect(address, max_size=None, compression=None, proxy=None)
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.communicate()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer."""
        self._n += 1
        message = {"id": self._n, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        patience = Patience()
        while True:
            wanted = f"an answer to {method} {str(parameters)[:200]}"
            got = json.loads(self._socket.recv(timeout=patience.left_s(wanted)))
            if got.get("id") == self._n:
                assert "error" not in got, got["error"]
                result: dict[str, Any] = got["result"]
                return result
            self._note(got)

    def evaluate(self, script: str) -> Any:
        """The value of an expression; of a promise, what it is kept with."""
        got = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def open(self, url: str) -> None:
        """Go to an address, and wait until it has loaded."""
        self._loaded = False
        self.call("Page.navigate", url=url)
        patience = Patience()
        while not self._loaded:
            wait_s = patience.left_s(f"the page {url}")
            self._note(json.loads(self._socket.recv(timeout=wait_s)))

    def wait_for_text(self, text: str) -> None:
        """Wait until the page says so."""
        self.wait_for(f"document.body.innerText.includes({json.dumps(text)})")

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true in the page."""
        self.evaluate(
            "new Promise(done => {const look = () => "
            f"({condition}) ? done(true) : setTimeout(look, 50); look()}})"
        )

    def text(self) -> str:
        """Of the whole page."""
        return str(self.evaluate("document.body.innerText"))

    def screenshot(self, path: Path) -> None:
        """Write what the page looks like, as PNG."""
        shot = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Move, press or release the left button at a place of the page."""
        pressed = {"button": "left", "buttons": 1, "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **{**pressed, **more})

    def drag(self, start: tuple[float, float], end: tuple[float, float], n: int = 8) -> None:
        """Press the left button, move in some steps, and release."""
        self.mouse("Pressed", *start)
        for k in range(1, n + 1):
            x, y = (a + (b - a) * k / n for a, b in zip(start, end))
            self.mouse("Moved", x, y)
        self.mouse("Released", *end)

    def click(self, script: str) -> None:
        """Click in the middle of the element that an expression gives, once it rests there for some
        frames with nothing over it: lists and folders close and open slowly."""
        place = self.evaluate(
            "new Promise(done => {let last = ''; let n = 0; const look = () => {"
            f"const of = ({script}); if (of) {{of.scrollIntoView({{block: 'nearest'}});"
            "const r = of.getBoundingClientRect();"
            "const at = [r.x + r.width / 2, r.y + r.height / 2]; const now = JSON.stringify(at);"
            "const hit = r.width && document.elementFromPoint(...at);"
            "const is_on_top = hit && of.parentElement.contains(hit) && !of.closest('[inert]');"
            "n = now === last && is_on_top ? n + 1 : 0; last = now}"
            "n < 10 ? requestAnimationFrame(look) : done(JSON.parse(last))}; look()})"
        )
        self.mouse("Moved", *place, button="none", buttons=0)
        self.mouse("Pressed", *place)
        self.mouse("Released", *place)

    def _address(self) -> str:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            found = re.search(r"DevTools listening on (ws://\S+)", line)
            if found:
                return found[1]
        raise AssertionError(f"chromium ended with {self._process.wait()}")

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif event.get("method") == "Page.loadEventFired":
            self._loaded = True
        elif event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] == "error":
            self.errors.append(str(parameters["args"]))


def labelled(text: str) -> str:
    """An expression for the control with a label of viser's."""
    return (
        f"document.getElementById([...document.querySelectorAll('label')]"
        f".find(label => label.textContent === {json.dumps(text)})?.htmlFor)"
    )


def named(text: str, selector: str = "button") -> str:
    """An expression for the element that holds this text and nothing else."""
    return (
        f"[...document.querySelectorAll({json.dumps(selector)})]"
        f".find(each => each.textContent === {json.dumps(text)})"
    )


def choose(browser: Browser, label: str, option: str) -> None:
    """Take an option of one of viser's lists."""
    browser.click(labelled(label))
    browser.click(named(option, "[role=option]"))
