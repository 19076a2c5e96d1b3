"""A TensorBoard server on a folder of runs, and a browser that looks at it.

Without Chromium the tests here are skipped, and say so; with ``MFU_TORCH_BROWSER=required`` in the
environment, as in CI, they fail instead. Screenshots go to ``MFU_TORCH_SCREENSHOTS``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboard_page import Page, browser, serve
from two_runs import train_two


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two real runs, ``low`` and ``high``."""
    folder = tmp_path_factory.mktemp("runs")
    train_two(folder)
    return folder


@pytest.fixture(scope="session")
def chromium() -> None:
    """Chromium and its driver are there; else what asks for them is skipped, or fails."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if missing and os.environ.get("MFU_TORCH_BROWSER") == "required":
        pytest.fail(f"{' and '.join(missing)} not found; apt install chromium chromium-driver")
    if missing:
        pytest.skip(f"{' and '.join(missing)} not found: nothing is seen in a browser")


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures of what is seen go."""
    named = os.environ.get("MFU_TORCH_SCREENSHOTS")
    return Path(named) if named else tmp_path_factory.mktemp("screenshots")


@pytest.fixture(scope="session")
def page(
    chromium: None, logs: Path, screenshots: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Page]:
    """The page of a TensorBoard server on these runs, in a headless browser."""
    profile = tmp_path_factory.mktemp("profile")
    with serve(logs, {"low", "high"}) as url, browser(profile) as driver:
        yield Page(driver, url, screenshots)
