"""Who judges workflows' answers, from the configuration alone. Nobody is asked."""

from collections.abc import Mapping
from typing import Any

from flowright.config.llm import SIMULATED
from flowright.config.loading import load_entries
from flowright.config.root import Config
from flowright.judging.prompts import wording_hash

_OPERATION = frozenset(
    {
        "cache_size",
        "breaker_threshold",
        "breaker_seconds",
        "min_agreement",
        "low_agreement",
        "alarm",
    }
)
"""Keys of ``judge`` that change no verdict."""


def models_that_judge(config: Config) -> frozenset[str]:
    """The names of the large models that are asked; none where a service or rules decide alone."""
    first = {config.judge_model} if config.judge_model is not None else set[str]()
    return frozenset({*first, *config.judge.panel})


def settings_of_judge(config: Config) -> Mapping[str, Any]:
    """All that decides a verdict: the section, the wording, and which models are meant; of the
    embedded server what is planted in it. Addresses and keys are no part of it. Raises ConfigError
    for names that ``llm.file`` lacks."""
    names, section = models_that_judge(config), config.judge
    entries = load_entries(config.llm.file, names)
    asked = {"model_name", "temperature", "top_p", "max_tokens", "reasoning_effort"}
    found: dict[str, Any] = {
        "judge": section.model_dump(mode="json", exclude={*_OPERATION, "model", "service"}),
        "model": config.judge_model,
        "models": {name: entry.model_dump(include=asked) for name, entry in entries.items()},
    }
    if section.service is not None:
        found["service"] = section.service.judge_url
    if section.mode != "rules":
        found["wording"] = wording_hash(section)
    if SIMULATED in names:
        found["simulated"] = config.simulated.model_dump(mode="json")
        found["tasks"] = [config.train_dataset, config.val_dataset]
    return found
