"""A Chromium that is there already, driven by playwright; and a page that minds its manners.

Where there is no browser the tests are skipped, and say what to install. With MANYHANDS_BROWSER=required in the
environment, as in continuous integration, its absence is a failure.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = f"no browser ({', '.join(NAMES)}) is on the PATH: apt-get install chromium"
PATIENCE = 120.0  # seconds; only what never comes takes so long, and a page beside ten busy processes more than thirty
# Violations of the page's policy, kept where a test can read them.
_LISTEN = "window.violations=[];addEventListener('securitypolicyviolation',e=>violations.push(e.blockedURI))"


def browser_path() -> str:
    """Where the browser is; skips the test, or fails it, where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        if os.environ.get("MANYHANDS_BROWSER") == "required":
            pytest.fail(f"{MISSING} (and MANYHANDS_BROWSER=required)")
        pytest.skip(MISSING)
    return found


@contextmanager
def launched() -> Iterator[Any]:
    """A browser without a window."""
    path = browser_path()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """One page in a context of its own; what it asked for and complained of is kept."""

    def __init__(self, browser: Any, **choices: Any) -> None:
        size = choices.pop("size", (1440, 900))
        viewport = {"width": size[0], "height": size[1]}
        choices = {"color_scheme": "light", "reduced_motion": "reduce"} | choices
        self.context = browser.new_context(viewport=viewport, **choices)
        self.page = self.context.new_page()
        self.page.set_default_timeout(1000 * PATIENCE)
        self.page.add_init_script(_LISTEN)
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def again(
        self,
        address: str,
        size: tuple[int, int] = (1440, 900),
        color_scheme: Literal["light", "dark"] = "light",
    ) -> None:
        """As new for this address, in a fraction of the time: nothing is stored, asked or complained of."""
        self.page.evaluate("localStorage.clear(); sessionStorage.clear()")
        self.context.clear_cookies()
        if self.page.url.partition("#")[0] == address.partition("#")[0]:
            self.page.goto("about:blank")  # or it would stay the same document
        self.page.mouse.move(0, 0)
        self.page.set_viewport_size({"width": size[0], "height": size[1]})
        self.page.emulate_media(color_scheme=color_scheme)
        self.asked.clear()
        self.complaints.clear()

    def until(self, truth: str, seconds: float = PATIENCE) -> None:
        """Wait for an expression to be true. (Playwright's own way would need `eval`, which the policy forbids.)"""
        limit = time.monotonic() + seconds
        while not self.page.evaluate(truth):
            assert time.monotonic() < limit, f"never true: {truth}"
            self.page.wait_for_timeout(10)

    def violations(self) -> list[str]:
        """The requests that the page's policy has forbidden so far."""
        found: list[str] = self.page.evaluate("window.violations")
        return found

    def assert_behaved(self, *homes: str) -> None:
        """Its documents must have asked nothing of anybody but `homes`, and have had no error."""
        violations = self.violations()
        foreign = [url for url in self.asked if not url.startswith((*homes, "data:", "blob:"))]
        assert (self.complaints, violations, foreign) == ([], [], [])

    def close(self, *homes: str) -> None:
        """Leave; the last document must have behaved."""
        try:
            self.assert_behaved(*homes)
        finally:
            self.context.close()
