"""``mfu-torch count``: the FLOPs of a transformers config, without running it."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mfu_torch.cli.output import print_json, wrong_usage

_LONGEST = 10**8
_WIDEST = 10**5  # pixels


def _number(most: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = 0
        if not 1 <= value <= most:
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r}; expected a whole number from 1 to {most}"
            )
        return value

    return whole_number


def _image_size(text: str) -> tuple[int, int]:
    """``"224"`` -> (224, 224); ``"480x640"``: height and width."""
    match = re.fullmatch(r"(\d{1,6})(?:x(\d{1,6}))?", text, re.ASCII)
    sides = [int(side) for side in match.groups() if side] if match else [0]
    if not all(1 <= side <= _WIDEST for side in sides):
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r}; expected pixels, H or HxW: 224 or 480x640, each from 1 to {_WIDEST}"
        )
    return sides[0], sides[-1]


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add, length = parser.add_argument, _number(_LONGEST)
    add("path", metavar="CONFIG", help="a transformers config.json, or the directory that holds it")
    add("--batch", metavar="B", type=_number(10**6), default=1, help="samples; 1 by default")
    add("--seq", metavar="S", type=length, help="tokens of a text, samples or frames of sound")
    add("--target-seq", metavar="T", type=length, help="tokens of a decoder; as --seq by default")
    add("--image-size", metavar="HxW", type=_image_size, help="pixels; the config's by default")
    add("--train", action="store_true", help="count forward and backward, not the forward alone")
    add("--checkpoint", action="store_true", help="with --train: layers run again in the backward")
    add("--dtype", choices=("bf16", "fp16", "fp32"), default="bf16", help="bf16 by default")
    add("--attention", choices=("sdpa", "eager"), help="by default what transformers picks")
    add("--crosscheck", action="store_true", help="beside other counters, forward alone")


def run(args: argparse.Namespace) -> int:
    """Count a model on the meta device and print the table."""
    if args.checkpoint and not args.train:
        return wrong_usage(
            args, "--checkpoint repeats layers in the backward; give --train as well"
        )
    if args.crosscheck and args.train:
        checkpoint = " and --checkpoint" if args.checkpoint else ""
        return wrong_usage(
            args,
            f"--crosscheck compares forwards, since fvcore counts no backward; leave out --train"
            f"{checkpoint}, or count the step without --crosscheck",
        )
    if _is_known_name(args.path):
        return wrong_usage(
            args,
            f"{args.path} is a known model and no config.json, which this command runs; its costs "
            f"by its sizes: mfu-torch calc --model {args.path}",
        )
    with _progress() as tell:
        # torch and transformers take seconds.
        tell("loading torch and transformers")
        from mfu_torch.integrations.configs import build
        from mfu_torch.integrations.meta_run import WrongSize, inputs_for

        tell(f"building the model of {args.path}")
        built = build(args.path, dtype=args.dtype, attention=args.attention, train=args.train)
        name = type(built.model).__name__
        try:
            inputs = inputs_for(built.model, args.batch, args.seq, args.target_seq, args.image_size)
        except WrongSize as wrong:
            tell("")
            return wrong_usage(args, str(wrong))
        tell(f"counting {name}")
        found = _counted(args, built, inputs)
    print_json(found) if args.json else print(found)
    return 0


def _is_known_name(text: str) -> bool:
    if Path(text).exists():
        return False
    from mfu_torch.flops.formulas.known import model_of

    try:
        model_of(text)
    except ValueError:  # no name: what the path lacks is said where it is read
        return False
    return True


def _counted(args: argparse.Namespace, built: Any, inputs: Any) -> Any:
    """What is to be printed: a text, or the values for JSON."""
    from mfu_torch.flops.crosscheck import render as crosscheck_text
    from mfu_torch.insight.count_table import render, summary
    from mfu_torch.integrations.counting import count_model, crosscheck_model

    if args.crosscheck:
        checked = crosscheck_model(built, inputs, dtype=args.dtype)
        return checked if args.json else crosscheck_text(checked)
    found = count_model(
        built, inputs, dtype=args.dtype, train=args.train, checkpoint=args.checkpoint
    )
    return summary(found) if args.json else render(found).rstrip("\n")


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A line on the terminal that says what goes on, and is gone in the end; none in a file."""
    shown = sys.stderr.isatty()

    def tell(what: str) -> None:
        if shown:
            # Back to the start of the line, and what was there is wiped out.
            text = f"{what[:70]} ..." if what else ""
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        tell("")
