"""Write docs/api.md, and the rooms in docs/architecture.md, from the docstrings."""

import argparse
import ast
import inspect
import re
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # need not be installed

import flowright

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/flowright"
API, ARCHITECTURE = ROOT / "docs/api.md", ROOT / "docs/architecture.md"
BEGIN, END = "<!-- rooms: python scripts/write_api_docs.py -->\n", "<!-- /rooms -->"

HEAD = """\
# What a script may import

Generated from the docstrings by `python scripts/write_api_docs.py`; a test keeps it so.

```python
import flowright

config = flowright.load_config("config/quickstart.yaml", ["grpo.steps=10"])
flowright.train(config)
```

Everything here is found as `flowright.NAME` and loaded when it is first used: `import flowright` \
itself takes a moment and imports no torch. Other modules may change without notice.
"""

_ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")


def api() -> str:
    """The whole of docs/api.md."""
    parts = [HEAD]
    for module, names in flowright.PUBLIC.items():
        parts.append(f"## {module}\n")
        parts += [entry(name, getattr(flowright, name)) for name in names]
    return "\n".join(parts)


def entry(name: str, thing: Any) -> str:
    """One name: its signature, its docstring, and its public methods'."""
    if not inspect.isclass(thing) and not callable(thing):
        return f"### {name}\n\n`{thing!r}`\n"
    lines = [f"### {name}\n", f"```python\n{name}{signature(thing)}\n```\n", told(thing)]
    if inspect.isclass(thing):
        for method_name, method in vars(thing).items():
            method = getattr(method, "__func__", method)
            if method_name.startswith("_") or not inspect.getdoc(method):
                continue
            if inspect.isfunction(method) and method.__module__.startswith("flowright"):
                lines.append(f"- `{method_name}{signature(method)}`: {summary(method)}")
            elif isinstance(method, property):
                lines.append(f"- `{method_name}`: {summary(method)}")
        lines.append("")
    return "\n".join(lines)


def signature(thing: Any) -> str:
    """As a reader writes it, without module names. Sections of the configuration have a page."""
    if inspect.isclass(thing) and issubclass(thing, BaseModel):
        return "(**keys)  # see configuration.md"
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return ""
    text = text.replace("'", '"').replace("(cls, ", "(")
    text = re.sub(r'"([A-Z]\w*)"', r"\1", text)
    text = re.sub(r"<factory>|<function [^>]*>|<[^<>]* object at 0x[^<>]*>", "...", text)
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)
    return text.replace("(self, ", "(").replace("(self)", "()").replace(" -> None", "")


def told(thing: Any) -> str:
    return _ROLE.sub(r"`\1`", inspect.getdoc(thing) or "").replace("``", "`") + "\n"


def summary(thing: Any) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join(told(thing).split("\n\n")[0].split())


def architecture() -> str:
    """docs/architecture.md with every room and every file of it, by what their docstrings say."""
    before, _, rest = ARCHITECTURE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{rooms()}\n{END}{rest.partition(END)[2]}"


def rooms() -> str:
    folders = sorted({path.parent for path in SOURCE.rglob("*.py")} - {SOURCE})
    parts = [room(folder) for folder in folders]
    return "\n".join([*parts, files("Beside the rooms", SOURCE, skip=())])


def room(folder: Path) -> str:
    name = folder.relative_to(SOURCE).as_posix()
    return files(f"`{name}/`: {first_sentence(folder / '__init__.py')}", folder)


def files(title: str, folder: Path, skip: tuple[str, ...] = ("__init__.py",)) -> str:
    paths = sorted(path for path in folder.glob("*.py") if path.name not in skip)
    lines = [f"- `{path.name}`: {first_sentence(path)}" for path in paths]
    return "\n".join([f"**{title}**", "", *lines, ""])


def first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=\.)\s", " ".join(_ROLE.sub(r"`\1`", text).replace("``", "`").split()))[0]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for path, text in ((API, api()), (ARCHITECTURE, architecture())):
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
