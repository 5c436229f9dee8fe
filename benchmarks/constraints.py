"""How fast answers are held against instructions: each checker, IFEval's mix, and hostile answers.

    python benchmarks/constraints.py --responses answers.jsonl [--data input_data.jsonl]
    python benchmarks/constraints.py --hostile [--size 1000000] [--only STARTS]

The first prints answers a second for each checker over the answers given, by strict and loose
reading, on one core. The second prints for each checker the slowest of the hostile texts, at a
quarter, a half and the whole of a size, and the exponent of its growth: 1 is linear.
"""

import argparse
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))  # need not be installed

from hostile_corpus import repeated  # noqa: E402

from flowright.core.errors import DataError  # noqa: E402
from flowright.criteria.constraints import language  # noqa: E402
from flowright.criteria.constraints.checkers import (  # noqa: E402  # noqa: E402  # noqa: E402
    IDS,
    InstructedPrompt,
    join,
    make,
    read_answers,
    read_prompts,
    variants,
)
from flowright.criteria.constraints.table import KINDS, Kind, Met  # noqa: E402

UNITS = ("*", "* ", "**", "(", "[", "<<", ">>", "<<a>", " ", "\n", "\r", "\u2028", "\n\n", "* \n",
         "-", "- \n", "***", "******", '"', '""', "'", "p.", "p. p.", ". ", ".", "...", "! ", "a",
         "a ", "a.", "A. ", "a, ", "A", "Section ", "1", "1,", "1. ", "@", "a@", "http://", "é",
         "解", "😀", "{", "[{", '{"a":', "```", "Question ", "Question 1", "<i>", "Zimbabwe\n",
         "My answer is ", "rock", "rock ", "-a", "'s ", "``", "--", "\ud800",
         "e\u0301")  # fmt: skip
"""What hostile answers repeat."""

ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "keywords:existence": {"keywords": ["rock"]},
    "keywords:forbidden_words": {"forbidden_words": ["rock"]},
    "keywords:frequency": {"keyword": "rock", "frequency": 3, "relation": "at least"},
    "keywords:letter_frequency": {"letter": "q", "let_frequency": 3, "let_relation": "at least"},
    "length_constraints:number_words": {"num_words": 300, "relation": "at least"},
    "length_constraints:number_sentences": {"num_sentences": 9, "relation": "at least"},
    "length_constraints:number_paragraphs": {"num_paragraphs": 4},
    "length_constraints:nth_paragraph_first_word": {
        "num_paragraphs": 4, "nth_paragraph": 2, "first_word": "well"},
    "change_case:capital_word_frequency": {
        "capital_frequency": 9, "capital_relation": "at least"},
    "language:response_language": {"language": "de"},
    "detectable_content:number_placeholders": {"num_placeholders": 3},
    "detectable_content:postscript": {"postscript_marker": "P.S."},
    "detectable_format:number_bullet_lists": {"num_bullets": 3},
    "detectable_format:number_highlighted_sections": {"num_highlights": 3},
    "detectable_format:multiple_sections": {"section_spliter": "Section", "num_sections": 3},
    "combination:repeat_prompt": {"prompt_to_repeat": "Say it."},
    "startend:end_checker": {"end_phrase": "That is all."},
    "count:word_count_range": {"min_words": 50, "max_words": 70},
    "count:unique_word_count": {"N": 50},
    "count:conjunctions": {"small_n": 4},
    "count:person_names": {"N": 9},
    "count:numbers": {"N": 4},
    "count:words_japanese": {"N": 2},
    "count:pronouns": {"N": 20},
    "count:keywords_multiple": {f"keyword{n}": f"word{n}" for n in range(1, 6)},
    "ratio:stop_words": {"percentage": 30},
    "ratio:overlap": {"reference_text": "Say it, and say it again.", "percentage": 40},
    "words:repeats": {"small_n": 4},
    "words:keywords_specific_position": {"keyword": "a", "n": 1, "m": 2},
    "words:words_position": {"keyword": "a"},
    "sentence:keyword": {"word": "rock", "N": 1},
    "sentence:increment": {"small_n": 0},
    "format:options": {"options": "yes/no/maybe"},
    "format:list": {"sep": "!?!?"},
    "repeat:repeat_change": {"prompt_to_repeat": "Say it now."},
    "repeat:repeat_span": {"prompt_to_repeat": "Say it now.", "n_start": 1, "n_end": 4},
}  # fmt: skip
"""Those of the checkers that take any, for hostile answers."""


def forget() -> None:
    """What is kept of texts that were seen."""
    language.sentences.cache_clear()
    language._detect.cache_clear()


def seconds(met: Met, text: str) -> float:
    forget()
    began = time.process_time()
    met(text)
    return time.process_time() - began


def score(met: Met, texts: list[str]) -> None:
    """As scoring does: the loose reading where the strict one fails."""
    if not (texts and met(texts[0])):
        any(map(met, texts[1:]))


def speeds(answered: list[tuple[InstructedPrompt, str]], kind: Kind) -> None:
    """Answers a second by checker, and of all; models and profiles are loaded before."""
    language.tokens("A word.")
    language.detect("A word.")
    took: defaultdict[str, float] = defaultdict(float)
    count: defaultdict[str, int] = defaultdict(int)
    for prompt, answer in answered:
        texts = variants(answer)
        forget()
        for name, values in zip(prompt.ids, prompt.arguments, strict=True):
            checker = make(name, values, kind)
            began = time.process_time()
            score(checker.met, texts)
            took[checker.id] += time.process_time() - began
            count[checker.id] += 1
    print(f"{kind} checker, strict and loose", "answers a second", sep="\t")
    for name in sorted(took, key=lambda name: -took[name]):
        print(name, f"{count[name] / max(took[name], 1e-9):,.0f}", sep="\t")
    print("all", f"{len(answered) / sum(took.values()):,.0f}", sep="\t")


def hostile(size: int, part: str) -> Iterator[tuple[str, str, list[float], float]]:
    """Checker, slowest text, seconds at a quarter, a half and the whole size, exponent."""
    texts = {repr(unit): repeated(unit) for unit in UNITS}
    for name in sorted(IDS):
        for kind in KINDS:
            if not name.startswith(tuple(part.split(","))):
                continue
            try:
                met = make(name, ARGUMENTS.get(name, {}), kind).met
                yield name + f" {kind}", *slowest(met, texts, size)
            except DataError as error:
                print(f"{name}: {error}", file=sys.stderr)


def slowest(
    met: Met, texts: Mapping[str, Callable[[int], str]], size: int
) -> tuple[str, list[float], float]:
    small = {text: seconds(met, make_text(size // 20)) for text, make_text in texts.items()}
    worst, took = "", [0.0] * 3
    for text in sorted(small, key=lambda text: -small[text])[:3]:
        each = [seconds(met, texts[text](size // part)) for part in (4, 2, 1)]
        if each[-1] > took[-1]:
            worst, took = text, each
    return worst, took, math.log(took[-1] / max(took[0], 1e-6), 4)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--responses", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--data", type=Path, default=Path("data/raw/ifeval/input_data.jsonl"))
    parser.add_argument("--hostile", action="store_true")
    parser.add_argument("--size", type=int, default=1_000_000, help="characters")
    parser.add_argument(
        "--only", default="", metavar="STARTS", help="of checkers' ids, with commas"
    )
    options = parser.parse_args()
    if options.hostile:
        sizes = [f"{options.size // part:,} characters" for part in (4, 2, 1)]
        print("checker", "slowest text", *sizes, "exponent", sep="\t")
        for name, text, took, exponent in hostile(options.size, options.only):
            each = [f"{one:.4f} s" for one in took]
            print(name, text, *each, f"{exponent:.2f}", sep="\t", flush=True)
    if options.responses:
        joined = join(read_prompts(options.data), read_answers(options.responses))
        for kind in (*KINDS, *KINDS):  # the second time the words of a language are known
            speeds(list(joined.answered), kind)


if __name__ == "__main__":
    main()
