"""docs/calculator.md: its commands print what it shows to the last digit, or fail as it says."""

from __future__ import annotations

import re
import shlex

import pytest
from test_readme import ROOT, blocks_of

from mfu_torch.cli import main

PAGE = (ROOT / "docs" / "calculator.md").read_text(encoding="utf-8")
SHOWN = [
    (
        block.text.partition("\n")[0].removeprefix("$ "),
        block.text.partition("\n")[2],
        block.language,
    )
    for block in blocks_of(PAGE)
    if block.text.startswith("$ mfu-torch calc ")
]


@pytest.mark.parametrize(("command", "shown", "language"), SHOWN)
def test_a_command_of_the_page_prints_what_is_below_it(
    command: str, shown: str, language: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(shlex.split(command)[1:])
    out, err = capsys.readouterr()
    assert out + err == shown
    # Blocks without a language are those of exit codes 1 and 2.
    assert (code == 0) == (language == "console")


def test_the_page_shows_every_exit_code() -> None:
    assert {main(shlex.split(command)[1:]) for command, _, _ in SHOWN} == {0, 1, 2}


HFUS = re.findall(r"^\| `(--\S+ \S+)` \| (\d\d\.\d\d %) \|", PAGE, re.MULTILINE)
RUN = next(command for command, _, _ in SHOWN if command.endswith(" --recompute full"))


@pytest.mark.parametrize(("given", "hfu"), HFUS)
def test_each_hfu_of_one_run_is_what_is_printed(
    given: str, hfu: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RUN.removesuffix("--recompute full") + given
    assert main(shlex.split(run)[1:]) == 0
    assert f"  HFU                   {hfu}\n" in capsys.readouterr().out
    assert len(HFUS) == 5


def test_the_figures_in_the_text_are_right() -> None:
    # 2 x 70e9 x 2000 / (8 x 989e12)
    assert f"{2 * 70e9 * 2000 / (8 * 989e12):.2%}".replace("%", " %") == "3.54 %"
    assert "2000 tokens/s on 8 GPUs would be\n3.54 %" in PAGE
