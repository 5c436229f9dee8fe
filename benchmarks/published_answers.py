"""Errors of gold and of the rules on published references in the forms that models write.

Three corpora. Forms: every drawn reference in forms that are right and in forms that are near and
wrong (the answer of another problem, a neighbouring number, a denial, two answers, another choice).
Worked: solutions of GSM8K without their last line, right for their own reference and wrong for that
of another problem. Held: sentences that state a number or a name, and others that only hold it. The
forms are made; no model wrote these answers.

    python benchmarks/published_answers.py FOLDER [--draw 1500] [--show 10]
"""

import argparse
import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from flowright.data.sources.registry import find_part, load_dataset, load_part
from flowright.data.task import Problem
from flowright.grading.compare import asks_percent, compare
from flowright.grading.numbers import lone_number
from flowright.judging.rules import decide
from flowright.judging.verdict import task_query

DATASETS = ("gsm8k", "drop", "hotpotqa", "mmlu", "commonsenseqa")
RIGHT = (
    "{}", "{}.", "**{}**", "The answer is {}.", "The final answer is: **{}**", "\\boxed{{{}}}",
    "We look at the passage first.\n\nAnswer: {}", "It is {}.", "<answer>{}</answer>",
    "Therefore, the correct answer is {}.", "The answer to this question is **{}**.",
    "First guess: Zanzibar. On reflection, the answer is {}.", "#### {}", "Final answer: {}",
)  # fmt: skip
WRONG = (
    "{other}", "The answer is {other}.", "It is not {right}.", "The answer is not {right}.",
    "{right} or {other}", "Either {right} or {other}.", "\\boxed{{{other}}}",
    "I first thought {right}, but the answer is {other}.", "The answer is {other}, not {right}.",
    "It is unclear whether it is {right}.", "Is it {right}?", "neither {right} nor {other}",
)  # fmt: skip


STATED = """
{}|**{}**|The answer is {}.|Final Answer: **{}**|So the final answer is {}.|Total: {}|x = {}
f(2) = {}|5 + 3 = {}|Total = 5 + 3 = {}|40% of 20 is {}|$5 + $3 = ${}
5 apples + 3 apples = {} apples|Natalia sold 5+3 = {} clips altogether in April and May.
Andy has 10-2 = {} more candies than Caleb|If he reads 5 books, he gets 16/2 = {} of them.
Weng earned ${}.|So there are {} left.|They scored {} points.|Therefore, she has {} apples left.
Each of the 4 kids gets {} apples.|In 3 days, he will have {} apples.|He will have {} left over.
Hence, the total number of apples is {}.|It takes {} bolts in total.|It's {}.|{} rather than 9
{} (not 9)|{}, not 9|not 9 but {}|{}, because 5+3={}.|The answer is {}, not 9.
The answer is {}. I hope this helps!|The answer is {}. Let me know if you have questions!|(A) {}
${}.00|{} sq. units|{} dollars a day|≈ {}|{} (eight)|eight ({})|La respuesta es {}.
Die Antwort ist {}.|答案是{}。|Since 3 is odd, the answer is {}.|Emily is {} years old.|{} cm²
{}\\text{ cm}|«{}»|“{}”|**Answer:** {}|Each skirt cost ${}.|They have a length of {} centimeters.
So he pays 2*$4 = ${} a year
"""

HELD = """
maybe {}|presumably {}|roughly {}|about {}|circa {}|~{}|{}?|Is it {}|{}, I think|I guess {}
hopefully {}|{} is wrong|{} is too small|{} is not right|{} would be wrong|{} can be ruled out
{} does not work|it is impossible to get {}|It cannot be {}|I doubt {}|anything but {}
far from {}|just shy of {}|not quite {}|The answer {} is a trap|The naive answer is {}
My previous answer was {}|The first attempt gave {}|A wrong answer: {}|Distractor: {}|Guess: {}
wrong: {}|{} ❌|✗ {}|~~{}~~|<del>{}</del>|{} if n is odd|{} only if|{} when n is odd
If n is odd, the answer is {}|Suppose the answer is {}|Let x = {}|x ≠ {}|!= {}|x > {}|≥ {}|{}+
{}-|±{}|6 ≡ {}|{} \\pmod{9}|{} (mod 9)|t ↦ {}t|at least {}|no more than {}|{} or so|{} score
{} negative|{} below zero|10 short of {}|10 take away {}|a number close to {}|step {}|### Step {}
{}. Check it|nicht {}|pas {}|no es {}|не {}|不是{}|{}ではない|{}是错的|неверно: {}|{} nope
{} and a bit|{} times two|I don't think the answer is {}|Nobody would say the answer is {}
-\\boxed{{}}|\\boxed{{}} is wrong|{}⁻¹|{}\\%|not \\boxed{{}}|The answer isn't {}
The answer is anything but {}|Everything except {}|{} ± 1|{}...|negative: {}
"""

PAIRED = """
{} = {}|{} != {}|{} ≠ {}|{} ≈ {}|{} < {}|{} -> {}|{} ⇒ {}|{} / {}|{}; {}|{}: {}|{} versus {}
{} instead of {}|{}, whereas {} is the wrong answer|{} (some say {})|{} unless it is {}
{}, or else {}|{} beats {}|{} mod {}|{} ± {}|{} rather than {}|{} (not {})|{}, not {}
{} exceeds {}|{} not equal to {}|{} is greater than {}|{} ≡ {}|{}...{}|It is {}, unless {}
The answer is {} instead of {}|{} if n is odd, {} otherwise|{} ({})|from {} to {}
{} as opposed to {}
"""

NAMED = """
{}|{}.|“{}”|«{}»|「{}」|The answer is {}.|Antwort: {}|France’s capital is {}
The capital of France is {}.|It is {}.|{} (the capital of France)|In {}.|{} is the answer.
The answer is {}, which is the capital of France.|- {}|<b>{}</b>|{} rather than Lyon
Lyon was my first thought, but the answer is {}|✅ {}|#### {}
"""

UNNAMED = """
The wrong answer is {}|The least likely answer is {}|My second guess is {}|The naive answer is {}
{}?|Maybe {}|{}, maybe|{} or Lyon|either {} or Lyon|anything but {}|{} ❌|~~{}~~|It isn't {}
The answer could be {}|If it rains, the answer is {}|Lyon rather than {}|{} / Lyon|near {}
nicht {}|no es {}|{} (Lyon)|Wrong answer: {}|My first answer was {}|Unlike {}
It is false that the answer is {}|The answer nobody should give is {}|The rejected answer is {}
"""
"""A number or a name: {} is stated, held by a text that does not state it, or the second of two."""


def forms(text: str) -> list[str]:
    return [form for line in text.split("\n") for form in line.split("|") if form]


def problems(name: str, folder: Path, count: int) -> list[Problem]:
    part = find_part(load_dataset(name), "official", "test", folder)
    if part is None:
        return []
    every = list(load_part(part, folder))
    return random.Random(0).sample(every, min(count, len(every)))


def answers(asked: Problem, other: Problem) -> Iterator[tuple[str, bool]]:
    """Answers to ``asked`` and whether each is right; ``other`` lends what is wrong."""
    names = dict(asked.choices)
    if not names:
        says, differs = [asked.reference], other.reference
        number = lone_number(asked.reference)
        if number is not None and asked.reference.isdecimal():
            differs = str(int(asked.reference) + 1)
        if (
            compare((asked.reference, *asked.alternatives), differs, asked.kind).correct
            is not False
        ):
            return
    else:
        label = asked.reference
        text = names[label]
        differs = next(each for each in names if each != label)
        says = [label, f"({label})", f"{label}. {text}", f"({label}) {text}", f"option {label}"]
        says.append(f"{label}: {text}")
        yield f"{differs}. {text}", False
    for right in says:
        yield from ((form.format(right), True) for form in RIGHT)
    yield from ((form.format(right=says[0], other=differs), False) for form in WRONG)


Row = tuple[Problem, str, bool]


def of_forms(name: str, folder: Path, count: int) -> Iterator[Row]:
    tasks = problems(name, folder, count)
    for asked, other in zip(tasks, tasks[1:] + tasks[:1], strict=True):
        yield from ((asked, answer, right) for answer, right in answers(asked, other))


def worked(folder: Path, count: int) -> Iterator[Row]:
    """Solutions of GSM8K's training set, which is not a test set of any run."""
    path = folder / "gsm8k" / "train.jsonl"
    rows = [json.loads(line) for line in path.open(encoding="utf-8")] if path.exists() else []
    rows = random.Random(0).sample(rows, min(count, len(rows)))
    tasks = [
        Problem("t", "math", "gsm8k", row["question"], row["answer"].rpartition("#### ")[2])
        for row in rows
    ]
    for asked, other, row in zip(tasks, tasks[1:] + tasks[:1], rows, strict=True):
        solution = re.sub(r"<<[^<>]*>>", "", row["answer"].rpartition("####")[0])
        yield asked, solution, True
        if other.reference != asked.reference:
            yield other, solution, False


def held() -> Iterator[Row]:
    eight, six, paris = (
        Problem("t", kind, "forms", "Which is it?", reference)
        for kind, reference in (("math", "8"), ("math", "6"), ("qa", "Paris"))
    )
    yield from ((eight, form.replace("{}", "8"), True) for form in forms(STATED))
    yield from ((six, form.replace("{}", "6"), False) for form in forms(HELD))
    yield from ((eight, form.format(9, 8), False) for form in forms(PAIRED))
    yield from ((paris, form.replace("{}", "Paris"), True) for form in forms(NAMED))
    yield from ((paris, form.replace("{}", "Paris"), False) for form in forms(UNNAMED))


async def measure(name: str, rows: Iterator[Row], show: int) -> None:
    seen: Counter[tuple[str, bool, bool | None]] = Counter()
    shown: dict[str, list[tuple[str, str]]] = {}
    for asked, answer, right in rows:
        expected = (asked.reference, *asked.alternatives)
        percent = asks_percent(asked.question)
        gold = compare(expected, answer, asked.kind, asked.choices, is_percent=percent).correct
        rules = await decide(task_query(asked, answer, "k"))
        seen["gold", right, gold] += 1
        seen["rules", right, rules and rules[0]] += 1
        if gold is not None and gold is not right:
            kind = "right called wrong" if right else "wrong called right"
            shown.setdefault(kind, []).append((asked.reference, answer))
    for who in ("gold", "rules"):
        wrong, right = (
            sum(seen[who, truth, found] for found in (True, False, None)) for truth in (False, True)
        )
        print(f"{name:14} {who:5} wrong called right {seen[who, False, True]:4} of {wrong:5}"
              f"  right called wrong {seen[who, True, False]:4} of {right:5}"
              f"  undecided {seen[who, False, None] + seen[who, True, None]:5}")  # fmt: skip
    for kind, faults in shown.items():
        for reference, answer in random.Random(1).sample(faults, min(show, len(faults))):
            print(f"    {kind}: {reference!r} <- {answer[-90:]!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of downloaded data sets, see docs/datasets.md")
    parser.add_argument("--draw", type=int, default=1500, metavar="N", help="problems per data set")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="examples of each fault")
    given = parser.parse_args()
    for name in DATASETS:
        asyncio.run(measure(name, of_forms(name, given.folder, given.draw), given.show))
    asyncio.run(measure("gsm8k, worked", worked(given.folder, given.draw), given.show))
    asyncio.run(measure("held", held(), given.show))


if __name__ == "__main__":
    main()
