"""The whole of a configuration: of a run, and of a judge service."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Self, TypeVar

from pydantic import Field, PrivateAttr, model_validator

from flowright.config.grpo import (
    OBJECTIVES,
    GrpoSection,
    PipelineSection,
    RaySection,
    RolloutSection,
)
from flowright.config.judge import (
    MOST_LISTED,
    JudgeSection,
    JudgeServerSection,
    TrainedJudgeSection,
)
from flowright.config.llm import LlmSection, SimulatedSection
from flowright.config.policy import SMOLLM2, TINY, PolicySection
from flowright.config.reward import TermsSection
from flowright.config.run import PlanSection, RunSection
from flowright.config.section import Name, NonNegative, NonNegativeFloat, Positive, Section
from flowright.config.workflow import (
    ExecutorSection,
    RewardSection,
    SandboxSection,
    WorkflowSection,
)


class EvaluationSection(Section):
    """Evaluation on held-out problems."""

    every: NonNegative = 20
    """Steps between evaluations while training; 0: never."""
    problems: Positive = 90
    """Problems of these evaluations."""
    final_problems: Positive = 180
    """Problems of the before/after table."""
    samples: Positive = 1
    """Samples per problem."""
    final_samples: Positive | None = None
    """Samples in the before/after table. Default: `samples`."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature of evaluations."""
    baselines: bool | list[Path] = True
    """Baselines in the before/after table: `true` for the environment's, or also the programs in
    these `.py` files and folders (docs/workflows.md#baselines)."""
    text: Path | None = None
    """Text whose perplexity (`eval/perplexity`) shows what training costs elsewhere: plain text, or
    rows with a column `text`."""
    text_tokens: int = Field(default=8192, ge=2)
    """Tokens of it that are read."""


class EnvironmentSection(Section):
    """Base of an environment's own keys, which stand under ``key`` at the root of a configuration.
    Its methods answer what the rest of a run asks the configuration about its environment; each
    gets the whole configuration."""

    key: ClassVar[str] = ""
    plan_keys: ClassVar[Sequence[str]] = ()
    """Further keys in which a run and the earlier one that it is planned by should agree."""
    reads_datasets: ClassVar[bool] = False
    """True if tasks are those of ``train_dataset`` and ``val_dataset``."""
    has_terms: ClassVar[bool] = False
    """True if the root's ``reward.terms`` and ``reward.judge_weight`` count."""

    def check(self, config: "Config") -> None:
        """Raise ValueError, as ``key: message``, for settings that do not fit together."""

    def resolved(self) -> Self:
        """Return the section with the defaults that depend on the machine."""
        return self

    def problems_from(self, config: "Config") -> str:
        """Return the source of the tasks, for people."""
        if self.reads_datasets:
            return f"{config.train_dataset}, {config.val_dataset} held out"
        return f"environment {config.environment}"

    def held_out_from(self, config: "Config") -> str:
        """Return the source of the tasks that an evaluation measures by, for people."""
        if self.reads_datasets:
            return config.val_dataset
        return f"held out of {self.problems_from(config)}"

    def judge_model(self, config: "Config") -> str | None:
        """Return the name of the model that judges; None if rules or a service do."""
        judge = config.judge
        if judge.mode == "rules" or judge.service is not None or not config.reward.asks_model:
            return None
        return config.judge.model or config.aflow_executor_model

    def models(self, config: "Config") -> frozenset[str]:
        """Return the names of all large models that the run asks: executor, judge, panel, meta."""
        judge = {config.judge_model} if config.judge_model is not None else set[str]()
        return frozenset({*config.executor_models, *judge, *config.judge.further_models})

    def compares_answers(self, config: "Config") -> bool:
        """Return whether `judge.group` can rank a group's answers."""
        return False

    def rewards(self, config: "Config") -> Mapping[str, float]:
        """Return the configured rewards that may be below 0, by key."""
        return {}

    def samples_nothing(self, config: "Config") -> bool:
        """Return whether the policy writes nothing, neither to train on nor to be measured by."""
        return config.grpo.loss == "bradley_terry"

    def budget(self) -> WorkflowSection | None:
        """Return the budget of one completion that is a workflow; None if it is none."""
        return None


Own = TypeVar("Own", bound=EnvironmentSection)


class Config(Section):
    """A whole run. The first keys are the ones most people change."""

    seed: int = 0
    """Seed of every draw."""
    environment: str = "workflow"
    """`workflow`, `canvas` (docs/workflows.md), `judging` (docs/training_judges.md),
    `instructions` (docs/instructions.md), `presentation` (docs/study.md), `games`
    (docs/learner.md), or an environment of your own as `package.module:Class`
    (docs/extending.md)."""
    strategy_model: Name = TINY
    """Policy: a Hugging Face id or folder, `tiny` (embedded), or `smollm2-135m` (pretrained, needs
    no hub)."""
    aflow_executor_model: Name = "simulated"
    """A name in `llm.file`, or `simulated`."""
    train_dataset: Name = "offline"
    """A task file, `offline`, or `package.module:function` (docs/extending.md)."""
    val_dataset: Name = "offline"
    """See `train_dataset`."""
    physical_gpus: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """Value of CUDA_VISIBLE_DEVICES."""
    run: RunSection = RunSection()
    policy: PolicySection = PolicySection()
    grpo: GrpoSection = GrpoSection()
    pipeline: PipelineSection = PipelineSection()
    rollout: RolloutSection = RolloutSection()
    ray: RaySection = RaySection()
    reward: RewardSection = RewardSection()
    llm: LlmSection = LlmSection()
    executor: ExecutorSection = ExecutorSection()
    judge: JudgeSection = JudgeSection()
    simulated: SimulatedSection = SimulatedSection()
    sandbox: SandboxSection = SandboxSection()
    evaluation: EvaluationSection = EvaluationSection()
    plan: PlanSection = PlanSection()

    section_key: ClassVar[str] = ""
    """Key of the environment's section; empty if it has none."""

    _source: str = PrivateAttr(default="FILE")

    def read_from(self, source: str) -> "Config":
        """With the file and the overrides that it was read from, as a command is given them."""
        copy = self.model_copy()
        copy._source = source
        return copy

    @property
    def source(self) -> str:
        """The arguments of ``--config`` for these settings; ``FILE`` if they are not known."""
        return self._source

    def __eq__(self, other: object) -> bool:
        """By the settings alone, wherever they were read."""
        return isinstance(other, Config) and self.__dict__ == other.__dict__

    @property
    def section(self) -> EnvironmentSection:
        """The environment's section; one without keys if it has none."""
        return getattr(self, self.section_key) if self.section_key else EnvironmentSection()

    def own(self, kind: type[Own]) -> Own:
        """Return the environment's section, which is of this kind. Raises TypeError for another
        kind, and for a configuration that was made without its environment."""
        section = self.section
        if not isinstance(section, kind):
            raise TypeError(
                f"environment {self.environment}: the section is a {type(section).__name__}, not a "
                f"{kind.__name__}; flowright.make_config makes a Config with its section"
            )
        return section

    @model_validator(mode="after")
    def _check_terms_fit(self) -> "Config":
        reward, judge = self.reward, self.judge
        if reward.has_terms and not self.section.has_terms:
            raise ValueError(
                f"reward.terms: environment: {self.environment} has a reward of its own; terms "
                "and judge_weight count with workflow and instructions"
            )
        reward.check_aspects(judge.mode != "rules" and judge.service is None)
        return self

    @model_validator(mode="after")
    def _check_environment_fits(self) -> "Config":
        self.section.check(self)
        return self

    @model_validator(mode="after")
    def _check_group_can_be_ranked(self) -> "Config":
        method, size = self.judge.group.method, self.grpo.group_size
        if method == "none":
            return self
        if not self.section.compares_answers(self):
            raise ValueError(
                f"judge.group.method: {method} needs environment: workflow, or instructions with "
                "reward: judge"
            )
        if self.reward.cost_weight:
            raise ValueError(
                "reward.cost_weight: ranks answers judged right, and judge.group calls none right; "
                "set it to 0"
            )
        size = max(size, self.evaluation.samples, self.evaluation.final_samples or 0)
        if size < 2 or (method == "list" and size > MOST_LISTED):
            most = f" and at most {MOST_LISTED}" if method == "list" else ""
            raise ValueError(f"grpo.group_size: {size}; judge.group needs at least 2{most}")
        return self

    @model_validator(mode="after")
    def _check_workers_fit_judge(self) -> "Config":
        if self.rollout.workers and self.judge.low_agreement == "rules":
            raise ValueError(
                "rollout.workers: judge.low_agreement: rules compares all groups of a step, and a "
                "worker sees one; set it to stop or warn, or workers: 0"
            )
        return self

    @model_validator(mode="after")
    def _check_maxrl_has_no_penalty(self) -> "Config":
        if self.grpo.advantage_scale != "maxrl":
            return self
        given = {
            **self.section.rewards(self),
            **{f"the weight of reward.terms {t.name}": t.weight for t in self.reward.terms},
        }
        if below := [f"{key} ({value:g})" for key, value in given.items() if value < 0]:
            raise ValueError(
                "grpo.advantage_scale: maxrl divides by a group's mean, so rewards must be 0 or "
                f"more; raise {', '.join(below)}, or choose another scale"
            )
        return self

    @model_validator(mode="after")
    def _check_loss_fits_head(self) -> "Config":
        loss = self.grpo.loss
        if (self.policy.head == "score") != (loss == "bradley_terry") and loss in OBJECTIVES:
            fit = "score" if loss == "bradley_terry" else "language_model"
            raise ValueError(f"policy.head: {self.policy.head}; grpo.loss: {loss} needs {fit}")
        return self

    @model_validator(mode="after")
    def _check_text_fits_head(self) -> "Config":
        if self.evaluation.text is not None and self.policy.head == "score":
            raise ValueError(
                "evaluation.text: policy.head: score predicts no tokens, so a text has no "
                "perplexity; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _check_sharded_fits_sampler(self) -> "Config":
        policy = self.policy
        local = policy.sampler == "local" and not self.section.samples_nothing(self)
        if policy.sharded and policy.train == "lora" and local:
            raise ValueError(
                "policy.sharded with sampler local, which decodes with weights that one process "
                "has: set policy.sampler: vllm (docs/running_on_gpus.md), or policy.sharded: false"
            )
        return self

    @model_validator(mode="after")
    def _check_in_flight_fits_sampler(self) -> "Config":
        policy = self.policy
        if self.pipeline.in_flight_tokens and (policy.sampler, policy.train) != ("vllm", "lora"):
            raise ValueError(
                "pipeline.in_flight_tokens: needs servers with both adapters, the old and the new: "
                "set policy.sampler: vllm and policy.train: lora, or in_flight_tokens: 0"
            )
        return self

    @model_validator(mode="after")
    def _check_nucleus_fits_correction(self) -> "Config":
        name, by_sample = self.grpo.off_policy, self.grpo.loss in ("gspo", "gmpo")
        by_sample = by_sample or (name or "").startswith("sequence_")
        if self.policy.top_p < 1 and by_sample and name not in ("ratio", "ignored"):
            raise ValueError(
                f"grpo.off_policy: {name}: below policy.top_p 1 the weight of a whole sample "
                f"({name if name else self.grpo.loss}) is the product of its tokens' nucleus "
                "masses, which vanishes; set off_policy: ignored, or top_p: 1"
            )
        return self

    @model_validator(mode="after")
    def _check_servers_have_policy(self) -> "Config":
        named = self.policy.sampler == "local" or self.policy.vllm.model_name
        if not named and self.served_policy in (TINY, SMOLLM2):
            raise ValueError(
                "policy.vllm.model_name: name the model that the servers have; "
                f"{self.strategy_model} is a folder of policy.tiny.cache_dir"
            )
        return self

    def on(self, device: str, turns: int = 1) -> "Config":
        """The configuration with every default that depends on the device (``cpu``, ``cuda``) and
        on the ``turns`` of an attempt, as a run has it and keeps it in config.json. The embedded
        policy is small: it has a CPU's."""
        if self.strategy_model == TINY:
            device = "cpu"
        policy, pipeline = self.policy.on(device), self.pipeline.on(device)
        behind = bool(pipeline.max_staleness) or policy.sampler == "vllm"
        grpo = self.grpo.on(behind, policy.written_tokens(turns))
        if device == "cpu":
            grpo = grpo.model_copy(update={"micro_batch_tokens": grpo.chunk_tokens})
        resolved: dict[str, Section] = {"policy": policy, "pipeline": pipeline, "grpo": grpo}
        if self.section_key:
            resolved[self.section_key] = self.section.resolved()
        return self.model_copy(update=resolved)

    @property
    def served_policy(self) -> str:
        """The name of the policy's base model on vLLM servers."""
        return self.policy.vllm.model_name or self.policy_base

    @property
    def policy_base(self) -> str:
        """The base of the policy's adapter: the warm-started folder, or ``strategy_model``."""
        return str(self.policy.warm_start.folder or self.strategy_model)

    @property
    def problems_from(self) -> str:
        """Source of the tasks, for people."""
        return self.section.problems_from(self)

    @property
    def held_out_from(self) -> str:
        """Source of the tasks that an evaluation measures by, for people."""
        return self.section.held_out_from(self)

    @property
    def judge_model(self) -> str | None:
        """Name of the model that judges; None if rules or a service do."""
        return self.section.judge_model(self)

    @property
    def judge_names(self) -> tuple[str, ...]:
        """The judges, for people: models, the address of a service, or the rules."""
        if not self.reward.asks_model:
            return ("none",)
        if self.judge.mode == "rules":
            return ("rules",)
        service = self.judge.service
        first = self.judge_model if service is None else service.judge_url
        return (first or "", *self.judge.panel)

    @property
    def executor_models(self) -> tuple[str, ...]:
        """The operators' models, their default first."""
        return self.executor.models or (self.aflow_executor_model,)

    @property
    def executor_name(self) -> str:
        """Their names, joined."""
        return ", ".join(self.executor_models)

    @property
    def models(self) -> frozenset[str]:
        """Names of all large models that the run asks."""
        return self.section.models(self)


class JudgeServerConfig(Section):
    """A judge service: `python scripts/serve_judge.py --config config/judge_server.yaml`."""

    server: JudgeServerSection = JudgeServerSection()
    judge: JudgeSection = JudgeSection()
    reward: TermsSection = TermsSection()
    trained: TrainedJudgeSection = TrainedJudgeSection()
    llm: LlmSection = LlmSection()
    simulated: SimulatedSection = SimulatedSection()

    @model_validator(mode="after")
    def _check_one_judge(self) -> "JudgeServerConfig":
        if self.trained.folder is None:
            return self
        for key, other in (
            ("server.judge_class", self.server.judge_class),
            ("judge.service", self.judge.service),
            ("judge.panel", self.judge.panel),
            ("judge.meta", self.judge.meta),
        ):
            if other:
                raise ValueError(f"{key}: trained.folder is the judge already; leave one out")
        if self.judge.mode == "rules":
            raise ValueError("judge.mode: with rules there is no judge, and trained.folder is one")
        return self

    @model_validator(mode="after")
    def _check_terms(self) -> "JudgeServerConfig":
        reward = self.reward
        weights = [reward.judge_weight, *(term.weight for term in reward.terms)]
        if reward.has_terms and (min(weights) < 0 or sum(weights) > 1 + 1e-9):
            raise ValueError(
                f"reward: the weights {', '.join(f'{each:g}' for each in weights)}: a service's "
                "scores are from 0 to 1, so its weights are 0 or more and at most 1 in all; "
                "judge_weight is 1 where it is left out"
            )
        if reward.has_terms and self.judge.ask == "pairwise":
            raise ValueError("reward.terms: score one answer, and judge.ask is pairwise")
        own = self.trained.folder is not None or self.server.judge_class is not None
        own = own or self.judge.service is not None or self.judge.mode == "rules"
        reward.check_aspects(not own)
        return self

    @model_validator(mode="after")
    def _check_judge_is_named(self) -> "JudgeServerConfig":
        if self.judge.group.method != "none":
            raise ValueError("judge.group: a service judges single answers; leave it out")
        own = self.judge.service is not None or self.server.judge_class is not None
        own = own or self.trained.folder is not None
        own = own or not self.reward.asks_model
        if self.judge.mode != "rules" and not own and not self.judge.model:
            raise ValueError("judge.model: name a model of `llm.file`, or `simulated`")
        return self

    @property
    def models(self) -> frozenset[str]:
        """The names of all large models that judge; none where rules or a class of one's own do."""
        if self.judge.mode == "rules" or self.server.judge_class is not None:
            return frozenset()
        if not self.reward.asks_model:
            return frozenset()
        if self.trained.folder is not None:
            return frozenset()
        model = None if self.judge.service is not None else self.judge.model
        return frozenset(filter(None, (model, *self.judge.further_models)))
