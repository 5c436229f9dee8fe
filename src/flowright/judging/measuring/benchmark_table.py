"""The benchmarks: their measures, their rules for unreadable replies, and published figures."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flowright.judging.measuring.pair_figures import KAPPA, Macro


@dataclass(frozen=True, slots=True)
class Published:
    """A published share of a judge (``work``), and its source."""

    work: str
    measure: str
    value: float
    source: str
    group: str = "all"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark; its main measure comes first. ``parts`` are named groups of subsets."""

    title: str
    paper: str
    measures: tuple[str, ...]
    rule: str
    macros: tuple[Macro, ...] = ()
    published: tuple[Published, ...] = ()
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_ORDER = ("consistency", "first_place", "longer")
_AGREEMENT = "An unreadable reply agrees with nobody."

_JUDGEBENCH = "per-row outputs in the repository ScalerLab/JudgeBench at e2c52c2, counted anew"


def _judgebench() -> tuple[Published, ...]:
    """Figures on the pairs by GPT-4o but for the last; categories in the order of :data:`_FOUR`."""
    found: list[Published] = []
    for work, right, total, categories in (
        ("o1-mini, Arena-Hard prompt", 230, 350, (58.44, 62.24, 82.14, 78.57)),
        ("Skywork-Reward-Gemma-2-27B", 225, 350, (59.74, 66.33, 83.93, 50.00)),
        ("internlm2-20b-reward", 222, 350, ()),
        ("Skywork-Reward-Llama-3.1-8B", 218, 350, (59.09, 64.29, 76.79, 50.00)),
        ("internlm2-7b-reward", 208, 350, ()),
        ("GRM-Gemma-2B", 208, 350, (62.99, 53.06, 64.29, 54.76)),
        ("claude-3-haiku, on the pairs by Claude", 87, 270, ()),
    ):
        found.append(Published(work, "two_games", right / total, _JUDGEBENCH))
        shares = zip(_FOUR, categories, strict=False)
        found += [Published(work, "two_games", s / 100, _JUDGEBENCH, name) for name, s in shares]
    skywork = "as its authors tabulate it, the mean of the four categories"
    found.append(Published("Skywork-Reward-V2", "two_games", 0.83, skywork, MEAN_OF_SUBSETS.name))
    return tuple(found)


_FOUR = ("knowledge", "reasoning", "math", "coding")
_ADVERSARIAL = ("gptinst", "gptout", "manual", "neighbor")
MEAN_OF_SUBSETS = Macro("mean of subsets")

BENCHMARKS: Mapping[str, Benchmark] = {
    "llmbar": Benchmark(
        "LLMBar",
        "Zeng et al. 2024, arXiv 2310.07641",
        ("agreement", "both_right", *_ORDER),
        _AGREEMENT,
        (Macro("mean of adversarial", _ADVERSARIAL),),
        parts={"adversarial": _ADVERSARIAL},
    ),
    "pandalm": Benchmark(
        "PandaLM test set",
        "Wang et al. 2024, arXiv 2306.05087",
        ("three_class", KAPPA, "agreement", "both_right", *_ORDER),
        "Two orders that contradict each other are a tie. " + _AGREEMENT,
    ),
    "autoj": Benchmark(
        "Auto-J pairwise",
        "Li et al. 2024, arXiv 2310.05470",
        ("agreement", "agreement_without_ties", "both_right", *_ORDER),
        _AGREEMENT,
    ),
    "hhh": Benchmark(
        "HHH alignment",
        "Askell et al. 2021, arXiv 2112.00861",
        ("agreement", "both_right", *_ORDER),
        _AGREEMENT,
        (MEAN_OF_SUBSETS,),
    ),
    "evalbiasbench": Benchmark(
        "EvalBiasBench",
        "Park et al. 2024, arXiv 2407.06551",
        ("agreement", "both_right", *_ORDER),
        _AGREEMENT,
        (MEAN_OF_SUBSETS,),
    ),
    "judgebench": Benchmark(
        "JudgeBench",
        "Tan et al. 2024, arXiv 2410.12784",
        ("two_games", "agreement", "both_right", *_ORDER),
        "Right where more of the two games agree with the label than say the opposite; a tie or an "
        "unreadable reply is neither.",
        (MEAN_OF_SUBSETS,),
        _judgebench(),
    ),
}

_OWN = ("agreement", "two_games", "both_right", *_ORDER)
_OWN_TIES = ("agreement", "agreement_without_ties", "three_class", KAPPA, "both_right", *_ORDER)


def file_benchmark(has_ties: bool) -> Benchmark:
    """Return the benchmark for pairs of a user's file; ``has_ties``: some label is a tie."""
    measures = _OWN_TIES if has_ties else _OWN
    return Benchmark("Pairs of a file", "", measures, _AGREEMENT, (MEAN_OF_SUBSETS,))


REWARDBENCH2 = "rewardbench2"
