"""The picture of the documentation: ``take_screenshot.py RUNS PNG``, for a folder with one run."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image
from tensorboard_page import Page, browser, serve

SHOWN = (1200, 836)
TAKEN = (1500, 1045 + 143)  # 143: what the window has around the page


def main(runs: Path, path: Path) -> None:
    """Take it: all charts of the custom scalars, in light mode, without smoothing."""
    names = {str(each.parent.relative_to(runs)) for each in runs.rglob("run.jsonl")}
    with (
        serve(runs, names) as url,
        tempfile.TemporaryDirectory() as folder,
        browser(Path(folder) / "profile") as driver,
    ):
        page = Page(driver, url, Path(folder))
        page.open("custom_scalars&_smoothingWeight=0", size=TAKEN)
        page.until(lambda: "Matches (4)" in page.texts(".matches-text"), "lines")
        taken = Image.open(page.screenshot("taken")).convert("RGB")
        small = taken.resize(SHOWN, Image.Resampling.LANCZOS)
        small.quantize(colors=128, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
