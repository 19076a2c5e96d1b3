"""TensorBoard as a user sees it: served by its own program, drawn by Chromium, read off it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.ui import WebDriverWait

T = TypeVar("T")

DEADLINE_S = 60.0
SIZE = (1400, 1000)

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
)

# Much of TensorBoard is made of web components, whose insides no selector reaches from outside.
_ALL = """
const selector = arguments[0], found = [];
(function walk(root) {
  for (const element of root.querySelectorAll('*')) {
    if (element.matches(selector)) found.push(element);
    if (element.shadowRoot) walk(element.shadowRoot);
  }
})(document);
"""


@contextlib.contextmanager
def serve(folder: Path, runs: Collection[str]) -> Iterator[str]:
    """The address of a TensorBoard that has read these runs of a folder to their end."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", folder.name, "--port", "0"]
    server = subprocess.Popen(
        # In Python: the faster reader is a program of its own, which is not there everywhere.
        [*command, "--host", "localhost", "--load_fast=false"],
        cwd=folder.parent,  # the page shows the folder as it is given
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = ""
        assert server.stderr is not None
        while (address := re.search(r"at (http://localhost:\d+/)", said)) is None:
            line = server.stderr.readline()
            assert line, f"TensorBoard ended: {said}"
            said += line
        url = address[1]
        # The picture is the last that a run writes.
        _until(lambda: runs <= _get(f"{url}data/plugin/images/tags").keys(), "the runs are read")
        yield url
    finally:
        server.kill()
        server.communicate()


def _get(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


@contextlib.contextmanager
def browser(profile: Path, **logs: str) -> Iterator[WebDriver]:
    """A headless Chromium with an empty profile; ``performance="ALL"`` logs what it fetches."""
    options = webdriver.ChromeOptions()
    if logs:
        options.set_capability("goog:loggingPrefs", logs)
    options.binary_location = shutil.which("chromium") or ""
    width, height = SIZE
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    service = Service(shutil.which("chromedriver"), log_output=os.devnull)
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


def _until(condition: Callable[[], T], what: str, driver: WebDriver | None = None) -> T:
    wait = WebDriverWait(driver, DEADLINE_S, poll_frequency=0.1)
    try:
        return wait.until(lambda _: condition())
    except TimeoutException:
        raise AssertionError(f"not within {DEADLINE_S:.0f} s: {what}") from None


class Page:
    """The page, one tab at a time."""

    def __init__(self, driver: WebDriver, url: str, screenshots: Path) -> None:
        self._driver = driver
        self._url = url
        self._screenshots = screenshots

    def open(self, tab: str, *, size: tuple[int, int] = SIZE, **query: str) -> None:
        """Load a tab anew; ``query`` as in TensorBoard's own links."""
        self._driver.set_window_size(*size)
        self._driver.get("about:blank")  # or another tab of the same address is not loaded anew
        self._driver.get(f"{self._url}?{urlencode(query)}#{tab}")

    def script(self, code: str, *arguments: object) -> Any:
        """What JavaScript returns; ``found`` are the elements that match the first argument."""
        return self._driver.execute_script(_ALL + code, *arguments)

    def texts(self, selector: str) -> list[str]:
        """The text of every element that matches and is shown, in order."""
        code = "return found.filter(e => e.getClientRects().length).map(e => e.innerText.trim());"
        shown: list[str] = self.script(code, selector)
        return shown

    def click(self, selector: str, text: str) -> None:
        """Click on the first element that matches and has this text."""
        code = "const e = found.find(e => e.textContent.trim() === arguments[1]);"
        code += "if (!e) return false; e.click(); return true;"
        self.until(lambda: self.script(code, selector, text), f"{selector} with {text!r}")

    def until(self, condition: Callable[[], T], what: str) -> T:
        """Wait until something is so; return what it then is."""
        return _until(condition, what, self._driver)

    def fetch(self, path: str) -> Any:
        """What the page itself gets when it asks its server."""
        code = "const done = arguments[1]; fetch(arguments[0]).then(a => a.json()).then(done);"
        return self._driver.execute_async_script(code, path)

    def screenshot(self, name: str) -> Path:
        """Keep a picture of what is seen."""
        self._screenshots.mkdir(parents=True, exist_ok=True)
        path = self._screenshots / f"{name}.png"
        path.write_bytes(self._driver.get_screenshot_as_png())
        return path
