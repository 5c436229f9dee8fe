"""Configurations from files: one function for each kind of file."""

import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flowright.config.judge import JudgeRewardSection
from flowright.config.llm import LlmFile, ModelEntry
from flowright.config.reading import expand, explain, find_config, load_section, read_yaml
from flowright.config.root import Config, JudgeServerConfig
from flowright.config.simulation import SIMULATED
from flowright.core.errors import ConfigError
from flowright.core.plugins import suggest


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read a config file, apply ``key.sub=value`` overrides, check everything.

    ``path`` may be the name of a file in ``config/``, such as ``quickstart``. Raises ConfigError
    with one line per mistake.
    """
    path = find_config(path)
    source = shlex.join([str(path), *overrides])
    return load_section(Config, path, overrides).read_from(source)


def load_judge_server(path: Path | None, overrides: Sequence[str] = ()) -> JudgeServerConfig:
    """As :func:`load_config`, for a judge service; without a file, of the overrides alone."""
    return load_section(JudgeServerConfig, path and find_config(path), overrides)


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
    # A key may be asked for by ${JUDGE_MODEL_API_KEY} where the service needs none.
    values = expand(data, {"JUDGE_MODEL_API_KEY": "", **environment}, source)
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
        lines = [f"{source}: {explain(JudgeRewardSection, detail)}" for detail in error.errors()]
        raise ConfigError(*lines) from None


def load_models(path: Path) -> Mapping[str, ModelEntry]:
    """The models of an LLM file, by name. Raises ConfigError with one line per mistake."""
    path = find_config(path)
    try:
        return LlmFile.model_validate(read_yaml(path)).models
    except ValidationError as error:
        lines = [f"{path}: {explain(LlmFile, detail)}" for detail in error.errors()]
        raise ConfigError(*lines) from None


def load_entries(path: Path, names: Collection[str]) -> dict[str, ModelEntry]:
    """The entries of these models in an LLM file, the embedded server's left out. Raises
    ConfigError for names that the file lacks."""
    wanted = sorted(set(names) - {SIMULATED})
    if not wanted:
        return {}
    models = load_models(path)
    missing = [name for name in wanted if name not in models]
    if missing:
        known = [*models, SIMULATED]
        raise ConfigError(
            *(f"{path}: models: no {name!r}{suggest(name, known)}" for name in missing)
        )
    return {name: models[name] for name in wanted}
