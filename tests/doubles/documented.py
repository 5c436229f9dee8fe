"""The files that documentation shows: what a page says is what a test runs."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(
    r'^```(?:python|yaml)\n((?:"""|# )(?P<name>\w+\.(?:py|yaml)):.*?)^```$',
    re.MULTILINE | re.DOTALL,
)


def write_programs(page: str, folder: Path) -> list[str]:
    """Write the Python and YAML blocks of ``docs/<page>`` whose docstring or first comment begins
    with a file's name, under that name; returns the names."""
    text = (DOCS / page).read_text(encoding="utf-8")
    names = []
    for block in _BLOCK.finditer(text):
        (folder / block["name"]).write_text(block[1], encoding="utf-8")
        names.append(block["name"])
    return names
