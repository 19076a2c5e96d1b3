"""A model by what a paper's table says of it: ``layers=22 hidden=2048 heads=32 ...``.

The words are the columns of ``data/published.csv``.
"""

from __future__ import annotations

import difflib
import re
from os.path import exists

from mfu_torch.calculator.published_rows import model_of as model_of_cells
from mfu_torch.flops.formulas.configs import Described, ModelError
from mfu_torch.flops.formulas.known import model_of as known_model_of
from mfu_torch.units import count_text, parse_whole

_NEEDED = ("layers", "hidden", "heads", "vocab")
_WIDTHS = ("ffn", "kv_heads", "head_dim", "positions")
_EXPERTS = ("experts", "chosen", "expert_ffn", "shared_ffn", "dense_layers")
_LATENT = ("query_rank", "kv_rank", "nope_dim", "rope_dim", "value_dim")
_WORDS = {"mlp": ("gated", "plain"), "tied": ("yes", "no")}
_KNOWN = (*_NEEDED, *_WIDTHS, *_EXPERTS, *_LATENT, *_WORDS)
_LARGEST = 10**9
_EXAMPLE = "layers=22 hidden=2048 heads=32 kv_heads=4 ffn=5632 vocab=32000"


def model_of(text: str, image_size: int | None = None) -> Described:
    """A model by its sizes, its name or its config.json.

        >>> model_of("layers=22 hidden=2048 heads=32 kv_heads=4 ffn=5632 vocab=32000").model.layers
        22

    Raises:
        ModelError: If it is none of them, or the sizes do not make a model.
    """
    if "=" in text and not exists(text):
        if image_size is not None:
            raise ModelError("sizes are those of a decoder, which takes no images")
        return _of_sizes(text)
    try:
        return known_model_of(text, image=image_size)
    except ModelError as problem:
        said = str(problem)
        if " is no known model " not in said:
            raise
        seen = said.partition("; expected ")[0]
    raise ModelError(
        f"{seen}; expected a name that mfu-torch calc --models lists, the path of a config.json, "
        f"or sizes: {_EXAMPLE}"
    )


def _of_sizes(text: str) -> Described:
    cells = dict.fromkeys((*_KNOWN, "others"), "") | {"id": "the sizes"}
    for pair in re.split(r"[\s,;]+", text.strip(" ,;")):
        name, _, value = pair.partition("=")
        if name not in _KNOWN:
            raise ModelError(f"{pair[:40]!r} is no size{_near(name)}; expected as in {_EXAMPLE}")
        if cells[name]:
            raise ModelError(f"{name} is given twice; expected it once")
        cells[name] = _value(name, value)
    _check(cells)
    notes: tuple[str, ...] = ()
    if cells["ffn"] and not cells["mlp"]:
        cells["mlp"] = "gated"
        notes = ("the MLP is gated, of three products; of two it is mlp=plain",)
    try:
        model = model_of_cells(cells)
        assert model is not None
        parameters = count_text(model.parameters.total)
    except ValueError as problem:
        raise ModelError(str(problem)) from None
    return Described(
        name=f"a decoder of {parameters} parameters",
        model=model,
        seq=None,
        source="the sizes as given",
        notes=notes,
        stated_parameters=None,
    )


def _value(name: str, value: str) -> str:
    if name in _WORDS:
        if value not in _WORDS[name]:
            raise ModelError(f"{name} is {value[:40]!r}; expected {' or '.join(_WORDS[name])}")
        return value
    try:
        size = parse_whole(value)
    except ValueError as problem:
        raise ModelError(f"{name}: {problem}") from None
    if size > _LARGEST:
        raise ModelError(f"{name} is {value[:40]}; expected a whole number from 1 to {_LARGEST}")
    return str(size)


def _check(cells: dict[str, str]) -> None:
    missing = [name for name in _NEEDED if not cells[name]]
    missing += [] if cells["ffn"] or cells["chosen"] else ["ffn"]
    has_experts, has_latents = bool(cells["chosen"]), bool(cells["kv_rank"])
    missing += [n for n in ("experts", "expert_ffn") if has_experts and not cells[n]]
    missing += [n for n in ("nope_dim", "rope_dim", "value_dim") if has_latents and not cells[n]]
    if missing:
        raise ModelError(f"the sizes lack {', '.join(missing)}; expected as in {_EXAMPLE}")
    for first, others in (("chosen", _EXPERTS), ("kv_rank", _LATENT)):
        alone = [name for name in others if cells[name]]
        if alone and not cells[first]:
            raise ModelError(f"{alone[0]} says nothing without {first}; give {first} as well")
    sizes = {name: int(value) for name, value in cells.items() if value.isdigit()}
    _divides(sizes)


def _divides(sizes: dict[str, int]) -> None:
    heads, hidden = sizes["heads"], sizes["hidden"]
    if "head_dim" not in sizes and "kv_rank" not in sizes and hidden % heads:
        raise ModelError(f"hidden {hidden} is no multiple of heads {heads}; give head_dim as well")
    if heads % sizes.get("kv_heads", heads):
        raise ModelError(f"heads {heads} is no multiple of kv_heads {sizes['kv_heads']}")
    if sizes.get("chosen", 0) > sizes.get("experts", 0):
        raise ModelError(f"chosen {sizes['chosen']} is above experts {sizes['experts']}")
    if sizes.get("dense_layers", 0) > sizes["layers"]:
        raise ModelError(f"dense_layers {sizes['dense_layers']} is above layers {sizes['layers']}")


def _near(name: str) -> str:
    near = difflib.get_close_matches(name, _KNOWN, 1)
    return f", did you mean {near[0]}" if near else ""
