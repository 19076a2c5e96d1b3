"""What is known by name, as a table: series of models, each with its size and source."""

from __future__ import annotations

from typing import Literal

from mfu_torch.flops.formulas.known import known_models, row_of
from mfu_torch.records import Record


class KnownModel(Record, frozen=True, kw_only=True):
    """A model that is known by name.

    Attributes:
        name: As it is found.
        aliases: Other names that find it.
        parameters: N, all of them.
        active: N without the experts that a token is not sent to.
        per: What its throughput is counted in.
        seq: Tokens of a sequence in training, where the source states them.
        max_seq: The most tokens of a sequence, where its config states them.
        source: Where its sizes are from.
        notes: What was left out or assumed.
    """

    name: str
    aliases: tuple[str, ...]
    parameters: int
    active: int
    per: Literal["token", "sample"]
    seq: int | None
    max_seq: int | None
    source: str
    notes: tuple[str, ...]


class KnownFamily(Record, frozen=True, kw_only=True):
    """Models of one series.

    Attributes:
        name: Of the series: ``gpt3``, ``llama``, ...
        models: Its models, in the order of the table.
    """

    name: str
    models: tuple[KnownModel, ...]


def known_families() -> tuple[KnownFamily, ...]:
    """All models that are known by name, by series, in the order in which each first comes."""
    of_series: dict[str, list[KnownModel]] = {}
    for described in known_models():
        row, numbers = row_of(described.name), described.parameters
        model = KnownModel(
            name=described.name,
            aliases=tuple(filter(None, row["aliases"].split(";"))),
            parameters=numbers.total,
            active=numbers.active,
            per=described.per,
            seq=described.seq,
            max_seq=described.max_seq,
            source=described.source,
            notes=described.notes,
        )
        of_series.setdefault(row["series"], []).append(model)
    return tuple(KnownFamily(name=n, models=tuple(models)) for n, models in of_series.items())
