"""``--dtype`` of the commands that take several."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any


def add_dtypes(parser: argparse.ArgumentParser, choices: tuple[str, ...]) -> None:
    """Add ``--dtype``, a list with commas, or repeated: what follows the list may be a name.

    Torch's names (``bfloat16``) are known, too.
    ``--dtype bf16,fp8 --dtype fp32`` gives ``("bf16", "fp8", "fp32")``; nothing gives ``choices``.
    """
    parser.add_argument(
        "--dtype",
        metavar="D[,D]",
        type=_one_of(choices),
        action=_Extend,
        default=choices,
        help=f"of {', '.join(choices)}; all by default",
    )


class _Extend(argparse.Action):
    """Collects; argparse's own would add to the default."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        seen = getattr(namespace, self.dest)
        before = () if seen is self.default else seen
        setattr(namespace, self.dest, tuple(dict.fromkeys((*before, *(values or ())))))


def _one_of(choices: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parsed(text: str) -> tuple[str, ...]:
        found = tuple(part.strip() for part in text.split(",") if part.strip())
        return tuple(map(one, found or (text,)))

    def one(text: str) -> str:
        dtype = canonical(text)
        if dtype not in choices:
            raise argparse.ArgumentTypeError(
                f"invalid choice: {text[:40]!r} (choose from {', '.join(choices)})"
            )
        return dtype

    return parsed


def canonical(text: str) -> str:
    """``"BF16"`` or torch's ``"bfloat16"`` -> ``"bf16"``; what is no dtype as it is."""
    from mfu_torch.peak.names import canonical_dtype  # here, so that the help is instant

    try:
        return canonical_dtype(text)
    except ValueError:
        return text
