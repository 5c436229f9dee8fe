"""Registry of problem datasets: addresses, licences, files of each split.

Most hashes are those that Hugging Face ``datasets`` 2.x recorded for the official addresses; those
of simple-evals' DROP and of AFlow's files are of copies in public repositories.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from flowright.core.errors import ConfigError
from flowright.core.plugins import Table
from flowright.data.sources.dataset import Converter, Dataset, File, Split, SplitPart
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
from flowright.data.sources.rows import Reader, UpstreamRow, read_upstream

_GITHUB = "https://raw.githubusercontent.com"
_GSM8K = f"{_GITHUB}/openai/grade-school-math/master/grade_school_math/data"
_MBPP = f"{_GITHUB}/google-research/google-research/master/mbpp"
_CSQA = "https://s3.amazonaws.com/commensenseqa"  # the bucket's own spelling
_HOTPOT = "http://curtis.ml.cmu.edu/datasets/hotpot"  # silent since 2026, as far as reported
_FIRST_OF_ONE = "00000-of-00001.parquet"


def _aflow(
    name: str, convert: Converter, read: Reader = read_upstream, also: tuple[str, ...] = ()
) -> Mapping[Split, tuple[SplitPart, ...]]:
    """AFlow's two files of a dataset; what it validates on is there to train on."""
    paths: Mapping[Split, str] = {"train": f"{name}_validate", "test": f"{name}_test"}
    return {
        split: (SplitPart(f"aflow/{path}.jsonl", convert, read=read, also=also),)
        for split, path in paths.items()
    }


GSM8K = Dataset(
    name="gsm8k",
    kind="math",
    licence="MIT",
    files=(
        File(
            "gsm8k/train.jsonl",
            f"{_GSM8K}/train.jsonl",
            "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
            parquet=(f"openai/gsm8k@main/main/train-{_FIRST_OF_ONE}",),
        ),
        File(
            "gsm8k/test.jsonl",
            f"{_GSM8K}/test.jsonl",
            "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
            parquet=(f"openai/gsm8k@main/main/test-{_FIRST_OF_ONE}",),
        ),
    ),
    splits={
        "official": {
            "train": (SplitPart("gsm8k/train.jsonl", gsm8k, "train"),),
            "test": (SplitPart("gsm8k/test.jsonl", gsm8k, "test"),),
        },
        "aflow": _aflow("gsm8k", gsm8k_aflow),
    },
)


HUMANEVAL = Dataset(
    name="humaneval",
    kind="code",
    licence="MIT",
    files=(
        File(
            "humaneval/HumanEval.jsonl.gz",
            f"{_GITHUB}/openai/human-eval/master/data/HumanEval.jsonl.gz",
            "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
            parquet=(f"openai/openai_humaneval@main/openai_humaneval/test-{_FIRST_OF_ONE}",),
        ),
    ),
    splits={
        "official": {"test": (SplitPart("humaneval/HumanEval.jsonl.gz", humaneval),)},
        "aflow": _aflow(
            "humaneval", humaneval, with_public_tests, ("aflow/humaneval_public_test.jsonl",)
        ),
    },
)


def _ids(first: int, last: int) -> Callable[[UpstreamRow], bool]:
    return lambda row: first <= row.integer("task_id") <= last


# The splits of both files, by task id. 1 to 10 are the paper's few-shot examples.
_MBPP_SPLITS: Mapping[Split, Callable[[UpstreamRow], bool]] = {
    "train": _ids(601, 974),
    "val": _ids(511, 600),
    "test": _ids(11, 510),
}


def _mbpp_parquet(subset: str) -> tuple[str, ...]:
    repository = f"google-research-datasets/mbpp@main/{subset}"
    return tuple(f"{repository}/{s}-{_FIRST_OF_ONE}" for s in ("train", "validation", "test"))


MBPP = Dataset(
    name="mbpp",
    kind="code",
    licence="CC BY 4.0",
    files=(
        File(
            "mbpp/mbpp.jsonl",
            f"{_MBPP}/mbpp.jsonl",
            "ccf64ceae9c5403bf50a044cb6d505bfd2a2963ee58338ba268fd65beab92a9f",
            parquet=_mbpp_parquet("full"),
        ),
        File(
            "mbpp/sanitized-mbpp.json",
            f"{_MBPP}/sanitized-mbpp.json",
            "ca95deaa9a01ef0a6f439f88bcf0dd3db3563d22f22aad6cae04ebb9a8d8c8e9",
            parquet=_mbpp_parquet("sanitized"),
        ),
    ),
    splits={
        "official": {
            split: (SplitPart("mbpp/mbpp.jsonl", mbpp, keep=keep),)
            for split, keep in _MBPP_SPLITS.items()
        },
        "aflow": _aflow("mbpp", mbpp_aflow),
    },
)
# The verified subset, with the same ids: an alternative to the full set, chosen by name.
MBPP_SANITIZED = replace(
    MBPP,
    name="mbpp_sanitized",
    files=MBPP.files[1:],
    splits={
        "official": {
            split: (SplitPart("mbpp/sanitized-mbpp.json", mbpp, keep=keep),)
            for split, keep in _MBPP_SPLITS.items()
        }
    },
)


def _mmlu(split: str, *folders: str) -> tuple[SplitPart, ...]:
    """The tar, or ``<split>.jsonl`` with rows as the hub's viewer and ``to_json`` give them; of the
    training rows also ``auxiliary_train.jsonl``."""
    return (
        SplitPart("mmlu/data.tar", mmlu, split, read=mmlu_csv(*folders)),
        *(SplitPart(f"mmlu/{name}.jsonl", mmlu, split) for name in (split, *folders[1:])),
    )


MMLU = Dataset(
    name="mmlu",
    kind="qa",
    licence="MIT",
    files=(
        File(
            "mmlu/data.tar",
            "https://people.eecs.berkeley.edu/~hendrycks/data.tar",
            "bec563ba4bac1d6aaf04141cd7d1605d7a5ca833e38f994051e818489592989b",
            hub="cais/mmlu@c30699e8356da336a370243923dbaf21066bb9fe/data.tar",
        ),
    ),
    splits={
        "official": {
            "train": _mmlu("train", "dev", "auxiliary_train"),
            "val": _mmlu("val", "val"),
            "test": _mmlu("test", "test"),
        }
    },
)

_HOTPOT_HUB = "hotpotqa/hotpot_qa@main/distractor"
HOTPOTQA = Dataset(
    name="hotpotqa",
    kind="qa",
    licence="CC BY-SA 4.0",
    files=(
        File(
            "hotpotqa/hotpot_train_v1.1.json",
            f"{_HOTPOT}/hotpot_train_v1.1.json",
            "26650cf50234ef5fb2e664ed70bbecdfd87815e6bffc257e068efea5cf7cd316",
            parquet=tuple(f"{_HOTPOT_HUB}/train-0000{i}-of-00002.parquet" for i in range(2)),
        ),
        File(
            "hotpotqa/hotpot_dev_distractor_v1.json",
            f"{_HOTPOT}/hotpot_dev_distractor_v1.json",
            "4e9ecb5c8d3b719f624d66b60f8d56bf227f03914f5f0753d6fa1b359d7104ea",
            # Not the authors' repository, but pinned, and reported to have the official hash.
            hub="RAGLAB/data@c33b09b7fa5099b89830e84f9bdff78329268d9b/"
            "eval_datasets/HotPotQA/hotpot_dev_distractor_v1.json",
            parquet=(f"{_HOTPOT_HUB}/validation-{_FIRST_OF_ONE}",),
        ),
    ),
    splits={
        "official": {
            "train": (SplitPart("hotpotqa/hotpot_train_v1.1.json", hotpotqa),),
            "test": (SplitPart("hotpotqa/hotpot_dev_distractor_v1.json", hotpotqa),),
        },
        "aflow": _aflow("hotpotqa", hotpotqa),
    },
)

COMMONSENSEQA = Dataset(
    name="commonsenseqa",
    kind="qa",
    licence="MIT",
    files=(
        File(
            "commonsenseqa/train_rand_split.jsonl",
            f"{_CSQA}/train_rand_split.jsonl",
            "58ffa3c8472410e24b8c43f423d89c8a003d8284698a6ed7874355dedd09a2fb",
            parquet=(f"tau/commonsense_qa@main/data/train-{_FIRST_OF_ONE}",),
        ),
        File(
            "commonsenseqa/dev_rand_split.jsonl",
            f"{_CSQA}/dev_rand_split.jsonl",
            "3210497fdaae614ac085d9eb873dd7f4d49b6f965a93adadc803e1229fd8a02a",
            parquet=(f"tau/commonsense_qa@main/data/validation-{_FIRST_OF_ONE}",),
        ),
    ),
    splits={
        "official": {
            "train": (SplitPart("commonsenseqa/train_rand_split.jsonl", commonsenseqa),),
            "test": (SplitPart("commonsenseqa/dev_rand_split.jsonl", commonsenseqa),),
        }
    },
)

_DROP = "drop/drop_dataset.zip"
# The hub's copy (ucinlp/drop) flattens several answers of several spans into one list, so that one
# span of two would count as an answer: DROP comes from its official address only.
DROP = Dataset(
    name="drop",
    kind="qa",
    licence="CC BY-SA 4.0",
    files=(
        File(
            _DROP,
            "https://s3-us-west-2.amazonaws.com/allennlp/datasets/drop/drop_dataset.zip",
            "39d2278a29fd729de301b111a45f434c24834f40df8f4ff116d864589e3249d6",
        ),
        File(
            "drop/drop_v0_dev.jsonl.gz",
            "https://openaipublic.blob.core.windows.net/simple-evals/drop_v0_dev.jsonl.gz",
            "7a58d35552dc476699d87ee8af0254f63e9f00f5a7f6b8b033e11c933157e186",
            required=False,
        ),
    ),
    splits={
        "official": {
            "train": (
                SplitPart(_DROP, drop, read=drop_questions("train")),
                SplitPart("drop/drop_dataset_train.json", drop, read=drop_questions("train")),
            ),
            "test": (
                SplitPart(_DROP, drop, read=drop_questions("dev")),
                SplitPart("drop/drop_dataset_dev.json", drop, read=drop_questions("dev")),
                SplitPart("drop/drop_v0_dev.jsonl.gz", drop, "dev"),
            ),
        },
        "aflow": _aflow("drop", drop),
    },
)

_AFLOW_SHA256 = {
    "drop_test": "a0ae6fac687d2bb393c9c6a43d966edf9ed24d0d157cfb7f7a4747cc8b3d9742",
    "drop_validate": "fa761d3f46c3c995278532ee9354fe78fd03fa6567774ea359e149dea5cf2362",
    "gsm8k_test": "2b8372f7b81d842fea01efb66193152b42506e2b23c890c3d90d2aef228dd788",
    "gsm8k_validate": "0502dcec3263f5172e450141ff79da1f84401ed0c7e5d51016b3f773fb7ee869",
    "hotpotqa_test": "9b5a171af942e75d5cb7e8746dbc6639f381900467c02e8c2e27eceb77b9a8ce",
    "hotpotqa_validate": "a2fcafe6cb44c705b48e404ab4e9a2726874cfdecffed5ddfef06e46b6c78639",
    "humaneval_public_test": "ad5e3bdddfa5d0a48ad75d027d293858b2cab4526ca645a54f117c4f0b596edc",
    "humaneval_test": "5f7417d249b5a1153d1313c944fafe61f5bcb19717b8d952eb45e6ea5aaa23d9",
    "humaneval_validate": "7c09e2424572a0e82b14d2dc145bf86feb2aeef9828b8b37c7e87dfe88d902f7",
    "mbpp_public_test": "a3a15f074b278432b5a01227fac049670f30c0ebf8a193013bb956c1f6f04e82",
    "mbpp_test": "0e9485dee21c836087453255557f92457b145dce7dad22b980e007c0500a12b0",
    "mbpp_validate": "04c54e076bb2cb1a583d8e57110e3a644ae3125699b3309104d3b8cf95436216",
}
# AFlow's splits of five datasets, in one archive: files, and no splits of its own. Its public MBPP
# tests are the first assert of each row and not needed.
AFLOW = Dataset(
    name="aflow",
    kind="qa",
    licence="as the datasets in it: MIT, CC BY 4.0 (MBPP), CC BY-SA 4.0 (HotpotQA, DROP)",
    files=tuple(
        File(f"aflow/{name}.jsonl", sha256=sha256, required=name != "mbpp_public_test")
        for name, sha256 in _AFLOW_SHA256.items()
    ),
    archive=File(
        "aflow/aflow_data.tar.gz",
        "https://drive.google.com/uc?export=download&id=1DNoegtZiUhWtvkd2xoIuElmIi4ah7k8e",
        "7089a373c27184ae1b67e322f8276642dab246359052989b03a27f48251ae053",
    ),
)

_ALL = (GSM8K, HUMANEVAL, MBPP, MBPP_SANITIZED, MMLU, HOTPOTQA, COMMONSENSEQA, DROP)
DATASETS = Table("dataset", {one.name: f"{__name__}:{one.name.upper()}" for one in _ALL})
DEFAULT_DATASETS = tuple(name for name in DATASETS if name != MBPP_SANITIZED.name)


def load_dataset(choice: str) -> Dataset:
    """The dataset of that name, or a user's own by import path. Raises ConfigError."""
    try:
        found = DATASETS.load(DATASETS.check(choice))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not isinstance(found, Dataset):
        raise ConfigError(f"dataset {choice}: a Dataset is wanted, this is {type(found).__name__}")
    return found
