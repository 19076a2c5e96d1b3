"""The rows of ``data/published.csv`` as claims: sizes to models, percents to fractions.

An empty cell is what the source does not state. What stands under ``assumed`` is an input that the
source does not print. Where heads are not stated, one of h stands for them: the scores of a GPT
cost L h s, however many there are.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from importlib import resources
from typing import cast

from mfu_torch.calculator.claims import Claim, Figures
from mfu_torch.flops.formulas import (
    MLP,
    Attention,
    Block,
    Decoder,
    Experts,
    LatentAttention,
    Part,
    Role,
)

_TERA = 1e12
Cells = Mapping[str, str]


@functools.cache
def claims() -> tuple[Claim, ...]:
    """All rows of the table, in its order."""
    return tuple(claim_of(cells) for cells in rows())


@functools.cache
def rows() -> tuple[dict[str, str], ...]:
    """The cells of the table."""
    text = (resources.files("mfu_torch") / "data" / "published.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def claim_of(cells: Cells) -> Claim:
    """One row.

    Raises:
        ValueError: If a cell is no number, or the sizes do not make a model.
    """
    devices = _whole(cells, "devices") or 1
    given = _tera(cells, "given_tflops")
    aggregate = _number(cells, "aggregate_pflops")
    if aggregate is not None:
        given = aggregate * 1e15 / devices
    return Claim(
        id=cells["id"],
        source=cells["source"],
        name=cells["model"],
        device=cells["device"],
        model=model_of(cells),
        convention=cells["convention"],
        hardware_convention=cells["hardware_convention"],
        flops_convention=cells["tflops_convention"],
        without=cast(tuple[Role, ...], tuple(cells["without"].split())),
        parameters=_number(cells, "parameters"),
        seq=_whole(cells, "seq"),
        batch=_whole(cells, "batch"),
        devices=devices,
        peak_flops_per_s=_tera(cells, "peak_tflops"),
        tokens_per_s=_number(cells, "tokens_per_s"),
        step_s=_number(cells, "step_s"),
        step_flops=_number(cells, "step_flops"),
        given_flops_per_s=given,
        given_step=_tera(cells, "given_tflops_step") or 0.0,
        given_hfu=_percent(cells, "given_hfu"),
        train_tokens=_number(cells, "train_tokens"),
        stated=Figures(
            mfu=_percent(cells, "mfu"),
            hfu=_percent(cells, "hfu"),
            flops_per_s=_tera(cells, "tflops"),
            flops_per_token=_tera(cells, "tflop_per_token"),
            hardware_flops_per_token=_tera(cells, "hardware_tflop_per_token"),
            days=_number(cells, "days"),
        ),
        assumed=tuple(cells["assumed"].split()),
        exception=cells["exception"],
        note=cells["note"],
    )


def model_of(cells: Cells) -> Decoder | None:
    """The model of a row; ``None`` where its sizes are not stated."""
    layers, hidden, vocab = (_whole(cells, name) for name in ("layers", "hidden", "vocab"))
    if layers is None or hidden is None or vocab is None:
        return None
    return Decoder(
        hidden=hidden,
        vocab=vocab,
        blocks=_blocks(cells, layers, hidden),
        is_tied=cells["tied"] == "yes",
        learned_positions=_whole(cells, "positions") or 0,
        others=_whole(cells, "others") or 0,
    )


def _blocks(cells: Cells, layers: int, hidden: int) -> tuple[Block, ...]:
    width, chosen = _whole(cells, "ffn"), _whole(cells, "chosen")
    mlp = None if width is None else MLP(width=width, is_gated=cells["mlp"] == "gated")
    experts = None if chosen is None else _experts(cells, chosen)
    dense = layers if experts is None else _whole(cells, "dense_layers") or 0
    found: list[Block] = []
    for part, count in ((mlp, dense), (experts, layers - dense)):
        if count:
            if part is None:
                raise ValueError(f"{cells['id']}: ffn is missing; expected the width of the MLP")
            parts: tuple[Part, ...] = (_attention(cells, hidden), part)
            found.append(Block(parts=parts, count=count))
    return tuple(found)


def _attention(cells: Cells, hidden: int) -> Part:
    heads = _whole(cells, "heads") or 1
    kv_rank = _whole(cells, "kv_rank")
    if kv_rank is not None:
        return LatentAttention(
            heads=heads,
            query_rank=_whole(cells, "query_rank"),
            kv_rank=kv_rank,
            nope_dim=_whole(cells, "nope_dim") or 0,
            rope_dim=_whole(cells, "rope_dim") or 0,
            value_dim=_whole(cells, "value_dim") or 0,
        )
    return Attention(
        heads=heads,
        kv_heads=_whole(cells, "kv_heads") or heads,
        head_dim=_whole(cells, "head_dim") or hidden // heads,
    )


def _experts(cells: Cells, chosen: int) -> Experts:
    return Experts(
        experts=_whole(cells, "experts") or chosen,
        chosen=chosen,
        width=_whole(cells, "expert_ffn") or 0,
        shared_width=_whole(cells, "shared_ffn") or 0,
    )


def _number(cells: Cells, name: str) -> float | None:
    text = cells[name]
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{cells['id']}: {name} is {text!r}; expected a number") from None


def _whole(cells: Cells, name: str) -> int | None:
    value = _number(cells, name)
    if value is not None and value != int(value):
        raise ValueError(f"{cells['id']}: {name} is {cells[name]!r}; expected a whole number")
    return None if value is None else int(value)


def _tera(cells: Cells, name: str) -> float | None:
    value = _number(cells, name)
    return None if value is None else value * _TERA


def _percent(cells: Cells, name: str) -> float | None:
    value = _number(cells, name)
    return None if value is None else value / 100
