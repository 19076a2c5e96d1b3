"""The fields of a config: sizes are whole numbers, and what is absent has its family's default."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mfu_torch.flops.formulas.configs.described import ModelError

MOST_LAYERS = 10_000
LARGEST_SIZE = 10**9

Default = int | bool | str | None
"""A default of transformers. Text names another field that it equals: ``"num_attention_heads"``."""

# Without these a file describes no model, whatever its family has by default.
_ESSENTIAL = ("hidden_size", "num_hidden_layers", "num_attention_heads")


class Fields:
    """Reads a config by the names that most families use.

    Attributes:
        where: The file, for messages.
        kind: Its model_type.
        absent: Sizes that were asked for and are not in the file, each with its default.
        notes: What else has to be said, a sentence each.
        asked: Names of fields that were looked for.
    """

    def __init__(
        self,
        where: str,
        values: Mapping[str, Any],
        *,
        defaults: Mapping[str, Default],
        names: Mapping[str, tuple[str, ...]],
        deaf: tuple[str, ...] = (),
        is_nested: bool = False,
    ) -> None:
        """Takes a config apart.

        Args:
            where: The file, for messages.
            values: Its fields.
            defaults: What absent fields are.
            names: The family's own names of a field, beside the common one.
            deaf: Common names that the family does not read, so that they are as absent.
            is_nested: It is a part of another, so that any field may be absent.
        """
        self.where = where
        self.kind = str(values.get("model_type"))
        self.absent: list[str] = []
        self.notes: list[str] = []
        self.asked: set[str] = set()
        self._values = {k: v for k, v in values.items() if k not in deaf}
        self._defaults, self._names, self._deaf = defaults, names, deaf
        self._is_nested = is_nested

    @property
    def known(self) -> set[str]:
        """Names that were looked for, and all that the family has: it may not need each of them."""
        own = {each for names in self._names.values() for each in names}
        return {*self.asked, *self._defaults, *self._names, *own} - {*self._deaf}

    @property
    def class_name(self) -> str | None:
        """The class of transformers that the file names first; ``None`` where it names none.

        Raises:
            ModelError: If ``architectures`` holds something else.
        """
        value = self._values.get("architectures")
        names = (value,) if isinstance(value, str) else self.texts("architectures")
        return names[0] if names else None

    def has(self, name: str) -> bool:
        """Whether the file gives it, null included."""
        return self._own_name(name) in self._values

    def raw(self, name: str) -> Any:
        """Its value as it is, or its default.

        Raises:
            ModelError: If the file gives it under two names with different values.
        """
        own = self._own_name(name)
        for other in (*self._names.get(name, ()), name):
            values = (self._values.get(own), self._values.get(other))
            if other != own and None not in values and values[0] != values[1]:
                raise self.error(
                    f"{own} is {_shown(values[0])} and {other} {_shown(values[1])}; expected one "
                    "of the two, or equal ones"
                )
        if own in self._values:
            return self._values[own]
        default = self._defaults.get(name)
        return self.raw(default) if isinstance(default, str) else default

    def size(self, name: str, *, least: int = 1, most: int | None = None) -> int:
        """A whole number from ``least`` up.

        Raises:
            ModelError: If it is none, or neither the file nor the family has it.
        """
        value = self.optional(name, least=least, most=most)
        if value is None:
            own = self._own_name(name)
            raise self.error(f"{own} is missing; expected a whole number above {least - 1}")
        return value

    def optional(self, name: str, *, least: int = 1, most: int | None = None) -> int | None:
        """A whole number from ``least`` up, or ``None``.

        Raises:
            ModelError: If it is something else.
        """
        if name in _ESSENTIAL and not self.has(name) and not self._is_nested:
            raise self.error(
                f"{self._own_name(name)} is missing; expected the sizes of a model, at least "
                f"{', '.join(self._own_name(each) for each in _ESSENTIAL)}"
            )
        value = self.raw(name)
        if most is None:
            most = MOST_LAYERS if name.endswith("layers") else LARGEST_SIZE
        if value is not None and not _is_whole(value, least, most):
            raise self.error(
                f"{self._own_name(name)} is {_shown(value)}; expected a whole number from "
                f"{least} to {most}"
            )
        if value is not None and not self.has(name):
            self._note_absent(name, value)
        return value if value is None else int(value)

    def flag(self, name: str) -> bool:
        """True or false; null is false.

        Raises:
            ModelError: If it is something else.
        """
        value = self.raw(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(f"{self._own_name(name)} is {_shown(value)}; expected true or false")
        return bool(value)

    def share(self, name: str, default: float) -> float:
        """A number from 0 to 1.

        Raises:
            ModelError: If it is something else.
        """
        self.asked.add(name)
        value = self._values.get(name, default)
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise self.error(f"{name} is {_shown(value)}; expected a number from 0 to 1")
        return float(value)

    def texts(self, name: str, count: int | None = None) -> tuple[str, ...] | None:
        """A list of names, ``count`` of them; ``None`` where there is none.

        Raises:
            ModelError: If it is something else.
        """
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.error(f"{name} is {_shown(value)}; expected a list of names")
        if count is not None and len(value) != count:
            raise self.error(f"{name} names {len(value)} layers; expected {count}, one for each")
        return tuple(value)

    def numbers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers from 0 up; none where it is absent or null.

        Raises:
            ModelError: If it is something else.
        """
        value = self.raw(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(_is_whole(e, 0, LARGEST_SIZE) for e in value):
            raise self.error(f"{name} is {_shown(value)}; expected a list of whole numbers")
        return tuple(value)

    def inside(self, name: str) -> Fields:
        """The fields of a config within this one; of none where it is absent.

        Raises:
            ModelError: If it is something else.
        """
        value = self.raw(name) if self.has(name) else {}
        if value is not None and not isinstance(value, Mapping):
            raise self.error(f"{name} is {_shown(value)}; expected a config within the config")
        return Fields(
            self.where,
            value or {},
            defaults=self._defaults,
            names=self._names,
            deaf=self._deaf,
            is_nested=True,
        )

    def error(self, text: str) -> ModelError:
        """An error that says which file it is about."""
        return ModelError(f"{self.where}: {text}")

    def _own_name(self, name: str) -> str:
        own = (*self._names.get(name, ()), name)
        self.asked.update(own)
        return next((each for each in own if each in self._values), own[0])

    def _note_absent(self, name: str, value: int) -> None:
        text = f"{self._own_name(name)} {value}"
        if text not in self.absent:
            self.absent.append(text)


def _is_whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):  # not from JSON
        text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
