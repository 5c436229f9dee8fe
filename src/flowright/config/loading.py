"""Configurations from files: one function for each kind of file."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from flowright.config.judge import JudgeRewardSection
from flowright.config.llm import SIMULATED, LlmFile, ModelEntry, SimulatedSection
from flowright.config.root import JudgeServerConfig
from flowright.config.section import Section
from flowright.config.suggestions import meant_within
from flowright.core.errors import ConfigError
from flowright.core.files import write_bytes
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
    """Raised with the reason in one line, and the ``line`` of the text if it is known."""

    def __init__(self, why: str, line: int | None = None) -> None:
        super().__init__(" ".join(why.split()))
        self.line = line


def _parse(text: str) -> Any:
    """A YAML value. Raises :class:`_NotYaml`."""
    try:
        return _bounded(yaml.load(text, _Loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or str(error)
        raise _NotYaml(why, mark.line + 1 if mark else None) from None
    except ValueError as error:  # 2024-13-45 has the form of a date
        raise _NotYaml(str(error)) from None
    except RecursionError:
        raise _NotYaml("too deeply nested") from None


_MOST_VALUES = 100_000


def _bounded(data: Any) -> Any:
    """Return a value of YAML. Raises :class:`_NotYaml` where its anchors make it too large."""
    waiting, left = [data], _MOST_VALUES
    while waiting:
        value = waiting.pop()
        inner = value.values() if isinstance(value, dict) else value
        if isinstance(value, dict | list | set):
            waiting += inner
            left -= len(value)
        if left < 0:
            raise _NotYaml(
                f"a value that holds itself, or anchors for more than {_MOST_VALUES:,} values; "
                "write them out"
            )
    return data


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
        raise ConfigError(f"{path}: no key in it; {{}} stands for the defaults")
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: the top level is a {type(data).__name__}, not a mapping")
    return expand(data, environment, str(path)) if expanded else data


def expand(data: Mapping[str, Any], environment: Mapping[str, str], source: str) -> dict[str, Any]:
    """A mapping with its variables replaced. Raises ConfigError for those that are not set."""
    problems: list[str] = []
    found = _expand(dict(data), environment, source, "", problems)
    if problems:
        raise ConfigError(*problems)
    return found


_CALLERS_KEYS = {"api_key", "reward.config.api_key", "judge.service.api_key"}
"""Keys that a caller of a judge service sends where JUDGE_MODEL_API_KEY is set. A service that
needs one answers 401; every other variable that is not set is a mistake."""


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
        if found is None and match["name"] == "JUDGE_MODEL_API_KEY" and key in _CALLERS_KEYS:
            found = ""
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


@dataclass(frozen=True, slots=True)
class Values:
    """The values of a file and of ``key=value`` overrides, not validated. ``path`` is None without
    a file; ``overridden`` are the keys of the command line."""

    path: Path | None
    data: dict[str, Any]
    overridden: frozenset[str] = frozenset()
    problems: Sequence[str] = ()

    def lines(self, root: type[BaseModel], detail: Mapping[str, Any]) -> Iterator[str]:
        """Yield a mistake as ``file: key: message``."""
        key = ".".join(str(part) for part in detail["loc"])
        ours = any(k == key or k.startswith(f"{key}.") for k in self.overridden)
        for line in explain(root, detail):
            yield f"{'command line' if ours else self.path}: {line}"

    def validated(self, root: type[Root]) -> Root:
        """Return the section that the values are. Raises ConfigError with all mistakes."""
        try:
            section = root.model_validate(self.data)
        except ValidationError as error:
            lines = [line for detail in error.errors() for line in self.lines(root, detail)]
            raise ConfigError(*self.problems, *lines) from None
        if self.problems:
            raise ConfigError(*self.problems)
        return section


def read_values(path: Path | None, overrides: Sequence[str] = ()) -> Values:
    """Read a YAML file (or the one of a name, by :func:`find_config`) and put the overrides over
    it. Raises ConfigError for a file that cannot be read."""
    path = path and find_config(path)
    written = path is not None and path.suffix == ".json"  # by a run: variables are replaced
    data = {} if path is None else read_yaml(path, expanded=not written)
    if written:
        data = without_gone(data)
    problems: list[str] = []
    overridden: set[str] = set()
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
        overridden.add(key)
        _assign(data, key.split("."), value)
    return Values(path, data, frozenset(overridden), problems)


def load_section(root: type[Root], path: Path | None, overrides: Sequence[str] = ()) -> Root:
    """Read and validate a file. Raises ConfigError with one line per mistake."""
    return read_values(path, overrides).validated(root)


GONE = frozenset(
    {
        "plan.trainer_gpus",
        "plan.executor.tokens_per_second",
        "plan.judge.tokens_per_second",
        "policy.vllm.load_seconds",
        "policy.warm_start.least_passed",
        "policy.warm_start.completions_per_prompt",
        "judging.show_left_out",
        "instructions.show_left_out",
    }
)
"""Keys of earlier versions, which the config.json of a run may have."""


def without_gone(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a run's configuration without the keys that are gone."""
    return {
        key: without_gone(value, f"{prefix}{key}.") if isinstance(value, Mapping) else value
        for key, value in config.items()
        if f"{prefix}{key}" not in GONE
    }


def comparable(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that an earlier version kept as this version keeps them: without the
    sections of environments that are not the run's."""
    return {k: v for k, v in before.items() if k in now or not isinstance(v, Mapping)}


def _assign(data: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = data.get(key)
        if not isinstance(inner, dict):
            inner = data[key] = {}
        data = inner
    data[keys[-1]] = value


_USER = re.compile(r"(?<=//)\S*@|(?<=')(?!\w+://)[^\s/]*:\S*@")  # of an address, with the password


def explain(root: type[BaseModel], detail: Mapping[str, Any]) -> list[str]:
    """Return the lines on one mistake: several for a section of another trainer's."""
    location = [str(part) for part in detail["loc"]]
    key = ".".join(location)
    if detail["type"] == "extra_forbidden":
        parent = _section_at(root, location[:-1])
        prefix = "".join(f"{part}." for part in location[:-1])
        beside = [prefix + name for name in parent.model_fields] if parent else []
        found = meant_within(location, detail.get("input"), {*keys_of(root), *beside})
        return [f"{name}: unknown key{hint}" for name, hint in found]
    message = _TYPES.get(detail["type"]) or detail["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    given = detail.get("input")
    showable = isinstance(given, str | int | float | bool) and "api_key" not in location
    shown = _USER.sub("...@", f" (got {given!r})") if showable else ""
    return [f"{key}: {message}{shown}" if key else f"{message}{shown}"]


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


def load_judge_server(path: Path | None, overrides: Sequence[str] = ()) -> JudgeServerConfig:
    """Read the configuration of a judge service; without a file, from the overrides alone."""
    return load_section(JudgeServerConfig, path, overrides)


def load_judge_reward(path: Path) -> JudgeRewardSection:
    """``reward.config`` of a YAML file whose ``reward.type`` is ``judge_model``; its other keys are
    not read. Raises ConfigError."""
    reward = read_yaml(path, expanded=False).get("reward")
    if not isinstance(reward, dict) or reward.get("type") != "judge_model":
        raise ConfigError(f"{path}: reward.type: must be judge_model")
    return judge_reward(reward.get("config") or {}, f"{path}: reward.config")


def judge_reward(
    data: Mapping[str, Any], source: str = "config", environment: Mapping[str, str] | None = None
) -> JudgeRewardSection:
    """The section. ``${NAME}`` in it is read from the environment; JUDGE_MODEL_URL and
    JUDGE_MODEL_API_KEY there stand in for keys that are missing, JUDGE_MAX_BATCH_SIZE and
    JUDGE_MAX_CONCURRENT are put over theirs. Raises ConfigError with one line per mistake."""
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"{source}: must be a mapping of keys, such as judge_url; "
            "create_judge_reward also takes an address or a YAML file"
        )
    environment = os.environ if environment is None else environment
    values = expand(data, environment, source)
    for name, key in (("JUDGE_MODEL_URL", "judge_url"), ("JUDGE_MODEL_API_KEY", "api_key")):
        if not values.get(key) and environment.get(name):
            values[key] = environment[name]
    if not values.get("judge_url"):
        raise ConfigError(
            f"{source}: judge_url: missing; give the judge service's address, such as "
            "http://localhost:8888, or set JUDGE_MODEL_URL"
        )
    for name, key in (
        ("JUDGE_MAX_BATCH_SIZE", "max_batch_size"),
        ("JUDGE_MAX_CONCURRENT", "max_concurrent_requests"),
    ):
        if environment.get(name):
            values[key] = environment[name]
    try:
        return JudgeRewardSection.model_validate(values)
    except ValidationError as error:
        found = (line for detail in error.errors() for line in explain(JudgeRewardSection, detail))
        raise ConfigError(*(f"{source}: {line}" for line in found)) from None


def load_models(path: Path) -> Mapping[str, ModelEntry]:
    """The models of an LLM file, by name; the file is made from ``FILE.example`` on first use.
    Raises ConfigError with one line per mistake."""
    return load_section(LlmFile, _made_from_example(path)).models


def _made_from_example(path: Path) -> Path:
    """Return the file; where there is none yet, a copy of the example beside it, or the one of the
    package."""
    example = path.with_name(f"{path.name}.example")
    if not path.is_file() and example.is_file():
        with suppress(OSError):
            write_bytes(path, example.read_bytes())
            return path
        return example
    found = find_config(path)
    example = find_config(example)
    return example if not found.is_file() and example.is_file() else found


def load_entries(
    path: Path, names: Collection[str], simulated: SimulatedSection | None = None
) -> dict[str, ModelEntry]:
    """The entries of these models in an LLM file, those that the embedded server plays left out.
    Raises ConfigError for names that the file lacks."""
    wanted = sorted(set(names) - (simulated or SimulatedSection()).played(names))
    if not wanted:
        return {}
    models = load_models(path)
    missing = [name for name in wanted if name not in models]
    if missing:
        known = [*models, SIMULATED]
        example = find_config(path.with_name(f"{path.name}.example"))
        form = f" ({example} shows the form)" if example.is_file() else ""
        raise ConfigError(
            *(f"{path}: models: no {name!r}{suggest(name, known)}{form}" for name in missing)
        )
    return {name: models[name] for name in wanted}
