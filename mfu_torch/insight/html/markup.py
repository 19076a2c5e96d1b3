"""Elements of a page. Text becomes markup in one place, so no text of a run is left unescaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

_VOID = frozenset({"br", "meta"})

# Control characters, halves of characters, what is none, and marks that turn the direction of what
# follows: a name with these could look like another, or break the file.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069"
    "\ufdd0-\ufdef\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | None | Iterable["Child"]
"""Text, markup, nothing, or several of them."""


def escaped(text: str) -> Markup:
    r"""Text as markup that shows it; what cannot be seen is shown as ``\x1b`` or ``\u202e``."""
    if isinstance(text, Markup):
        return text
    return Markup(html.escape(visible(text)))


def visible(text: str) -> str:
    """Text with an escape in place of every character that cannot be seen."""
    return _UNSEEN.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def element(tag: str, *children: Child, **attributes: str | float | None) -> Markup:
    """One element. ``element("a", "x < y", class_="b")``: ``<a class="b">x &lt; y</a>``.

    Args:
        tag: Its name.
        *children: What is in it; text is escaped, markup is not.
        **attributes: ``class_`` is ``class``, ``aria_label`` is ``aria-label``; those that are
            ``None`` are left out.
    """
    words = [tag]
    for name, value in attributes.items():
        if value is not None:
            words.append(f'{name.rstrip("_").replace("_", "-")}="{escaped(str(value))}"')
    opening = f"<{' '.join(words)}>"
    return Markup(opening if tag in _VOID else f"{opening}{joined(*children)}</{tag}>")


def joined(*children: Child) -> Markup:
    """Several children after one another."""
    return Markup("".join(_flat(children)))


def _flat(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if isinstance(child, str):
            yield escaped(child)
        elif child is not None:
            yield from _flat(child)


def table(titles: Iterable[str], rows: Iterable[Iterable[Child]], class_: str = "") -> Markup:
    """A table; the first cell of a row is its name."""
    head = element("tr", [element("th", title, scope="col") for title in titles])
    body = [
        element("tr", element("th", first, scope="row"), [element("td", cell) for cell in rest])
        for first, *rest in map(list, rows)
    ]
    inner = element("table", element("thead", head), element("tbody", body), class_=class_ or None)
    return element("div", inner, class_="scroll")


def pairs(rows: Iterable[tuple[str, Child]]) -> Markup:
    """Labels with what they stand for; those with nothing are left out."""
    return element(
        "dl", [(element("dt", label), element("dd", text)) for label, text in rows if text]
    )
