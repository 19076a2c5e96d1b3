"""Samples and tokens of a batch, as far as its shapes tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset

from mfu_torch.messages import first_line

Amount = Callable[[Any], "int | None"]
"""What of a batch a step trains on: its tokens, or its samples."""


class Samples:
    """Tells the samples of a batch: the length that all of its tensors have in common.

    A list of images of three channels has a length in common, too. So that length has to be what
    the loader was asked for, where it was; the first batch that has another ends it.

    Attributes:
        may_be_short: The batch is the last of its epoch.
    """

    def __init__(self) -> None:
        self.may_be_short = False
        self._sizes: list[int | None] = []  # of the loaders
        self._misleading = False

    def expect(self, loader: Any) -> None:
        """Batches of this loader come."""
        whole = not isinstance(getattr(loader, "dataset", None), IterableDataset)
        size = getattr(loader, "batch_size", None)  # of a stream, a worker's last batch is short
        self._sizes.append(size if whole and isinstance(size, int) else None)

    def of(self, batch: object) -> int | None:
        """Of a batch; ``None`` where its shapes do not tell."""
        lengths = {tensor.shape[0] for tensor in _tensors(batch) if tensor.dim()}
        length = lengths.pop() if len(lengths) == 1 else None
        asked = self._sizes[-1] if len(set(self._sizes)) == 1 else None
        if length is not None and asked is not None and length != asked:
            self._misleading |= length > asked or not self.may_be_short
        return None if self._misleading else length


def tokens_in(batch: object) -> int | None:
    """Elements of ``input_ids``, padding included; ``None`` where a batch has none."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if ids is None:
        ids = getattr(batch, "input_ids", None)
    return ids.numel() if isinstance(ids, torch.Tensor) else None


def check_amount(name: str, amount: object) -> None:
    """Refuse what cannot tell an amount.

    Raises:
        TypeError: If it is neither a function nor ``None``.
    """
    if not (amount is None or callable(amount)):
        raise TypeError(
            f"{name} is {amount!r}; expected a function that tells a batch's {name}, e.g. "
            f"lambda batch: batch[0].numel()"
        )


def told(name: str, amount: Amount, batch: object) -> tuple[int | None, str]:
    """An amount, and what is to be said where the user's function fails."""
    try:
        return amount(batch), ""
    except Exception as error:  # code of the user's, which the training does not depend on
        return None, (
            f"{name}= failed on a batch of type {type(batch).__name__} "
            f"({type(error).__name__}: {first_line(error)}), so {name}/s is not reported"
        )


def _tensors(batch: object) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _tensors(value)
    elif hasattr(batch, "__dict__") and not isinstance(batch, type):
        for value in vars(batch).values():
            if isinstance(value, torch.Tensor):
                yield value
