"""The whole of a configuration: of a run, and of a judge service."""

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, PrivateAttr, field_validator, model_validator

from flowright.config.environment import ENVIRONMENTS
from flowright.config.grpo import OBJECTIVES, GrpoSection, PipelineSection, RaySection
from flowright.config.instructions import CHECKED, InstructionsSection
from flowright.config.judge import JudgeSection, JudgeServerSection, TrainedJudgeSection
from flowright.config.judging import GIVEN, JudgingSection
from flowright.config.llm import LlmSection
from flowright.config.plan import PlanSection
from flowright.config.policy import SMOLLM2, TINY, PolicySection
from flowright.config.presentation import PresentationSection
from flowright.config.run import RunSection
from flowright.config.section import Name, NonNegative, NonNegativeFloat, Positive, Section
from flowright.config.simulation import SIMULATED, SimulatedSection
from flowright.config.workflow import (
    ExecutorSection,
    RewardSection,
    SandboxSection,
    WorkflowSection,
)


class EvaluationSection(Section):
    """Held-out problems: while training, and for the before/after table."""

    every: NonNegative = 20
    """Steps between evaluations while training; 0: never."""
    problems: Positive = 90
    """Validation problems of these evaluations."""
    final_problems: Positive = 180
    """Of the before/after table."""
    samples: Positive = 1
    """Workflows sampled per problem."""
    final_samples: Positive | None = None
    """Of the before/after table. Default: `samples`."""
    temperature: NonNegativeFloat = 1.0
    """Of the policy when evaluated."""
    baselines: bool = True
    """Fixed workflows in the before/after table."""
    text: Path | None = None
    """A text that is not trained on, whose perplexity tells what training costs elsewhere
    (`eval/perplexity`): plain text, or rows with a column `text` (JSON Lines, Parquet);
    `config/plain_english.jsonl` is one."""
    text_tokens: int = Field(default=8192, ge=2)
    """How many of its first tokens are read, in windows of at most `policy.max_prompt_tokens` +
    `policy.max_new_tokens`."""


class Config(Section):
    """A whole run. The first keys are the ones most people change."""

    seed: int = 0
    """Of every draw of the run."""
    environment: str = "workflow"
    """What a completion means: `workflow`, `judging` (docs/training_judges.md), `instructions`
    (docs/instructions.md), `presentation` (docs/study.md), or
    `package.module:factory` for an environment of your own; see docs/extending.md."""
    strategy_model: Name = TINY
    """The policy: a Hugging Face id or folder, `tiny` (embedded), or `smollm2-135m` (a pretrained
    one that needs no hub; see docs/running_on_gpus.md)."""
    aflow_executor_model: Name = "simulated"
    """A name in `llm.file`, or `simulated` (embedded server)."""
    train_dataset: Name = "offline"
    """A task file; `offline` for the mixture that needs no download; or `package.module:function`
    for problems of your own, see docs/extending.md."""
    val_dataset: Name = "offline"
    """As `train_dataset`."""
    physical_gpus: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """Becomes CUDA_VISIBLE_DEVICES before torch starts."""
    run: RunSection = RunSection()
    policy: PolicySection = PolicySection()
    grpo: GrpoSection = GrpoSection()
    pipeline: PipelineSection = PipelineSection()
    ray: RaySection = RaySection()
    reward: RewardSection = RewardSection()
    workflow: WorkflowSection = WorkflowSection()
    llm: LlmSection = LlmSection()
    executor: ExecutorSection = ExecutorSection()
    judge: JudgeSection = JudgeSection()
    judging: JudgingSection = JudgingSection()
    instructions: InstructionsSection = InstructionsSection()
    presentation: PresentationSection = PresentationSection()
    simulated: SimulatedSection = SimulatedSection()
    sandbox: SandboxSection = SandboxSection()
    evaluation: EvaluationSection = EvaluationSection()
    plan: PlanSection = PlanSection()

    _source: str = PrivateAttr(default="FILE")

    def read_from(self, source: str) -> "Config":
        """With the file and the overrides that it was read from, as a command is given them."""
        copy = self.model_copy()
        copy._source = source
        return copy

    @property
    def source(self) -> str:
        """What follows ``--config`` in a command that is given these settings; ``FILE`` where that
        is not known."""
        return self._source

    def __eq__(self, other: object) -> bool:
        """By the settings alone, wherever they were read."""
        return isinstance(other, Config) and self.__dict__ == other.__dict__

    @field_validator("environment")
    @classmethod
    def _is_an_environment(cls, name: str) -> str:
        return ENVIRONMENTS.check(name)

    @model_validator(mode="after")
    def _the_judge_can_judge_workflows(self) -> "Config":
        if self.environment == "workflow" and self.judge.ask in ("pairwise", "rubric"):
            raise ValueError(
                f"judge.ask: {self.judge.ask} does not fit: answers of workflows are judged one by "
                "one against a reference; use true_false, score, pointwise or multi_aspect"
            )
        return self

    @model_validator(mode="after")
    def _one_model_judges_criteria(self) -> "Config":
        if not self._asks_about_criteria:
            return self
        judge = self.judge
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
        return self

    @model_validator(mode="after")
    def _a_score_needs_no_reference(self) -> "Config":
        if self.environment != "instructions" or self.instructions.reward != "judge":
            return self
        if self.judge.mode != "judge":
            raise ValueError(
                f"judge.mode: {self.judge.mode}: rules compare with a reference, which prompts of "
                "instructions.reward: judge do not have; leave it out"
            )
        if self.judge.ask in ("pairwise", "rubric"):
            raise ValueError(
                f"judge.ask: {self.judge.ask}: instructions.reward: judge has answers judged one "
                "by one; use score, pointwise, true_false or multi_aspect"
            )
        return self

    @model_validator(mode="after")
    def _the_planted_judge_judges_presentations(self) -> "Config":
        if self.environment != "presentation":
            return self
        judge, rates = self.judge, self.simulated
        other = judge.service is not None or judge.mode != "judge" or bool(judge.panel)
        if other or self.judge_model != SIMULATED:
            raise ValueError(
                "judge: environment: presentation has the embedded judge, in this process; leave "
                "model, service, mode and panel out (presentation.reward: panel is one)"
            )
        corrects = self.presentation.correction == "backward"
        if corrects and rates.judge_true_positive <= rates.judge_false_positive:
            raise ValueError(
                "presentation.correction: backward needs simulated.judge_true_positive above "
                "judge_false_positive: a judge without either says nothing that could be corrected"
            )
        return self

    @model_validator(mode="after")
    def _the_loss_is_the_method_s(self) -> "Config":
        loss, method = self.grpo.loss, self.judging.method
        if self.environment == "judging" and loss != method and {loss, method} & {*GIVEN}:
            raise ValueError(f"grpo.loss: {loss} does not fit judging.method: {method}")
        if (self.policy.head == "score") != (loss == "bradley_terry") and loss in OBJECTIVES:
            fit = "score" if loss == "bradley_terry" else "language_model"
            raise ValueError(f"policy.head: {self.policy.head}; grpo.loss: {loss} needs {fit}")
        return self

    @model_validator(mode="after")
    def _who_reads_a_text_predicts_it(self) -> "Config":
        if self.evaluation.text is not None and self.policy.head == "score":
            raise ValueError(
                "evaluation.text: policy.head: score predicts no tokens, so a text has no "
                "perplexity; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _split_weights_do_not_decode(self) -> "Config":
        policy = self.policy
        if policy.sharded and policy.sampler == "local" and not self._only_reads:
            raise ValueError(
                "policy.sharded with sampler local, which decodes with weights that one process "
                "has: set policy.sampler: vllm (docs/running_on_gpus.md), or policy.sharded: false"
            )
        return self

    @property
    def _only_reads(self) -> bool:
        """Whether the policy writes nothing, neither to train on nor to be measured by."""
        from_files = self.environment == "judging" and self.judging.data == "files"
        return self.grpo.loss == "bradley_terry" or (self.grpo.loss == "sft" and from_files)

    @model_validator(mode="after")
    def _completions_are_longer_than_the_buffer(self) -> "Config":
        buffer, longest = self.grpo.overlong_buffer, self.policy.max_new_tokens
        if self.grpo.overlong == "soft" and buffer is not None and buffer > longest:
            raise ValueError(
                f"grpo.overlong_buffer: {buffer} tokens of completions of at most {longest}; give "
                "a part of policy.max_new_tokens"
            )
        return self

    @model_validator(mode="after")
    def _a_server_has_the_policy(self) -> "Config":
        named = self.policy.sampler == "local" or self.policy.vllm.model_name
        if not named and self.served_policy in (TINY, SMOLLM2):
            raise ValueError(
                "policy.vllm.model_name: name the model that the servers have; "
                f"{self.strategy_model} is a folder of policy.tiny.cache_dir"
            )
        return self

    def on(self, device: str) -> "Config":
        """The configuration with every default that depends on the device (``cpu``, ``cuda``), as
        a run has it and keeps it in config.json. The embedded policy is small: it has a CPU's."""
        if self.strategy_model == TINY:
            device = "cpu"
        policy, pipeline = self.policy.on(device), self.pipeline.on(device)
        behind = bool(pipeline.max_staleness) or policy.sampler == "vllm"
        grpo = self.grpo.on(behind, policy.max_new_tokens)
        settled = {"policy": policy, "pipeline": pipeline, "grpo": grpo}
        if self.environment == "instructions":
            settled["instructions"] = self.instructions.with_rules(os.environ)
        return self.model_copy(update=settled)

    @property
    def served_policy(self) -> str:
        """The name of the policy's base model on vLLM servers."""
        return self.policy.vllm.model_name or self.policy_base

    @property
    def policy_base(self) -> str:
        """What the policy's adapter stands on: the warm-started folder, or ``strategy_model``."""
        return str(self.policy.warm_start.folder or self.strategy_model)

    @property
    def problems_from(self) -> str:
        """Where the tasks come from, for people."""
        if self.environment == "instructions":
            files = ", ".join(self.instructions.train_files)
            return f"{files or 'a known rule (synthetic)'}, rewarded by {self.instructions.reward}"
        if self.environment == "presentation":
            return f"small questions (planted, simulated), rewarded by {self.presentation.reward}"
        if self.environment != "judging":
            return f"{self.train_dataset}, {self.val_dataset} held out"
        files = ", ".join(map(str, self.judging.train_files))
        return f"{files or 'a known rule (synthetic)'}, to train a judge: {self.judging.method}"

    @property
    def held_out_from(self) -> str:
        """Where the tasks come from that an evaluation measures by, for people."""
        if self.environment not in ("instructions", "judging", "presentation"):
            return self.val_dataset
        files = {"instructions": self.instructions.val_files, "judging": self.judging.val_files}
        given = ", ".join(map(str, files.get(self.environment, ())))
        return given or f"held out of {self.problems_from}"

    @property
    def _asks_about_criteria(self) -> bool:
        """Whether a model is asked which criteria an answer to a prompt meets."""
        return self.environment == "instructions" and self.instructions.reward not in CHECKED

    @property
    def judge_model(self) -> str | None:
        """The name of the model that judges; None where rules or a service do."""
        if self.judge.mode == "rules" or self.judge.service is not None:
            return None
        if self.environment == "instructions" and self.instructions.reward == "constraints":
            return None
        return self.judge.model or self.aflow_executor_model

    @property
    def judge_names(self) -> tuple[str, ...]:
        """Who judges, for people: models, the address of a service, or the rules."""
        if self.judge.mode == "rules":
            return ("rules",)
        service = self.judge.service
        first = self.judge_model if service is None else service.judge_url
        return (first or "", *self.judge.panel)

    @property
    def models(self) -> frozenset[str]:
        """The names of all large models: the executor, the judge, the panel; of instructions, which
        nobody executes, the judge's alone; of presentations, which no server judges, none."""
        if self.environment == "presentation":
            return frozenset()
        judge = {self.judge_model} if self.judge_model is not None else set[str]()
        if self.environment == "instructions":
            panel = self.judge.panel if self.instructions.reward == "judge" else ()
            return frozenset({*judge, *panel})
        return frozenset({self.aflow_executor_model, *judge, *self.judge.panel})


class JudgeServerConfig(Section):
    """A judge service: `python scripts/serve_judge.py --config config/judge_server.yaml`."""

    server: JudgeServerSection = JudgeServerSection()
    judge: JudgeSection = JudgeSection()
    trained: TrainedJudgeSection = TrainedJudgeSection()
    llm: LlmSection = LlmSection()
    simulated: SimulatedSection = SimulatedSection()

    @model_validator(mode="after")
    def _one_judge(self) -> "JudgeServerConfig":
        if self.trained.folder is None:
            return self
        for key, other in (
            ("server.judge_class", self.server.judge_class),
            ("judge.service", self.judge.service),
            ("judge.panel", self.judge.panel),
        ):
            if other:
                raise ValueError(f"{key}: trained.folder is the judge already; leave one out")
        if self.judge.mode == "rules":
            raise ValueError("judge.mode: rules ask nobody, and trained.folder is a judge")
        return self

    @model_validator(mode="after")
    def _named(self) -> "JudgeServerConfig":
        own = self.judge.service is not None or self.server.judge_class is not None
        own = own or self.trained.folder is not None
        if self.judge.mode != "rules" and not own and not self.judge.model:
            raise ValueError("judge.model: name a model of `llm.file`, or `simulated`")
        return self

    @property
    def models(self) -> frozenset[str]:
        """The names of all large models that judge; none where rules or a class of one's own do."""
        if self.judge.mode == "rules" or self.server.judge_class is not None:
            return frozenset()
        if self.trained.folder is not None:
            return frozenset()
        model = None if self.judge.service is not None else self.judge.model
        return frozenset(filter(None, (model, *self.judge.panel)))
