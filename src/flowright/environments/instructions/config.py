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

RewardKind = Literal["rubric", "verif", "constraints", "judge", "own"]
CHECKED: tuple[RewardKind, ...] = ("constraints", "judge")
"""Rewards whose rows are in IFEval's form."""
Rules = Literal["run", "skip", "ignore"]
Feedback = Literal["criteria", "count"]
MOST_WORDS = 4

RULES_BY_VARIABLE: Mapping[str, Rules] = {
    "VERIF_SKIP_RULES": "skip",
    "VERIF_IGNORE_RULES": "ignore",
}
_YES = ("1", "true", "yes", "on")
_NO = ("", "0", "false", "no", "off")


class NamedWordsSection(Section):
    """Synthetic rows of `data: known_rule`: an answer has to name some words and omit one."""

    train: Positive = 1000
    """Rows to train on."""
    held_out: Positive = 200
    """Held-out rows."""
    words: int = Field(default=2, ge=1, le=MOST_WORDS)
    """Words that a prompt asks for."""


class ScaffoldingSection(Section):
    """RuscaRL: sample some attempts from a prompt with criteria, train on the bare one; see
    docs/instructions.md."""

    enabled: bool = False
    """Show criteria; every row needs some, or `files` has them."""
    files: tuple[Name, ...] = ()
    """Rubrics for rows without criteria, joined by conversation; paths or globs."""
    decay: Literal["linear", "step_linear", "step_power", "step_sigmoid"] = "step_sigmoid"
    """Schedule of the share shown; `linear` stays constant over steps."""
    start: Fraction = 0.2
    """Share of the run at which `step_sigmoid` shows half."""
    steepness: PositiveFloat = 125.0
    """Steepness of `step_sigmoid`."""
    power: PositiveFloat = 1.0
    """Exponent of `step_power`."""


class InstructionsSection(EnvironmentSection):
    """`environment: instructions`: answers to prompts, rewarded by criteria; see
    docs/instructions.md."""

    key: ClassVar[str] = "instructions"
    has_terms: ClassVar[bool] = True
    plan_keys: ClassVar[Sequence[str]] = tuple(
        f"instructions.{name}"
        for name in ("reward", "data", "train_files", "criteria_calls", "rules")
    )

    reward: RewardKind = "rubric"
    """`rubric`: points of the criteria met; `verif`: share of rules followed times one verdict on
    the rest; `constraints`: IFEval and IFBench checkers; `judge`: the judge's score, with the
    checkers as gold; `own`: the root's `reward` alone."""
    data: Literal["known_rule", "files"] = "known_rule"
    """Synthetic rows, or `train_files`."""
    known_rule: NamedWordsSection = NamedWordsSection()
    train_files: tuple[Name, ...] = ()
    """Parquet or JSON Lines; paths or globs."""
    val_files: tuple[Name, ...] = ()
    """Held-out rows. Default: `held_out` conversations of `train_files`."""
    held_out: Positive = 200
    """Conversations held out of `train_files`; at most half."""
    sealed: tuple[Name, ...] | None = None
    """Files of test prompts that are left out of training. Default: IFEval, IFBench and HealthBench
    in `benchmark_dir`; `[]`: none."""
    benchmark_dir: Path = Path("data/raw")
    """Folder of downloads."""
    epochs: PositiveFloat | None = None
    """Passes over the rows, instead of `grpo.steps`."""
    overlong: Literal["drop", "cut", "error"] = "drop"
    """Prompts of more than `policy.max_prompt_tokens`; `cut` shortens the last message in its
    middle."""
    wording: Name | None = None
    """YAML file with the words for judge and scaffold."""
    criteria_calls: Literal["all", "each"] = "all"
    """All criteria of `rubric` in one call, or one call each."""
    most_ungraded: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Largest share of a rubric's points that may stay ungraded; beyond it there is no reward."""
    rules: Rules | None = None
    """Rules of `verif`: `run` them, `skip` gives their texts to the judge, `ignore` drops them.
    Default: by VERIF_SKIP_RULES or VERIF_IGNORE_RULES, else `run`."""
    reply: Literal["schema", "brackets"] = "schema"
    """Reply form of `verif`; `brackets` is `[[1]]` or `[[0]]`, as for IF-Verifier-7B."""
    constraints_score: Literal["all", "share"] = "all"
    """Reward of `constraints`: 1 if all are followed, or the share."""
    reading: Literal["strict", "loose"] = "strict"
    """Checkers read the answer as it is, or also without first line, last line or asterisks."""
    checkers: Literal["canonical", "fixed"] = "fixed"
    """The benchmarks' own decisions, or corrected ones (docs/instructions.md)."""
    scaffolding: ScaffoldingSection = ScaffoldingSection()
    turns: int = Field(default=1, ge=1, le=8)
    """Answers of an attempt. Behind one that does not meet all criteria, but the last, stands what
    it does not meet; the last one earns the reward."""
    feedback: Feedback = "criteria"
    """Text between two answers: the criteria that are not met, or their number."""

    @model_validator(mode="after")
    def _check_files(self) -> "InstructionsSection":
        check_files_are_read(self.data, self.train_files, self.val_files)
        return self

    @model_validator(mode="after")
    def _check_scaffolding(self) -> "InstructionsSection":
        shown = self.scaffolding
        if shown.enabled and self.reward != "rubric" and not shown.files:
            raise ValueError(
                f"scaffolding: shows criteria, and rows of reward: {self.reward} have no rubric; "
                "name files with rubrics for them (scaffolding.files), or turn it off"
            )
        return self

    def kind(self, config: Config) -> RewardKind:
        """Return ``reward``; ``own`` where the root's ``reward`` asks no judge."""
        return self.reward if config.reward.judge_weight else "own"

    def check(self, config: Config) -> None:
        judge, kind = config.judge, self.kind(config)
        if self.reward == "own" and config.reward.judge_weight:
            raise ValueError(
                "instructions.reward: own: give reward.judge_weight: 0 and reward.terms, or a "
                "function as reward"
            )
        if kind == "own" and self.scaffolding.enabled and not self.scaffolding.files:
            raise ValueError("instructions.scaffolding: rows of prompts alone have no rubric")
        if self.turns > 1 and (self.scaffolding.enabled or kind in ("judge", "own")):
            raise ValueError(
                f"instructions.turns: {self.turns}: needs criteria (reward: rubric, verif or "
                "constraints) and no scaffolding; leave it out, or change these"
            )
        if kind not in (*CHECKED, "own"):
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
        if kind == "judge" and judge.mode != "judge":
            raise ValueError(
                f"judge.mode: {judge.mode}: rules compare with a reference, which prompts of "
                "instructions.reward: judge do not have; leave it out"
            )
        if kind == "judge" and judge.ask in ("pairwise", "rubric"):
            raise ValueError(
                f"judge.ask: {judge.ask}: instructions.reward: judge has answers judged one "
                "by one; use score, pointwise, true_false or multi_aspect"
            )

    def resolved(self) -> "InstructionsSection":
        return self.with_rules(os.environ)

    def problems_from(self, config: Config) -> str:
        files = ", ".join(self.train_files)
        by = config.reward.formula or self.reward
        return f"{files or 'a known rule (synthetic)'}, rewarded by {by}"

    def held_out_from(self, config: Config) -> str:
        return ", ".join(self.val_files) or super().held_out_from(config)

    def judge_model(self, config: Config) -> str | None:
        if self.kind(config) == "constraints" and not config.reward.aspects:
            return None
        return super().judge_model(config)

    def compares_answers(self, config: Config) -> bool:
        return self.reward == "judge"

    def models(self, config: Config) -> frozenset[str]:
        """Return the judge's names: no executor is asked."""
        judge = {config.judge_model} if config.judge_model is not None else set[str]()
        panel = config.judge.further_models if self.kind(config) == "judge" else ()
        return frozenset({*judge, *panel})

    def with_rules(self, environment: Mapping[str, str]) -> "InstructionsSection":
        """With `rules` as the environment's variables have them, where the section is silent.
        Raises ConfigError as :func:`rules_of_environment`."""
        if self.rules is not None or self.reward != "verif":
            return self
        return self.model_copy(update={"rules": rules_of_environment(environment)})


SECTION = InstructionsSection


def rules_of_environment(environment: Mapping[str, str]) -> Rules:
    """Return the treatment of VerIF's rules by the variables of its own programs; `run` without
    them. Raises ConfigError for values that cannot be used."""
    problems, found = list[str](), list[Rules]()
    for name, rules in RULES_BY_VARIABLE.items():
        value = environment.get(name, "").strip().lower()
        if value not in (*_YES, *_NO):
            problems.append(f"{name}={value}: 1 or 0")
        if value in _YES:
            found.append(rules)
    if len(found) > 1:
        problems.append(f"{' and '.join(RULES_BY_VARIABLE)}: set one of them")
    if problems:
        raise ConfigError(*problems)
    return found[0] if found else "run"
