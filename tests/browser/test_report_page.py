"""The page of ``mfu-torch report --html`` in a browser: opened from a file, narrow, wide, dark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from samples import count, header, peak, run, term
from selenium.webdriver.remote.webdriver import WebDriver
from tensorboard_page import browser

from mfu_torch.figures import run_figures
from mfu_torch.insight.html import render_page, write_page
from mfu_torch.insight.report import headline, wall_rows
from mfu_torch.records import Device, Pause, PeakEntry, Run, Telemetry

LONG = "a_kernel_with_a_name_that_has_no_place_to_break_" * 8
ATTACK = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>"

TELEMETRY = Telemetry(after_step=5, samples=9, time_s=4.0, gpu_util=0.99, sm_clock_hz=1.4e9)


def awkward() -> Run:
    """Long names, names that are markup, what is not known."""
    terms = tuple(term("forward", 10**12, 10**12, op=f"{LONG}{i}", dtype=LONG) for i in range(9))
    return run(
        header=header(
            device=Device(name=ATTACK, kind="cuda"), clock=ATTACK, model=LONG, versions={LONG: LONG}
        ),
        peaks={"bf16": peak("bf16"), LONG: PeakEntry(dtype=LONG, unknown=LONG)},
        counts={0: count(terms=terms, method=ATTACK, notes=(LONG, ATTACK), uncounted={LONG: 1})},
        pauses=(Pause(name=LONG, after_step=1, duration_s=1.0),),
        telemetry=(TELEMETRY,),
    )


RUNS = {"usual": run(telemetry=(TELEMETRY,)), "awkward": awkward()}


@pytest.fixture(scope="module")
def driver(chromium: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    profile = tmp_path_factory.mktemp("profile")
    with browser(profile, browser="ALL", performance="ALL") as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    return {name: write_page(folder / f"{name}.html", render_page(of)) for name, of in RUNS.items()}


def opened(driver: WebDriver, path: Path, *, width: int = 1200, dark: bool = False) -> str:
    """Open a page with everything unfolded; what is then shown as text."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.get("about:blank")
    for kind in ("browser", "performance"):
        driver.get_log(kind)  # of what was open before
    driver.get(path.as_uri())
    code = "document.querySelectorAll('details').forEach(e => { e.open = true; });"
    driver.execute_script(code)
    text: str = driver.execute_script("return document.body.innerText;")
    return " ".join(text.split())


def fetched(driver: WebDriver) -> list[str]:
    """What the page that was opened asked for, itself included; not what the browser's own did."""
    events: list[dict[str, Any]] = [
        json.loads(entry["message"])["message"] for entry in driver.get_log("performance")
    ]
    return [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
        and not event["params"]["documentURL"].startswith("chrome")
    ]


@pytest.mark.parametrize("name", RUNS)
def test_a_page_opens_without_errors_and_asks_for_nothing_else(
    driver: WebDriver, pages: dict[str, Path], name: str
) -> None:
    opened(driver, pages[name])
    assert driver.get_log("browser") == []
    assert fetched(driver) == [pages[name].as_uri()]
    assert driver.title.startswith("MFU report: ")
    assert driver.execute_script("return document.querySelectorAll('script, img').length;") == 0


@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_wider_than_the_window(
    driver: WebDriver, pages: dict[str, Path], screenshots: Path, name: str, width: int
) -> None:
    opened(driver, pages[name], width=width)
    code = "return [document.documentElement.scrollWidth, window.innerWidth];"
    needed, there = driver.execute_script(code)
    screenshots.mkdir(parents=True, exist_ok=True)
    (screenshots / f"report_{name}_{width}.png").write_bytes(driver.get_screenshot_as_png())
    assert there == width and needed <= width


@pytest.mark.parametrize("name", RUNS)
def test_the_figures_are_shown_as_text(
    driver: WebDriver, pages: dict[str, Path], name: str
) -> None:
    shown = opened(driver, pages[name], width=400)
    now = run_figures(RUNS[name])
    for label, text in headline(RUNS[name], now):
        assert f"{label} {' '.join(text.split())}".strip() in shown
    for row in wall_rows(RUNS[name], now):
        assert " ".join(row) in shown


def test_every_chart_can_be_seen(driver: WebDriver, pages: dict[str, Path]) -> None:
    code = """return [...document.querySelectorAll('figure svg[role=img]')].map(e => {
        const box = e.getBoundingClientRect(), inside = [...e.querySelectorAll('text')].every(t => {
            const b = t.getBoundingClientRect();
            return b.left >= box.left - 1 && b.right <= box.right + 1;
        });
        return [box.width > 300, box.height > 120, inside, e.querySelectorAll('circle').length];
    });"""
    for width in (400, 1200):
        opened(driver, pages["usual"], width=width)
        assert driver.execute_script(code) == [
            [True, True, True, points] for points in (6, 2, 2, 4, 2)
        ]


def test_dark_and_light_are_those_of_the_reader(driver: WebDriver, pages: dict[str, Path]) -> None:
    code = """const style = getComputedStyle(document.body);
        return [style.color, style.backgroundColor].map(c =>
            c.match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) / 3);"""
    opened(driver, pages["usual"])
    ink, paper = driver.execute_script(code)
    assert ink < 60 and paper > 240
    opened(driver, pages["usual"], dark=True)
    ink, paper = driver.execute_script(code)
    assert ink > 200 and paper < 60


def test_a_page_that_asks_for_something_would_be_found(driver: WebDriver, tmp_path: Path) -> None:
    path = tmp_path / "other.html"
    image = (tmp_path / "x.png").as_uri()
    path.write_text(f"<p style='width:2000px'>wide</p><img src='{image}'>", encoding="utf-8")
    opened(driver, path)
    assert fetched(driver) == [path.as_uri(), image]
    assert driver.get_log("browser") != []
    assert driver.execute_script("return document.documentElement.scrollWidth;") > 1200
