"""The built-in environments by name, and configurations that hold the section of their environment.

Imports no environment: the section and the display of a built-in one are found in its package, so
that a configuration is read, and a run shown, without what plays it.
"""

import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError, create_model, field_validator

from flowright.config.llm import LlmSection
from flowright.config.loading import Values, read_values
from flowright.config.root import Config, EnvironmentSection
from flowright.core.errors import ConfigError
from flowright.core.plugins import Table, load, mark_untrusted

_ROOM = "flowright.environments"

ENVIRONMENTS = Table(
    "environment",
    {
        "workflow": f"{_ROOM}.workflow.environment:WorkflowEnvironment",
        "canvas": f"{_ROOM}.canvas.environment:CanvasEnvironment",
        "judging": f"{_ROOM}.judging.environment:JudgingEnvironment",
        "instructions": f"{_ROOM}.instructions.environment:InstructionsEnvironment",
        "presentation": f"{_ROOM}.presentation.environment:PresentationEnvironment",
        "games": f"{_ROOM}.games.environment:GamesEnvironment",
    },
)
"""Environment classes. Beside ``environment.py`` a package has ``config.py`` with ``SECTION``, the
class's ``Config``, and ``display.py`` with ``DISPLAY``, its ``display``."""


def built_in(name: str, part: str) -> Any:
    """Return a part of a built-in environment, such as ``config:SECTION``."""
    package = ENVIRONMENTS[name].rpartition(".environment:")[0]
    return load(f"{package}.{part}", ENVIRONMENTS.kind)


@cache
def section_of(choice: str) -> type[EnvironmentSection]:
    """Return the section class of an environment. Raises ConfigError for an environment that
    cannot be imported, or whose ``Config`` is no section with a key of its own."""
    if choice in ENVIRONMENTS:
        return built_in(choice, "config:SECTION")
    section = getattr(ENVIRONMENTS.load(choice), "Config", EnvironmentSection)
    if not (isinstance(section, type) and issubclass(section, EnvironmentSection)):
        raise ConfigError(
            f"environment {choice}: its Config is no subclass of flowright.EnvironmentSection"
        )
    if section.key in Config.model_fields or (section.model_fields and not section.key):
        raise ConfigError(
            f"environment {choice}: {section.__name__}.key: name a key that is not in use, under "
            f"which the section's keys stand; got {section.key!r}"
        )
    return section


class _RunConfig(Config):
    """A Config whose environment is known by name."""

    @field_validator("environment")
    @classmethod
    def _check_environment(cls, name: str) -> str:
        return ENVIRONMENTS.check(name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the name of the environment in place of the class, which has no name."""
        return _blank, (self.environment,), self.__getstate__()


def _blank(environment: str) -> Config:
    found = config_class(environment)
    return found.__new__(found)


def with_sections(*sections: type[EnvironmentSection]) -> type[Config]:
    """Return a Config class that has these sections, at their keys."""
    fields: dict[str, Any] = {one.key: (one, one()) for one in sections if one.key}
    return create_model("Config", __base__=_RunConfig, __doc__=Config.__doc__, **fields)


@cache
def config_class(environment: str) -> type[Config]:
    """Return the Config class with the section of an environment. Raises as
    :func:`section_of`."""
    section = section_of(environment)
    found = with_sections(section)
    found.section_key = section.key
    return found


@cache
def _all_sections(environment: str) -> type[Config]:
    """Return the Config class by which mistakes are explained: with every section there is."""
    built = (section_of(name) for name in ENVIRONMENTS)
    own = [section_of(environment)] if ENVIRONMENTS.is_path(environment) else []
    return with_sections(*{one.key: one for one in (*built, *own)}.values())


def _validated(values: Values) -> Config:
    name = values.data.get("environment", Config.model_fields["environment"].default)
    is_named = isinstance(name, str) and (name in ENVIRONMENTS or ENVIRONMENTS.is_path(name))
    root = config_class(name) if is_named else _RunConfig
    every = _all_sections(name if is_named else "workflow")
    data, lines = dict(values.data), list(values.problems)
    for other in ENVIRONMENTS:  # sections of other environments are validated, and left out
        section = section_of(other)
        if section.key != root.section_key and section.key in data:
            try:
                section.model_validate(data.pop(section.key))
            except ValidationError as error:
                details = ({**each, "loc": (section.key, *each["loc"])} for each in error.errors())
                lines += [line for detail in details for line in values.lines(every, detail)]
    try:
        config = root.model_validate(data)
    except ValidationError as error:
        lines += [line for detail in error.errors() for line in values.lines(every, detail)]
        raise ConfigError(*lines) from None
    if lines:
        raise ConfigError(*lines)
    return config


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read a config file, apply ``key.sub=value`` overrides, check everything.

    ``path`` may be the name of a file in ``config/``, such as ``quickstart``. Raises ConfigError
    with one line per mistake.
    """
    values = read_values(Path(path), overrides)
    # A run's own configuration may be another person's: nothing that it names is imported, and no
    # file of models that it names gets keys of this environment.
    source = values.path
    guarded = source is not None and source.name == "config.json" and mark_untrusted(source)
    config = _validated(values)
    own_file = config.llm.file == LlmSection().file or {"llm", "llm.file"} & values.overridden
    if guarded and not own_file:
        raise ConfigError(
            f"{source}: llm.file: {config.llm.file}: its servers would be sent keys of this "
            "environment; name it yourself (llm.file=...), or --trust"
        )
    return config.read_from(shlex.join([str(source), *overrides]))


def make_config(values: Mapping[str, Any] | None = None, **keys: Any) -> Config:
    """Return the configuration of a mapping, or of keys. Raises pydantic's ValidationError."""
    data = {**(values or {}), **keys}
    return config_class(data.get("environment", "workflow")).model_validate(data)
