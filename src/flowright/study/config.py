"""The file of a study: arms, seeds and claims, with the names of presentations and measures."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from flowright.config.loading import expand, explain, find_config, read_yaml
from flowright.config.run import PlanServerSection
from flowright.config.section import (
    Fraction,
    Name,
    NonNegative,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    Section,
)
from flowright.core.errors import ConfigError

PRESENTATIONS = ("elaborate", "cite", "assure", "decorate", "address", "announce", "plain")
"""Ways of presenting an answer: values of ``presentation`` in a rollout's record."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure of a run. A ``share``, or difference of two, is shown in per cent or points."""

    title: str
    meaning: str
    share: bool = True


MEASURES: Mapping[str, Measure] = {
    "final_gold": Measure("final gold", "held-out accuracy by gold of the trained policy"),
    "final_proxy": Measure("final proxy", "held-out share that the judge calls right"),
    "final_gap": Measure("final gap", "final proxy minus final gold"),
    "gold_area": Measure("gold over training", "mean over training steps of gold accuracy"),
    "max_share": Measure("largest share", "largest share of the shortcut in a training step"),
    "last_share": Measure("share at the end", "the shortcut's share, last tenth of the steps"),
    "exploitation": Measure(
        "exploitation rate",
        "of the attempts of the last tenth of the steps that were rewarded as right, the share "
        "that gold rejects",
    ),
    "last_gold": Measure("gold at the end", "gold accuracy in the last tenth of the steps"),
    "last_proxy": Measure(
        "proxy at the end", "mean reward in the last tenth of the steps", share=False
    ),
    "last_length": Measure("length at the end", "tokens a completion, last tenth", share=False),
    "unscored": Measure("unscored", "share of all attempts without a reward"),
    "calls": Measure("calls", "calls of a judge or executor in training", share=False),
    "policy_tokens": Measure("policy tokens", "tokens that the policy wrote in training", False),
    "final_calls": Measure("final calls", "executor calls a problem, held out", share=False),
    "final_tokens": Measure("final tokens", "executor tokens a problem, held out", share=False),
    "final_length": Measure("final length", "tokens of an attempt, held out", share=False),
    "last_turns": Measure("turns at the end", "turns of an attempt, last tenth", share=False),
    "audits": Measure("gold checks", "attempts in training whose reward was gold", share=False),
    "seconds": Measure("seconds", "seconds of the run's process", share=False),
    "onset": Measure("onset", "step at which exploitation begins, or censored", share=False),
    "severe": Measure("severe point", "step with a gap of 0.30 and a share of 50 %", share=False),
}

OF_SHORTCUT = ("max_share", "last_share")
"""Measures of the arm's own shortcut; results.parquet also has them of every presentation."""


def column_of(measure: str, shortcut: str | None) -> str:
    """Return the column of the measure, in runs of any arm, for an arm with this shortcut."""
    return f"{measure}_{shortcut}" if measure in OF_SHORTCUT and shortcut else measure


NAME = r"^[A-Za-z0-9_]+$"
Test = Literal["permutation", "wilcoxon", "t", "sign", "log_rank"]


class ArmSection(Section):
    """Settings that differ from the base: a treatment, or several doses of one."""

    name: str = Field(pattern=NAME)
    """Name of its folder and its row."""
    title: str = ""
    """A description; default: `name`."""
    set: Mapping[str, Any] = Field(default_factory=dict)
    """Keys of `train.py` and their values, such as `{simulated.judge_biases.verbosity: 0.9}`.
    `${PARAMETER}` stands for a value of `over`."""
    over: Mapping[str, tuple[Any, ...]] = Field(default_factory=dict)
    """Parameters and their values: one arm for each value, or for each pair of two parameters'."""
    control_at: float | None = None
    """The dose at which the control stands on this arm's axis: 0 for a bias that it lacks. Null:
    the control is no dose of this arm."""
    shortcut: str | None = None
    """The presentation that the arm's judge pays for, or null."""
    remedy_for: str | None = None
    """The arm that this one improves, `ARM@DOSE` of one with doses; the report has its gain and
    cost over it."""


class ClaimSection(Section):
    """An expectation and the test that decides it, fixed before the first run."""

    id: str = Field(pattern=NAME)
    """A short name."""
    hypothesis: Name
    """A sentence."""
    kind: Literal["finding", "construction"] = "finding"
    """`construction`: follows from how the simulation is built, and only checks it."""
    arm: Name
    """An arm, `ARM@DOSE` of one with doses. Without `@DOSE` it means the slope over them."""
    against: str | None = None
    """The arm that it is compared with, seed by seed; default: `control`."""
    measure: Name
    """A column of results.parquet; see docs/study.md."""
    direction: Literal["greater", "less", "none"]
    """Direction of `arm` minus `against`; `none`: within `threshold` of 0 either way."""
    test: Test = "permutation"
    """Exact sign flips of paired differences (`permutation`), Wilcoxon's signed ranks, Student's
    t (of five seeds or more), the sign test, or `log_rank` of times to the onset, arms exchanged
    within seeds."""
    threshold: float = Field(default=0.0, ge=0)
    """Smallest difference that counts; for `none`, the margin of equivalence."""
    alpha: float = Field(default=0.05, gt=0, lt=1)
    """Largest p-value, adjusted for all claims."""


class ServedSection(PlanServerSection):
    """A large model, or all judge services as one, as the plan assumes it."""

    gpus: NonNegativeFloat = 1.0
    """GPUs that serve it."""


class GpuSection(Section):
    """A study whose runs train on GPUs: those it may use, and the assumptions of its plan, which
    change no run."""

    per_run: Positive = 1
    """GPUs per run: one process each, as torchrun starts them."""
    devices: tuple[NonNegative, ...] | None = None
    """GPUs for runs, as nvidia-smi numbers them; servers have others. Default: all that this
    process may use."""
    servers: Mapping[str, ServedSection] = Field(default_factory=dict)
    """Servers by their name in `llm.file`; `judge_service` for judges behind `judge.service`."""
    prompt_tokens: PositiveFloat
    """Mean tokens of the policy's prompts."""
    completion_tokens: PositiveFloat
    """Mean tokens of a completion."""
    calls_per_attempt: PositiveFloat
    """Mean executor calls per attempt."""
    sampler_tokens_per_second: PositiveFloat
    """Completion tokens that a run samples per second."""
    learner_tokens_per_second: PositiveFloat
    """Tokens per second of an update."""
    usd_per_hour: NonNegativeFloat | None = None
    """Price of a GPU hour."""


class StudyConfig(Section):
    """A study: `python -m flowright.study FILE`."""

    name: str = Field(pattern=NAME)
    """Name of its folder under `outputs/studies`."""
    base: Path
    """The configuration of `train.py` that all arms share."""
    set: Mapping[str, Any] = Field(default_factory=dict)
    """Keys of `train.py` that all arms set over the base."""
    seeds: Annotated[int, Field(le=1000)] | tuple[int, ...]
    """Seeds, or their number: 0, 1, 2..."""
    control: Name
    """The arm without treatment, such as the one with an unbiased judge."""
    arms: tuple[ArmSection, ...] = Field(min_length=1)
    """The treatments, the control among them."""
    gpus: GpuSection | None = None
    """GPUs of the runs."""
    claims: tuple[ClaimSection, ...] = ()
    """Expectations, decided by tests."""
    false_alarms: Fraction = 0.1
    """The share of the control's runs in which an alarm may go off."""
    assumed_sd: PositiveFloat = 0.05
    """The standard deviation of paired differences that the plan's power assumes until one is
    measured."""

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The seeds in the order of their runs."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    @property
    def shortcuts(self) -> tuple[str, ...]:
        """The shortcuts of all arms."""
        return tuple(dict.fromkeys(arm.shortcut for arm in self.arms if arm.shortcut))


def load_study(path: Path) -> StudyConfig:
    """Read a study's file. ``${NAME}`` outside of ``arms`` is read from the environment. Raises
    ConfigError with one line for each mistake; :func:`flowright.study.runs.cells_of` and
    :func:`flowright.study.runs.runs_of` check the arms over the base."""
    path = find_config(path)
    data = read_yaml(path, expanded=False)
    arms = data.pop("arms", None)
    data = expand(data, os.environ, str(path))
    if arms is not None:
        data["arms"] = arms
    try:
        study = StudyConfig.model_validate(data)
    except ValidationError as error:
        found = (line for detail in error.errors() for line in explain(StudyConfig, detail))
        lines = [f"{path}: {line}" for line in found]
        raise ConfigError(*lines) from None
    if problems := [*_arm_problems(study), *_claim_problems(study)]:
        raise ConfigError(*(f"{path}: {line}" for line in problems))
    return study


def _arm_problems(study: StudyConfig) -> list[str]:
    names = [arm.name for arm in study.arms]
    found = [f"arms: {name} is there twice; rename one" for name in _twice(names)]
    seeds = study.all_seeds
    if len(seeds) < 1:
        found.append("seeds: none; give at least 1, for claims 5 or more")
    found += [f"seeds: {seed} is there twice; take one out" for seed in _twice(seeds)]
    if study.control not in names:
        found.append(f"control: no arm {study.control!r}; name one of {', '.join(names)}")
    if study.gpus is not None:
        devices, per_run = study.gpus.devices, study.gpus.per_run
        if devices is not None and len(set(devices)) < max(per_run, len(devices)):
            found.append(f"gpus.devices: name {max(per_run, len(devices))} or more, each once")
        for where, given in (
            ("set", study.set),
            *((f"arms.{a.name}.set", a.set) for a in study.arms),
        ):
            if "physical_gpus" in given:
                found.append(f"{where}.physical_gpus: leave it out; gpus.devices selects them")
    for arm in study.arms:
        key = f"arms.{arm.name}"
        if arm.name == study.control and arm.over:
            found.append(f"{key}.over: the control has no doses; take it out")
        if len(arm.over) > 2:
            found.append(f"{key}.over: {len(arm.over)} parameters; at most 2, as arms of their own")
        for name, values in arm.over.items():
            if not values or _twice([str(value) for value in values]):
                found.append(f"{key}.over.{name}: give values, each once")
        if arm.shortcut is not None and arm.shortcut not in PRESENTATIONS:
            known = ", ".join(PRESENTATIONS)
            found.append(f"{key}.shortcut: no presentation {arm.shortcut!r}; one of {known}")
    return found


def _claim_problems(study: StudyConfig) -> list[str]:
    names = [claim.id for claim in study.claims]
    found = [f"claims: {name} is there twice; rename one" for name in _twice(names)]
    for claim in study.claims:
        key = f"claims.{claim.id}"
        if claim.measure not in MEASURES:
            found.append(f"{key}.measure: no {claim.measure!r}; one of {', '.join(MEASURES)}")
        timed = claim.measure in ("onset", "severe")
        if timed != (claim.test == "log_rank"):
            fit = "log_rank" if timed else "permutation, wilcoxon, t or sign"
            found.append(f"{key}.test: {claim.test} does not fit {claim.measure}; use {fit}")
        if timed and (claim.threshold or claim.direction == "none"):
            found.append(f"{key}: times have no threshold; use greater or less, without one")
        if claim.direction == "none" and not claim.threshold and not timed:
            found.append(f"{key}.threshold: none needs a margin; give what is as good as 0")
    return found


def _twice(names: Sequence[Any]) -> list[Any]:
    return [name for name in dict.fromkeys(names) if names.count(name) > 1]
