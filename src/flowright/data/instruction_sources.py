"""Prompts with checks and criteria to measure instruction following by: where they come from, under
which licence. A table of facts; docs/datasets.md tells the same. What a row means is read by those
who score it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from flowright.data.sources.dataset import File

_GITHUB = "https://raw.githubusercontent.com"
_RUSCARL = f"{_GITHUB}/hhh2210/RuscaRL/1b61829/data"


@dataclass(frozen=True, slots=True)
class InstructionSource:
    """A benchmark of instruction following. It is only fetched."""

    name: str
    licence: str
    files: tuple[File, ...]
    archive: File | None = None


IFEVAL = InstructionSource(
    name="ifeval",
    licence="Apache-2.0",
    files=(
        File(
            "ifeval/input_data.jsonl",
            f"{_GITHUB}/google-research/google-research/master/instruction_following_eval/data/"
            "input_data.jsonl",
            "67ffeee0fcb87c317c5b08a2de85557b4a7e96ada6178aa645b4954fe4b53d49",
        ),
    ),
)

IFBENCH = InstructionSource(
    name="ifbench",
    licence="ODC-BY 1.0",
    files=(
        File(
            "ifbench/IFBench_test.jsonl",
            f"{_GITHUB}/allenai/IFBench/db69a6f/data/IFBench_test.jsonl",
            "a2bf7b8e7ed11d39c65b4ec781da8b99663ed0121f97033d70fcecb61f8a9d85",
        ),
    ),
)

HEALTHBENCH = InstructionSource(
    name="healthbench",
    licence="MIT; RuscaRL's selection of 500: Apache-2.0",
    files=(
        File(
            "rubrics/healthbench_val.parquet",
            f"{_RUSCARL}/health_bench/healthbench_val.parquet",
            "dfa55a69b915da7eae70b4f3d2d72d3413439fe25a90a12ebc5808c7b4176e2c",
        ),
    ),
)

VERINSTRUCT = InstructionSource(
    name="verinstruct",
    licence="Apache-2.0",
    files=(
        File(
            "rubrics/verinstruct_val.parquet",
            f"{_RUSCARL}/verinstruct/verinstruct_val.parquet",
            "175c913ebed7140cb2bf28832a2d9d91b0f9a3079e64f1b3d9f9217f9a7a805b",
        ),
        File(
            "rubrics/verinstruct_verif_val.parquet",
            f"{_RUSCARL}/verinstruct_verif/verinstruct_verif_val.parquet",
            "61140c8518358124e459e129a0d342d58de5015769cf07fa1d7e2df572e0bedf",
        ),
    ),
)

INSTRUCTIONS: Mapping[str, InstructionSource] = {
    source.name: source for source in (IFEVAL, IFBENCH, HEALTHBENCH, VERINSTRUCT)
}
