"""Registry of preference and instruction datasets: addresses, licences, files.

Hashes are of the authors' files; HelpSteer2's are those that two public records of its revision
agree on. JudgeBench's and RewardBench 2's are unknown here.
"""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flowright.core.checkout import here
from flowright.core.errors import DataError
from flowright.core.plugins import suggest
from flowright.core.tables import raise_problems
from flowright.data.preferences import Pair, Rated
from flowright.data.sources.comparisons import (
    autoj,
    by_bias,
    evalbiasbench,
    helpsteer2_pair,
    helpsteer2_rated,
    hhh,
    judgebench,
    llmbar,
    pandalm,
)
from flowright.data.sources.dataset import File, PreferencePart, PreferenceSource, Source
from flowright.data.sources.rows import Reader, UpstreamRow, read_upstream

_GITHUB = "https://raw.githubusercontent.com"
_LLMBAR = f"{_GITHUB}/princeton-nlp/LLMBar/caa7bee794bfed74baed038b99229fa3f0c4c511/Dataset/LLMBar"
_PROMETHEUS = f"{_GITHUB}/prometheus-eval/prometheus-eval"
_OFFSETBIAS = f"{_GITHUB}/ncsoft/offsetbias/a1344b20d727d91f262b515a5fd34b89e7b0218f"
_JUDGEBENCH = f"{_GITHUB}/ScalerLab/JudgeBench/e2c52c284e735e139b3daa61c206ee208f36c461/data"
_HELPSTEER2 = "nvidia/HelpSteer2@990b2711a36180dd19d9c94b8627844866f8982a"


def _benchmark(
    name: str,
    licence: str,
    address: str,
    sha256: str,
    convert: Callable[[UpstreamRow], Pair],
    read: Reader = read_upstream,
) -> PreferenceSource:
    """A source of one file, called as at its address."""
    path = f"{name}/{address.rpartition('/')[2]}"
    part = PreferencePart(path, convert, read)
    return PreferenceSource(
        name=name, licence=licence, files=(File(path, address, sha256),), parts=(part,)
    )


_LLMBAR_FILES = {
    "Natural": "f7127b7aa78104cb8e03a2b1b3ac0077e95b125714dd441a8ee63666145a3375",
    "Adversarial/GPTInst": "1002425f73c2cf54b6e6de99bce3f6c60fa2a17d13194772e37d7481c1351d42",
    "Adversarial/GPTOut": "1ff56e520d7607750a9866a3be0f5b850392ca4477a1f69d80f32bd3e310f561",
    "Adversarial/Manual": "0d9598769a39cdbbd265778c37e49939d41d5f76dcfb17bd75dcfa07516d3837",
    "Adversarial/Neighbor": "6712c7eda6342602e0bc7c06c282fa95e2110d4e741a284026a62d937f9780a0",
}
LLMBAR = PreferenceSource(
    name="llmbar",
    licence="MIT",
    files=tuple(
        File(f"llmbar/{path}/dataset.json", f"{_LLMBAR}/{path}/dataset.json", sha256)
        for path, sha256 in _LLMBAR_FILES.items()
    ),
    parts=tuple(
        PreferencePart(f"llmbar/{path}/dataset.json", llmbar(path.rpartition("/")[2].lower()))
        for path in _LLMBAR_FILES
    ),
)

PANDALM = _benchmark(
    "pandalm",
    "Apache-2.0",
    # The commit of the file with this hash is not known here; 65d7cff has the same rows with NaN
    # for an empty text, which are read as well.
    f"{_GITHUB}/WeOpenML/PandaLM/main/data/testset-v1.json",
    "cc154f9067c7382d7ea86f8f246511a5e1ac87e1fddd845c5938d789505b07a4",
    pandalm,
)

AUTOJ = _benchmark(
    "autoj",
    "Apache-2.0",  # of Prometheus' copy; the authors' repository states none
    f"{_PROMETHEUS}/dcfb442/eval/benchmark/data/autoj_pairwise.json",
    "56f32fad71d9b6b33bc4d51794c324981e26355bcbf3ce4908d7f8ddcc61f80e",
    autoj,
)

HHH = _benchmark(
    "hhh",
    "Apache-2.0",
    f"{_PROMETHEUS}/8536c6d6f69f492fb364a2173e522d4dad034488/eval/benchmark/data/"
    "hhh_alignment_eval.json",
    "fe6655dfeec99d04d582692767c736f2385b5e067f0b894d1b73a32af7be9c9e",
    hhh,
)

EVALBIASBENCH = _benchmark(
    "evalbiasbench",
    "BSD-3-Clause",
    f"{_OFFSETBIAS}/data/evalbiasbench/biasbench.json",
    "766684b9fedbd38ae3b5595a8ab0a7ea1abc51683d6e3a0cf8583688eaa09544",
    evalbiasbench,
    by_bias,
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
        PreferencePart(f"judgebench/{name}", judgebench(model))
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
        PreferencePart("helpsteer2/preference/preference.jsonl.gz", helpsteer2_pair),
        PreferencePart("helpsteer2/train.jsonl.gz", helpsteer2_rated("train")),
        PreferencePart("helpsteer2/validation.jsonl.gz", helpsteer2_rated("val")),
    ),
)

# Four answers to a prompt, or many right ones: no pairs; the benchmark reads its rows itself.
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


_RUSCARL = f"{_GITHUB}/hhh2210/RuscaRL/1b61829/data"


IFEVAL = Source(
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

IFBENCH = Source(
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

HEALTHBENCH = Source(
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

VERINSTRUCT = Source(
    name="verinstruct",
    licence="Apache-2.0",
    files=(
        File(
            "rubrics/verinstruct_val.parquet",
            f"{_RUSCARL}/verinstruct/verinstruct_val.parquet",
            "175c913ebed7140cb2bf28832a2d9d91b0f9a3079e64f1b3d9f9217f9a7a805b",
            upstream="verinstruct/verinstruct_val.parquet",
        ),
        File(
            "rubrics/verinstruct_verif_val.parquet",
            f"{_RUSCARL}/verinstruct_verif/verinstruct_verif_val.parquet",
            "61140c8518358124e459e129a0d342d58de5015769cf07fa1d7e2df572e0bedf",
            upstream="verinstruct_verif/verinstruct_verif_val.parquet",
        ),
    ),
)

INSTRUCTIONS: Mapping[str, Source] = {
    source.name: source for source in (IFEVAL, IFBENCH, HEALTHBENCH, VERINSTRUCT)
}


def no_prompts(path: Path | str) -> str:
    """Return the end of the message on a missing file of prompts: how to get it, if it is known."""
    place = Path(path).parts[-2:]
    for source in INSTRUCTIONS.values():
        for file in source.files:
            if place in (Path(file.path).parts, Path(file.upstream or "").parts):
                command = here(f"python scripts/download_all_datasets.py {source.name}")
                return f"no such file; {command} fetches it"
            if file.upstream and place[:1] == Path(file.upstream).parts[:1]:
                return (
                    f"no such file; only validation rows are fetched ({source.name}): bring your "
                    "training rows, by TRAIN_FILE or instructions.train_files"
                )
    return "no such file"


@dataclass(frozen=True, slots=True)
class Preferences:
    """Rows of a source's files. ``unusable`` has a line, ``file:row: why``, for each row left out;
    ``paths`` are the files below the folder that were read."""

    pairs: tuple[Pair, ...]
    rated: tuple[Rated, ...]
    unusable: tuple[str, ...]
    paths: tuple[str, ...]


def read_preferences(name: str, folder: Path) -> Preferences:
    """All rows of a source, in upstream's order, less those that cannot be used, which are named.
    Raises DataError for an unknown source, one without pairs, a file that is not there or cannot
    be read to its end, and two rows with one id."""
    source = preference_source(name)
    if not source.parts:
        raise DataError(f"{name}: its rows are no pairs of answers, so they cannot be read as such")
    absent = [part.path for part in source.parts if not (folder / part.path).is_file()]
    if absent:
        out = shlex.quote(str(folder))
        command = here(f"python scripts/download_all_datasets.py {name} --out {out}")
        raise DataError(*(f"{folder / path}: no such file; fetch it: {command}" for path in absent))
    found: dict[str, Pair | Rated] = {}
    unusable: list[str] = []
    for part in source.parts:
        for row in part.read(folder / part.path):
            try:
                made = part.convert(row)
            except DataError as error:
                unusable += error.problems
                continue
            if found.setdefault(made.id, made) is not made:
                raise row.error(f"a second row with the id {made.id}")
    return Preferences(
        pairs=tuple(made for made in found.values() if isinstance(made, Pair)),
        rated=tuple(made for made in found.values() if isinstance(made, Rated)),
        unusable=tuple(unusable),
        paths=tuple(part.path for part in source.parts),
    )


def read_pairs(name: str, folder: Path) -> list[Pair]:
    """The pairs of a benchmark, in upstream's order. Raises as :func:`read_preferences` does, and
    for any row that cannot be used: figures on fewer rows are of another benchmark."""
    preferences = read_preferences(name, folder)
    if count := len(preferences.unusable):
        what = f"{name}: {count} rows cannot be used; fetch the files again"
        raise_problems([what, *preferences.unusable])
    return list(preferences.pairs)
