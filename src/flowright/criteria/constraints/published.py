"""What others measured, to be printed beside ours: shares in per cent, with the source."""

from collections.abc import Mapping
from dataclasses import dataclass

_M_IFEVAL = "lightblue-tech/M-IFEval, verdicts of 2024; recounted"


@dataclass(frozen=True, slots=True)
class Published:
    """By prompt and by instruction, None where it was not published."""

    work: str
    source: str
    strict_prompt: float | None = None
    strict_instruction: float | None = None
    loose_prompt: float | None = None
    loose_instruction: float | None = None


PUBLISHED: Mapping[str, tuple[Published, ...]] = {
    "ifeval": (
        Published("PaLM 2 S", "Zhou et al. 2023, table 3", 43.07, 55.76, 46.95, 59.11),
        Published("Mistral-7B-Instruct-v0.3", _M_IFEVAL, 47.13, 58.99, 51.39, 63.43),
        Published("Llama-3.1-8B, AWQ", _M_IFEVAL, 72.09, 80.10, 75.79, 82.97),
        Published("Qwen2.5-7B, GPTQ", _M_IFEVAL, 73.01, 80.58, 75.79, 82.61),
        Published("claude-3-5-sonnet-20240620", _M_IFEVAL, 82.26, 88.13, 89.28, 93.05),
        Published("gpt-4o-2024-08-06", _M_IFEVAL, 84.10, 88.61, 87.80, 91.25),
    ),
    "ifbench": (
        Published("Qwen3-32B", "Pyatkin et al. 2025", loose_prompt=37.3),
        Published("o3", "Pyatkin et al. 2025", loose_prompt=69.3),
    ),
}
