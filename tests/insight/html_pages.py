"""A page as a browser's parser sees it, without a browser."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Parses a page and checks that every element is closed where it should be.

    Attributes:
        text: What is shown, or would be if everything was unfolded; also tooltips.
        tags: Every element with its attributes.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[str] = []
        self._texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert self._open == [], f"not closed: {self._open}"
        self.text = " ".join(" ".join(self._texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice: {names}"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, f"</{tag}> closes {self._open[-1:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self._texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(f"a declaration: {data}")

    def of(self, tag: str) -> list[dict[str, str | None]]:
        """Attributes of all elements of a kind."""
        return [attributes for name, attributes in self.tags if name == tag]
