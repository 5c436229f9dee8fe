"""The keys of `judge`, and of a judge over HTTP: the service and those who ask it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from flowright.config.section import (
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


class JudgeServiceSection(Section):
    """A judge service, and how it is asked."""

    judge_url: str = Field(pattern=r"^https?://\S+$")
    """Of the service, such as http://localhost:8888."""
    api_key: str | None = Field(default=None, exclude=True)  # kept out of config.json
    """The service's, if it asks for one; better `${NAME}`."""
    max_batch_size: Positive = 16
    """Questions in one request; fewer where the service takes fewer."""
    batch_timeout: NonNegativeFloat = 0.05
    """Seconds that a question waits for others to go with it."""
    max_concurrent_requests: Positive = 32
    """Requests in flight; fewer where the service takes fewer."""
    timeout: Seconds = 30.0
    """Of one request; doubles with every attempt that it ends."""
    deadline: Seconds = 600.0
    """Of one verdict, from its first turn on: attempts, pauses, and the wait for a service that has
    no room."""
    max_retries: NonNegative = 3
    """Further attempts at a request; that a service has no room (429) counts as none."""


class AlarmSection(Section):
    """When a run says that its policy exploits the judge: it calls more answers right than gold
    does. What the alarm catches, and how often it is false, was measured: docs/study.md."""

    gap: Fraction | None = 0.03
    """Share that the judge calls right less the share that gold does, of the answers that both have
    seen, as the mean of the last `steps`: above it the run warns, on screen, monitor and report;
    null: never."""
    steps: Positive = 5
    """Steps of that mean."""
    action: Literal["warn", "stop"] = "warn"
    """`stop` saves the step and pauses the run."""


class JudgeSection(Section):
    """Who decides whether an answer is right; see docs/judges.md."""

    model: str | None = None
    """Name of the judge; default: the executor's."""
    service: JudgeServiceSection | None = None
    """A judge service that judges in the model's place; what it asks for is its own configuration.
    """
    mode: Literal["judge", "judge_with_rule_fallback", "rules_then_judge", "rules"] = "judge"
    """Who decides: the model; the model, and rules (tagged) where it fails; rules, and the model
    where they can't; rules alone."""
    ask: Annotated[str, AfterValidator(ASK.check)] = "true_false"
    """What the model is asked for: right or wrong (`true_false`); a `score` from 0 to 1; a grade
    from 0 to 4 (`pointwise`); the better of two answers (`pairwise`); which criteria are met
    (`rubric`); a grade for each of `aspects` and one overall (`multi_aspect`); or your own as
    `package.module:name`."""
    wording: str = "standard"
    """Its words: `standard`, a YAML file of your own, or `package.module:name`."""
    aspects: Mapping[str, str] = Field(
        default_factory=lambda: {
            "correctness": "Is what it states right?",
            "completeness": "Does it do everything that is asked?",
            "clarity": "Can its reader follow it?",
        }
    )
    """For `multi_aspect`: names, and the question that each stands for."""
    right_from: Annotated[float, Field(gt=0, le=1)] = 0.5
    """A score from which an answer counts as right."""
    criteria_per_call: Positive = 8
    """For `rubric`: how many the model is asked about at once."""
    both_orders: bool = True
    """For `pairwise`: ask twice, with each answer first once; else once, in an order that is drawn.
    """
    on_disagreement: Literal["tie", "abstain"] = "tie"
    """For `pairwise`: where the better answer depends on the order of the two."""
    samples: Positive = 1
    """Verdicts asked for each query, which vote; see `min_confidence`."""
    sample_temperature: NonNegativeFloat = 0.7
    """Of the first attempt, where there are several samples."""
    min_confidence: Fraction = 0.0
    """Share of the votes (samples, panel) that agree, below which there is no verdict."""
    second_reading: bool = True
    """Read a verdict that is missing because of what the answer says once more, from the final
    answer alone; an answer that keeps every judge from judging it is wrong."""
    max_answer_chars: Positive = 20_000
    """Of an answer, counted as its bytes in UTF-8; of a longer one the model sees the end."""
    gate: bool = True
    """Call empty answers, bare punctuation and master keys wrong without asking."""
    max_attempts: Positive = 4
    """At a question; each changes something."""
    deadline_seconds: Seconds = 240.0
    """Of one reading with all its attempts; `max_tokens` should fit into half of it."""
    max_tokens: Positive = 2048
    """The first attempt's, what a reasoning model thinks included; doubles after a cut."""
    temperature: NonNegativeFloat = 0.0
    """Of the first attempt."""
    reasoning_effort: Literal["low", "medium", "high"] | None = None
    """As `executor.reasoning_effort`."""
    panel: tuple[str, ...] = ()
    """Names of further judges; all are asked and vote."""
    combine: Annotated[str, AfterValidator(COMBINE.check)] = "majority"
    """How the panel's verdicts become one: `majority`, `mean` or `median`, or your own as
    `package.module:function`."""
    quorum: Positive = 1
    """Members that must have a verdict; the others leave the vote."""
    weights: tuple[float, ...] = ()
    """Of the judge and the panel's members, in order; default: equal."""
    cache_size: NonNegative = 0
    """Verdicts kept for equal queries; 0 asks every time."""
    breaker_threshold: NonNegative = 0
    """Failures in a row after which a judge that is down is left alone; 0: never."""
    breaker_seconds: Seconds = 30.0
    """... for so long."""
    alarm: AlarmSection = AlarmSection()
    min_agreement: Fraction = 0.0
    """Of verdicts with gold, over a step; below it `low_agreement`."""
    low_agreement: Literal["warn", "stop", "rules"] = "warn"
    """Say so; pause the run, untrained; let rules decide that step's samples."""

    @field_validator("wording")
    @classmethod
    def _a_file_or_an_object(cls, wording: str) -> str:
        return wording if wording.endswith((".yaml", ".yml")) else WORDING.check(wording)

    @model_validator(mode="after")
    def _panel_fits(self) -> "JudgeSection":
        seats = 1 + len(self.panel)
        if self.quorum > seats:
            raise ValueError(f"a quorum of {self.quorum} with {seats} judges")
        if self.weights and (len(self.weights) != seats or min(self.weights) <= 0):
            raise ValueError(f"weights must be {seats} positive numbers, one a judge")
        if self.mode == "rules" and (self.panel or self.service is not None):
            raise ValueError("a panel or a service with mode rules: the rules ask nobody")
        return self

    @model_validator(mode="after")
    def _aspects_have_names(self) -> "JudgeSection":
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
    """A run, a checkpoint, an adapter or an exported model, in the place of `judge.model`. What it
    scores or writes is computed in the service's own process, unless there is a `base_url`."""
    base: Name | None = None
    """Of an adapter, where it is not what its files name."""
    base_url: str | None = Field(default=None, pattern=r"^https?://\S+$")
    """An OpenAI-compatible server that serves a judge which writes, such as
    http://localhost:8000/v1; `folder` then says how it is asked."""
    model_name: Name | None = None
    """Its name there. Default: `folder` as it is written."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Of the service's own process."""
    batch: Positive = 64
    """Texts that wait together and are computed together."""
    max_tokens: Positive | None = None
    """Of a text that is scored, or of a prompt with its reply; a longer one is refused. Default:
    what the model's config says it takes."""
    judges: Literal["one", "two", "both"] | None = None
    """What a judge that writes was trained for: `one` answer, the better of `two`, or `both`.
    Default: what its run says, else `both`."""
    wording: Name | None = None
    """What a judge that writes is told, as `judging.wording`. Default: as in training, else
    `standard`."""
    states_confidence: bool | None = None
    """Whether it says how sure it is. Default: as in training, else not."""
    opened_thought: bool | None = None
    """As `judging.opened_thought`. Default: as in training, else not."""

    @model_validator(mode="after")
    def _a_server_has_a_folder(self) -> "TrainedJudgeSection":
        if self.base_url is not None and self.folder is None:
            raise ValueError("base_url: name the trained judge's folder too, which says how to ask")
        return self


class JudgeServerSection(Section):
    """The judge as an HTTP service, and its limits; see docs/judge_service.md."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8888, ge=0, le=65535)
    """Port; 0 takes any free one."""
    api_key: str | None = Field(default=None, pattern=r"^[\x21-\x7e]*$")
    """Asked of every caller; better `${NAME}`. Null or empty: nobody is asked."""
    max_body_bytes: Positive = 2 << 20
    """Of one request; beyond: 413."""
    max_batch: Positive = 64
    """Members of one batch; beyond: 413."""
    max_in_flight: Positive = 64
    """Verdicts in the making at once."""
    max_queue: NonNegative = 256
    """Verdicts that wait for a place; beyond: 429."""
    drain_seconds: Seconds = 30.0
    """After SIGTERM, for the requests that are running."""
    judge_class: str | None = Field(default=None, pattern=r"^[\w.]+:\w+$")
    """A judge model of your own in the place of `judge`, as `package.module:Class`: its
    `score(prompt, completion, answer)`, or with `answer_type`, decides."""
    judge_arguments: Mapping[str, Any] = Field(default_factory=dict)
    """What the class is made with, such as `{model_path: ...}`."""
    judge_threads: Positive = 1
    """Calls of `score` at a time."""
    own_instructions: bool = False
    """Whether a request may bring the judge's instruction; else such a request is refused."""
    log_file: Path | None = None
    """Every verdict as a line of JSON, with its request and the model's replies; null: none."""
    log_max_bytes: Positive = 100 << 20
    """Size from which the log goes on in a new file."""
    log_files: Positive = 5
    """Full log files that are kept, as `log_file.1`, `log_file.2` ..."""

    @model_validator(mode="after")
    def _a_batch_fits(self) -> "JudgeServerSection":
        if self.max_batch > self.max_in_flight + self.max_queue:
            raise ValueError("max_batch must fit into max_in_flight + max_queue")
        return self

    @model_validator(mode="after")
    def _an_instruction_needs_a_key(self) -> "JudgeServerSection":
        is_local = self.host in ("127.0.0.1", "localhost", "::1")
        if self.own_instructions and not self.api_key and not is_local:
            raise ValueError(
                "own_instructions: set api_key, or whoever reaches the service writes its prompts"
            )
        return self


class JudgeRewardSection(JudgeServiceSection):
    """A judge service as a reward function: `reward.config` where `reward.type` is
    `judge_model`. `JUDGE_MODEL_URL` and `JUDGE_MODEL_API_KEY` in the environment stand in for a
    `judge_url` and an `api_key` that are missing; `JUDGE_MAX_BATCH_SIZE` and
    `JUDGE_MAX_CONCURRENT` override `max_batch_size` and `max_concurrent_requests`."""

    use_cache: bool = True
    """Ask equal questions once."""
    cache_size: Positive = 5000
    """Verdicts kept."""
    fallback_to_rule: bool = True
    """Where the judge fails, rules decide what they surely can, tagged; the rest has no reward."""
    circuit_breaker_threshold: NonNegative = 5
    """Failures in a row that open the circuit; 0: never."""
    circuit_breaker_timeout: Seconds = 30.0
    """Seconds until a service that was down is tried again."""
    low_confidence: Fraction = 0.0
    """Below this confidence of the judge's a score is doubted, where it tells one; 0: never."""
    low_confidence_factor: Fraction = 0.8
    """What a doubted score is multiplied by."""
