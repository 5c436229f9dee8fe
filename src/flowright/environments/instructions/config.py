"""The keys of `instructions`: prompts whose answers are rewarded by criteria, and by which."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from flowright.config.root import Config, EnvironmentSection
from flowright.config.section import (
    Fraction,
    Name,
    Positive,
    PositiveFloat,
    Section,
    check_files_are_read,
)
from flowright.core.errors import ConfigError

RewardKind = Literal["rubric", "verif", "constraints", "judge"]
CHECKED: tuple[RewardKind, ...] = ("constraints", "judge")
"""Whose rows are in IFEval's form."""
Rules = Literal["run", "skip", "ignore"]
MOST_WORDS = 4

RULES_BY_VARIABLE: Mapping[str, Rules] = {
    "VERIF_SKIP_RULES": "skip",
    "VERIF_IGNORE_RULES": "ignore",
}
_YES = ("1", "true", "yes", "on")
_NO = ("", "0", "false", "no", "off")


class NamedWordsSection(Section):
    """Rows made on the spot for `data: known_rule`: an answer is to name the words that are asked
    for, and to leave one out."""

    train: Positive = 1000
    """Rows to train on."""
    held_out: Positive = 200
    """Held-out rows."""
    words: int = Field(default=2, ge=1, le=MOST_WORDS)
    """Words that a prompt asks for."""


class ScaffoldingSection(Section):
    """RuscaRL: some attempts of a group are sampled from a prompt that shows some criteria, and all
    are learned on the bare one; see docs/instructions.md."""

    enabled: bool = False
    """Needs criteria in every row, or in `files`."""
    files: tuple[Name, ...] = ()
    """Rubrics to show, joined by conversation, for rows that have none of their own, such as
    VerIF's; paths or globs."""
    decay: Literal["linear", "step_linear", "step_power", "step_sigmoid"] = "step_sigmoid"
    """How less is shown from step to step; `linear`: always as much."""
    start: Fraction = 0.2
    """Of `step_sigmoid`: the share of the run at which half is shown."""
    steepness: PositiveFloat = 125.0
    """Of `step_sigmoid`."""
    power: PositiveFloat = 1.0
    """Of `step_power`."""


class InstructionsSection(EnvironmentSection):
    """With `environment: instructions` the policy answers prompts, and criteria decide what an
    answer earns; see docs/instructions.md."""

    key: ClassVar[str] = "instructions"
    plan_keys: ClassVar[Sequence[str]] = tuple(
        f"instructions.{name}"
        for name in ("reward", "data", "train_files", "criteria_calls", "rules")
    )

    reward: RewardKind = "rubric"
    """`rubric`: the points of the criteria that a judge, or a rule, says are met; `verif`: the
    share of the rules that are followed times a judge's one verdict on the rest; `constraints`:
    the checkers of IFEval and IFBench, which ask nobody; `judge`: the score that `judge` gives an
    answer to such a prompt, while the checkers say what it is worth (gold)."""
    data: Literal["known_rule", "files"] = "known_rule"
    """Rows made on the spot by a known rule, or `train_files`."""
    known_rule: NamedWordsSection = NamedWordsSection()
    train_files: tuple[Name, ...] = ()
    """Parquet or JSON Lines; paths or globs."""
    val_files: tuple[Name, ...] = ()
    """Held-out rows. Default: `held_out` conversations of `train_files`."""
    held_out: Positive = 200
    """Conversations that are held out where `val_files` names none; at most half of them."""
    sealed: tuple[Name, ...] | None = None
    """Files with prompts of test sets: rows of `train_files` whose conversation begins with one of
    these prompts are left out by name. Default: the files of IFEval, IFBench and HealthBench that
    are in `benchmark_dir`; `[]` trains on everything."""
    benchmark_dir: Path = Path("data/raw")
    """Where `scripts/download_all_datasets.py` leaves files."""
    epochs: PositiveFloat | None = None
    """Passes over the rows to train on, in the place of `grpo.steps`."""
    overlong: Literal["drop", "cut", "error"] = "drop"
    """What becomes of a prompt of more than `policy.max_prompt_tokens` tokens; `cut` takes the
    middle out of its last message, and with it perhaps what is asked for."""
    wording: Name | None = None
    """A YAML file with the words for judge and scaffold, in the place of
    src/flowright/criteria/rubrics/scaffolding.yaml."""
    criteria_calls: Literal["all", "each"] = "all"
    """Of `rubric`: all criteria in one call of the judge, or each in a call of its own."""
    most_ungraded: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of `rubric`: up to this share of a rubric's points may stay ungraded; they leave the sum.
    Beyond it the answer has no reward."""
    rules: Rules | None = None
    """Of `verif`: `run` the rules' functions in the sandbox, `skip` them and give their texts to
    the judge, or `ignore` the rules. Default: what VERIF_SKIP_RULES or VERIF_IGNORE_RULES of the
    environment say, else `run`."""
    reply: Literal["schema", "brackets"] = "schema"
    """Of `verif`: how the judge says it; `brackets` is `[[1]]` or `[[0]]`, for models that were
    trained on that, such as IF-Verifier-7B."""
    constraints_score: Literal["all", "share"] = "all"
    """Of `constraints`: 1 for an answer that follows all of them, else 0; or the share of them."""
    reading: Literal["strict", "loose"] = "strict"
    """Of the checkers: the answer as it is, or without its first line, last line or asterisks,
    too."""
    checkers: Literal["canonical", "fixed"] = "fixed"
    """Of the checkers: as the benchmarks' own programs decide, or as the instruction reads
    (docs/instructions.md)."""
    scaffolding: ScaffoldingSection = ScaffoldingSection()

    @model_validator(mode="after")
    def _has_its_data(self) -> "InstructionsSection":
        check_files_are_read(self.data, self.train_files, self.val_files)
        return self

    @model_validator(mode="after")
    def _scaffolding_has_criteria(self) -> "InstructionsSection":
        shown = self.scaffolding
        if shown.enabled and self.reward != "rubric" and not shown.files:
            raise ValueError(
                f"scaffolding: shows criteria, and rows of reward: {self.reward} have no rubric; "
                "name files with rubrics for them (scaffolding.files), or turn it off"
            )
        return self

    def check(self, config: Config) -> None:
        judge = config.judge
        if self.reward not in CHECKED:
            given = {
                "mode": judge.mode != "judge",
                "service": judge.service is not None,
                "panel": bool(judge.panel),
                "samples": judge.samples > 1,
            }
            if named := [f"judge.{key}" for key, is_given in given.items() if is_given]:
                raise ValueError(
                    f"{', '.join(named)}: criteria of environment: instructions are judged by one "
                    "model, asked once; leave it out"
                )
        if self.reward == "judge" and judge.mode != "judge":
            raise ValueError(
                f"judge.mode: {judge.mode}: rules compare with a reference, which prompts of "
                "instructions.reward: judge do not have; leave it out"
            )
        if self.reward == "judge" and judge.ask in ("pairwise", "rubric"):
            raise ValueError(
                f"judge.ask: {judge.ask}: instructions.reward: judge has answers judged one "
                "by one; use score, pointwise, true_false or multi_aspect"
            )

    def resolved(self) -> "InstructionsSection":
        return self.with_rules(os.environ)

    def problems_from(self, config: Config) -> str:
        files = ", ".join(self.train_files)
        return f"{files or 'a known rule (synthetic)'}, rewarded by {self.reward}"

    def held_out_from(self, config: Config) -> str:
        return ", ".join(self.val_files) or f"held out of {self.problems_from(config)}"

    def judge_model(self, config: Config) -> str | None:
        return None if self.reward == "constraints" else super().judge_model(config)

    def models(self, config: Config) -> frozenset[str]:
        """Return the judge's names: no executor is asked."""
        judge = {config.judge_model} if config.judge_model is not None else set[str]()
        panel = config.judge.panel if self.reward == "judge" else ()
        return frozenset({*judge, *panel})

    def with_rules(self, environment: Mapping[str, str]) -> "InstructionsSection":
        """With `rules` as the environment's variables have them, where the section is silent.
        Raises ConfigError as :func:`rules_of_environment`."""
        if self.rules is not None or self.reward != "verif":
            return self
        return self.model_copy(update={"rules": rules_of_environment(environment)})


SECTION = InstructionsSection


def rules_of_environment(environment: Mapping[str, str]) -> Rules:
    """What becomes of VerIF's rules by the variables of its own programs; `run` without them.
    Raises ConfigError for variables that cannot be used."""
    problems, said = list[str](), list[Rules]()
    for name, rules in RULES_BY_VARIABLE.items():
        value = environment.get(name, "").strip().lower()
        if value not in (*_YES, *_NO):
            problems.append(f"{name}={value}: 1 or 0")
        if value in _YES:
            said.append(rules)
    if len(said) > 1:
        problems.append(f"{' and '.join(RULES_BY_VARIABLE)}: set one of them")
    if problems:
        raise ConfigError(*problems)
    return said[0] if said else "run"
