"""Write docs/api.md from the docstrings of the public names."""

import argparse
import inspect
import re
import sys
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # need not be installed

import flowright

PAGE = Path(__file__).parent.parent / "docs/api.md"

HEAD = """\
# What a script may import

Generated from the docstrings by `python scripts/write_api_docs.py`; a test keeps it so.

```python
import flowright

config = flowright.load_config("config/quickstart.yaml", ["grpo.steps=10"])
flowright.train(config)
```

Names are loaded when first used: `import flowright` takes a moment and imports no torch. Other \
modules may change without notice. `help(flowright.NAME)` has the whole docstring.
"""

_ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")


def api() -> str:
    """Return the whole of docs/api.md."""
    parts = [HEAD]
    for module, names in flowright.PUBLIC.items():
        parts.append(f"## {module}\n")
        parts += [entry(name, getattr(flowright, name)) for name in names]
    return "\n".join(parts)


def entry(name: str, thing: Any) -> str:
    """Return a name's signature and summary, and those of its public methods."""
    if not inspect.isclass(thing) and not callable(thing):
        return f"`{name}`: `{thing!r}`\n"
    lines = [f"**`{name}{signature(thing)}`** {summary(thing)}\n"]
    if inspect.isclass(thing):
        for method_name, method in vars(thing).items():
            method = getattr(method, "__func__", method)
            if method_name.startswith("_") or not inspect.getdoc(method):
                continue
            if inspect.isfunction(method) and method.__module__.startswith("flowright"):
                lines.append(f"- `{method_name}{signature(method)}`: {summary(method)}")
            elif isinstance(method, property):
                lines.append(f"- `{method_name}`: {summary(method)}")
        lines += [""] if len(lines) > 1 else []
    return "\n".join(lines)


def signature(thing: Any) -> str:
    """Return a signature without module names."""
    if inspect.isclass(thing) and issubclass(thing, BaseModel):
        return "(**keys)"
    if inspect.isclass(thing) and issubclass(thing, Enum):
        return ""  # Pythons differ in what they say of its constructor
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return ""
    text = text.replace("'", '"').replace("(cls, ", "(")
    text = re.sub(r'"([A-Z]\w*)"', r"\1", text)
    text = re.sub(r'\*<class "(?:\w+\.)*(\w+)">', r"Unpack[\1]", text)  # of Python 3.11
    text = re.sub(r"<factory>|<function [^>]*>|<[^<>]* object at 0x[^<>]*>", "...", text)
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)
    return text.replace("(self, ", "(").replace("(self)", "()").replace(" -> None", "")


def summary(thing: Any) -> str:
    """Return the first sentence of a docstring, on one line."""
    text = _ROLE.sub(r"`\1`", inspect.getdoc(thing) or "").replace("``", "`")
    return re.split(r"(?<=[.:])\s+(?=[A-Z`])", " ".join(text.split("\n\n")[0].split()))[0]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(api(), encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
