"""What AFlow, ScoreFlow and FlowSteer report of six datasets, to be printed beside ours: in per
cent, each row with its source. Nobody here ran these systems. A figure for which no source was at
hand is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

DATASETS: Mapping[str, str] = {
    "gsm8k": "GSM8K",
    "math": "MATH",
    "humaneval": "HumanEval",
    "mbpp": "MBPP",
    "hotpotqa": "HotpotQA",
    "drop": "DROP",
}
"""The six datasets of the papers: our name of a source, and what people call it."""

Metric = Literal["equality", "pass@1", "F1", "accuracy", "judged"]

METRICS: Mapping[str, str] = {
    "equality": "share of final answers that equal the expected one",
    "pass@1": "share of solutions that pass all tests",
    "F1": "mean token F1 of the final answer",
    "accuracy": "share of final answers that match the expected one",
    "judged": "share that an LLM calls right",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """Per cent. ``metric`` is None where our source does not say."""

    value: float
    metric: Metric | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """A row of others. ``policy`` is who writes or searches the workflows, ``executor`` who answers
    in them. ``on_aflow``: measured on AFlow's own test files; ``split`` says it in words.
    ``repetitions`` were averaged. None is what our source does not say."""

    system: str
    source: str
    policy: str
    executor: str | None
    split: str
    repetitions: int | None
    figures: Mapping[str, Figure] = field(default_factory=dict)
    mean: float | None = None
    on_aflow: bool = False
    remarks: tuple[str, ...] = ()


PUBLISHED: tuple[Published, ...] = (
    Published(
        "AFlow",
        "Zhang et al., ICLR 2025, arXiv 2410.10762, table 1",
        "a search with Claude 3.5 Sonnet",
        "gpt-4o-mini-2024-07-18",
        "its own: a fifth to search on, four fifths to test on",
        3,
        {
            "gsm8k": Figure(93.5, "equality"),
            "math": Figure(56.2, "equality"),
            "humaneval": Figure(94.7, "pass@1"),
            "mbpp": Figure(83.4, "pass@1"),
            "hotpotqa": Figure(73.5, "F1"),
            "drop": Figure(80.6, "F1"),
        },
        80.3,
        on_aflow=True,
        remarks=("MATH is 617 problems of four types; HotpotQA and DROP are 1,000 drawn of each",),
    ),
    Published(
        "ScoreFlow",
        "Wang et al. 2025, arXiv 2502.04306, the mean over six datasets",
        "Llama-3.1-8B-Instruct, Score-DPO",
        "gpt-4o-mini",
        "its own, in AFlow's proportion of one to four",
        3,
        mean=85.3,
        remarks=("scored by a judge; its figures by dataset were not at hand",),
    ),
    Published(
        "ScoreFlow (in MAS²)",
        "MAS², ICLR 2026, openreview.net qumy27hMDY, main table, read second-hand",
        "ScoreFlow, as MAS² reports it",
        None,
        "not said where we read it",
        3,
        {
            "math": Figure(64.4),
            "humaneval": Figure(95.9),
            "mbpp": Figure(84.7),
            "hotpotqa": Figure(86.0),
        },
    ),
    Published(
        "FlowSteer (gpt-4o-mini)",
        "Zhang et al. 2026, arXiv 2602.01664, and table R1 of its authors' response (ICML 2026, "
        "paper 11778)",
        "Qwen3-8B, LoRA, GRPO",
        "gpt-4o-mini",
        "its own test files",
        None,
        {
            "gsm8k": Figure(96.09, "equality"),
            "math": Figure(81.25, "equality"),
            "humaneval": Figure(92.96, "pass@1"),
            "mbpp": Figure(84.38, "pass@1"),
            "hotpotqa": Figure(84.98, "F1"),
        },
        remarks=("HotpotQA by exact match: 78.12", "HumanEval was in its training set"),
    ),
    Published(
        "FlowSteer (deepseek-v3.2)",
        "Zhang et al. 2026, arXiv 2602.01664, read second-hand, table not seen",
        "Qwen3-8B, LoRA, GRPO",
        "deepseek-v3.2",
        "its own test files",
        None,
        {
            "gsm8k": Figure(98.4, "equality"),
            "math": Figure(94.5, "equality"),
            "humaneval": Figure(98.4, "pass@1"),
            "mbpp": Figure(85.9, "pass@1"),
            "hotpotqa": Figure(86.7),
        },
        remarks=("HumanEval was in its training set",),
    ),
)
