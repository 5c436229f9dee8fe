"""Write docs/api.md from the docstrings of what `import flowright` gives; ``--check`` only compares."""

import argparse
import inspect
import re
import sys
from pathlib import Path
from typing import Any

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

Everything here is found as `flowright.NAME` and loaded when it is first used: `import flowright` itself
takes a moment and imports no torch. Other modules may change without notice.
"""

_ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")


def page() -> str:
    """The whole page."""
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
            if inspect.isfunction(method):
                lines.append(f"- `{method_name}{signature(method)}`: {summary(method)}")
            elif isinstance(method, property):
                lines.append(f"- `{method_name}`: {summary(method)}")
        lines.append("")
    return "\n".join(lines)


def signature(thing: Any) -> str:
    """As a reader writes it, without module names."""
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return ""
    text = re.sub(r"<factory>|<function [^>]*>|<[^<>]* object at 0x[^<>]*>", "...", text)
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)
    return text.replace("(self, ", "(").replace("(self)", "()").replace(" -> None", "")


def told(thing: Any) -> str:
    return _ROLE.sub(r"`\1`", inspect.getdoc(thing) or "").replace("``", "`") + "\n"


def summary(thing: Any) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join(told(thing).split("\n\n")[0].split())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where the page is not this")
    arguments = parser.parse_args()
    text = page()
    if arguments.check:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
