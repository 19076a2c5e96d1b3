"""A regular expression of the user meets names of the trace: it answers, or is refused in time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from trace_builder import TraceBuilder

from mfu_torch.insight import explain
from mfu_torch.insight.breakdown.class_table import ClassTableError
from mfu_torch.insight.trace import user_patterns
from mfu_torch.insight.trace.errors import TraceError
from mfu_torch.insight.trace.reading import read_trace
from mfu_torch.insight.trace.user_patterns import TooSlow, searched

NAMES = ["train_step 7", "aaaaaaaab", "", "(x)", "aa aa", "a" * 40, "\u00e4\u0661", "step|step"]

FOREVER = [  # on a name of 40 letters and another character
    r"(a+)+$",
    r"(a|a)*$",
    r"(?:a?){40}a{40}",
    r"(?:(?:a?){9}){9}a{40}$",
    r"([^b]*)*c",
    r"(?x)(a+) +c",
    r"(a+(?# \) ))+c",
    r"((?:a|a)(?:a|a))" * 20 + "c",
    "a?" * 40 + "a" * 41 + "$",
    r"(a*)\1*\1*\1*\1*\1*\1*c",
]


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_patterns, "LIMIT_S", 0.5)


@pytest.mark.parametrize(
    "text",
    [
        *("step", "^train_step", r"\(x\)", "[)+*]", r"a+b$", r"(a+)+$", r"(\w+[ _])*\d", "a|b|x"),
        *(r"(?i)TRAIN", r"(.)\1", r"(?P<n>a)(?P=n)", r"\d+", r"^$", r"(?:step\|?){2}", r"(?x) s t"),
    ],
)
def test_a_pattern_finds_what_re_finds(text: str) -> None:
    pattern = re.compile(text)
    expected = [pattern.search(name) is not None for name in NAMES]
    assert searched([pattern, re.compile("train")], NAMES) == [expected, [True, *[False] * 7]]


@pytest.mark.parametrize("text", FOREVER)
def test_a_pattern_that_may_take_for_ever_is_never_tried_in_this_process(text: str) -> None:
    assert not user_patterns._is_quick(text, ["a" * 40 + "!"])


@pytest.mark.parametrize("text", ["train_step", r"^step \d+$", ".*step.*", "fwd|bwd", r"(a|b)_x+"])
def test_usual_patterns_start_no_process(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_patterns, "_elsewhere", None)
    searched([re.compile(text)], ["train_step 12345", "forward of layer 3"] * 50)


@pytest.mark.usefixtures("short_limit")
def test_what_takes_for_ever_is_ended_and_said() -> None:
    with pytest.raises(TooSlow, match=r"'\(a\+\)\+\$' takes longer than 0.5 s on the names"):
        searched([re.compile(r"(a+)+$")], ["a" * 60 + "!"])


@pytest.mark.usefixtures("short_limit")
def test_a_step_name_that_takes_for_ever_is_one_line(tmp_path: Path) -> None:
    built = TraceBuilder()
    built.op("aten::mm", 0, 10)
    built.annotation("a" * 4_000 + "!", 0, 100)
    path = built.write(tmp_path / "t.json")
    with pytest.raises(TraceError, match=r"^t\.json: step_name: .* takes longer than"):
        read_trace(path, step_name=r"(a+)+$")
    assert len(read_trace(path, step_name=r"(a+)+!").steps) == 1


@pytest.mark.usefixtures("short_limit")
def test_a_class_that_takes_for_ever_is_one_line(tmp_path: Path) -> None:
    built = TraceBuilder()
    built.kernel("a" * 4_000 + "!", 1_000, 100, launch_ns=0)
    path = built.write(tmp_path / "t.json")
    with pytest.raises(ClassTableError, match=r"^classes: '\(a\+\)\+\$' takes longer than"):
        explain(path, classes={"(a+)+$": "gemm"})


@pytest.mark.parametrize("text", ["(" * 5_000 + ")" * 5_000, "a{99999999999}"])
def test_a_pattern_that_cannot_be_compiled_is_no_regular_expression(
    text: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="no regular expression"):
        read_trace(tmp_path / "t.json", step_name=text)
    with pytest.raises(ClassTableError, match="no regular expression"):
        explain(tmp_path / "t.json", classes={text: "gemm"})
