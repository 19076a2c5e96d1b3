"""``mfu-torch plan``: an estimate of a training step, term by term, before it is run."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mfu_torch.cli.flags import name_unknown_flags
from mfu_torch.cli.output import errors_in_one_line, print_json, wrong_usage

if TYPE_CHECKING:
    from mfu_torch.calculator.plan import Layout, Machine

_EPILOG = """\
examples:
  mfu-torch plan gpt3-175b --device a100-sxm-80gb --gpus 1024 --tp 8 --pp 8 \\
      --micro-batches 64 --virtual-stages 3 --recompute selective --sequence-parallel
  mfu-torch plan llama-3-8b --device h100-sxm --gpus 64 --fsdp --batch 256

It is an estimate: docs/planning.md has its errors for 57 published runs. With the published matmul
rate every one of their steps took longer than planned: plans are 11 to 48 % short; of mixtures of
experts far more.

Exit codes: 0 done; 1 it does not fit the memory; 2 wrong usage: malformed, missing or
contradictory input.
"""

# Flag -> (input, metavar, default, help). Texts are read where they are used, so that whatever is
# wrong with one is said in one line.
_FLAGS: dict[str, tuple[str, str, str | None, str]] = {
    "--device": ("device", "NAME", None, "h100-sxm; mfu-torch peak --list has all"),
    "--gpus": ("gpus", "N", None, "all of them"),
    "--tp": ("tp", "N", "1", "tensor parallel"),
    "--pp": ("pp", "N", "1", "pipeline stages"),
    "--cp": ("cp", "N", "1", "context parallel"),
    "--ep": ("ep", "N", "1", "expert parallel, of the data-parallel ranks"),
    "--dp": ("dp", "N", None, "data parallel; what the others leave, checked if given"),
    "--virtual-stages": ("virtual_stages", "V", "1", "chunks of layers on a stage (interleaved)"),
    "--micro-batches": ("micro_batches", "M", None, "of each pipeline, in a step"),
    "--batch": ("batch", "B", None, "sequences of a step, in place of --micro-batches"),
    "--micro-batch-size": ("micro_batch_size", "B", "1", "sequences of one"),
    "--seq": (
        "seq",
        "S",
        None,
        "tokens of a sequence; those of its training by default",
    ),
    "--recompute": ("recompute", "POLICY", "none", "none, selective or full"),
    "--zero": ("zero", "LEVEL", "0", "0; 1 optimizer state, 2 gradients, 3 parameters are spread"),
    "--attention": ("attention", "KIND", "fused", "fused (FlashAttention) or unfused"),
    "--overlap": ("overlap", "LIST", "dp", "of tp,cp,ep,pp,dp: beside compute; none"),
    "--order": ("order", "ORDER", "tp-cp-dp-pp", "of ranks, or tp-cp-pp-dp"),
    "--dtype": ("dtype", "D", "bf16", "of the matmuls"),
    "--efficiency": ("efficiency", "SHARE", None, "of the peak, by matmuls; as published if not"),
    "--intra-node-bandwidth": ("node_bytes_per_s", "B", None, "of a GPU, one direction"),
    "--inter-node-bandwidth": ("network_bytes_per_s", "B", None, "of a GPU, one direction"),
    "--intra-node-latency": ("node_latency_s", "T", None, "of a step of a collective"),
    "--inter-node-latency": ("network_latency_s", "T", None, "of a step of a collective"),
    "--link-efficiency": ("link_efficiency", "SHARE", None, "of a link, by collectives"),
    "--gpus-per-node": ("gpus_per_node", "N", "8", "that the faster link connects"),
    "--convention": ("convention", "NAME", "matmul", "of the MFU; mfu-torch calc --conventions"),
}
_SIZES = ("gpus", "tp", "pp", "cp", "ep", "virtual_stages", "micro_batches")
_BATCH = ("micro_batch_size", "seq")
_WHOLE = (*_SIZES, *_BATCH, "batch", "dp", "gpus_per_node")
_SHARES = ("efficiency", "link_efficiency")
_RATES = ("node_bytes_per_s", "network_bytes_per_s")
_TIMES = ("node_latency_s", "network_latency_s")
_NEEDED = {"device": "h100-sxm", "gpus": "1024"}
_WORDS = ("recompute", "attention", "overlap", "order")
_MACHINE = (*_SHARES, *_RATES, *_TIMES, "gpus_per_node")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``mfu-torch plan``."""
    errors_in_one_line(parser)
    name_unknown_flags(parser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "model", metavar="CONFIG.json|NAME", help="a config, a known model, or sizes as of calc"
    )
    for flag, (name, metavar, default, text) in _FLAGS.items():
        by_default = f"; {default} by default" if default is not None else ""
        parser.add_argument(
            flag, dest=name, metavar=metavar, default=default, help=text + by_default
        )
    parser.add_argument(
        "--sequence-parallel", action="store_true", help="tensor ranks split norms by tokens"
    )
    parser.add_argument(
        "--fsdp", action="store_true", help="the same as --zero 3: parameters are spread"
    )
    parser.add_argument(
        "--ends-as-layers",
        action="store_true",
        help="embedding and head take the place of a layer each in the pipeline",
    )


def run(args: argparse.Namespace) -> int:
    """Print the estimate; 1 if it does not fit."""
    from mfu_torch.records import UnknownPeak

    try:
        return _run(args)
    except UnknownPeak as problem:
        from mfu_torch.calculator.peaks import why_no_peak

        why = why_no_peak(args.device, str(problem))
        return wrong_usage(args, f"--device: {why}; give another --device or --dtype")
    except ValueError as problem:
        # A word of the layout is named as its flag: "recompute is ..." -> "--recompute is ...".
        return wrong_usage(args, re.sub(rf"\A(?=(?:{'|'.join(_WORDS)}) is )", "--", str(problem)))


def _run(args: argparse.Namespace) -> int:
    import msgspec

    from mfu_torch.calculator.plan import plan, render, summary
    from mfu_torch.calculator.sizes import model_of
    from mfu_torch.calculator.work import of_positions
    from mfu_torch.flops.formulas.decoder import Decoder

    given = _read(args)
    described = model_of(args.model)
    model = described.model
    if not isinstance(model, Decoder):
        raise ValueError(
            f"{described.name} is no decoder ({type(model).__name__}); only decoders are planned"
        )
    given.setdefault("seq", described.seq)
    if given["seq"] is None:
        raise ValueError(f"how long the sequences of {described.name} are is not known; give --seq")
    given.setdefault("micro_batches", _micro_batches(given))
    layout = _layout(args, given)
    layout.check(model, given.get("dp"))
    found = plan(
        model,
        layout,
        _machine(given, layout),
        name=described.name,
        convention=args.convention,
    )
    notes = (
        *described.notes,
        *of_positions(described.name, model, layout.seq, described),
    )
    found = msgspec.structs.replace(found, assumptions=(*notes, *found.assumptions))
    if args.json:
        print_json(summary(found))
    else:
        print(render(found), end="")
    return 1 if found.memory.fits is False else 0


def _read(args: argparse.Namespace) -> dict[str, Any]:
    """Numbers from texts; what is not given is absent."""
    from mfu_torch.units import parse_bytes_per_s, parse_seconds, parse_share, parse_whole

    readers: dict[str, Callable[[str], Any]] = {
        **dict.fromkeys(_WHOLE, parse_whole),
        **dict.fromkeys(_SHARES, parse_share),
        **dict.fromkeys(_RATES, parse_bytes_per_s),
        **dict.fromkeys(_TIMES, parse_seconds),
    }
    found: dict[str, Any] = {}
    for flag, (name, *_) in _FLAGS.items():
        text = getattr(args, name)
        if text is None:
            if name in _NEEDED:
                raise ValueError(f"{flag} is missing; give e.g. {flag} {_NEEDED[name]}")
            continue
        try:
            found[name] = readers.get(name, str)(text)
        except (ValueError, OverflowError) as problem:
            raise ValueError(f"{flag}: {problem}") from None
    if args.fsdp:
        if args.zero not in ("0", "3"):
            raise ValueError(f"--fsdp is --zero 3, and --zero is {args.zero}; give one of them")
        found["zero"] = "3"
    if found["zero"] not in ("0", "1", "2", "3"):
        raise ValueError(f"--zero: {found['zero']!r} is no level; expected 0, 1, 2 or 3")
    return found


def _micro_batches(given: dict[str, Any]) -> int:
    """Of each pipeline, by the sequences of a step."""
    batch: int | None = given.get("batch")
    if batch is None and "micro_batches" not in given:
        raise ValueError(
            "how many micro-batches a step has is missing; give e.g. --micro-batches 64, or the "
            "sequences of a step, --batch 1024"
        )
    if batch is None:
        return int(given["micro_batches"])
    from mfu_torch.calculator.plan import ContradictionError

    ranks = max(1, given["gpus"] // (given["tp"] * given["pp"] * given["cp"]))
    each, size = ranks * given["micro_batch_size"], given["micro_batch_size"]
    spelled = f"dp {ranks} x micro-batches of {size}"
    if batch % each:
        raise ContradictionError(
            f"--batch {batch} is no multiple of {spelled}, {each}; expected one that is"
        )
    known: int = given.get("micro_batches", batch // each)
    if known * each != batch:
        raise ContradictionError(
            f"--batch {batch} is not {known} micro-batches x {spelled}, {known * each}; leave one "
            "out"
        )
    return known


def _layout(args: argparse.Namespace, given: dict[str, Any]) -> Layout:
    from mfu_torch.calculator.plan import Layout

    listed: list[Any] = [part.strip() for part in given["overlap"].split(",") if part.strip()]
    return Layout(
        **{name: given[name] for name in (*_SIZES, *_BATCH) if name in given},
        recompute=given["recompute"],
        zero=int(given["zero"]),
        attention=given["attention"],
        overlap=tuple(listed) if listed != ["none"] else (),
        order=given["order"],
        sequence_parallel=args.sequence_parallel,
        ends_as_layers=args.ends_as_layers,
    )


def _machine(given: dict[str, Any], layout: Layout) -> Machine:
    from mfu_torch.calculator.plan import machine_of

    return machine_of(
        given["device"],
        given["dtype"],
        needs_node=layout.gpus > 1,
        needs_network=layout.gpus > given["gpus_per_node"],
        **{name: given[name] for name in _MACHINE if name in given},
    )
