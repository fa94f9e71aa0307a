"""A Firefox that is there already, driven by WebDriver BiDi: the second browser in which the page is tried.

Playwright drives Firefox builds of its own, or stock ones that are newer than Debian's. The protocol is JSON over one
WebSocket, which Firefox itself opens, so no driver is needed between. `Tab` has as much of playwright's page as the tests of
the page need, by the same names. Where there is no Firefox the tests are skipped, and say what to install; with
MANYHANDS_BROWSER=required in the environment its absence is a failure.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.server.browser import PATIENCE

NAMES = ("firefox-esr", "firefox")
MISSING = f"no Firefox ({', '.join(NAMES)}) is on the PATH: apt-get install firefox-esr"
# Errors of the page, kept where a test can read it.
_LISTEN = """() => { window.violations = []; window.complaints = [];
addEventListener("securitypolicyviolation", (e) => violations.push(e.blockedURI));
addEventListener("error", (e) => complaints.push(String(e.message)));
addEventListener("unhandledrejection", (e) => complaints.push(String(e.reason))); }"""
_ADDRESS = re.compile(r"WebDriver BiDi listening on (ws://\S+)")
# Still and light; no window that opens by itself, and no request of Firefox's own.
_PREFERENCES = """user_pref("ui.prefersReducedMotion", 1);
user_pref("layout.css.prefers-color-scheme.content-override", 1);
user_pref("browser.shell.checkDefaultBrowser", false);
user_pref("browser.startup.page", 0);
user_pref("datareporting.policy.dataSubmissionEnabled", false);
user_pref("toolkit.telemetry.enabled", false);
user_pref("app.update.enabled", false);
user_pref("network.captive-portal-service.enabled", false);
user_pref("network.connectivity-service.enabled", false);
"""


def firefox_path() -> str:
    """Where it is; skips the test, or fails it, where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        if os.environ.get("MANYHANDS_BROWSER") == "required":
            pytest.fail(f"{MISSING} (and MANYHANDS_BROWSER=required)")
        pytest.skip(MISSING)
    return found


class Firefox:
    """The protocol: commands and their results, one after another. Events are read past, but for requests."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._number = socket, 0
        self.asked: list[str] = []  # addresses of all requests
        self.send("session.new", capabilities={})
        self.send("session.subscribe", events=["network.beforeRequestSent"])
        self.send("script.addPreloadScript", functionDeclaration=_LISTEN)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(30))
            if answer.get("method") == "network.beforeRequestSent":
                self.asked.append(answer["params"]["request"]["url"])
            elif answer.get("id") == self._number:
                assert answer["type"] == "success", f"{method}: {answer.get('message')}"
                result: dict[str, Any] = answer["result"]
                return result


class Tab:
    """One tab. `evaluate` takes an expression, or a function and its argument."""

    def __init__(self, firefox: Firefox, size: tuple[int, int] = (1440, 900)) -> None:
        self.firefox = firefox
        self._id = firefox.send("browsingContext.create", type="tab")["context"]
        viewport = {"width": size[0], "height": size[1]}
        self._send("browsingContext.setViewport", viewport=viewport)

    def _send(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.firefox.send(method, context=self._id, **parameters)

    def goto(self, address: str) -> None:
        """Go there; the page is loaded then."""
        self._send("browsingContext.navigate", url=address, wait="complete")

    def reload(self) -> None:
        """Load the page anew."""
        self._send("browsingContext.reload", wait="complete")

    def evaluate(self, expression: str, argument: Any = None) -> Any:
        """The value, as JSON has it."""
        told = f"(async () => {{ const it = ({expression}); const value = await (typeof it === 'function' ? "
        told += f"it({json.dumps(argument)}) : it); return JSON.stringify(value ?? null) }})()"
        target = {"context": self._id}
        found = self.firefox.send(
            "script.evaluate", expression=told, target=target, awaitPromise=True
        )
        assert found["type"] == "success", found["exceptionDetails"]["text"]
        return json.loads(found["result"]["value"])

    def until(self, truth: str, seconds: float = PATIENCE) -> None:
        """Wait for an expression to be true."""
        limit = time.monotonic() + seconds
        while not self.evaluate(truth):
            assert time.monotonic() < limit, f"never true: {truth}"
            time.sleep(0.01)

    def wait_for_selector(self, places: str) -> None:
        """Wait until there is such an element."""
        self.until(f"document.querySelector({json.dumps(places)}) !== null")

    def press(self, text: str) -> None:
        """Type characters; those of a Private Use Area are keys, as WebDriver numbers them."""
        keys = [{"type": kind, "value": one} for one in text for kind in ("keyDown", "keyUp")]
        self._send("input.performActions", actions=[{"type": "key", "id": "keys", "actions": keys}])

    def point(self, x: float, y: float) -> None:
        """Move the mouse there."""
        there = {"type": "pointerMove", "x": round(x), "y": round(y)}
        mouse = {"type": "pointer", "id": "mouse", "actions": [there]}
        self._send("input.performActions", actions=[mouse])

    def close(self, *homes: str) -> None:
        """Leave; the page must have asked nothing of anybody but `homes`, and have had no error."""
        wrong = self.evaluate("[...window.violations, ...window.complaints]")
        self._send("browsingContext.close")
        foreign = [
            url
            for url in self.firefox.asked
            if not url.startswith((*homes, "data:", "blob:", "about:"))
        ]
        self.firefox.asked.clear()
        assert not wrong, f"the page has complained: {wrong}"
        assert not foreign, f"the page has asked others: {foreign}"


@contextmanager
def launched() -> Iterator[Firefox]:
    """A Firefox without a window, with a profile of its own."""
    path = firefox_path()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        (Path(profile) / "user.js").write_text(_PREFERENCES)
        command = [path, "--headless", "--no-remote", "--profile", profile]
        log = Path(profile) / "log"
        with (
            log.open("w") as file,
            subprocess.Popen(
                [*command, "--remote-debugging-port", "0"],
                stdout=file,
                stderr=file,
                env={**os.environ, "HOME": profile},
            ) as child,
        ):
            try:
                with connect(f"{_address(log)}/session", max_size=None, proxy=None) as socket:
                    firefox = Firefox(socket)
                    yield firefox
                    firefox.send("browser.close")
            finally:
                child.terminate()
                child.wait(20)


def _address(log: Path) -> str:
    """Where it listens, as it says itself."""
    limit = time.monotonic() + 60
    while (found := _ADDRESS.search(log.read_text())) is None:
        assert time.monotonic() < limit, f"Firefox has not begun: {log.read_text()[-500:]}"
        time.sleep(0.05)
    return found[1]
