"""Registry of datasets: problems, preferences, prompts with criteria. Addresses, licences and
hashes are in ``registry.yaml``.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml

from flowright.core.checkout import here
from flowright.core.errors import ConfigError, DataError
from flowright.core.plugins import Names, load, suggest
from flowright.core.tables import raise_problems
from flowright.data.sources.benchmarks import (
    aime,
    contest,
    gpqa,
    has_tests,
    mathqa,
    prm800k_math,
    short_answer,
    squad_questions,
    squad_v2,
    wikimultihop,
    with_aliases,
)
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
from flowright.data.sources.dataset import (
    Converter,
    Dataset,
    File,
    Mode,
    PreferencePart,
    PreferenceSource,
    Reader,
    Source,
    Split,
    SplitPart,
    UpstreamRow,
    read_upstream,
)
from flowright.data.sources.programs import humaneval, mbpp, mbpp_aflow, with_public_tests
from flowright.data.sources.questions import (
    commonsenseqa,
    drop,
    drop_questions,
    gsm8k,
    gsm8k_aflow,
    hotpotqa,
    mmlu,
    mmlu_csv,
)
from flowright.data.task import Kind, Pair, Problem, Rated

S = TypeVar("S", bound=Source)
_FACTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def _source(of: type[S], name: str, **more: Any) -> S:
    """Return a source with its facts."""
    facts = {**_FACTS[name], **more}
    files = tuple(_file(path, **about) for path, about in facts.pop("files").items())
    archive = facts.pop("archive", None)
    return of(name=name, files=files, archive=archive and _file(**archive), **facts)


def _file(path: str, parquet: tuple[str, ...] = (), **facts: Any) -> File:
    return File(path, parquet=tuple(parquet), **facts)


# Problems.


def _aflow(
    name: str, convert: Converter, read: Reader = read_upstream, also: tuple[str, ...] = ()
) -> Mapping[Split, tuple[SplitPart, ...]]:
    """AFlow's two files of a dataset; what it validates on is there to train on."""
    paths: Mapping[Split, str] = {"train": f"{name}_validate", "test": f"{name}_test"}
    return {
        split: (SplitPart(f"aflow/{path}.jsonl", convert, read=read, also=also),)
        for split, path in paths.items()
    }


def _ids(first: int, last: int) -> Callable[[UpstreamRow], bool]:
    return lambda row: first <= row.integer("task_id") <= last


# The splits of both files, by task id. 1 to 10 are the paper's few-shot examples.
_MBPP: Mapping[Split, Callable[[UpstreamRow], bool]] = {
    "train": _ids(601, 974),
    "val": _ids(511, 600),
    "test": _ids(11, 510),
}


def _mbpp(path: str) -> Mapping[Split, tuple[SplitPart, ...]]:
    return {split: (SplitPart(path, mbpp, keep=keep),) for split, keep in _MBPP.items()}


def _mmlu(split: str, *folders: str) -> tuple[SplitPart, ...]:
    """The tar, or ``<split>.jsonl`` with rows as the hub's viewer and ``to_json`` give them; of the
    training rows also ``auxiliary_train.jsonl``."""
    return (
        SplitPart("mmlu/data.tar", mmlu, split, read=mmlu_csv(*folders)),
        *(SplitPart(f"mmlu/{name}.jsonl", mmlu, split) for name in (split, *folders[1:])),
    )


def _drop(split: str) -> tuple[SplitPart, ...]:
    paths = ("drop/drop_dataset.zip", f"drop/drop_dataset_{split}.json")
    return tuple(SplitPart(path, drop, read=drop_questions(split)) for path in paths)


GSM8K = _source(
    Dataset,
    "gsm8k",
    kind="math",
    splits={
        "official": {
            split: (SplitPart(f"gsm8k/{split}.jsonl", gsm8k, split),) for split in ("train", "test")
        },
        "aflow": _aflow("gsm8k", gsm8k_aflow),
    },
)
HUMANEVAL = _source(
    Dataset,
    "humaneval",
    kind="code",
    splits={
        "official": {"test": (SplitPart("humaneval/HumanEval.jsonl.gz", humaneval),)},
        "aflow": _aflow(
            "humaneval", humaneval, with_public_tests, ("aflow/humaneval_public_test.jsonl",)
        ),
    },
)
MBPP = _source(
    Dataset,
    "mbpp",
    kind="code",
    splits={"official": _mbpp("mbpp/mbpp.jsonl"), "aflow": _aflow("mbpp", mbpp_aflow)},
)
# The verified subset, with the same ids: an alternative to the full set, chosen by name.
MBPP_SANITIZED = replace(
    MBPP,
    name="mbpp_sanitized",
    files=MBPP.files[1:],
    splits={"official": _mbpp("mbpp/sanitized-mbpp.json")},
)
MMLU = _source(
    Dataset,
    "mmlu",
    kind="qa",
    splits={
        "official": {
            "train": _mmlu("train", "dev", "auxiliary_train"),
            "val": _mmlu("val", "val"),
            "test": _mmlu("test", "test"),
        }
    },
)
HOTPOTQA = _source(
    Dataset,
    "hotpotqa",
    kind="qa",
    splits={
        "official": {
            "train": (SplitPart("hotpotqa/hotpot_train_v1.1.json", hotpotqa),),
            "test": (SplitPart("hotpotqa/hotpot_dev_distractor_v1.json", hotpotqa),),
        },
        "aflow": _aflow("hotpotqa", hotpotqa),
    },
)
COMMONSENSEQA = _source(
    Dataset,
    "commonsenseqa",
    kind="qa",
    splits={
        "official": {
            split: (SplitPart(f"commonsenseqa/{name}_rand_split.jsonl", commonsenseqa),)
            for split, name in (("train", "train"), ("test", "dev"))
        }
    },
)
DROP = _source(
    Dataset,
    "drop",
    kind="qa",
    splits={
        "official": {
            "train": _drop("train"),
            "test": (*_drop("dev"), SplitPart("drop/drop_v0_dev.jsonl.gz", drop, "dev")),
        },
        "aflow": _aflow("drop", drop),
    },
)
# AFlow's splits of five datasets, in one archive: files, and no splits of its own.
AFLOW = _source(Dataset, "aflow", kind="qa")


def _benchmark(
    name: str,
    kind: Kind,
    convert: Converter,
    read: Reader = read_upstream,
    /,
    keep: Callable[[UpstreamRow], bool] = lambda row: True,
    **paths: str,
) -> Dataset:
    """A set with one file for each of its splits, named below its folder."""
    parts = {
        split: (SplitPart(f"{name}/{path}", convert, split, read, keep),)
        for split, path in paths.items()
    }
    return _source(Dataset, name, kind=kind, splits={"official": parts})


def _wikimultihop() -> Dataset:
    """2WikiMultihopQA, with the aliases of its scorer where their file is."""
    made = _benchmark("2wikimultihop", "qa", wikimultihop, train="train.json", test="dev.json")
    aliases = ("2wikimultihop/id_aliases.json",)
    parts = {
        split: (replace(part, read=with_aliases, also=aliases), part)
        for split, (part,) in made.splits["official"].items()
    }
    return replace(made, splits={"official": parts})


_DEFAULT = (GSM8K, HUMANEVAL, MBPP, MMLU, HOTPOTQA, COMMONSENSEQA, DROP)
_BY_NAME: Mapping[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        *_DEFAULT,
        MBPP_SANITIZED,
        _benchmark(
            "nq_open", "qa", partial(short_answer, "nq_open"),
            train="NQ-open.train.jsonl", test="NQ-open.dev.jsonl",
        ),
        _benchmark(
            "triviaqa", "qa", partial(short_answer, "triviaqa"),
            train="train.jsonl", test="validation.jsonl",
        ),
        _benchmark(
            "squad_v2", "qa", squad_v2, squad_questions,
            train="train-v2.0.json", test="dev-v2.0.json",
        ),
        _wikimultihop(),
        _benchmark("bamboogle", "qa", partial(short_answer, "bamboogle"), test="test.jsonl"),
        _benchmark("math", "math", prm800k_math, train="train.jsonl", test="test.jsonl"),
        *(
            _benchmark(name, "math", partial(aime, name), test=f"{name}.jsonl")
            for name in ("aime24", "aime25", "aime26")
        ),
        _benchmark("mathqa", "math", mathqa, train="train.json", val="dev.json", test="test.json"),
        _benchmark("gpqa", "qa", gpqa, test="gpqa_diamond.csv"),
        _benchmark(
            "livecodebench", "code", partial(contest, "livecodebench"), test="test6.jsonl"
        ),
        _benchmark(
            "apps", "code", partial(contest, "apps"), keep=has_tests,
            train="train.jsonl", test="test.jsonl",
        ),
    )
}  # fmt: skip
DATASETS = Names("dataset", tuple(_BY_NAME))
DEFAULT_DATASETS = tuple(dataset.name for dataset in _DEFAULT)


def load_dataset(choice: str) -> Dataset:
    """The dataset of that name, or a user's own by import path. Raises ConfigError."""
    try:
        found = _BY_NAME.get(DATASETS.check(choice)) or load(choice, "dataset")
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not isinstance(found, Dataset):
        raise ConfigError(f"dataset {choice}: a Dataset is wanted, this is {type(found).__name__}")
    return found


def find_part(dataset: Dataset, mode: Mode, split: Split, folder: Path) -> SplitPart | None:
    """The part of ``dataset`` to read for a split: the first whose files are in ``folder``."""
    parts = dataset.splits.get(mode, {}).get(split, ())
    return next((found for part in parts if (found := part.found_in(folder))), None)


def load_part(part: SplitPart, folder: Path) -> Iterator[Problem]:
    """The tasks of a part, in upstream order. Raises DataError at the first unusable row."""
    for row in part.read(folder / part.path):
        if part.keep(row):
            name = f"{part.prefix}/{row.name}" if part.prefix else row.name
            yield part.convert(replace(row, name=name))


# Preferences.


def _preferences(
    name: str, *converters: Callable[[UpstreamRow], Pair | Rated], read: Reader = read_upstream
) -> PreferenceSource:
    """Return a source with a converter for each of its files; without, it is only fetched."""
    parts = zip(_FACTS[name]["files"], converters, strict=bool(converters))
    parts = tuple(PreferencePart(path, convert, read) for path, convert in parts)
    return _source(PreferenceSource, name, parts=parts)


_LLMBAR = ("natural", "gptinst", "gptout", "manual", "neighbor")
PREFERENCES: Mapping[str, PreferenceSource] = {
    source.name: source
    for source in (
        _preferences("llmbar", *map(llmbar, _LLMBAR)),
        _preferences("pandalm", pandalm),
        _preferences("autoj", autoj),
        _preferences("hhh", hhh),
        _preferences("evalbiasbench", evalbiasbench, read=by_bias),
        _preferences("judgebench", judgebench("gpt"), judgebench("claude")),
        _preferences(
            "helpsteer2", helpsteer2_pair, helpsteer2_rated("train"), helpsteer2_rated("val")
        ),
        # Four answers to a prompt, or many right ones: the benchmark reads its rows itself.
        _preferences("rewardbench2"),
    )
}


def preference_source(name: str) -> PreferenceSource:
    """The dataset of preferences of that name. Raises DataError that lists the names."""
    if name not in PREFERENCES:
        known = ", ".join(PREFERENCES)
        raise DataError(f"{name}: no such preferences{suggest(name, list(PREFERENCES))} ({known})")
    return PREFERENCES[name]


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


# Prompts with criteria.

INSTRUCTIONS: Mapping[str, Source] = {
    name: _source(Source, name) for name in ("ifeval", "ifbench", "healthbench", "verinstruct")
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
