"""Models that are known by name: ``data/models.csv``, each with its sizes and their source.

A name is compared whole. Case, blanks, hyphens and underscores are all that may differ, an owner
before it (``meta-llama/``) and words in it that change no size (``-hf``, ``-instruct``).
Numbers stay apart: ``llama-3-1b`` is none of ``llama-3.1-...``.

The sizes are fields as the family's ``config.json`` names them, read as such a file is.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import functools
import json
import re
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from mfu_torch.flops.formulas.architecture import Architecture
from mfu_torch.flops.formulas.configs import Described, ModelError, read_config
from mfu_torch.flops.formulas.diffusion import dit
from mfu_torch.flops.formulas.pairs import whole
from mfu_torch.flops.formulas.resnets import resnet

# What no config of transformers describes.
_BUILT: dict[str, Callable[..., Architecture]] = {"dit": dit, "resnet": resnet}

_VAE = 8  # DiT, section 4: pixels of a side for one of the latent

# Words in a name that change no size.
_FINE_TUNED = re.compile(r"[-_ ](hf|instruct|chat|base|it|pt)(?=$|[-_ ])", re.IGNORECASE)

_NEAR = 5  # names that an error offers


def model_of(text: str, *, image: int | None = None) -> Described:
    """The model of a name, or of a ``config.json``.

    ``GPT-3 175B``, ``llama3-70b`` and ``meta-llama/Llama-3-70B`` are names.

    Args:
        text: A path of a ``config.json`` or of the folder that holds it, or a known name.
        image: Pixels of a side, for a model of images; by default those of its source.

    Raises:
        ModelError: If it is neither, the file is no config that is known here, or the model takes
            no images, or none of this size.
    """
    path, name = Path(text), _found(text)
    if _is_config(path) or (name is None and path.suffix == ".json"):
        return read_config(path, image=image)
    if name is None:
        raise ModelError(_unknown(text))
    return _described(name) if image is None else _at(name, image)


def row_of(name: str) -> Mapping[str, str]:
    """The row of a known model.

    Args:
        name: As in the table.
    """
    return _rows()[name]


def known_models() -> tuple[Described, ...]:
    """All models that are known by name, in the order of the table."""
    return tuple(_described(name) for name in _rows())


def sizes_of(name: str) -> tuple[str, Mapping[str, Any]]:
    """The family of a known model, and its fields as the family's config names them.

    Args:
        name: As in the table.
    """
    row = _rows()[name]
    return row["family"], dict(_size(cell) for cell in row["sizes"].split())


def _is_config(path: Path) -> bool:
    try:
        return path.is_file() or (path / "config.json").is_file()
    except OSError:  # no path at all: too long, say
        return False


def _found(text: str) -> str | None:
    """The canonical name of a model, ``None`` where there is none."""
    names = _names()
    tried = [text, text.rpartition("/")[2]]
    tried += [_FINE_TUNED.sub("", each) for each in tried]
    return next((names[_key(each)] for each in tried if _key(each) in names), None)


def _key(text: str) -> str:
    """A name without what may differ: ``"Llama-3.1 70B"`` -> ``"llama3.1|70b"``."""
    text = text.strip().lower()
    text = re.sub(r"(?<=\d)[-_ /]+(?=\d)", "|", text)
    return re.sub(r"[-_ /]+", "", text)


@functools.cache
def _rows() -> Mapping[str, Mapping[str, str]]:
    text = resources.files("mfu_torch").joinpath("data/models.csv").read_text(encoding="utf-8")
    return {row["name"]: row for row in csv.DictReader(text.splitlines())}


@functools.cache
def _names() -> Mapping[str, str]:
    found = {}
    for name, row in _rows().items():
        for each in (name, *filter(None, row["aliases"].split(";"))):
            found[_key(each)] = name
    return found


@functools.cache
def _described(name: str) -> Described:
    return _at(name, None)


def _at(name: str, image: int | None) -> Described:
    row = _rows()[name]
    family, sizes = sizes_of(name)
    note = row["note"]
    notes, most = (note,) if note else (), None
    if family in _BUILT:
        model, of_image = _of_image(name, family, dict(sizes), image)
        notes = (*notes, of_image)
    else:
        read = read_config({"model_type": family, **sizes}, image=image)
        model, notes, most = read.model, (*notes, *read.notes), read.max_seq
    return Described(
        name=name,
        model=model,
        seq=int(row["seq"]) if row["seq"] else None,
        max_seq=most,
        source=row["source"],
        notes=notes,
        stated_parameters=float(row["parameters"]) if row["parameters"] else None,
    )


def _of_image(
    name: str, family: str, sizes: dict[str, Any], image: int | None
) -> tuple[Architecture, str]:
    """Of a model that no config describes, and what is said of its images."""
    step = _VAE if family == "dit" else 1
    side = step * sizes.get("size", 224) if image is None else image
    try:
        if whole("image", side) % step:
            raise ValueError(f"image is {side}; expected a multiple of {step}, the latent's step")
        model = _BUILT[family](**{**sizes, "size": side // step})
    except ValueError as problem:
        raise ModelError(f"{name}: {problem}") from None
    latent = f", a latent of {side // step} x {side // step}" if step > 1 else ""
    return model, f"for {side} x {side} pixels{latent}"


def _size(cell: str) -> tuple[str, Any]:
    name, _, value = cell.partition("=")
    return name, json.loads(value)


def _unknown(text: str) -> str:
    with contextlib.suppress(OSError):  # too long for a path
        if "/" in text and Path(text).is_dir():
            return f"{text}: holds no config.json; expected that of a transformers model"
    near = difflib.get_close_matches(_key(text), list(_names()), _NEAR, 0.5)
    names = list(dict.fromkeys(_names()[each] for each in near))
    offered = f"; near it are {', '.join(names)}" if names else ""
    return (
        f"{_short(text)!r} is no known model and no file{offered}; expected a name of the table "
        "mfu_torch/data/models.csv, or the path of a config.json"
    )


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
