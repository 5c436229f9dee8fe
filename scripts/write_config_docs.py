"""Write docs/configuration.md from the fields of flowright.config; ``--check`` only compares."""

import argparse
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # need not be installed

from flowright.config.judge import JudgeRewardSection, JudgeServerSection
from flowright.config.llm import LlmFile, ModelEntry
from flowright.config.root import Config, JudgeServerConfig
from flowright.core import plugins

PAGE = Path(__file__).parent.parent / "docs/configuration.md"

HEAD = """\
# Configuration

Generated from `src/flowright/config/` by `python scripts/write_config_docs.py`; a test keeps it \
so.

A run is one YAML file: `python train.py --config config/quickstart.yaml`. Every key below has a \
default, so a file names only what differs; `config/` has files to start from.

- **Overrides.** `key=value` after the options, as often as you like: \
`python train.py --config config/quickstart.yaml grpo.steps=10 policy.lora.rank=8`. The value is \
read as YAML.
- **Environment.** `${NAME}` and `${NAME:-default}` inside a value are read from the environment. \
A variable that is missing and has no default is a mistake.
- **Mistakes.** All of them are reported at once, one line each, and nothing is started: \
`config/mine.yaml: grpo.stepz: unknown key; did you mean grpo.steps?` Exit code 2.
- **What ran.** `config.json` in the run directory is the whole configuration with every default.

Types: `int` and `float` with their bounds; `a` / `b` is one of these words; "or null" means that \
the key may be empty.
"""

BOUNDS = ((Ge, "ge", "≥"), (Gt, "gt", ">"), (Le, "le", "≤"), (Lt, "lt", "<"))


def page() -> str:
    """The whole page."""
    parts = [HEAD, "## Top level\n", describe(Config), table(Config, "")]
    parts += sections(Config, "")
    parts += [
        "## The file of models\n",
        "`llm.file` names the large models. `models` maps a name, which `aflow_executor_model` and "
        "`judge.model` refer to, to these keys:\n",
        describe(ModelEntry),
        table(ModelEntry, ""),
        "## The judge service\n",
        describe(JudgeServerConfig),
        "Such a file (`config/judge_server.yaml`) has the sections `judge`, `llm` and `simulated` "
        "of a run, and `server`:\n",
        table(JudgeServerSection, "server."),
        "## The judge as a reward function\n",
        describe(JudgeRewardSection),
        table(JudgeRewardSection, "reward.config."),
    ]
    assert list(LlmFile.model_fields) == ["models"]
    return "\n".join(parts)


def sections(section: type[BaseModel], prefix: str) -> Iterator[str]:
    """Headline, meaning and table of every section below ``section``, depth first."""
    for name, field in section.model_fields.items():
        if inner := inner_section(field):
            yield f"## `{prefix}{name}`\n\n{describe(inner)}"
            yield table(inner, f"{prefix}{name}.")
            yield from sections(inner, f"{prefix}{name}.")


def inner_section(field: FieldInfo) -> type[BaseModel] | None:
    """The section that a key opens, also where the key may be null."""
    candidates = [field.annotation, *typing.get_args(field.annotation)]
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def describe(section: type[BaseModel]) -> str:
    assert section.__doc__, section
    return f"{' '.join(section.__doc__.split())}\n"


def table(section: type[BaseModel], prefix: str) -> str:
    rows = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in section.model_fields.items():
        if inner_section(field) is field.annotation:
            continue
        if not field.description:
            raise SystemExit(f"flowright.config: {section.__name__}.{name} has no description")
        cells = (
            f"`{prefix}{name}`",
            type_name(field),
            default(field),
            " ".join(field.description.split()),
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def type_name(field: FieldInfo) -> str:
    """The type as a reader of YAML thinks of it, with its bounds."""
    bounds = [
        f"{sign} {getattr(bound, attribute):g}"
        for bound in field.metadata
        for kind, attribute, sign in BOUNDS
        if isinstance(bound, kind)
    ]
    choices = next((f for entry in field.metadata if (f := choices_of(entry))), None)
    name, null, _ = (choices or plain_type(field.annotation)).partition(" or null")
    return f"{name} {', '.join(bounds)}".strip() + null


def choices_of(entry: object) -> str | None:
    """The names of a table whose ``check`` validates the field."""
    table = getattr(getattr(entry, "func", None), "__self__", None)
    if not isinstance(table, plugins.Table):
        return None
    return " / ".join(f"`{name}`" for name in table) + " or `package.module:name`"


def plain_type(annotation: object) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return plain_type(arguments[0])
    if origin is typing.Literal:
        return " / ".join(f"`{word}`" for word in arguments)
    if origin in (typing.Union, UnionType):
        names = [plain_type(a) for a in arguments if a is not NoneType]
        return " or ".join([*names, "null"] if NoneType in arguments else names)
    if origin is tuple:
        return f"list of {plain_type(arguments[0])}"
    if isinstance(origin, type):  # a mapping
        return f"mapping of {' to '.join(plain_type(a) for a in arguments)}"
    assert isinstance(annotation, type)
    if issubclass(annotation, BaseModel):
        return "section"
    return {"str": "text", "Path": "path"}.get(annotation.__name__, annotation.__name__)


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, dict) and value:
        return "; ".join(f"`{name}: {item}`" for name, item in value.items())
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 when the page is out of date")
    check = parser.parse_args().check
    if check and PAGE.read_text(encoding="utf-8") != page():
        print(f"{PAGE}: out of date; run python scripts/write_config_docs.py", file=sys.stderr)
        return 1
    if not check:
        PAGE.write_text(page(), encoding="utf-8")
        print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
