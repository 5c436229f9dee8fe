"""A page as a browser reads it, for tests that ask what is in it."""

from html.parser import HTMLParser

VOID = {"meta", "input", "br"}


class Document(HTMLParser):
    """Elements have to close in their order. ``texts`` and ``scripts`` are what stands in elements
    of each name, and in each script."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.scripts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        tag = self.open[-1] if self.open else ""
        self.texts[tag] = self.texts.get(tag, "") + data
        if tag == "script":
            self.scripts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts.values()).split())

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)
