"""YAML files as mappings, and mappings as sections: variables, overrides, all mistakes at once."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from flowright.config.section import Section
from flowright.config.suggestions import meant
from flowright.core.errors import ConfigError
from flowright.core.plugins import suggest

Root = TypeVar("Root", bound="Section")


class _Loader(yaml.SafeLoader):
    """PyYAML lets the last of two equal keys win without a word; here that is a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"{key.value} is there twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class _NotYaml(Exception):
    """Why, in one line; ``line`` of the text where it is known."""

    def __init__(self, why: str, line: int | None = None) -> None:
        super().__init__(" ".join(why.split()))
        self.line = line


def _parse(text: str) -> Any:
    """A YAML value. Raises :class:`_NotYaml`."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or str(error)
        raise _NotYaml(why, mark.line + 1 if mark else None) from None
    except ValueError as error:  # 2024-13-45 has the form of a date
        raise _NotYaml(str(error)) from None
    except RecursionError:
        raise _NotYaml("too deeply nested") from None


_TYPES = {
    "model_type": "a section is expected, with keys of its own",
    "dict_type": "a mapping is expected, with keys of its own",
    "tuple_type": "a list is expected, such as [0, 1]",
}


_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")


PRESETS = Path(__file__).resolve().parents[1] / "presets"
"""The files of ``config/``, as the package carries them."""


def find_config(path: Path | str) -> Path:
    """A file as it is; else the one of ``config/``, here or in the package, that is meant by a name
    (``quickstart``, ``study/quick``) or by its path there. Raises ConfigError for other names."""
    path = Path(path)
    if path.is_file() or path.is_absolute():
        return path
    inner = path.relative_to("config") if path.parts[:1] == ("config",) else path
    if inner == path and path.suffix:
        return path
    inner = inner if inner.suffix else inner.with_name(f"{inner.name}.yaml")
    for folder in (Path("config"), PRESETS):
        if (folder / inner).is_file():
            return folder / inner
    if path.suffix:
        return path
    names = [str(found.relative_to(PRESETS).with_suffix("")) for found in PRESETS.rglob("*.yaml")]
    raise ConfigError(
        f"{path}: neither a file nor a name in config/{suggest(str(path), sorted(names))}"
    )


def read_yaml(
    path: Path, environment: Mapping[str, str] | None = None, expanded: bool = True
) -> dict[str, Any]:
    """A YAML mapping with ``${NAME}`` and ``${NAME:-default}`` read from the environment, unless it
    is not to be ``expanded``."""
    environment = os.environ if environment is None else environment
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
    try:
        data = _parse(text)
    except _NotYaml as error:
        line = f":{error.line}" if error.line else ""
        raise ConfigError(f"{path}{line}: {error}") from None
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: the top level is a {type(data).__name__}, not a mapping")
    return expand(data, environment, str(path)) if expanded else data


def expand(data: Mapping[str, Any], environment: Mapping[str, str], source: str) -> dict[str, Any]:
    """A mapping with its variables replaced. Raises ConfigError for those that are not set."""
    problems: list[str] = []
    try:
        found = _expand(dict(data), environment, source, "", problems)
    except RecursionError:  # a: &a {b: *a}
        raise ConfigError(f"{source}: a value that holds itself; write it out") from None
    if problems:
        raise ConfigError(*problems)
    return found


def _expand(
    value: Any, environment: Mapping[str, str], file: str, key: str, problems: list[str]
) -> Any:
    """Variables are replaced in parsed strings, not in the text, so a value can't add YAML. A
    string that is one variable takes the type YAML gives its value."""
    if isinstance(value, dict):
        return {
            k: _expand(v, environment, file, f"{key}.{k}" if key else str(k), problems)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [_expand(v, environment, file, f"{key}.{i}", problems) for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        found = environment.get(match["name"], match["default"])
        if found is None:
            problems.append(
                f"{file}: {key}: the environment has no {match['name']}; "
                f"set it or write ${{{match['name']}:-default}}"
            )
        return found or ""

    whole = _VARIABLE.fullmatch(value)
    expanded = _VARIABLE.sub(replace, value)
    if whole and expanded:
        with suppress(_NotYaml):  # a key such as @abc is the text that it is
            return _parse(expanded)
    return expanded


def load_section(root: type[Root], path: Path | None, overrides: Sequence[str]) -> Root:
    data = {} if path is None else read_yaml(path)
    problems: list[str] = []
    from_command_line: set[str] = set()
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            problems.append(f"command line: {override!r}: write key=value, such as grpo.steps=10")
            continue
        try:
            value = _parse(text) if text else ""
        except _NotYaml as error:
            problems.append(f"command line: {key}: {text!r} is not YAML: {error}")
            continue
        from_command_line.add(key)
        _assign(data, key.split("."), value)
    try:
        config = root.model_validate(data)
    except ValidationError as error:
        for detail in error.errors():
            key = ".".join(str(part) for part in detail["loc"])
            ours = any(k == key or k.startswith(f"{key}.") for k in from_command_line)
            file = "command line" if ours else str(path)
            problems.append(f"{file}: {explain(root, detail)}")
        raise ConfigError(*problems) from None
    if problems:
        raise ConfigError(*problems)
    return config


def _assign(data: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = data.get(key)
        if not isinstance(inner, dict):
            inner = data[key] = {}
        data = inner
    data[keys[-1]] = value


def explain(root: type[BaseModel], detail: Mapping[str, Any]) -> str:
    location = [str(part) for part in detail["loc"]]
    key = ".".join(location)
    if detail["type"] == "extra_forbidden":
        parent = _section_at(root, location[:-1])
        prefix = "".join(f"{part}." for part in location[:-1])
        beside = [prefix + name for name in parent.model_fields] if parent else []
        return f"{key}: unknown key{meant(location, {*keys_of(root), *beside})}"
    message = _TYPES.get(detail["type"]) or detail["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    given = detail.get("input")
    showable = isinstance(given, str | int | float | bool) and "api_key" not in location
    shown = f" (got {given!r})" if showable else ""
    return f"{key}: {message}{shown}" if key else f"{message}{shown}"


def keys_of(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """All keys that a file may have, dotted, sections before what is in them."""
    for name, field in section.model_fields.items():
        yield prefix + name
        inner = next(filter(_is_section, (field.annotation, *get_args(field.annotation))), None)
        if inner is not None:
            yield from keys_of(inner, f"{prefix}{name}.")


def _section_at(root: type[BaseModel], location: Sequence[str]) -> type[BaseModel] | None:
    """The section that a path of keys leads to, also where a key may be null; any key of a mapping
    leads to what its values are."""
    found: Any = root
    for key in location:
        if not _is_section(found):
            found = get_args(found)[1] if get_origin(found) is Mapping else None
        elif key in found.model_fields:
            hint = found.model_fields[key].annotation
            found = next(filter(_is_section, get_args(hint)), hint)
            found = hint if get_origin(hint) is Mapping else found
    return found if _is_section(found) else None


def _is_section(hint: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(hint, type) and issubclass(hint, BaseModel)
