"""``mfu-torch count``: the FLOPs of a transformers config, without running it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from mfu_torch.cli.output import print_json, wrong_usage


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


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add, length = parser.add_argument, _number(10**8)
    add("path", metavar="CONFIG", help="a transformers config.json, or the directory that holds it")
    add("--batch", metavar="B", type=_number(10**6), default=1, help="samples; 1 by default")
    add("--seq", metavar="S", type=length, help="tokens of a text, samples or frames of sound")
    add("--target-seq", metavar="T", type=length, help="tokens of a decoder; as --seq by default")
    add("--train", action="store_true", help="count forward and backward, not the forward alone")
    add("--checkpoint", action="store_true", help="with --train: layers run again in the backward")
    add("--dtype", choices=("bf16", "fp16", "fp32"), default="bf16", help="bf16 by default")
    add("--attention", choices=("sdpa", "eager"), help="by default what transformers picks")
    add("--crosscheck", action="store_true", help="beside other counters, forward alone")


def run(args: argparse.Namespace) -> int:
    """Count a model on the meta device and print the table."""
    from mfu_torch.insight.count_table import render, summary
    from mfu_torch.integrations.configs import build
    from mfu_torch.integrations.counting import count_model, crosscheck_model
    from mfu_torch.integrations.meta_run import LengthMissing, inputs_for

    if args.checkpoint and not args.train:
        return wrong_usage(
            args, "--checkpoint repeats layers in the backward; give --train as well"
        )
    built = build(args.path, dtype=args.dtype, attention=args.attention, train=args.train)
    try:
        inputs = inputs_for(built.model, args.batch, args.seq, args.target_seq)
    except LengthMissing as missing:
        return wrong_usage(args, str(missing))
    if args.crosscheck:
        checked = crosscheck_model(built, inputs)
        print_json(checked) if args.json else print(_rendered_crosscheck(checked))
        return 0
    found = count_model(
        built, inputs, dtype=args.dtype, train=args.train, checkpoint=args.checkpoint
    )
    if args.json:
        print_json(summary(found))
    else:
        print(render(found), end="")
    return 0


def _rendered_crosscheck(checked: Any) -> str:
    from mfu_torch.flops.crosscheck import render

    return render(checked)
