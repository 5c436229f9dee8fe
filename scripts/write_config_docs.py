"""Write docs/configuration.md from the fields of the sections; ``--check`` only compares,
``--environment package.module:Class`` prints the keys of an environment of your own.
"""

import argparse
import sys
import typing
from collections.abc import Collection, Iterator
from pathlib import Path
from types import NoneType, UnionType

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # need not be installed

from flowright.config.judge import JudgeRewardSection, JudgeServerSection
from flowright.config.llm import LlmFile, ModelEntry
from flowright.config.root import EnvironmentSection
from flowright.core import plugins
from flowright.environments.registry import ENVIRONMENTS, section_of, with_sections

PAGE = Path(__file__).parent.parent / "docs/configuration.md"

HEAD = """\
# Configuration

Generated from `src/flowright/config/` by `python scripts/write_config_docs.py`; a test keeps it \
so.

A run is one YAML file that names only what differs from the defaults below: \
`flowright train --config config/quickstart.yaml`.

- **Overrides**: `key=value` after the options, read as YAML: `grpo.steps=10 policy.lora.rank=8`.
- **Environment**: `${NAME}` and `${NAME:-default}` inside a value; a missing variable without a \
default is an error.
- **Errors** are reported all at once, and nothing is started: \
`config/mine.yaml: grpo.stepz: unknown key; did you mean grpo.steps?` Exit code 2.
- `config.json` in the run directory is the whole configuration.

Each line: key (type and bounds, default): meaning. `a|b` is one of these; `null` means empty.
"""

BOUNDS = ((Ge, "ge", "≥"), (Gt, "gt", ">"), (Le, "le", "≤"), (Lt, "lt", "<"))


def page() -> str:
    """Return the whole page."""
    whole = with_sections(*map(section_of, ENVIRONMENTS))
    parts = [HEAD, "## Top level\n", describe(whole), keys(whole, ""), *sections(whole, "")]
    parts += [
        "## The file of models\n",
        "`llm.file` maps names under `models`, for `aflow_executor_model` and `judge.model`, to:\n",
        keys(ModelEntry, ""),
        "## The judge service\n",
        "`config/judge_server.yaml` has a run's sections `judge`, `llm`, `simulated`, the terms of "
        "`reward`, and:\n",
        keys(JudgeServerSection, "server."),
        "## The judge as a reward function\n",
        describe(JudgeRewardSection),
        keys(JudgeRewardSection, "reward.config."),
    ]
    assert list(LlmFile.model_fields) == ["models"]
    return "\n".join(parts)


def sections(section: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield headline, meaning and keys of every section below `section`, depth first."""
    known: dict[type, str] = {}  # bases of environments' sections whose keys are listed
    for name, field in section.model_fields.items():
        if inner := inner_section(field):
            yield f"## `{prefix}{name}`\n\n{describe(inner)}"
            owners = {key: owner(inner, key) for key in inner.model_fields}
            listed = [key for key in owners if owners[key] in known]
            if listed:
                of = known[owners[listed[0]]]
                yield f"Also the keys of `{of}` from `{listed[0]}` to `{listed[-1]}`.\n"
            yield keys(inner, f"{prefix}{name}.", listed)
            if issubclass(inner, EnvironmentSection):
                known |= {one: name for one in owners.values() if one is not inner}
            yield from sections(inner, f"{prefix}{name}.")


def inner_section(field: FieldInfo) -> type[BaseModel] | None:
    """Return the section that a key opens, also where the key may be null."""
    candidates = [field.annotation, *typing.get_args(field.annotation)]
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def describe(section: type[BaseModel]) -> str:
    assert section.__doc__, section
    return f"{' '.join(section.__doc__.split())}\n"


def owner(section: type[BaseModel], name: str) -> type:
    """Return the first class that has a key."""
    bases = [base for base in section.__mro__ if name in getattr(base, "model_fields", ())]
    return bases[-1]


def keys(section: type[BaseModel], prefix: str, without: Collection[str] = ()) -> str:
    """Return one line per key of a section."""
    lines = []
    for name, field in section.model_fields.items():
        if name in without or inner_section(field) is field.annotation:
            continue
        if not field.description:
            raise SystemExit(f"flowright.config: {section.__name__}.{name} has no description")
        kind, meaning = type_name(field), " ".join(field.description.split())
        lines.append(f"- `{prefix}{name}` ({kind}, {default(field)}): {meaning}")
    return "\n".join(lines) + "\n"


def type_name(field: FieldInfo) -> str:
    """Return the type as a reader of YAML thinks of it, with its bounds."""
    bounds = [
        f"{sign}{getattr(bound, attribute):g}"
        for bound in field.metadata
        for kind, attribute, sign in BOUNDS
        if isinstance(bound, kind)
    ]
    choices = next((f for entry in field.metadata if (f := choices_of(entry))), None)
    name, null, _ = (choices or plain_type(field.annotation)).partition("|null")
    return f"{name}{''.join(bounds)}{null}"


def choices_of(entry: object) -> str | None:
    """Return the names of a table whose ``check`` validates the field."""
    table = getattr(getattr(entry, "func", None), "__self__", None)
    if not isinstance(table, plugins.Names):
        return None
    return "|".join([*table, "package.module:name"])


def plain_type(annotation: object) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return plain_type(arguments[0])
    if origin is typing.Literal:
        return "|".join(map(str, arguments))
    if origin in (typing.Union, UnionType):
        names = [plain_type(a) for a in arguments if a is not NoneType]
        return "|".join([*names, "null"] if NoneType in arguments else names)
    if origin is tuple:
        return f"list[{plain_type(arguments[0])}]"
    if isinstance(origin, type):
        return f"mapping[{','.join(plain_type(a) for a in arguments)}]"
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
        return f"`{{{','.join(f'{name}:{item}' for name, item in value.items())}}}`"
    if isinstance(value, tuple):
        return f"`[{','.join(map(str, value))}]`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 when the page is out of date")
    parser.add_argument("--environment", help="print the keys of this environment alone")
    arguments = parser.parse_args()
    check = arguments.check
    if arguments.environment:
        section = section_of(arguments.environment)
        print(f"## `{section.key}`\n\n{describe(section)}\n{keys(section, f'{section.key}.')}")
        return 0
    if check and PAGE.read_text(encoding="utf-8") != page():
        print(f"{PAGE}: out of date; run python scripts/write_config_docs.py", file=sys.stderr)
        return 1
    if not check:
        PAGE.write_text(page(), encoding="utf-8")
        print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
