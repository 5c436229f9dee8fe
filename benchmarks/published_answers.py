"""What gold's comparison and the rules say of published references in the forms models write.

Every drawn reference is put into forms that are right and into forms that are near and wrong (the
answer of another problem, a neighbouring number, a denial, two answers, another choice). Printed
per data set: wrong ones called right, right ones called wrong, those left to algebra, and how often
the rules contradict gold. The forms are made; no model wrote these answers.

    python benchmarks/published_answers.py FOLDER [--draw 1500] [--show 10]
"""

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from flowright.data.sources import find_part, load_dataset, load_part
from flowright.data.task import Problem
from flowright.grading.compare import compare
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


async def measure(name: str, folder: Path, count: int, show: int) -> None:
    tasks = problems(name, folder, count)
    seen: Counter[str] = Counter()
    shown: dict[str, list[tuple[str, str]]] = {}
    for asked, other in zip(tasks, tasks[1:] + tasks[:1], strict=True):
        expected = (asked.reference, *asked.alternatives)
        for answer, right in answers(asked, other):
            gold = compare(expected, answer, asked.kind, asked.choices).correct
            rules = await decide(task_query(asked, answer, "k"))
            outcome = "open" if gold is None else "ok" if gold is right else "lost"
            seen["right" if right else "wrong", outcome] += 1
            seen["contradict"] += rules is not None and gold is not None and rules[0] is not gold
            if outcome == "lost":
                kind = "right called wrong" if right else "wrong called right"
                shown.setdefault(kind, []).append((asked.reference, answer))
    for right, lost in (("wrong", "called right"), ("right", "called wrong")):
        total = sum(seen[right, outcome] for outcome in ("open", "ok", "lost"))
        print(f"{name:14} {right} ones {lost}: {seen[right, 'lost']} of {total}"
              f" ({seen[right, 'open']} left to algebra)")  # fmt: skip
    print(f"{name:14} rules contradict gold: {seen['contradict']} ({len(tasks)} problems)")
    for kind, rows in shown.items():
        for reference, answer in random.Random(1).sample(rows, min(show, len(rows))):
            print(f"    {kind}: {reference!r} <- {answer[:90]!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of downloaded data sets, see docs/datasets.md")
    parser.add_argument("--draw", type=int, default=1500, metavar="N", help="problems per data set")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="examples of each fault")
    given = parser.parse_args()
    for name in DATASETS:
        asyncio.run(measure(name, given.folder, given.draw, given.show))


if __name__ == "__main__":
    main()
