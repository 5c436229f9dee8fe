"""Every knob of Flowright: its name, type, bounds, default and meaning. Nothing is done here.

One YAML file becomes one frozen :class:`Config`. All mistakes are reported at once, one line each,
as ``file: key: what is wrong``, with a suggestion for a misspelt key. docs/configuration.md is
generated from these fields (``python scripts/write_config_docs.py``).
"""

from flowright.config.grpo import GrpoSection, PairsSection, PipelineSection, RaySection
from flowright.config.instructions import (
    InstructionsSection,
    NamedWordsSection,
    ScaffoldingSection,
)
from flowright.config.judge import (
    AlarmSection,
    JudgeRewardSection,
    JudgeSection,
    JudgeServerSection,
    JudgeServiceSection,
    TrainedJudgeSection,
)
from flowright.config.judging import JudgingSection, KnownRuleSection
from flowright.config.llm import LlmFile, LlmSection, ModelEntry
from flowright.config.loading import (
    judge_reward,
    load_config,
    load_entries,
    load_judge_reward,
    load_judge_server,
    load_models,
)
from flowright.config.plan import PlanSection, PlanServerSection
from flowright.config.policy import (
    MAX_LORA_RANKS,
    SMOLLM2,
    TINY,
    LoraSection,
    PolicySection,
    TinySection,
    VllmSection,
)
from flowright.config.presentation import PresentationSection
from flowright.config.reading import read_yaml
from flowright.config.root import Config, EvaluationSection, JudgeServerConfig
from flowright.config.run import RunSection
from flowright.config.section import Fraction, Positive, Seconds, Section
from flowright.config.simulation import SIMULATED, FaultSection, SimulatedSection
from flowright.config.warm_start import SftSection, WarmStartSection
from flowright.config.workflow import (
    ExecutorSection,
    RewardSection,
    SandboxSection,
    WorkflowSection,
)

__all__ = [
    "MAX_LORA_RANKS",
    "SIMULATED",
    "SMOLLM2",
    "TINY",
    "AlarmSection",
    "Config",
    "EvaluationSection",
    "ExecutorSection",
    "FaultSection",
    "Fraction",
    "GrpoSection",
    "InstructionsSection",
    "JudgeRewardSection",
    "JudgeSection",
    "JudgeServerConfig",
    "JudgeServerSection",
    "JudgeServiceSection",
    "JudgingSection",
    "KnownRuleSection",
    "LlmFile",
    "LlmSection",
    "LoraSection",
    "ModelEntry",
    "NamedWordsSection",
    "PairsSection",
    "PipelineSection",
    "PlanSection",
    "PlanServerSection",
    "PolicySection",
    "Positive",
    "PresentationSection",
    "RaySection",
    "RewardSection",
    "RunSection",
    "SandboxSection",
    "ScaffoldingSection",
    "Seconds",
    "Section",
    "SftSection",
    "SimulatedSection",
    "TinySection",
    "TrainedJudgeSection",
    "VllmSection",
    "WarmStartSection",
    "WorkflowSection",
    "judge_reward",
    "load_config",
    "load_entries",
    "load_judge_reward",
    "load_judge_server",
    "load_models",
    "read_yaml",
]
