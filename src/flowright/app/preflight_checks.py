"""Preflight checks that need no torch: run directory, checkpoint, model folder, problems. Nothing
is written and no server is asked."""

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flowright.app.launch_vllm import own_length
from flowright.config.grpo import GrpoSection
from flowright.config.loading import load_entries
from flowright.config.policy import SMOLLM2, TINY, PolicySection
from flowright.config.root import Config
from flowright.core.checkout import here
from flowright.core.errors import ConfigError, DataError, RunError, UserError
from flowright.core.journal import changes_of
from flowright.data.row_files import read_documents
from flowright.data.task import Task
from flowright.environments.base import Environment, TaskSets, make_environment
from flowright.grpo import (
    ADVANTAGES,
    CORRECTIONS,
    KL_ESTIMATORS,
    OBJECTIVES,
    SCHEDULES,
)
from flowright.judging.build import rules_alone
from flowright.judging.terms import RewardTerms
from flowright.policy.base_models import look_for_smollm2, model_id, origin_of
from flowright.policy.chat_templates import read_template
from flowright.runs.directory import check_checkpoints, check_path
from flowright.runs.loggers import check_loggers
from flowright.runs.run_files import find_damage, read_config, saved_checkpoints, sha256_of

ADAPTER = "adapter/adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class Start:
    """The parts that a run starts with."""

    config: Config
    environment: Environment
    tasks: TaskSets
    resume: bool


def check_start(config: Config, resume: bool, is_first: bool = True) -> Start:
    """Check a run before it starts. Raises UserError with a line per problem; of several processes
    the first checks what they share."""
    environment = make_environment(config)
    found: list[TaskSets] = []
    shared = (
        lambda: check_run(config, resume),
        lambda: check_model(config),
        lambda: _check_earlier_run(config.plan.earlier_run),
        lambda: check_loggers(config.run),
    )
    own = (
        lambda: check_choices(config.grpo),
        lambda: check_terms(config),
        lambda: check_lengths(config, environment),
        lambda: check_quantised(config.policy),
        lambda: check_text(config),
        lambda: load_entries(config.llm.file, config.models, config.simulated),
        lambda: found.append(load_tasks(environment)),
        environment.all_baselines,
    )
    refuse(*(shared if is_first else ()), *own)
    (tasks,) = found
    return Start(with_steps(config, environment, tasks), environment, tasks, resume)


def _check_earlier_run(run: Path | None) -> None:
    """Raise RunError if there is no such run; its records are not read."""
    if run is not None and not read_config(run):
        raise RunError(f"plan.earlier_run: {run}: no run; name a run directory")


def with_steps(config: Config, environment: Environment, tasks: TaskSets) -> Config:
    """Set the steps of a run on these tasks, if the environment counts epochs."""
    steps = environment.steps(tasks.train)
    if steps is None:
        return config
    return config.model_copy(update={"grpo": config.grpo.model_copy(update={"steps": steps})})


def refuse(*checks: Callable[[], object]) -> None:
    """Run all checks; raise UserError with all their lines."""
    problems: list[str] = []
    for check in checks:
        try:
            check()
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(*problems)


def check_choices(section: GrpoSection) -> None:
    """Load plug-ins that the section names by import path. Raises UserError with a line per
    failure."""
    chosen = (
        (OBJECTIVES, section.loss),
        (ADVANTAGES, section.advantage_scale),
        (KL_ESTIMATORS, section.kl_estimator),
        (CORRECTIONS, section.off_policy),
        (SCHEDULES, section.schedule),
    )
    refuse(*(partial(table.load, name) for table, name in chosen if name and name not in table))


def check_terms(config: Config) -> str:
    """Describe the sum of ``reward.terms``, empty without any. Raises ConfigError for functions
    and rules that cannot be used."""
    RewardTerms(config.reward, rules_alone())
    return config.reward.formula


def check_lengths(config: Config, environment: Environment) -> str:
    """Describe attempts of several turns; empty if they have one. Raises ConfigError for lengths
    that do not fit together."""
    policy, turns = environment.with_limits(config).policy, environment.max_turns
    behind, each, most = policy.tokens_behind_prompt, policy.max_new_tokens, policy.written_tokens
    buffer = config.grpo.overlong_buffer
    if config.grpo.overlong == "soft" and buffer is not None and buffer > most(turns):
        raise ConfigError(
            f"grpo.overlong_buffer: {buffer} tokens of completions of at most {most(turns)}; give "
            "a part of policy.max_new_tokens" + (f" x {turns} turns" if turns > 1 else "")
        )
    if turns == 1:
        return ""
    if behind <= each:
        raise ConfigError(
            f"policy.max_episode_tokens: {behind} leaves no room for a second turn of "
            f"policy.max_new_tokens ({each}); {policy.episode_tokens(turns)} has room for {turns}"
        )
    return (
        f"up to {turns} of {each:,} tokens, with the answers to them {behind:,} tokens behind a "
        f"prompt of up to {policy.max_prompt_tokens:,}"
    )


def position_warnings(policy: PolicySection, model: Mapping[str, Any]) -> list[str]:
    """Return a warning if sequences may be longer than a model of that config.json allows."""
    positions, needed = own_length(model), policy.sequence_tokens
    if not positions or needed <= positions:
        return []
    return [
        f"WARNING: {' and '.join(policy.length_keys)} are {needed:,} together, and the model was "
        f"made for {positions:,} positions; lower them"
    ]


def check_quantised(section: PolicySection) -> str:
    """Describe the quantisation. Raises ConfigError if its packages are missing."""
    if section.quantised and importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(
            "policy.quantised: bitsandbytes is not installed; pip install -r "
            "requirements-quantised.txt, or leave the key out"
        )
    return section.quantised or "no"


def check_text(config: Config) -> str:
    """Describe the text whose perplexity is measured; empty without one. Raises DataError if it
    cannot be read."""
    path = config.evaluation.text
    if path is None:
        return ""
    try:
        documents = read_documents(path)
    except DataError as error:
        raise DataError(*(f"evaluation.text: {line}" for line in error.problems)) from None
    return f"{path}: {documents.counted}"


def check_run(config: Config, resume: bool) -> str:
    """Check the run directory. Raises RunError if the run cannot start or resume there."""
    path = config.run.output_dir / config.run.name
    check_path(path, resume)
    if not resume:
        return str(path)
    check_checkpoints(path, config)
    saved = saved_checkpoints(path / "checkpoints")
    return f"{path}, from {saved[-1].name}" if saved else f"{path}, from the start"


def check_model(config: Config) -> str:
    """Describe the policy's base model. Raises UserError if it must be made or installed first, as
    far as that is known without the hub, and for a chat template that cannot be used."""
    if config.policy.chat_template is not None:
        read_template(config.policy.chat_template)
    folder = config.policy.warm_start.folder
    if folder is not None:
        return check_warm_start(config, folder)
    if config.strategy_model == SMOLLM2:
        return look_for_smollm2(config.policy.tiny.cache_dir)
    return check_model_folder(config.strategy_model)


def check_warm_start(config: Config, folder: Path) -> str:
    """Describe a warm-started model. Raises UserError if it is missing or another one."""
    there = origin_of(folder)
    command = here(f"python scripts/warm_start.py --config {config.source}")
    if there is None:
        raise UserError(
            f"policy.warm_start.folder: no warm-started model in {folder} yet; make it: {command}"
        )
    wanted = warm_start_recipe(config)
    known = {key: there.recipe.get(key) for key in wanted}
    # Those made before what they were made from was hashed are known by name alone.
    wanted |= {key: None for key in ("data", "weights") if known[key] is None}
    changes = changes_of(known, wanted)
    if changes:
        raise UserError(
            f"policy.warm_start.folder: {folder} was made with other settings "
            f"({', '.join(changes)}); give these, or another folder, or make it anew: "
            f"{command} --overwrite (adapters trained on it then mean nothing)"
        )
    check_model_folder(str(folder))
    return there.summary


def warm_start_recipe(config: Config) -> dict[str, Any]:
    """Settings that a warm-started model depends on, as plain JSON."""
    policy, data = config.policy, Path(config.train_dataset)
    base = config.strategy_model
    return {
        "strategy_model": base,
        "weights": model_id(base) if Path(base).is_dir() else None,
        "data": sha256_of(data) if data.is_file() else None,
        "environment": config.environment,
        "train_dataset": config.train_dataset,
        "prompt": policy.prompt,
        "lora": policy.lora.model_dump(mode="json"),
        "warm_start": policy.warm_start.model_dump(mode="json", exclude={"folder"}),
    }


def check_model_folder(name: str) -> str:
    """Check a model that is named by its path. Raises UserError if it is missing."""
    folder = Path(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UserError(f"strategy_model: {name} is a folder without config.json")
        if not list(folder.glob("*.safetensors")):
            raise UserError(f"strategy_model: {name} has no *.safetensors files")
    elif name.startswith((".", "/", "~")):
        raise UserError(f"strategy_model: no such folder: {name}")
    return name


def check_checkpoint(path: Path, config: Config) -> None:
    """Check a checkpoint to be measured. Raises RunError if it is none, damaged, or of another
    model, adapter or base; an embedded model's identity is checked later."""
    if not weight_files(path, config):
        kind = "model" if config.policy.train == "full" else "adapter"
        raise RunError(
            f"{path}: no {kind} in it; give a checkpoint such as .../step_000050, or a run"
        )
    changes = []
    if (path / "manifest.json").exists():  # an adapter that came by itself has none
        if damage := find_damage(path):
            raise RunError(f"{path}: {damage}; give another checkpoint")
        manifest = json.loads((path / "manifest.json").read_text("utf-8"))
        key = "quantised"
        changes += changes_of({key: manifest.get(key)}, {key: config.policy.quantised}, "policy.")
    if config.policy.train == "lora":
        changes += _other_adapter(path, config)
    if changes:
        raise RunError(
            f"{path}: not of this configuration ({', '.join(changes)}); give that of its run"
        )


def weight_files(path: Path, config: Config) -> list[Path]:
    """Return the files with the trained weights of a checkpoint."""
    if config.policy.train == "full":
        return sorted((path / "model").glob("*.safetensors"))
    return [path / ADAPTER] if (path / ADAPTER).is_file() else []


def _other_adapter(path: Path, config: Config) -> list[str]:
    lora = config.policy.lora
    has = json.loads((path / ADAPTER).with_name("adapter_config.json").read_text("utf-8"))
    wanted: dict[str, Any] = {"r": lora.rank, "lora_alpha": lora.alpha}
    wanted["use_rslora"] = lora.rank_stabilised
    trained_on = Path(str(has.get("base_model_name_or_path"))).name
    if config.policy_base not in (TINY, SMOLLM2):
        wanted["base_model_name_or_path"] = Path(config.policy_base).name
    has = {"use_rslora": False, **has, "base_model_name_or_path": trained_on}
    return changes_of({key: has.get(key) for key in wanted}, wanted)


def load_tasks(environment: Environment, batches: bool = True) -> TaskSets:
    """Load the environment's problems: enough to measure and, with ``batches``, to train on. Raises
    DataError with a line per set that is too small."""
    tasks, config = environment.tasks(), environment.config
    size = config.grpo.prompts_per_step if batches else 1
    train, held_out = config.problems_from, config.held_out_from
    if config.section.reads_datasets:
        train, held_out = (f"train_dataset: {config.train_dataset}", f"val_dataset: {held_out}")
    refuse(lambda: check_count(train, tasks.train, size), lambda: check_count(held_out, tasks.val))
    return tasks


def check_count(source: str, tasks: Sequence[Task], least: int = 1) -> None:
    """Raise DataError if the source has no problem, or fewer than a step needs."""
    if not tasks:
        raise DataError(f"{source}: no problem")
    if len(tasks) < least:
        counted = "1 problem" if len(tasks) == 1 else f"{len(tasks)} problems"
        raise DataError(
            f"{source}: {counted}, fewer than a step's {least}; give more, or set "
            f"grpo.prompts_per_step={len(tasks)}"
        )
