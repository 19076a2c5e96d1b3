"""``mfu-torch calc``: MFU from what a log or a claim says, and whatever else the equation gives."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import Any

from mfu_torch.cli.flags import name_unknown_flags
from mfu_torch.cli.output import errors_in_one_line, print_json, wrong_usage

_EPILOG = """\
One of MFU, throughput, GPUs and peak may be left out; it is solved for.

examples:
  a model alone: parameters, FLOPs, attention's share
    mfu-torch calc --model llama-3-8b --seq 8192
  a log that has FLOPs and the time of a step
    mfu-torch calc --model-flops-per-step 2.4e15 --step-seconds 1.2 --gpus 128 \\
        --peak-tflops-per-gpu 80 --samples-per-step 8192
  a claim of tokens/s, with parameters alone
    mfu-torch calc --params 70B --tokens-per-second 2000 --device h100-sxm --mode inference
  the same with the model's sizes: attention, too, and HFU
    mfu-torch calc --model llama-3-70b --seq 8192 --tokens-per-second-per-gpu 866.77 \\
        --gpus 512 --device h100-sxm --recompute full
  a model that is none of the known ones, by the sizes in its paper
    mfu-torch calc --model "layers=22 hidden=2048 heads=32 kv_heads=4 ffn=5632 vocab=32000" \\
        --seq 2048 --tokens-per-second-per-gpu 24k --device a100-sxm-40gb
  TFLOP/s alone
    mfu-torch calc --achieved-tflops-per-gpu 328 --peak-tflops-per-gpu 459
  how far the conventions are apart for that run
    mfu-torch calc --model llama-3-70b --seq 8192 --tokens-per-second-per-gpu 866.77 \\
        --device h100-sxm --all-conventions
  a plan: the GPUs that 15T tokens in 60 days need, and their price
    mfu-torch calc --model llama-3-70b --seq 8192 --mfu 40% --device h100-sxm \\
        --token-budget 15T --days 60 --price-per-gpu-hour 2.50
  a claim of GPU-hours
    mfu-torch calc --model llama-3-70b --token-budget 15T --gpu-hours 6.4M --device h100-sxm
  inference: what binds, compute or memory
    mfu-torch calc --model llama-3-70b --mode decode --batch 16 --context 4096 --gpus 8 \\
        --device h100-sxm

recompute: selective is the scores once more; full every layer (Megatron-LM); checkpoint every
layer but its last product (torch.utils.checkpoint). A source's own HFU is a convention:
korthikanti-selective, megatron, full-recompute (4/3 of everything, the head as well).

numbers: 70B, 15T, 2.4e15, 8,192; times: 1.2 (seconds), "350 ms", "2 h"; shares: 40%, 0.40;
peaks: 989 (TFLOP/s), "0.989 PFLOP/s"; throughput: 2000, "1.2M tokens/s", "90B tokens/day".

Exit codes: 0 done; 1 the answer is no: a share above 100 %, or it does not fit; 2 wrong usage:
malformed, missing, superfluous or contradictory input.
"""

# Group -> its flags: (flag, input, metavar, help). Texts are read where they are used, so that
# whatever is wrong with one is said in one line.
_FLAGS: dict[str, tuple[tuple[str, str, str, str], ...]] = {
    "what it costs, one of": (
        ("--model-flops-per-step", "model_flops_per_step", "F", "model FLOPs of a step, all GPUs"),
        ("--params", "params", "N", "parameters that a token meets; FLOPs are 6N, or 2N"),
        ("--model", "model", "MODEL", "a known model, a transformers config.json, or its sizes"),
    ),
    "how that is counted": (
        ("--mode", "mode", "M", "training (default), inference, prefill or decode"),
        ("--seq", "seq", "S", "tokens of a sequence; those of its training by default"),
        ("--image-size", "image_size", "P", "pixels of a side; those of its source by default"),
        ("--batch", "batch", "B", "sequences (samples) of a step, of all GPUs together"),
        ("--convention", "convention", "NAME", "matmul by default; --conventions lists them"),
        (
            "--recompute",
            "recompute",
            "POLICY",
            "none, selective, full or checkpoint, see below: HFU too",
        ),
    ),
    "how fast it runs": (
        ("--step-seconds", "step_s", "T", "time of a step"),
        ("--tokens-per-second", "tokens_per_s", "R", "of all GPUs together"),
        ("--tokens-per-second-per-gpu", "tokens_per_s_per_device", "R", "of each GPU"),
        (
            "--achieved-tflops-per-gpu",
            "achieved_flops_per_s",
            "A",
            "TFLOP/s of each; needs no cost",
        ),
        ("--samples-per-second", "samples_per_s", "R", "of all GPUs together"),
        ("--tokens-per-step", "tokens_per_step", "N", "of all GPUs together"),
        ("--samples-per-step", "samples_per_step", "N", "of all GPUs together"),
        ("--mfu", "mfu", "SHARE", "if it is known, to solve for another"),
        ("--hfu", "hfu", "SHARE", "the same, with what is computed again"),
    ),
    "what it runs on": (
        ("--gpus", "devices", "N", "how many"),
        ("--peak-tflops-per-gpu", "peak_flops_per_s", "P", "dense peak of one, in TFLOP/s"),
        ("--device", "device", "NAME", "instead of it: h100-sxm; mfu-torch peak --list has all"),
        ("--dtype", "dtype", "D", "of that peak; bf16 by default"),
    ),
    "a whole run": (
        ("--token-budget", "token_budget", "N", "tokens of the run: days and GPU-hours"),
        ("--days", "within_s", "D", "in which the budget is to be, or was, reached"),
        ("--gpu-hours", "device_hours", "H", "of all GPUs, that the budget takes or took"),
        ("--price-per-gpu-hour", "price_per_device_hour", "X", "to have the cost"),
    ),
    "with --mode prefill or decode": (
        ("--context", "context", "C", "tokens of a prompt, or that a new token sees"),
        ("--weight-bytes", "weight_bytes", "N", "bytes of a weight; 2 by default"),
        ("--kv-bytes", "kv_bytes", "N", "bytes of a cached number; 2 by default"),
        ("--bandwidth", "bytes_per_s", "B", "of a GPU's memory, e.g. 3.35TB/s; else --device's"),
    ),
}
_MODES = ("training", "inference", "prefill", "decode")
_NAMES = {name: flag for flags in _FLAGS.values() for flag, name, _, _ in flags}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``mfu-torch calc``."""
    errors_in_one_line(parser)
    name_unknown_flags(parser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    # Else "-1e3" and "-inf" are taken for flags, and the answer is a usage of 20 lines.
    parser._negative_number_matcher = re.compile(r"-(?:\.?[0-9]|inf|nan)", re.IGNORECASE)
    for title, flags in _FLAGS.items():
        group = parser.add_argument_group(title)
        for flag, name, metavar, text in flags:
            group.add_argument(flag, dest=name, metavar=metavar, help=text)
    tables = parser.add_argument_group("tables")
    tables.add_argument(
        "--all-conventions", action="store_true", help="the run by every convention, side by side"
    )
    tables.add_argument(
        "--conventions",
        action="store_true",
        help="every convention: formula, source, what it omits",
    )
    tables.add_argument(
        "--models",
        metavar="FILTER",
        nargs="?",
        const="",
        help="models that are known by name; those whose name has the text",
    )
    tables.add_argument(
        "--published",
        metavar="FILTER",
        nargs="?",
        const="",
        help="published results recomputed; those whose row has the text",
    )


def run(args: argparse.Namespace) -> int:
    """Answer; 1 if a share is above 100 %."""
    from mfu_torch.calculator.question import InputError

    given = {name: getattr(args, name) for name in _NAMES if getattr(args, name) is not None}
    try:
        if args.conventions or args.published is not None or args.models is not None:
            return _table(args, given)
        mode = given.get("mode", "training").strip().lower()
        if mode not in _MODES:
            raise InputError(f"{{mode}}: {mode[:40]!r} is unknown; expected {', '.join(_MODES)}")
        return _serving(args, given) if mode in _MODES[2:] else _calculation(args, given)
    except InputError as problem:
        return wrong_usage(args, problem.named(_NAMES))


def _calculation(args: argparse.Namespace, given: Mapping[str, Any]) -> int:
    from mfu_torch.calculator.answer_table import render
    from mfu_torch.calculator.profile import is_of_model_alone
    from mfu_torch.calculator.question import InputError, read_question
    from mfu_torch.calculator.serving_question import SERVING_ONLY
    from mfu_torch.calculator.solve import solve

    for name in SERVING_ONLY:
        if name in given:
            raise InputError(f"{{{name}}} is for {{mode}} prefill or decode; leave it out")
    question = read_question(_read_flags(given))
    if args.all_conventions:
        return _spread(args, question)
    if is_of_model_alone(question):
        return _profile(args, question)
    answer = solve(question)
    if args.json:
        print_json(answer)
    else:
        print(render(answer), end="")
    return 0 if answer.possible else 1


def _profile(args: argparse.Namespace, question: Any) -> int:
    from mfu_torch.calculator.profile import profile
    from mfu_torch.calculator.profile_table import render_profile

    found = profile(question)
    if args.json:
        print_json(found)
    else:
        print(render_profile(found), end="")
    return 0


def _models(args: argparse.Namespace) -> int:
    from mfu_torch.calculator.profile_table import chosen, render_models
    from mfu_torch.calculator.question import InputError
    from mfu_torch.flops.formulas.known_table import known_families

    try:
        found = chosen(known_families(), args.models)
    except ValueError as problem:  # no name has the text
        raise InputError(str(problem)) from None
    if args.json:
        print_json(found)
    else:
        print(render_models(found), end="")
    return 0


def _spread(args: argparse.Namespace, question: Any) -> int:
    from mfu_torch.calculator.spread import spread
    from mfu_torch.calculator.spread_table import render_spread

    found = spread(question)
    if args.json:
        print_json(found)
    else:
        print(render_spread(found), end="")
    return 0 if found.rows[0].share <= 1 else 1


def _serving(args: argparse.Namespace, given: Mapping[str, Any]) -> int:
    from mfu_torch.calculator.question import InputError
    from mfu_torch.calculator.serving import render
    from mfu_torch.calculator.serving_question import serving_of

    if args.all_conventions:
        raise InputError("--all-conventions are those of training; leave out {mode}")
    values = {name: value for name, value in _read_flags(given).items() if name != "mode"}
    found = serving_of(given["mode"].strip().lower(), values)
    if args.json:
        print_json(found)
    else:
        print(render(found), end="")
    return 1 if found.fits is False or max(found.mfu or 0, found.mbu or 0) > 1 else 0


def _table(args: argparse.Namespace, given: Mapping[str, Any]) -> int:
    """What needs no input."""
    from mfu_torch.calculator.question import InputError

    tables = {
        "--conventions": _conventions if args.conventions else None,
        "--models": _models if args.models is not None else None,
        "--published": _published if args.published is not None else None,
    }
    (flag, printed), *others = [(name, of) for name, of in tables.items() if of is not None]
    beside = [_NAMES[name] for name in given]
    beside += ["--all-conventions"] if args.all_conventions else []
    beside += [name for name, _ in others]
    if beside:
        raise InputError(f"{flag} prints a table that {beside[0]} does not change; leave it out")
    return printed(args)


def _conventions(args: argparse.Namespace) -> int:
    from mfu_torch.calculator.spread_table import conventions_summary, render_conventions

    if args.json:
        print_json(conventions_summary())
    else:
        print(render_conventions(), end="")
    return 0


def _published(args: argparse.Namespace) -> int:
    from mfu_torch.calculator.published import published
    from mfu_torch.calculator.published_table import render
    from mfu_torch.calculator.question import InputError

    try:
        rows = published(args.published or None)
    except ValueError as problem:  # no row has the text
        raise InputError(str(problem)) from None
    if args.json:
        print_json(rows)
    else:
        print(render(rows), end="")
    return 0


def _read_flags(given: Mapping[str, Any]) -> dict[str, Any]:
    """The texts, those whose flag has a unit in its name as numbers in base units."""
    from mfu_torch.calculator.question import read_values
    from mfu_torch.units import parse_days, parse_tflops_per_s

    readers = {
        "peak_flops_per_s": parse_tflops_per_s,
        "achieved_flops_per_s": parse_tflops_per_s,
        "within_s": parse_days,
    }
    named = {name: value for name, value in given.items() if name in readers}
    return {**given, **read_values(named, readers)}
