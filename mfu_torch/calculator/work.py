"""The numerator: what one step, token or sample costs, by which convention."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, Literal, cast

from mfu_torch.calculator.question import InputError, Question
from mfu_torch.flops.formulas.conventions import CONVENTIONS, Architecture, flops_per_token
from mfu_torch.flops.formulas.encoder_decoder import EncoderDecoder
from mfu_torch.flops.formulas.pairs import PairRule
from mfu_torch.records import Record
from mfu_torch.units import count_text, scaled

Unit = Literal["step", "token", "sample", "FLOP"]
"""Of throughput; ``FLOP``: nothing is known but FLOP/s."""

# Convention -> which scores it counts; others that take products or sizes count all.
_PAIRS: dict[str, PairRule] = {
    "matmul-causal": "causal",
    "matmul-half": "half",
    "lora": "half",
    "6w": "none",
}
_SAME = 1e-3
_OF_INFERENCE = (
    "it is the forward of whole sequences, as in prefill; decoding has its own mode, decode",
)
_OTHER_FORMS = ("model_flops_per_step", "params", "model")
_NOT_BESIDE_FLOPS = (
    *("seq", "batch", "convention", "recompute", "step_s", "tokens_per_s", "samples_per_s"),
    *("tokens_per_s_per_device", "tokens_per_step", "samples_per_step", "token_budget"),
    *("within_s", "device_hours", "price_per_device_hour", "hfu"),
)


class Work(Record, frozen=True, kw_only=True):
    """FLOPs of one unit of throughput.

    Attributes:
        unit: Of what: a step, a token or a sample; a FLOP where only FLOP/s are given.
        of: Which model, in words.
        convention: By name; ``given`` where FLOPs were.
        formula: For one unit; empty where FLOPs were given.
        leaves_out: What the convention does not count; empty where that is not known.
        model_flops: ``None`` where the convention counts hardware FLOPs.
        hardware_flops: ``None`` where nothing says what is computed again.
        recompute: What is computed again; ``None`` where it was not asked.
        forward_flops: Of the forward alone by that convention; ``None`` where it has none.
        training: Whether a backward is in it.
        seq: Tokens of a sequence, of a model that is known by its sizes.
        assumptions: What was not given and is presumed, as sentences.
        notes: What else has to be said.
    """

    unit: Unit
    of: str
    convention: str
    formula: str = ""
    leaves_out: str = ""
    model_flops: float | None = None
    hardware_flops: float | None = None
    recompute: str | None = None
    forward_flops: float | None = None
    training: bool = True
    seq: int | None = None
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def flops(self) -> float:
        """Those that the convention counts."""
        counted = self.model_flops if self.model_flops is not None else self.hardware_flops
        assert counted is not None
        return counted


def work_of(question: Question) -> Work:
    """The FLOPs that a question is about.

    Raises:
        InputError: If none, or several, of its three forms are given, or what does not go with
            the one that is.
    """
    forms = question.given(*_OTHER_FORMS)
    if len(forms) > 1:
        raise InputError(f"{' and '.join(forms)} both say what a step costs; give one of them")
    if not forms and question.achieved_flops_per_s is not None:
        return _of_flops_per_s(question)
    if not forms:
        raise InputError(
            "what a step costs is missing; give {model} (llama-3-70b, or a config.json), {params} "
            "(70B) or {model_flops_per_step} (2.4e15)"
        )
    if question.model is not None:
        return _of_model(question)
    beside = ("convention", "recompute", "seq")
    if question.params is not None:
        _refuse(question, beside, "{params}", "the sizes of the model: {model}")
        return _of_parameters(question, question.params)
    _refuse(
        question, (*beside, "mode"), "{model_flops_per_step}", "the sizes of the model: {model}"
    )
    assert question.model_flops_per_step is not None
    return Work(
        unit="step",
        of="given FLOPs",
        convention="given",
        model_flops=question.model_flops_per_step,
        assumptions=("the FLOPs are model FLOPs of one step on all devices together",),
    )


def _of_flops_per_s(question: Question) -> Work:
    """Of "328 TFLOP/s of 459": the ratio needs no model."""
    _refuse(question, _NOT_BESIDE_FLOPS, "{achieved_flops_per_s} alone", "what a step costs")
    return Work(
        unit="FLOP",
        of="given FLOP/s",
        convention="given",
        model_flops=1.0,
        training=question.mode != "inference",
        assumptions=(
            "the FLOP/s are model FLOPs, whose share is an MFU; counted with what is computed "
            "again they are an HFU",
        ),
    )


def _refuse(question: Question, names: tuple[str, ...], form: str, needs: str) -> None:
    superfluous = question.given(*names)
    if superfluous:
        raise InputError(
            f"{superfluous[0]} says nothing beside {form}; leave it out, or give {needs}"
        )


def _of_parameters(question: Question, params: float) -> Work:
    training = question.mode != "inference"
    factor = 6 if training else 2
    assumed = ("it is training, k = 6; of inference k is 2",)
    return Work(
        unit="token",
        of=f"{count_text(params)} parameters",
        convention="6n" if training else "2n",
        formula=f"{factor}N",
        leaves_out="attention scores; counts the embedding, norms and biases as products",
        model_flops=factor * params,
        forward_flops=2 * params,
        training=training,
        assumptions=() if question.mode else assumed,
        notes=("N are the parameters that a token meets: of a mixture of experts the active ones",),
    )


def _of_model(question: Question) -> Work:
    name, model, known = described(question.model, question.image_size)
    convention = question.convention or "matmul"
    training = question.mode != "inference"
    unit: Unit = "token" if model.per == "token" else "sample"
    seq, assumptions = _length(question, name, unit, known)
    entry = CONVENTIONS[convention]
    if entry.counts == "hardware":
        _check_hardware(question, convention)
    try:
        flops = unit_flops(model, seq, convention, training=training)
        again = _again(question, model, seq, convention) if question.recompute else None
        forward = _forward(model, seq, convention)
        named = _of_another_hfu(model, seq, convention, question.recompute, again)
    except (ValueError, OverflowError) as problem:
        raise InputError(re.sub(r"\Aseq\b", "{seq}", str(problem))) from None
    return Work(
        unit=unit,
        of=name if seq is None else f"{name}, {seq:,} tokens a sequence",
        convention=convention,
        formula=entry.formula_of(model, training=training),
        leaves_out=entry.leaves_out,
        model_flops=float(flops) if entry.counts == "model" else None,
        hardware_flops=float(flops) if entry.counts == "hardware" else again,
        forward_flops=forward,
        recompute=question.recompute,
        training=training,
        seq=seq,
        assumptions=(*assumptions, *_of_pairs(model, seq)),
        notes=(
            *_of_n(model, known, convention),
            *named,
            *of_positions(name, model, seq, known),
            *(() if training else _OF_INFERENCE),
            *getattr(known, "notes", ()),
        ),
    )


def _check_hardware(question: Question, convention: str) -> None:
    """A convention of hardware FLOPs is for training, and has its own recompute."""
    if question.mode == "inference":
        raise InputError(f"{convention} is for training; {{mode}} inference takes matmul or palm")
    if question.recompute is not None:
        raise InputError(
            f"{{convention}} {convention} counts what is computed again already; leave out "
            "{recompute}, or give {convention} matmul"
        )


def described(given: Any, image_size: int | None = None) -> tuple[str, Architecture, Any]:
    """Name, sizes and, where the model is a known one, what else is known of it."""
    if isinstance(given, str):
        from mfu_torch.calculator.sizes import model_of

        try:
            given = model_of(given, image_size)
        except ValueError as problem:
            raise InputError(f"{{model}}: {problem}") from None
    elif image_size is not None:
        raise InputError("{image_size} is for a model by its name or config; leave it out")
    if hasattr(given, "model") and hasattr(given, "name"):
        return str(given.name), cast("Architecture", given.model), given
    if hasattr(given, "flops") and hasattr(given, "per"):
        return type(given).__name__, cast("Architecture", given), None
    raise InputError(
        f"{{model}} is a {type(given).__name__}; expected a name, sizes, the path of a "
        "config.json, or an architecture of mfu_torch.flops.formulas"
    )


def _length(
    question: Question, name: str, unit: Unit, known: Any
) -> tuple[int | None, tuple[str, ...]]:
    if question.seq is not None or unit == "sample":
        return question.seq, ()
    stated: int | None = getattr(known, "seq", None)
    if stated is None:
        raise InputError(
            f"the tokens of a sequence are missing, and {name} states none; give {{seq}} 8192"
        )
    return stated, (f"sequences of {stated:,} tokens, as its source states",)


def unit_flops(
    model: Architecture, seq: int | None, convention: str, *, training: bool = True
) -> Fraction:
    """FLOPs of a token (of a sample, where the model is per sample), by a convention.

    Raises:
        ValueError: If the convention is not for such a model, or for inference.
    """
    if training:
        return flops_per_token(convention, model, seq)
    if convention.startswith("matmul"):
        if seq is None and model.per == "token":
            raise ValueError("the tokens of a sequence are missing")
        forward = model.flops(seq=seq, attention=_pairs(convention)).forward
        return Fraction(forward, _tokens(model, seq))
    if convention == "lora":
        raise ValueError("lora is for training; inference takes matmul or palm")
    # Their training is three times their forward.
    return flops_per_token(convention, model, seq) / 3


def _pairs(convention: str) -> PairRule:
    """The scores that a convention counts, which are those that are computed again."""
    if CONVENTIONS[convention].takes == "parameters":
        return "none"
    return _PAIRS.get(convention, "full")


def _tokens(model: Architecture, seq: int | None) -> int:
    return seq if model.per == "token" and seq is not None else 1


def _forward(model: Architecture, seq: int | None, convention: str) -> float | None:
    if CONVENTIONS[convention].counts == "hardware" or convention == "lora":
        return None
    return float(unit_flops(model, seq, convention, training=False))


def _again(question: Question, model: Architecture, seq: int | None, convention: str) -> float:
    """Hardware FLOPs: those of the convention, and what the policy computes again."""
    assert question.recompute is not None
    if question.mode == "inference":
        raise ValueError("inference has no backward that computes again; leave out {recompute}")
    form = model.flops(seq=seq, attention=_pairs(convention))
    repeated = Fraction(form.recompute(question.recompute), _tokens(model, seq))
    return float(unit_flops(model, seq, convention) + repeated)


def _of_pairs(model: Architecture, seq: int | None) -> tuple[str, ...]:
    if not isinstance(model, EncoderDecoder):
        return ()
    source = seq if model.source_length is None else model.source_length
    return (
        f"tokens are those of the decoder; for each {seq:,} of them the encoder has {source:,}",
    )


# Convention and policy -> what the same source calls hardware FLOPs.
_NAMED = {
    ("korthikanti", "selective"): "korthikanti-selective",
    ("korthikanti", "full"): "megatron",
    ("megatron-model", "full"): "megatron",
    ("palm", "selective"): "palm-selective",
    ("palm", "full"): "palm-hardware",
    ("mosaic", "full"): "mosaic-hardware",
    ("6n", "full"): "8n",
}


def _of_another_hfu(
    model: Architecture,
    seq: int | None,
    convention: str,
    policy: str | None,
    again: float | None,
) -> tuple[str, ...]:
    """A note where the convention's source has an HFU of its own for that recompute."""
    name = _NAMED.get((convention, policy or ""))
    if name is None or again is None:
        return ()
    flops = float(unit_flops(model, seq, name))
    if abs(flops / again - 1) < _SAME:
        return ()
    return (
        f"the HFU counts what runs again; that of {name}, {CONVENTIONS[name].formula}, has "
        f"{scaled(flops, 'FLOP', 4)} per token: other FLOPs by the same words",
    )


def of_positions(
    name: str, model: Architecture, seq: int | None, known: Any = None
) -> tuple[str, ...]:
    """A note where sequences are longer than the model has positions."""
    beyond = getattr(known, "beyond", None)
    if seq is not None and beyond is not None:
        said = beyond(seq)
        return () if said is None else (said,)
    positions = getattr(model, "learned_positions", 0)
    if seq is None or not 0 < positions < seq:
        return ()
    return (f"{name} has {positions:,} learned positions; sequences of {seq:,} need more",)


def _of_n(model: Architecture, known: Any, convention: str) -> tuple[str, ...]:
    stated = getattr(known, "stated_parameters", None)
    if stated is None or "N" not in CONVENTIONS[convention].formula:
        return ()
    n = count_text(model.parameters.active)
    return (f"N is {n}, from the sizes; the source says {count_text(stated)}",)
