"""The keys of `judge`, and of a judge over HTTP: the service and those who ask it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from flowright.config.reward import TermsSection
from flowright.config.section import (
    Address,
    Fraction,
    Name,
    NonNegative,
    NonNegativeFloat,
    Positive,
    Seconds,
    Section,
)
from flowright.core.plugins import Names

ASK = Names(
    "way of asking", ("true_false", "score", "pointwise", "pairwise", "rubric", "multi_aspect")
)
COMBINE = Names("way to combine votes", ("majority", "mean", "median"))
WORDING = Names("wording", ("standard",))
MOST_LISTED = 26
"""Most answers in one question of `judge.group.method: list`: a letter each."""


class JudgeServiceSection(Section):
    """A judge service and its limits."""

    judge_url: Address
    """Address, such as http://localhost:8888."""
    api_key: str | None = Field(default=None, exclude=True)  # kept out of config.json
    """Key, if the service requires one; better `${NAME}`."""
    max_batch_size: Positive = 16
    """Questions per request."""
    batch_timeout: NonNegativeFloat = 0.05
    """Seconds a question waits for others to share its request."""
    max_concurrent_requests: Positive = 32
    """Requests in flight."""
    timeout: Seconds = 30.0
    """Seconds per request; doubles with each attempt that times out."""
    deadline: Seconds = 600.0
    """Seconds per verdict, with all attempts and pauses."""
    max_retries: NonNegative = 3
    """Further attempts at a request; 429 counts as none."""
    reconnect_seconds: NonNegativeFloat = 60.0
    """Wait for a service that restarts: for so long after the first failure, failed connections,
    502, 503 and 504 count as no attempts."""


class AlarmSection(Section):
    """Alarm for a policy that exploits the judge; measured in docs/study.md."""

    gap: Fraction | None = 0.03
    """Mean excess of the judge's share of right answers over gold's above which the run warns;
    null: never."""
    steps: Positive = 5
    """Steps of that mean."""
    action: Literal["warn", "stop"] = "warn"
    """`stop` saves the step and pauses the run."""


class GroupSection(Section):
    """Judge that ranks the answers of a group instead of judging each; see docs/judges.md."""

    method: Literal["none", "round_robin", "swiss", "list"] = "none"
    """Each answer by itself; all pairs; rounds of pairs with about the same score; or one question
    about all answers."""
    rounds: Positive = 3
    """Rounds of `swiss`."""
    orders: Positive = 2
    """Orders in which `list` shows the answers; every second one is the reverse of the one
    before."""


class JudgeSection(Section):
    """The judge of answers; see docs/judges.md."""

    model: str | None = None
    """Judge model. Default: the executor's."""
    service: JudgeServiceSection | None = None
    """Judge service instead of a model; it decides its own question."""
    mode: Literal["judge", "judge_with_rule_fallback", "rules_then_judge", "rules"] = "judge"
    """The model; the model with rules as tagged fallback; rules with the model as fallback; rules
    alone."""
    ask: Annotated[str, AfterValidator(ASK.check)] = "true_false"
    """Question to the model: right or wrong, a score from 0 to 1, a grade from 0 to 4, the better
    of two, the criteria met, or a grade per aspect."""
    wording: str = "standard"
    """`standard`, a YAML file, or `package.module:name`."""
    aspects: Mapping[str, str] = Field(
        default_factory=lambda: {
            "correctness": "Is what it states right?",
            "completeness": "Does it do everything that is asked?",
            "clarity": "Can its reader follow it?",
        }
    )
    """Aspects of `multi_aspect` and their questions."""
    right_from: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Score from which an answer counts as right."""
    criteria_per_call: Positive = 8
    """Criteria per question of `rubric`."""
    both_orders: bool = True
    """Ask `pairwise` in both orders; else in one, drawn."""
    on_disagreement: Literal["tie", "abstain"] = "tie"
    """Verdict of `pairwise` if the two orders disagree."""
    samples: Positive = 1
    """Verdicts per query, which vote."""
    sample_temperature: NonNegativeFloat = 0.7
    """Temperature of the first attempt with several samples."""
    principles: bool = False
    """Have the judge write weighted principles for the question, then criticise by each of them,
    then decide."""
    meta: Name | None = None
    """Model that rates the reasoning of each of several samples."""
    keep: Positive = 1
    """Samples that `meta` rates highest; they alone vote."""
    min_confidence: Fraction = 0.0
    """Share of agreeing votes below which there is no verdict."""
    second_reading: bool = True
    """Judge the final answer alone if the full answer prevents a verdict; one that still prevents
    it is wrong."""
    max_answer_chars: Positive = 20_000
    """Bytes of UTF-8 shown of an answer, counted from its end."""
    gate: bool = True
    """Reject empty answers, bare punctuation and master keys without asking."""
    max_attempts: Positive = 4
    """Attempts per question; each changes something."""
    deadline_seconds: Seconds = 240.0
    """Seconds per reading with all its attempts."""
    max_tokens: Positive = 2048
    """Tokens of the first attempt, thinking included; doubled after a length stop."""
    temperature: NonNegativeFloat = 0.0
    """Temperature of the first attempt."""
    reasoning_effort: Literal["low", "medium", "high"] | None = None
    """See `executor.reasoning_effort`."""
    panel: tuple[str, ...] = ()
    """Further judge models, which vote."""
    combine: Annotated[str, AfterValidator(COMBINE.check)] = "majority"
    """Combination of the panel's verdicts."""
    quorum: Positive = 1
    """Members that must have a verdict."""
    weights: tuple[float, ...] = ()
    """Weights of the judge and the panel, in order. Default: equal."""
    cache_size: NonNegative = 0
    """Cached verdicts of equal queries; 0 disables the cache."""
    breaker_threshold: NonNegative = 0
    """Consecutive failures that open the circuit breaker; 0: never."""
    breaker_seconds: Seconds = 30.0
    """Seconds that it stays open."""
    group: GroupSection = GroupSection()
    alarm: AlarmSection = AlarmSection()
    min_agreement: Fraction = 0.0
    """Least agreement with gold in a step; below it `low_agreement` applies."""
    low_agreement: Literal["warn", "stop", "rules"] = "warn"
    """Warn; pause the run, untrained; or let rules decide the step's samples."""

    @field_validator("wording")
    @classmethod
    def _check_wording(cls, wording: str) -> str:
        return wording if wording.endswith((".yaml", ".yml")) else WORDING.check(wording)

    @model_validator(mode="after")
    def _check_panel(self) -> "JudgeSection":
        seats = 1 + len(self.panel)
        if self.quorum > seats:
            raise ValueError(f"a quorum of {self.quorum} with {seats} judges")
        if self.weights and (len(self.weights) != seats or min(self.weights) <= 0):
            raise ValueError(f"weights must be {seats} positive numbers, one a judge")
        if self.mode == "rules" and (self.panel or self.service is not None):
            raise ValueError("a panel or a service with mode rules: the rules ask no judge")
        return self

    @model_validator(mode="after")
    def _check_meta(self) -> "JudgeSection":
        if self.meta and self.samples <= self.keep:
            raise ValueError(f"meta chooses {self.keep} of more samples; samples is {self.samples}")
        if self.meta and (self.mode == "rules" or self.service is not None):
            raise ValueError("meta with mode rules or a service: set it where the model is asked")
        return self

    @property
    def further_models(self) -> tuple[str, ...]:
        """Models beside the judge: its panel, and the one that rates samples."""
        return (*self.panel, *([self.meta] if self.meta else []))

    @model_validator(mode="after")
    def _check_group(self) -> "JudgeSection":
        method = self.group.method
        if method == "none":
            return self
        unfit = {
            f"mode: {self.mode}": self.mode != "judge",
            "service": self.service is not None,
            f"ask: {self.ask}": self.ask != "true_false",
            "low_agreement: rules": self.low_agreement == "rules",
            "panel": method == "list" and bool(self.panel),
            "samples": method == "list" and self.samples > 1,
            "principles": method == "list" and self.principles,
        }
        if found := [key for key, is_unfit in unfit.items() if is_unfit]:
            raise ValueError(f"{', '.join(found)}: leave out with group.method: {method}")
        return self

    @model_validator(mode="after")
    def _check_aspects(self) -> "JudgeSection":
        names = [name.casefold() for name in self.aspects]
        plain = all(re.fullmatch(r"[a-z][a-z_ -]{0,39}", name) for name in names)
        if not names or not plain or len(set(names) - {"overall", "reason"}) < len(self.aspects):
            raise ValueError(
                "aspects: different names of letters, `_`, `-` and spaces; not overall or reason"
            )
        return self


class TrainedJudgeSection(Section):
    """A judge of your own training, served from its weights; see docs/judge_service.md."""

    folder: Path | None = None
    """Run, checkpoint, adapter or exported model, computed in the service's process unless
    `base_url` is set."""
    base: Name | None = None
    """Base model of an adapter, if its files name another."""
    base_url: Address | None = None
    """OpenAI-compatible server of a judge that writes; `folder` defines its prompts."""
    model_name: Name | None = None
    """Model name on that server. Default: `folder`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the service's process."""
    batch: Positive = 64
    """Texts computed together."""
    max_tokens: Positive | None = None
    """Longest text, or prompt with reply; longer ones are refused. Default: the model's limit."""
    judges: Literal["one", "two", "both"] | None = None
    """Trained for `one` answer, the better of `two`, or `both`. Default: as its run records, else
    `both`."""
    wording: Name | None = None
    """See `judging.wording`. Default: as in training, else `standard`."""
    states_confidence: bool | None = None
    """The judge states its confidence. Default: as in training, else false."""
    opened_thought: bool | None = None
    """See `judging.opened_thought`. Default: as in training, else false."""

    @model_validator(mode="after")
    def _check_server_has_folder(self) -> "TrainedJudgeSection":
        if self.base_url is not None and self.folder is None:
            raise ValueError(
                "base_url: name the trained judge's folder too, which defines its prompts"
            )
        return self


class JudgeServerSection(Section):
    """The judge as an HTTP service; see docs/judge_service.md."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8888, ge=0, le=65535)
    """Port; 0 takes a free one."""
    api_key: str | None = Field(default=None, pattern=r"^[\x21-\x7e]*$")
    """Key that callers must send; better `${NAME}`. Null: none."""
    max_body_bytes: Positive = 2 << 20
    """Bytes per request; beyond: 413."""
    max_batch: Positive = 64
    """Members per batch; beyond: 413."""
    max_in_flight: Positive = 64
    """Concurrent verdicts."""
    max_queue: NonNegative = 256
    """Waiting verdicts; beyond: 429."""
    drain_seconds: Seconds = 30.0
    """Seconds for running requests after SIGTERM."""
    judge_class: str | None = Field(default=None, pattern=r"^[\w.]+:\w+$")
    """Judge class of your own, as `package.module:Class`; its `score(prompt, completion, answer)`,
    or `score_batch` of lists, decides."""
    judge_arguments: Mapping[str, Any] = Field(default_factory=dict)
    """Arguments of the class, such as `{model_path: ...}`."""
    judge_threads: Positive = 1
    """Concurrent calls of `score`."""
    max_batch_size: Positive = 16
    """Answers per call of `score_batch`."""
    own_instructions: bool = False
    """Accept requests that bring the judge's instruction."""
    log_file: Path | None = None
    """JSON-lines log of verdicts with requests and replies; null: none."""
    log_max_bytes: Positive = 100 << 20
    """Size at which the log is rotated."""
    log_files: Positive = 5
    """Rotated logs kept."""

    @model_validator(mode="after")
    def _check_batch_fits(self) -> "JudgeServerSection":
        if self.max_batch > self.max_in_flight + self.max_queue:
            raise ValueError("max_batch must fit into max_in_flight + max_queue")
        return self

    @model_validator(mode="after")
    def _check_instructions_need_key(self) -> "JudgeServerSection":
        is_local = self.host in ("127.0.0.1", "localhost", "::1")
        if self.own_instructions and not self.api_key and not is_local:
            raise ValueError(
                "own_instructions: set api_key, or any caller writes the judge's prompts"
            )
        return self


class JudgeRewardSection(JudgeServiceSection, TermsSection):
    """A judge service as a reward function: `reward.config` with `reward.type: judge_model`.
    JUDGE_MODEL_URL and JUDGE_MODEL_API_KEY fill in missing keys; JUDGE_MAX_BATCH_SIZE and
    JUDGE_MAX_CONCURRENT override theirs."""

    use_cache: bool = True
    """Cache verdicts of equal questions."""
    cache_size: Positive = 5000
    """Cached verdicts."""
    fallback_to_rule: bool = True
    """Let rules decide where the judge fails and they are sure, tagged; else no reward."""
    circuit_breaker_threshold: NonNegative = 5
    """Consecutive failures that open the circuit; 0: never."""
    circuit_breaker_timeout: Seconds = 30.0
    """Seconds until a failed service is tried again."""
    low_confidence: Fraction = 0.0
    """Confidence below which a score is scaled down; 0: never."""
    low_confidence_factor: Fraction = 0.8
    """Factor of such a score."""

    @model_validator(mode="after")
    def _check_terms(self) -> "JudgeRewardSection":
        if not self.asks_model:
            raise ValueError("judge_weight: 0 asks no judge; give the trainer the functions alone")
        if self.aspects:
            raise ValueError("terms: the service grades aspects; name them in its own reward.terms")
        return self
