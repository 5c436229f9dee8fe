"""``README.md`` of an exported folder, which the hub shows as the model's card: facts, and nothing
that was not measured or read. Nothing of this machine's folders is in it: it may be made public.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from flowright.policy.export.comparison import Difference
from flowright.runs.checkpoints import sha256_of

_TOLD = (
    *("environment", "seed", "strategy_model", "train_dataset", "val_dataset"),
    *("policy.train", "policy.quantised", "policy.lora", "policy.dtype"),
    *("policy.max_prompt_tokens", "policy.max_new_tokens"),
    *("grpo.steps", "grpo.loss", "grpo.learning_rate", "grpo.prompts_per_step"),
    *("grpo.group_size", "grpo.kl_coefficient", "judging"),
)
"""Of a run's configuration: what says how the weights came about. Addresses and keys do not."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one export, for its card."""

    title: str
    source: str
    base: str | None
    licence: str | None
    trained: str
    form: str
    dtype: str
    date: str
    versions: Mapping[str, str]
    run: Mapping[str, Any]
    notes: Sequence[str]
    difference: Difference


def card(facts: Facts, files: Sequence[Path]) -> str:
    """Markdown. ``files``: what the folder holds, whose hashes are told."""
    base = _shown(facts.base) if facts.base else "unknown"
    head = ["---", "library_name: transformers"]
    if facts.base and not PurePath(facts.base).is_absolute() and facts.base.count("/") == 1:
        head.append(f"base_model: {facts.base}")
    if facts.licence:
        head.append(f"license: {facts.licence}")
    difference = facts.difference
    rows = {
        "base": base,
        "licence of the base": facts.licence or "unknown: its config does not say",
        "trained": facts.trained,
        "from": facts.source,
        "written": f"{facts.form}, {facts.dtype}, {facts.date}",
        "with": ", ".join(f"{name} {version}" for name, version in facts.versions.items()),
        "against its source": f"largest difference of {difference.what} {difference.largest:.3g}, "
        f"of up to {difference.of:.3g}",
    }
    lines = [*head, "---", "", f"# {facts.title}", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in rows.items()]
    lines += ["", *(f"- {note}" for note in facts.notes), ""] if facts.notes else [""]
    if told := _told(facts.run):
        lines += ["## Configuration", "", "```json", json.dumps(told, indent=2), "```", ""]
    lines += ["## Files", "", "| file | bytes | SHA-256 |", "| --- | --- | --- |"]
    lines += [f"| {file.name} | {file.stat().st_size} | {sha256_of(file)} |" for file in files]
    return "\n".join([*lines, ""])


def _told(run: Mapping[str, Any]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for path in _TOLD:
        value: Any = run
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            found[path] = _without_folders(value)
    return found


def _without_folders(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_folders(inner) for inner in value]
    return _shown(value) if isinstance(value, str) else value


def _shown(name: str) -> str:
    """A path by its last part; a name of the hub as it is."""
    return PurePath(name).name if name.startswith((".", "/", "~")) or name.count("/") > 1 else name


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
