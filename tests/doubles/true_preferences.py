"""The true files of preferences, where they are at hand, under the names of the data folder."""

import os
from pathlib import Path

import pytest

_COPIES = {
    "llmbar/Natural/dataset.json": "llmbar/natural.json",
    **{
        f"llmbar/Adversarial/{name}/dataset.json": f"llmbar/adversarial_{name}.json"
        for name in ("GPTInst", "GPTOut", "Manual", "Neighbor")
    },
    "pandalm/testset-v1.json": "pandalm_testset-v1.json",
    "autoj/autoj_pairwise.json": "autoj_pairwise.jsonl",
    "hhh/hhh_alignment_eval.json": "hhh_alignment_eval.json",
    "evalbiasbench/biasbench.json": "biasbench.json",
}
PATHS = tuple(_COPIES)


def link(folder: Path) -> Path:
    """Put links to the files into a folder; returns it. Skips the test where they are not."""
    default = Path(__file__).parents[3] / "shared" / "data"
    shared = Path(os.environ.get("FLOWRIGHT_SHARED_DATA", default)) / "preferences"
    if not shared.is_dir():
        pytest.skip(f"the upstream files are not at {shared} (FLOWRIGHT_SHARED_DATA)")
    for path, copy in _COPIES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).symlink_to(shared / copy)
    return folder
