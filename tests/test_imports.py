"""What importing costs: neither the package nor the command line waits for torch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import mfu_torch

ROOT = Path(mfu_torch.__file__).parent.parent

HEAVY = (
    "torch",
    "numpy",
    "tensorboard",
    "rich",
    "lightning",
    "pytorch_lightning",
    "transformers",
    "fvcore",
    "pynvml",
    "prometheus_client",
    "matplotlib",
    "wandb",
    "mlflow",
    "trackio",
)


def loaded_after(code: str) -> list[str]:
    """Which of the heavy modules a fresh interpreter has loaded after running ``code``."""
    check = f"{code}\nimport sys\nprint([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return re.findall(r"'(\w+)'", done.stderr.splitlines()[-1])


@pytest.mark.parametrize(
    "code",
    [
        "import mfu_torch",
        "import mfu_torch; mfu_torch.__version__, dir(mfu_torch)",
        "from mfu_torch import Device, FlopCount, MFUError, Peak, Run, UnknownPeak, read_run",
        "import mfu_torch.cli",
        "from mfu_torch.cli import main; main(['--help'])",
        "from mfu_torch.cli import main; main(['--version'])",
        "from mfu_torch.cli import main; main(['report', 'no-such-run'])",
        "import mfu_torch.figures, mfu_torch.units, mfu_torch.run.runfile, mfu_torch.run.sinks",
        "import mfu_torch.insight.report, mfu_torch.insight.summary",
        "import mfu_torch.calculator, mfu_torch.flops.formulas",
        "import mfu_torch.insight.html",
        "from mfu_torch.cli import main; main(['report', 'no-such-run', '--html', 'x.html'])",
        "from mfu_torch.cli import main; main(['compare', 'no-such-run', 'none'])",
        "from mfu_torch.cli import main; main(['calc', '--params', '70B', '--tokens-per-second', "
        "'2000', '--device', 'h100-sxm'])",
        "from mfu_torch.cli import main; main(['calc', '--model', 'llama-3-70b', "
        "'--all-conventions', '--tokens-per-second-per-gpu', '867', '--device', 'h100-sxm'])",
        "from mfu_torch.cli import main; main(['calc', '--model', 'llama-3-70b', "
        "'--mode', 'decode', '--context', '4096', '--device', 'h100-sxm'])",
        "from mfu_torch.cli import main; main(['calc', '--published', 'palm'])",
    ],
)
def test_reading_a_run_loads_nothing_heavy(code: str) -> None:
    assert loaded_after(code) == []


def test_the_check_above_can_fail() -> None:
    assert "numpy" in loaded_after("import mfu_torch, numpy")


def test_the_command_line_does_not_even_load_the_records_for_its_help() -> None:
    code = "import sys; from mfu_torch.cli import main; main(['--help'])\n"
    code += "assert not [m for m in sys.modules if m.startswith(('msgspec', 'mfu_torch.r'))]"
    assert loaded_after(code) == []


@pytest.mark.parametrize("name", mfu_torch.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(mfu_torch, name) is not None
    assert name in dir(mfu_torch)


def test_what_is_returned_and_raised_in_public_has_a_public_name() -> None:
    assert {"Device", "FlopCount", "MFUError", "Peak", "Run", "UnknownPeak"} <= set(
        mfu_torch.__all__
    )


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'mfu_torch' has no attribute 'nothing'"):
        _ = mfu_torch.nothing


def test_the_version_is_the_one_in_pyproject() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{mfu_torch.__version__}"\n' in text


def test_a_checkout_that_is_not_installed_has_its_version_too(tmp_path: Path) -> None:
    code = "from importlib import metadata\n"
    code += "def missing(name): raise metadata.PackageNotFoundError(name)\n"
    code += "metadata.version = missing\n"
    code += "import mfu_torch; print(mfu_torch.__version__)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == mfu_torch.__version__


def test_a_warning_reaches_a_user_who_has_not_set_up_logging() -> None:
    code = "import logging, mfu_torch; logging.getLogger('mfu_torch.meter').warning('do this')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == "do this\n"
