"""The keys of `judging`: what a judge is trained on, how it is asked, what its verdicts earn."""

from collections.abc import Mapping
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

Overlong = Literal["drop", "truncate", "error"]
Method = Literal["pointwise", "pairwise", "joint", "sft", "bradley_terry"]
GIVEN: tuple[Method, ...] = ("sft", "bradley_terry")
"""Methods that learn from what the data gives; no verdict is sampled."""
ASKED_WORDS = 4
BENCHMARKS = (
    *("llmbar/gptinst", "llmbar/gptout", "llmbar/manual", "llmbar/neighbor", "evalbiasbench"),
    *("judgebench", "rewardbench2"),
)
"""Benchmarks that judges are measured on and, by default, not trained on."""


class KnownRuleSection(Section):
    """Synthetic rows of `data: known_rule`: the answer that names more of the requested words is
    better."""

    train: Positive = 2000
    """Rows of each kind to train on."""
    held_out: Positive = 300
    """Held-out rows of each kind."""
    words: Positive = ASKED_WORDS
    """Words that a prompt asks for."""
    noise: float = Field(default=0.1, ge=0, lt=0.5)
    """Share of wrong labels."""
    ties: Fraction = 0.0
    """Share of ties."""

    @model_validator(mode="after")
    def _check_words(self) -> "KnownRuleSection":
        if self.words > ASKED_WORDS:
            raise ValueError(f"words: at most {ASKED_WORDS}; got {self.words}")
        return self


class JudgingSection(EnvironmentSection):
    """`environment: judging`: train a judge; see docs/training_judges.md."""

    key: ClassVar[str] = "judging"

    method: Method = "pairwise"
    """By reward: `pointwise` (a score from 0 to 4), `pairwise` (the better of two), `joint` (both).
    On fixed data, with the same `grpo.loss`: `sft`, `bradley_terry`."""
    data: Literal["known_rule", "files"] = "known_rule"
    """Synthetic rows, or `train_files`."""
    train_files: tuple[Path, ...] = ()
    """Parquet or JSON Lines."""
    val_files: tuple[Path, ...] = ()
    """Held-out rows. Default: `val_share` of the conversations of `train_files`."""
    val_share: float = Field(default=0.05, gt=0, lt=1)
    """Share of the conversations held out of `train_files`."""
    benchmarks: tuple[Name, ...] = BENCHMARKS
    """Benchmarks whose rows are left out of training, by source name and conversation; `[]`: none.
    """
    benchmark_dir: Path = Path("data/raw")
    """Folder of downloads; without their files, benchmarks are compared by name only."""
    known_rule: KnownRuleSection = KnownRuleSection()
    overlong: Overlong = "drop"
    """Rows of more than `policy.max_prompt_tokens`; `truncate` cuts the conversation, never an
    answer."""
    merge_system: bool = False
    """Put the system message into the first turn, with `sft` and `bradley_terry`, for chat
    templates that refuse one."""
    epochs: PositiveFloat | None = None
    """Passes over the rows, instead of `grpo.steps`."""
    wording: Name = "standard"
    """`standard`, `short` (for small models), or a YAML file."""
    reward: Literal["verdict", "consistency"] = "verdict"
    """Reward of a pair: its verdict, or the verdicts of both orders."""
    unreadable: Annotated[float, Field(lt=0)] = -1.0
    """Reward without a readable verdict; below all others."""
    confidence_weight: Fraction = 0.0
    """Weight of the squared error of the stated confidence; 0: none is stated."""
    full_strength: PositiveFloat | None = None
    """Preference strength at which a right verdict earns 1; weaker ones earn in proportion.
    Default: strength is ignored."""
    ties: Literal["keep", "drop"] = "keep"
    """Pairs without a better answer."""
    both_orders: bool = True
    """Share a group's attempts between the two orders of its pair."""
    negatives: Fraction = 0.0
    """Rows against one-token attacks, as a share of the rows."""
    opened_thought: bool = False
    """The chat template ends the prompt with `<think>`."""

    @property
    def states_confidence(self) -> bool:
        """True if the judge states its confidence."""
        return self.confidence_weight > 0

    @model_validator(mode="after")
    def _check_files(self) -> "JudgingSection":
        check_files_are_read(self.data, self.train_files, self.val_files)
        return self

    @model_validator(mode="after")
    def _check_unreadable_is_worst(self) -> "JudgingSection":
        if self.unreadable >= -self.confidence_weight:
            raise ValueError(
                f"unreadable: {self.unreadable:g} is not below the worst verdict that can be read, "
                f"which earns {-self.confidence_weight:g}"
            )
        return self

    @model_validator(mode="after")
    def _check_consistency_fits(self) -> "JudgingSection":
        if self.reward == "consistency" and (self.method == "pointwise" or not self.both_orders):
            raise ValueError("reward: consistency is of pairs and needs both_orders: true")
        return self

    def check(self, config: Config) -> None:
        loss = config.grpo.loss
        if loss != self.method and {loss, self.method} & {*GIVEN}:
            raise ValueError(f"grpo.loss: {loss} does not fit judging.method: {self.method}")

    def rewards(self, config: Config) -> Mapping[str, float]:
        return {} if self.method in GIVEN else {"judging.unreadable": self.unreadable}

    def problems_from(self, config: Config) -> str:
        files = ", ".join(map(str, self.train_files))
        return f"{files or 'a known rule (synthetic)'}, to train a judge: {self.method}"

    def held_out_from(self, config: Config) -> str:
        files = ", ".join(map(str, self.val_files))
        return files or super().held_out_from(config)

    def models(self, config: Config) -> frozenset[str]:
        """Return no names: the labels of the data reward."""
        return frozenset()

    def samples_nothing(self, config: Config) -> bool:
        loss = config.grpo.loss
        return loss == "bradley_terry" or (loss == "sft" and self.data == "files")


SECTION = JudgingSection
