"""The keys of `judging`: what a judge is trained on, how it is asked, what its verdicts earn."""

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
"""What judges are measured on and, if nothing else is said, not trained on."""


class KnownRuleSection(Section):
    """Rows made on the spot whose labels follow a rule, for `data: known_rule`: of two answers that
    one is better which names more of the words that were asked for."""

    train: Positive = 2000
    """Rows to train on, of each kind that the method has."""
    held_out: Positive = 300
    """Held-out rows of each kind; they ask for other words."""
    words: Positive = ASKED_WORDS
    """Words that a prompt asks for, and words of an answer; 1 to 4."""
    noise: float = Field(default=0.1, ge=0, lt=0.5)
    """Share of the labels that are wrong, held-out ones included."""
    ties: Fraction = 0.0
    """Share of the pairs that are ties."""

    @model_validator(mode="after")
    def _asks_for_few_words(self) -> "KnownRuleSection":
        if self.words > ASKED_WORDS:
            raise ValueError(f"words: at most {ASKED_WORDS}; got {self.words}")
        return self


class JudgingSection(EnvironmentSection):
    """With `environment: judging` the policy is a judge that writes a thought and a verdict; see
    docs/training_judges.md."""

    key: ClassVar[str] = "judging"

    method: Method = "pairwise"
    """`pointwise`: a score of 0 to 4 for one answer; `pairwise`: the better of two; `joint`: a
    judge of both, from rows of both. These learn by reward. `sft` learns conversations as they are,
    `bradley_terry` a score for an answer from pairs; their `grpo.loss` has the same name."""
    data: Literal["known_rule", "files"] = "known_rule"
    """Rows made on the spot by a known rule, or `train_files`."""
    train_files: tuple[Path, ...] = ()
    """Parquet or JSON Lines."""
    val_files: tuple[Path, ...] = ()
    """Held-out rows. Default: `val_share` of the conversations of `train_files`."""
    val_share: float = Field(default=0.05, gt=0, lt=1)
    """Share of the conversations that is held out where `val_files` names none."""
    benchmarks: tuple[Name, ...] = BENCHMARKS
    """Never trained on: rows of `train_files` whose source has such a name, or whose conversation
    is one of theirs, are left out by name. `[]` trains on everything."""
    benchmark_dir: Path = Path("data/raw")
    """Where the benchmarks' files are, as `scripts/download_all_datasets.py` leaves them; of those
    that are not there only the name is compared."""
    known_rule: KnownRuleSection = KnownRuleSection()
    overlong: Overlong = "drop"
    """What becomes of a row whose prompt has more than `policy.max_prompt_tokens` tokens, with
    `sft` and `bradley_terry` the prompt with an answer: `truncate` cuts its conversation, never its
    answers."""
    merge_system: bool = False
    """With `sft` and `bradley_terry` a system message becomes the beginning of the user's first
    turn, for chat templates that refuse one. Without it such rows are left out by name."""
    epochs: PositiveFloat | None = None
    """Passes over the rows to train on, in the place of `grpo.steps`."""
    wording: Name = "standard"
    """What the judge is told: `standard`, `short` (for small models), or a YAML file of your
    own."""
    reward: Literal["verdict", "consistency"] = "verdict"
    """What earns the reward of a pair: the verdict, or, for one of each order, both verdicts."""
    unreadable: Annotated[float, Field(lt=0)] = -1.0
    """Reward of a completion in which no verdict can be read; below all others."""
    confidence_weight: Fraction = 0.0
    """Above 0 the judge states how sure it is, and pays the squared error of that times this."""
    full_strength: PositiveFloat | None = None
    """Strength of a preference from which a right verdict earns 1; a weaker one earns in
    proportion. Default: strength does not count."""
    ties: Literal["keep", "drop"] = "keep"
    """Pairs of which neither answer is better."""
    both_orders: bool = True
    """A group's attempts are shared evenly among the two orders of its pair."""
    negatives: Fraction = 0.0
    """Rows against one-token attacks, as a share of the rows to train on."""
    opened_thought: bool = False
    """Whether the chat template ends the prompt with `<think>`, so that no completion has it."""

    @property
    def states_confidence(self) -> bool:
        """Whether a judge says how sure it is."""
        return self.confidence_weight > 0

    @model_validator(mode="after")
    def _has_its_data(self) -> "JudgingSection":
        check_files_are_read(self.data, self.train_files, self.val_files)
        return self

    @model_validator(mode="after")
    def _unreadable_is_worst(self) -> "JudgingSection":
        if self.unreadable >= -self.confidence_weight:
            raise ValueError(
                f"unreadable: {self.unreadable:g} is not below the worst verdict that can be read, "
                f"which earns {-self.confidence_weight:g}"
            )
        return self

    @model_validator(mode="after")
    def _consistency_has_two_orders(self) -> "JudgingSection":
        if self.reward == "consistency" and (self.method == "pointwise" or not self.both_orders):
            raise ValueError("reward: consistency is of pairs and needs both_orders: true")
        return self

    def check(self, config: Config) -> None:
        loss = config.grpo.loss
        if loss != self.method and {loss, self.method} & {*GIVEN}:
            raise ValueError(f"grpo.loss: {loss} does not fit judging.method: {self.method}")

    def problems_from(self, config: Config) -> str:
        files = ", ".join(map(str, self.train_files))
        return f"{files or 'a known rule (synthetic)'}, to train a judge: {self.method}"

    def held_out_from(self, config: Config) -> str:
        files = ", ".join(map(str, self.val_files))
        return files or f"held out of {self.problems_from(config)}"

    def samples_nothing(self, config: Config) -> bool:
        loss = config.grpo.loss
        return loss == "bradley_terry" or (loss == "sft" and self.data == "files")


SECTION = JudgingSection
