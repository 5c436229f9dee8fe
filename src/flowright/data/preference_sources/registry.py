"""The datasets of preferences: where they come from, under which licence, which file has what.

A table of facts; docs/datasets.md tells the same to a reader. Hashes are of the authors' files;
HelpSteer2's are those that two public records of its revision agree on. JudgeBench's and
RewardBench 2's are not known here.
"""

from collections.abc import Mapping

from flowright.core.errors import DataError
from flowright.core.plugins import suggest
from flowright.data.preference_sources.dialogues import helpsteer2_pair, helpsteer2_rated, hhh
from flowright.data.preference_sources.instructions import (
    autoj,
    by_bias,
    evalbiasbench,
    judgebench,
    llmbar,
    pandalm,
)
from flowright.data.preference_sources.source import Part, PreferenceSource
from flowright.data.sources.dataset import File
from flowright.data.sources.rows import json_array, json_lines

_GITHUB = "https://raw.githubusercontent.com"
_LLMBAR = f"{_GITHUB}/princeton-nlp/LLMBar/caa7bee794bfed74baed038b99229fa3f0c4c511/Dataset/LLMBar"
_PROMETHEUS = f"{_GITHUB}/prometheus-eval/prometheus-eval"
_OFFSETBIAS = f"{_GITHUB}/ncsoft/offsetbias/a1344b20d727d91f262b515a5fd34b89e7b0218f"
_JUDGEBENCH = f"{_GITHUB}/ScalerLab/JudgeBench/e2c52c284e735e139b3daa61c206ee208f36c461/data"
_HELPSTEER2 = "nvidia/HelpSteer2@990b2711a36180dd19d9c94b8627844866f8982a"

_LLMBAR_FILES = {
    "natural": (
        "Natural/dataset.json",
        "f7127b7aa78104cb8e03a2b1b3ac0077e95b125714dd441a8ee63666145a3375",
    ),
    "gptinst": (
        "Adversarial/GPTInst/dataset.json",
        "1002425f73c2cf54b6e6de99bce3f6c60fa2a17d13194772e37d7481c1351d42",
    ),
    "gptout": (
        "Adversarial/GPTOut/dataset.json",
        "1ff56e520d7607750a9866a3be0f5b850392ca4477a1f69d80f32bd3e310f561",
    ),
    "manual": (
        "Adversarial/Manual/dataset.json",
        "0d9598769a39cdbbd265778c37e49939d41d5f76dcfb17bd75dcfa07516d3837",
    ),
    "neighbor": (
        "Adversarial/Neighbor/dataset.json",
        "6712c7eda6342602e0bc7c06c282fa95e2110d4e741a284026a62d937f9780a0",
    ),
}
LLMBAR = PreferenceSource(
    name="llmbar",
    licence="MIT",
    files=tuple(
        File(f"llmbar/{path}", f"{_LLMBAR}/{path}", sha256)
        for path, sha256 in _LLMBAR_FILES.values()
    ),
    parts=tuple(
        Part(f"llmbar/{path}", json_array, llmbar(category))
        for category, (path, _) in _LLMBAR_FILES.items()
    ),
)

PANDALM = PreferenceSource(
    name="pandalm",
    licence="Apache-2.0",
    files=(
        File(
            "pandalm/testset-v1.json",
            # The commit of the file with this hash is not known here; 65d7cff has the same rows
            # with NaN for an empty text, which are read as well.
            f"{_GITHUB}/WeOpenML/PandaLM/main/data/testset-v1.json",
            "cc154f9067c7382d7ea86f8f246511a5e1ac87e1fddd845c5938d789505b07a4",
        ),
    ),
    parts=(Part("pandalm/testset-v1.json", json_array, pandalm),),
)

AUTOJ = PreferenceSource(
    name="autoj",
    licence="Apache-2.0",  # of Prometheus' copy; the authors' repository states none
    files=(
        File(
            "autoj/autoj_pairwise.json",
            f"{_PROMETHEUS}/dcfb442/eval/benchmark/data/autoj_pairwise.json",
            "56f32fad71d9b6b33bc4d51794c324981e26355bcbf3ce4908d7f8ddcc61f80e",
        ),
    ),
    parts=(Part("autoj/autoj_pairwise.json", json_lines, autoj),),
)

HHH = PreferenceSource(
    name="hhh",
    licence="Apache-2.0",
    files=(
        File(
            "hhh/hhh_alignment_eval.json",
            f"{_PROMETHEUS}/8536c6d6f69f492fb364a2173e522d4dad034488/eval/benchmark/data/"
            "hhh_alignment_eval.json",
            "fe6655dfeec99d04d582692767c736f2385b5e067f0b894d1b73a32af7be9c9e",
        ),
    ),
    parts=(Part("hhh/hhh_alignment_eval.json", json_array, hhh),),
)

EVALBIASBENCH = PreferenceSource(
    name="evalbiasbench",
    licence="BSD-3-Clause",
    files=(
        File(
            "evalbiasbench/biasbench.json",
            f"{_OFFSETBIAS}/data/evalbiasbench/biasbench.json",
            "766684b9fedbd38ae3b5595a8ab0a7ea1abc51683d6e3a0cf8583688eaa09544",
        ),
    ),
    parts=(Part("evalbiasbench/biasbench.json", by_bias, evalbiasbench),),
)

_JUDGEBENCH_FILES = {
    "gpt": "dataset=judgebench,response_model=gpt-4o-2024-05-13.jsonl",
    "claude": "dataset=judgebench,response_model=claude-3-5-sonnet-20240620.jsonl",
}
JUDGEBENCH = PreferenceSource(
    name="judgebench",
    licence="none stated: to measure with, not to pass on",
    files=tuple(
        File(f"judgebench/{name}", f"{_JUDGEBENCH}/{name}") for name in _JUDGEBENCH_FILES.values()
    ),
    parts=tuple(
        Part(f"judgebench/{name}", json_lines, judgebench(model))
        for model, name in _JUDGEBENCH_FILES.items()
    ),
    open=False,
)

HELPSTEER2 = PreferenceSource(
    name="helpsteer2",
    licence="CC BY 4.0",
    files=(
        File(
            "helpsteer2/preference/preference.jsonl.gz",
            sha256="a5cd48600fb7a330cf0ccc8f59051e24e8f236907c379f42eff1ba18da55204b",
            hub=f"{_HELPSTEER2}/preference/preference.jsonl.gz",
        ),
        File(
            "helpsteer2/train.jsonl.gz",
            sha256="c0d7e91d738d42e8a08070db26c4c09a9c7631308e1f0fd380ff43d130c9f713",
            hub=f"{_HELPSTEER2}/train.jsonl.gz",
        ),
        File(
            "helpsteer2/validation.jsonl.gz",
            sha256="610eeb5289494d613c4c0f70aade2df8df0b499f3a24e76d232f74e6909d010a",
            hub=f"{_HELPSTEER2}/validation.jsonl.gz",
        ),
    ),
    parts=(
        Part("helpsteer2/preference/preference.jsonl.gz", json_lines, helpsteer2_pair),
        Part("helpsteer2/train.jsonl.gz", json_lines, helpsteer2_rated("train")),
        Part("helpsteer2/validation.jsonl.gz", json_lines, helpsteer2_rated("val")),
    ),
)

# Four answers to a prompt, or many right ones: no pairs. Whoever measures on it reads the rows.
REWARDBENCH2 = PreferenceSource(
    name="rewardbench2",
    licence="ODC-BY 1.0",
    files=(
        File(
            "rewardbench2/test.jsonl",
            parquet=("allenai/reward-bench-2@main/data/test-00000-of-00001.parquet",),
        ),
    ),
    parts=(),
)

_ALL = (LLMBAR, PANDALM, AUTOJ, HHH, EVALBIASBENCH, JUDGEBENCH, HELPSTEER2, REWARDBENCH2)
PREFERENCES: Mapping[str, PreferenceSource] = {source.name: source for source in _ALL}


def preference_source(name: str) -> PreferenceSource:
    """The dataset of preferences of that name. Raises DataError that lists the names."""
    if name not in PREFERENCES:
        known = ", ".join(PREFERENCES)
        raise DataError(f"{name}: no such preferences{suggest(name, list(PREFERENCES))} ({known})")
    return PREFERENCES[name]
