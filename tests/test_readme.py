"""What the README shows is what happens: its code runs, and prints what stands below it.

Of a document, blocks fenced as ``python`` run in order, in one namespace and one empty folder, and
so do the ``console`` blocks between them. A ``text`` block is what the ``python`` block above it
prints. Numbers that are measured are compared as ``<time>`` and the like; everything else, FLOPs
among it, has to be the same. A line ``...`` stands for any lines.
"""

from __future__ import annotations

import difflib
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mfu_torch.figures import Figures
from mfu_torch.records import Telemetry
from mfu_torch.step_parts import PARTS, SplitSteps

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"

# Beginning of what is run -> why its output is not compared.
NOT_RUN = {
    "pip install": "changes the machine",
    "make demo": "half a minute; its FLOPs are compared below",
    "tensorboard": "serves until it is stopped",
}
NOT_SHOWN = {
    "mfu-torch report runs/first --json": "about 150 lines, which are documented as fields",
}


# --- a document ----------------------------------------------------------------------------------


class Block(NamedTuple):
    """A fenced block: its language, what is in it, and the number of its first line."""

    language: str
    text: str
    line: int


class Example(NamedTuple):
    """Code or a command, and the output that is shown for it; ``None`` if none is shown."""

    kind: str
    source: str
    shown: str | None
    line: int

    def has_key(self, reasons: dict[str, str]) -> bool:
        return any(self.source.startswith(key) for key in reasons)


def blocks_of(text: str) -> list[Block]:
    blocks = []
    language, start, lines = "", 0, text.splitlines()
    inside = False
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if inside:
            blocks.append(Block(language, "\n".join(lines[start:number]) + "\n", start + 1))
        language, start, inside = line[3:].strip(), number + 1, not inside
    assert not inside, "the last fence is not closed"
    return blocks


def examples_of(text: str) -> list[Example]:
    examples: list[Example] = []
    for block in blocks_of(text):
        if block.language == "python":
            examples.append(Example("python", block.text, None, block.line))
        elif block.language == "console":
            examples.extend(_commands(block))
        elif block.language == "text":
            above = examples[-1]
            assert above.kind == "python" and above.shown is None, (
                f"line {block.line}: a text block is the output of the python block above it"
            )
            examples[-1] = above._replace(shown=block.text)
    return examples


def _commands(block: Block) -> Iterator[Example]:
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        line = block.line + block.text[: block.text.index(part)].count("\n")
        yield Example("console", command, output or None, line)


# --- running it ----------------------------------------------------------------------------------

# The measurement of a peak is refused where other work on the machine disturbed it, and then the
# report has other lines: here it is made up, and more than one core can do.
_RUNNER = """
import contextlib, io, json, shlex, subprocess, sys

import mfu_torch.peak.resolve
from mfu_torch import Peak

def measured(device, dtype, **_):
    source = f"{dtype} matmul 512x512x512 on 2 threads, torch 2.6.0, best of 31"
    return Peak(flops_per_s=1e12, dtype=dtype, source=source, provenance="measured")

mfu_torch.peak.resolve.measured_peak = measured
namespace = {"__name__": "__main__"}
printed = []
for kind, source, line in json.load(sys.stdin):
    out = io.StringIO()
    if kind == "python":
        code = compile("\\n" * (line - 1) + source, "the document", "exec")
        with contextlib.redirect_stdout(out):
            exec(code, namespace)
        printed.append(out.getvalue())
    else:
        words = shlex.split(source.replace("mfu-torch", "python -m mfu_torch", 1))
        command = [sys.executable, *words[1:]]
        printed.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
print(json.dumps(printed))
"""


def run_examples(examples: list[Example], folder: Path) -> list[str]:
    """What each of them prints.

    Raises:
        AssertionError: If one of them fails; the message has the traceback with its line.
    """
    done = subprocess.run(
        [sys.executable, "-c", _RUNNER],
        input=json.dumps([(e.kind, e.source, e.line) for e in examples]),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    printed: list[str] = json.loads(done.stdout.splitlines()[-1])
    return printed


# --- comparing -----------------------------------------------------------------------------------

_NUMBER = r"-?\d[\d.]*"
_FLOP_SHARE = rf"{_NUMBER} [kMGTPE]?FLOP \(\d+\.\d %\)"
_KNOWN_RATE = rf'{_NUMBER} [kMGTPE]?FLOP/s(?=( dense)?, (?:given|datasheet|derived)|\)|")'
_MEASURED = {
    "<rate>": rf"{_NUMBER} [kMGTPE]?FLOP/s",
    "<amount>": rf"{_NUMBER}[kMGTPE]?(?= (?:tok|tokens|samples)/s)",
    "<time>": rf"\d+ h \d\d min|\d+ min \d\d s|{_NUMBER} (?:ns|us|ms|s)\b",
    "<percent>": rf"{_NUMBER} %",
    "<date>": r"\d{4}-\d\d-\d\d[T_][-:\d]+(?:\+00:00)?",
}
_EXACT_OR_MEASURED = re.compile(
    rf"{_FLOP_SHARE}|{_KNOWN_RATE}|above 100 %|" + "|".join(f"({p})" for p in _MEASURED.values())
)
_MATMUL = re.compile(
    r"measured: (\w+)\s+matmul\s+[\dx]+\s+on\s+\d+\s+threads,\s+torch\s+\S+,\s+best\s+of\s+\d+"
)
_ROW = re.compile(
    rf"^(  \S.*?) {{2,}}{_NUMBER} +{_NUMBER} +(?:{_NUMBER}|(-|with forward))$", re.MULTILINE
)


def without_measured(text: str) -> str:
    """Text with a placeholder for every number that is another one in the next run."""
    text = "".join(f"{line.rstrip()}\n" for line in text.rstrip().splitlines())
    text = _MATMUL.sub(r"measured: \1 <matmul>", text)
    text = _ROW.sub(lambda row: f"{row[1]}  <time>  <percent>  {row[2] or '<points>'}", text)
    text = re.sub(r"^mfu_torch on .+,", "mfu_torch on <device>,", text, flags=re.MULTILINE)
    text = re.sub(r"^.+ \| (?=\d+ steps? \| )", "<device> | ", text, flags=re.MULTILINE)
    return _EXACT_OR_MEASURED.sub(_placeholder, text)


def _placeholder(match: re.Match[str]) -> str:
    names = list(_MEASURED)
    groups = match.groups()[-len(names) :]
    return next((name for name, group in zip(names, groups, strict=True) if group), match[0])


def assert_shown(shown: str, printed: str) -> None:
    """The output shown is the output printed, but for what is measured.

    Raises:
        AssertionError: If it is not, with the difference.
    """
    expected, actual = without_measured(shown), without_measured(printed)
    lines = (r"(?:.*\n)*?" if line == "...\n" else re.escape(line) for line in _lines(expected))
    if re.fullmatch("".join(lines), actual) is None:
        diff = difflib.unified_diff(_lines(expected), _lines(actual), "shown", "printed")
        raise AssertionError("".join(diff))


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


# --- documents under test ------------------------------------------------------------------------


class Checked(NamedTuple):
    """An example of a document, and what it printed."""

    example: Example
    printed: str


def check_document(path: Path, folder: Path, not_run: dict[str, str]) -> list[Checked]:
    """Run the examples of a document, but for those that are not run for a reason."""
    examples = examples_of(path.read_text(encoding="utf-8"))
    run = [example for example in examples if not example.has_key(not_run)]
    return [Checked(*pair) for pair in zip(run, run_examples(run, folder), strict=True)]


def assert_all_shown(checked: list[Checked], not_shown: dict[str, str]) -> None:
    """What is printed is shown, and what is shown is printed; every difference is reported."""
    problems = []
    for example, printed in checked:
        where = f"line {example.line}: {example.source.splitlines()[0]}"
        if example.shown is not None:
            try:
                assert_shown(example.shown, printed)
            except AssertionError as difference:
                problems.append(f"{where}\n{difference}")
        elif printed and not example.has_key(not_shown):
            problems.append(f"{where}\nprints what is not shown:\n{printed}")
    assert not problems, "\n".join(problems)


def assert_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        assert "://" not in name, f"{target}: the documents stand on their own"
        other = (path.parent / name).resolve() if name else path
        assert other.exists(), target
        assert not anchor or anchor in _anchors(other), target


def _anchors(path: Path) -> list[str]:
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]


# --- the README ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def readme(tmp_path_factory: pytest.TempPathFactory) -> list[Checked]:
    return check_document(README, tmp_path_factory.mktemp("readme"), NOT_RUN)


def test_the_readme_prints_what_it_shows(readme: list[Checked]) -> None:
    assert_all_shown(readme, NOT_SHOWN)


def test_the_json_report_has_the_parts_that_the_readme_names(readme: list[Checked]) -> None:
    printed = [done.printed for done in readme if done.example.source.endswith("--json")]
    report = json.loads(printed[0])
    assert {"status", "figures", "wall", "peaks", "counts", "notes"} <= report.keys()
    assert report["counts"][0]["model"] == 10_737_418_240  # 5 * 2 * 1024 * 512 * 2048


def test_every_reason_for_not_comparing_is_needed() -> None:
    examples = examples_of(README.read_text(encoding="utf-8"))
    for key in NOT_RUN | NOT_SHOWN:
        assert [e for e in examples if e.source.startswith(key)], key


def test_every_block_of_the_readme_has_a_language_that_is_checked() -> None:
    languages = {block.language for block in blocks_of(README.read_text(encoding="utf-8"))}
    assert languages <= {"python", "console", "text", ""}  # "": a drawing


def test_the_first_screen_is_a_sentence_code_and_output() -> None:
    text = README.read_text(encoding="utf-8")
    code, output, *_ = blocks_of(text)
    assert (code.language, output.language) == ("python", "text")
    assert code.line <= 10
    assert "[![" not in text


def test_the_demo_counts_the_flops_that_the_readme_shows(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py", "--steps", "1", "--log-dir", tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert flops_lines(done.stdout) == flops_lines(demo_output())


def demo_output() -> str:
    """What the README shows for ``make demo``."""
    examples = examples_of(README.read_text(encoding="utf-8"))
    shown = [e.shown for e in examples if e.source == "make demo"]
    assert shown[0] is not None
    return shown[0]


def flops_lines(report: str) -> list[str]:
    block = report.partition("FLOPs per step (")[2].partition("\n\n")[0]
    assert block
    return block.splitlines()[1:]


def test_every_tensorboard_tag_is_documented_and_no_other() -> None:
    from mfu_torch.integrations.tensorboard import device_scalars, scalars
    from mfu_torch.integrations.tensorboard.totals import TAGS

    numbers = {
        name: 1
        for name in Figures.__struct_fields__
        if name not in ("step", "steps", "time_s", "phases", "split", "goodput", "absent")
    }
    share = {"NAME": 0.5}
    hfu = dict.fromkeys(("forward", "backward", "optimizer"), 0.5)
    split = SplitSteps(
        steps=1, time_s=7.0, parts_s=dict.fromkeys(PARTS, 1.0), of_peak=hfu, lead_s=0.5
    )
    everything = Figures(
        step=1, steps=1, time_s=1.0, phases=share, split=split, goodput=share, **numbers
    )
    tags = {tag for tag, _ in scalars(everything)} | {"mfu/how_computed", *TAGS}
    tags |= {"breakdown/wall_time", "goodput_stacked/NAME"}
    tags |= {f"breakdown/{name}" for name in ("BUCKET", "dilation", "table", "waterfall")}
    sampled = [name for name in Telemetry.__struct_fields__ if name not in ("throttle", "absent")]
    told = Telemetry(throttle={"REASON": 1.0}, **dict.fromkeys(sampled, 1))
    tags |= {tag for tag, _ in device_scalars(told)}
    groups = "mfu|run|throughput|time|device|goodput|goodput_stacked|ranks|breakdown"
    page = (ROOT / "docs" / "tensorboard.md").read_text("utf-8")
    rows = re.findall(r"^\| (`\w+/.+?) \|", page.partition("## Every tag")[2], re.MULTILINE)
    named = re.findall(rf"`((?:{groups})/\w+)`", "".join(rows))
    assert sorted(named) == sorted(tags)


def test_the_readme_names_every_argument_of_the_meter_with_its_default() -> None:
    from mfu_torch import Meter

    rows = re.findall(r"^\| `(\w+)=(.+?)` \|", README.read_text("utf-8"), re.MULTILINE)
    parameters = list(inspect.signature(Meter).parameters.values())
    assert rows == [(p.name, repr(p.default).replace("'", '"')) for p in parameters]


def test_the_readme_names_the_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make (\w+)`", README.read_text(encoding="utf-8")):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_table_of_conventions_is_that_of_the_calculator() -> None:
    from mfu_torch.calculator import read_question, spread
    from mfu_torch.flops.formulas import CONVENTIONS

    question = read_question(
        {
            "model": "llama-3-70b",
            "seq": 8192,
            "tokens_per_s_per_device": 866.77,
            "peak_flops_per_s": 989e12,
        }
    )
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(
        r"^\| `([\w-]+)` \| (.+?) \| .+ \| ([MH]FU [\d.]+ %) \|$", text, re.MULTILINE
    )
    assert shown == [
        (
            row.convention,
            CONVENTIONS[row.convention].formula,
            f"{'MFU' if CONVENTIONS[row.convention].counts == 'model' else 'HFU'} "
            f"{row.share * 100:.2f} %",
        )
        for row in spread(question).rows
    ]


def test_the_links_of_the_readme_lead_somewhere() -> None:
    assert_links_lead_somewhere(README)


# --- the check itself can fail -------------------------------------------------------------------

_OUTPUT = """\
mfu_torch on AMD EPYC, attention full
peak fp32 201 GFLOP/s dense, measured: fp32 matmul 512x512x512 on 2 threads, torch 2.13.0+cpu, best
      of 32
step    10  68.2 ms/step  MFU 78.3 %  HFU 78.3 %  158 GFLOP/s  15.0k samples/s  data wait 1.3 %
AMD EPYC | 30 steps | 2.84 s | completed

MFU           74.2 % steady-state, 56.5 % end-to-end   (attention full; causal: 70.1 %)
Where the wall time went                                 seconds     share %   MFU gap, points
  steady steps (29)                                       2.0855        73.5               0.0
  total                                                   2.8357       100.0              17.8

FLOPs per step (30 of 30 steps)
  forward                         4.29 GFLOP (40.0 %)
  model FLOPs                     10.7 GFLOP   (attention causal: 10.1 GFLOP)

Peaks, dense, per device
  bf16        989 TFLOP/s, datasheet: A sheet
"""

_SAME = {
    "device": ("AMD EPYC", "Some CPU @ 2.90GHz"),
    "step time": ("68.2 ms/step", "1.01 s/step"),
    "utilization": ("MFU 78.3 %", "MFU 0.0042 %"),
    "rate": ("158 GFLOP/s", "1.58 TFLOP/s"),
    "throughput": ("15.0k samples/s", "986 samples/s"),
    "wall time": ("2.0855        73.5", " 20.85         3.5"),
    "gap": ("100.0              17.8", "100.0              -1.8"),
    "measurement": ("best\n      of 32", "best of\n      7"),
}

_WRONG: dict[str, tuple[str, str]] = {
    "FLOPs": ("forward                         4.29", "forward                         4.30"),
    "share of the FLOPs": ("(40.0 %)", "(40.1 %)"),
    "causal FLOPs": ("causal: 10.1", "causal: 10.2"),
    "disturbed": ("of 32", "of 32, on 50% of their time"),
    "data wait": ("  data wait 1.3 %", ""),
    "label": ("model FLOPs ", "Model FLOPs "),
    "number of steps": ("30 of 30", "30 of 31"),
    "steady steps": ("(29)", "(30)"),
    "dtype": ("matmul", "madmul"),
    "unit": ("158 GFLOP/s", "158 GFLOP"),
    "convention": ("attention full;", "attention causal;"),
    "known peak": ("989 TFLOP/s", "990 TFLOP/s"),
    "gap that is not known": ("100.0              17.8", "100.0                 -"),
    "line that is missing": ("  total", "  sum"),
    "line that is there": ("FLOPs per step", "Notes\n  - one\n\nFLOPs per step"),
    "order": ("dense, per device", "per device, dense"),
}


@pytest.mark.parametrize("change", _SAME.values(), ids=_SAME)
def test_measured_numbers_may_differ(change: tuple[str, str]) -> None:
    assert change[0] in _OUTPUT
    assert_shown(_OUTPUT, _OUTPUT.replace(*change))


@pytest.mark.parametrize("change", _WRONG.values(), ids=_WRONG)
def test_a_wrong_line_is_found(change: tuple[str, str]) -> None:
    assert change[0] in _OUTPUT
    with pytest.raises(AssertionError):
        assert_shown(_OUTPUT.replace(*change), _OUTPUT)


def test_dots_stand_for_any_lines_but_not_for_wrong_ones() -> None:
    assert_shown("one\n...\nfour\n", "one\ntwo\nthree\nfour\n")
    with pytest.raises(AssertionError):
        assert_shown("one\n...\nfive\n", "one\ntwo\nthree\nfour\n")


def _document(tmp_path: Path, text: str) -> list[Checked]:
    path = tmp_path / "document.md"
    path.write_text(text, encoding="utf-8")
    return check_document(path, tmp_path, not_run={})


_TWO = "# A document\n\n```python\na = 1 + 1\n```\n\n```python\nprint(a)\n```\n\n"


def test_a_document_with_a_wrong_output_fails(tmp_path: Path) -> None:
    assert_all_shown(_document(tmp_path, _TWO + "```text\n2\n```\n"), not_shown={})
    with pytest.raises(AssertionError, match=r"line 8: print\(a\)"):
        assert_all_shown(_document(tmp_path, _TWO + "```text\n3\n```\n"), not_shown={})


def test_a_document_that_hides_what_is_printed_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="prints what is not shown"):
        assert_all_shown(_document(tmp_path, _TWO), not_shown={})


def test_code_that_fails_is_reported_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="line 8"):
        _document(tmp_path, _TWO.replace("print(a)", "print(b)"))


@pytest.mark.parametrize("shown", ["mfu-torch 0.0", "usage"])
def test_a_command_with_a_wrong_output_fails(tmp_path: Path, shown: str) -> None:
    text = f"```console\n$ mfu-torch --version\n{shown}\n```\n"
    with pytest.raises(AssertionError):
        assert_all_shown(_document(tmp_path, text), not_shown={})


@pytest.mark.parametrize("link", ["[a](no-such-file.md)", "[a](#no-such-title)"])
def test_a_link_that_leads_nowhere_is_found(tmp_path: Path, link: str) -> None:
    path = tmp_path / "document.md"
    path.write_text(f"# A title\n\n{link}, [a title](#a-title)\n", encoding="utf-8")
    with pytest.raises(AssertionError):
        assert_links_lead_somewhere(path)
