"""Who may import whom: the table below, held by a walk over the imports of every file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mfu_torch

PACKAGE = Path(mfu_torch.__file__).parent

BASE = {"units", "utilization", "messages"}
DATA = {*BASE, "records", "ideal", "step_parts", "figures"}
TERMS = {*DATA, "tags", "ladder", "wall", "flops", "peak", "clock", "run"}

# Part -> the parts that it may import, itself apart. Imports point downwards only; the three
# terms of the formula and the run file never see each other.
MAY_IMPORT: dict[str, set[str]] = {
    "units": set(),
    "messages": set(),
    "utilization": set(),
    "records": BASE,
    "ideal": {*BASE, "records"},
    "resume": {*BASE, "records", "ideal"},
    "step_parts": {*BASE, "records", "ideal"},
    "figures": {*BASE, "records", "ideal", "step_parts"},
    "tags": DATA,
    "ladder": DATA,
    "wall": DATA,
    "flops": DATA,
    "peak": DATA,
    "clock": DATA,
    "run": {*DATA, "wall"},
    "insight": TERMS,
    # Reads no run, and measures nothing: sizes, rates and tables in, figures out.
    "calculator": {*DATA, "flops", "peak"},
    # A sink like those in run, in the one file that may import TensorBoard.
    "integrations.tensorboard": {*DATA, "tags", "wall"},
    # Sets a run up; its default sinks are the run file, the console and TensorBoard.
    "session": {*TERMS, "integrations.tensorboard", "__init__"},
    "bookkeeping": {*TERMS, "session", "settings", "resume"},
    "settings": {*TERMS, "session", "resume"},
    "contexts": set(),
    "splitting": {*TERMS},
    "stepping": {*TERMS, "bookkeeping", "splitting"},
    # A loop some of whose steps are traced; the traces are read by a process of their own.
    "explaining": {*TERMS, "bookkeeping", "splitting", "stepping"},
    # Meter.summary() is the report
    "meter": {
        *TERMS,
        *("session", "settings", "bookkeeping", "contexts", "explaining", "splitting", "stepping"),
        *("resume",),
        *("insight",),
    },
    "integrations": {
        *TERMS,
        *("insight", "meter", "contexts", "resume", "integrations.tensorboard"),
    },
    "cli": {*TERMS, "insight", "calculator", "meter", "integrations", "__init__"},
    "__main__": {"cli"},
    # Only the lazy public names.
    "__init__": {*TERMS, "meter"},
}

# Third party -> the parts that may import it; others are free.
ONLY_IN: dict[str, set[str]] = {
    "torch": {
        *(
            "flops",
            "peak",
            "clock",
            "session",
            "settings",
            "splitting",
            "stepping",
            "explaining",
            "meter",
        ),
        *("integrations", "integrations.tensorboard"),
    },
    "pynvml": {"peak"},
    "amdsmi": {"peak"},
    "psutil": {"peak"},
    "fvcore": {"flops"},
    "tensorboard": {"integrations.tensorboard"},
    "lightning": {"integrations"},
    "pytorch_lightning": {"integrations"},
    "transformers": {"integrations"},
    "rich": {"run"},
    "matplotlib": {"integrations.tensorboard"},
    "prometheus_client": {"integrations"},
    "wandb": {"integrations"},
    "mlflow": {"integrations"},
    "trackio": {"integrations"},
}


def part_of(module: str) -> str:
    """``mfu_torch.flops.ops`` -> ``flops``; the package itself is ``__init__``."""
    names = module.split(".")[1:]
    if names[:2] == ["integrations", "tensorboard"]:
        return "integrations.tensorboard"
    return names[0] if names else "__init__"


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str) -> Iterator[str]:
    """Every module that a source imports, those inside functions and TYPE_CHECKING included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that they can be read and checked"
            yield node.module or ""
            # `from mfu_torch.integrations import tensorboard` imports a module as well.
            for alias in node.names:
                if (PACKAGE.parent / f"{node.module}.{alias.name}".replace(".", "/")).exists() or (
                    PACKAGE.parent / (f"{node.module}.{alias.name}".replace(".", "/") + ".py")
                ).exists():
                    yield f"{node.module}.{alias.name}"


def violations(module: str, source: str) -> list[str]:
    part = part_of(module)
    found = []
    for imported in imports(source):
        top = imported.split(".")[0]
        if top == "mfu_torch":
            target = part_of(imported)
            # `from mfu_torch import records` names the package only on the way to a part of it.
            if target not in {part, "__init__"} | MAY_IMPORT[part]:
                found.append(f"{module} imports {imported}")
        elif part not in ONLY_IN.get(top, {part}):
            found.append(f"{module} imports {imported}")
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=map(module_of, FILES))
def test_imports_point_downwards(path: Path) -> None:
    assert violations(module_of(path), path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mfu_torch.flops.ops", "from mfu_torch.peak.table import peak_for"),
        ("mfu_torch.clock.clocks", "import mfu_torch.run.runfile"),
        ("mfu_torch.records", "def f():\n    from mfu_torch.figures import figures"),
        ("mfu_torch.insight.report", "from mfu_torch import meter"),
        ("mfu_torch.insight.report", "import torch.nn"),
        ("mfu_torch.cli", "import torch"),
        ("mfu_torch.meter", "from mfu_torch.integrations import lightning"),
        ("mfu_torch.meter", "import pynvml"),
    ],
)
def test_the_check_above_can_fail(module: str, source: str) -> None:
    if "lightning" in source and not (PACKAGE / "integrations" / "lightning.py").exists():
        source = "import mfu_torch.integrations.lightning"
    assert violations(module, source) != []


def test_every_part_stands_in_the_table() -> None:
    assert {part_of(module_of(path)) for path in FILES} <= MAY_IMPORT.keys()


def test_the_table_has_no_cycle() -> None:
    above: dict[str, set[str]] = {part: set(below) for part, below in MAY_IMPORT.items()}
    del above["__init__"]  # its names are imported lazily, so it is above and below everything
    while above:
        lowest = [part for part, below in above.items() if not below & above.keys()]
        assert lowest, f"these import each other: {above}"
        for part in lowest:
            del above[part]


def test_only_the_command_line_prints() -> None:
    for path in FILES:
        calls = [
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        ]
        assert not calls or part_of(module_of(path)) == "cli", path
