"""Answers held against their instructions: strict and loose, by prompt and by instruction.

Strict: the answer as it is. Loose (Zhou et al. 2023, section 2.3): any of eight texts, with and
without the first line, the last line and every ``*``. A prompt is followed where all its
instructions are. An empty answer follows nothing; a prompt without an answer is missing, and in no
figure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowright.criteria.constraints.checkers import Checker, make, seeds
from flowright.criteria.constraints.files import Prompt
from flowright.criteria.constraints.table import KINDS, Kind


@dataclass(frozen=True, slots=True)
class Followed:
    """One answer: whether it follows each instruction. ``could`` has, of each, all that the
    checker says with one seed or another: both True and False where the benchmark draws, and the
    draw decides."""

    strict: tuple[bool, ...]
    loose: tuple[bool, ...]
    could_strict: tuple[frozenset[bool], ...]
    could_loose: tuple[frozenset[bool], ...]


@dataclass(frozen=True, slots=True)
class Scored:
    """A prompt that was answered, by each kind of checkers."""

    prompt: Prompt
    followed: Mapping[Kind, Followed]


def variants(answer: str) -> list[str]:
    """The texts of the loose reading, none twice and none blank; the answer itself first."""
    lines = answer.split("\n")
    parts = [answer, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    texts = dict.fromkeys([*parts, *(part.replace("*", "") for part in parts)])
    return [text for text in texts if text.strip()]


def score(prompt: Prompt, answer: str) -> Scored:
    """Raises BadArguments for instructions that are none; :func:`files.read_prompts` has looked."""
    texts = variants(answer)
    return Scored(prompt, {kind: _followed(prompt, kind, texts) for kind in KINDS})


def _followed(prompt: Prompt, kind: Kind, texts: list[str]) -> Followed:
    strict, loose, could_strict, could_loose = [], [], [], []
    for name, values in zip(prompt.ids, prompt.arguments, strict=True):
        drawn = range(seeds(name, values) if kind == "canonical" else 1)
        said = [_said(make(name, values, kind, seed), texts) for seed in drawn]
        strict.append(said[0][0])
        loose.append(said[0][1])
        could_strict.append(frozenset(one for one, _ in said))
        could_loose.append(frozenset(other for _, other in said))
    return Followed(tuple(strict), tuple(loose), tuple(could_strict), tuple(could_loose))


def _said(checker: Checker, texts: list[str]) -> tuple[bool, bool]:
    """Strict and loose; the answer, where it is not blank, is the first of the texts."""
    strict = bool(texts) and checker.met(texts[0])
    return strict, strict or any(map(checker.met, texts[1:]))


@dataclass(frozen=True, slots=True)
class Joined:
    """Answers beside the prompts that they answer. ``missing``: prompts without an answer;
    ``strangers``: how many answers are to no prompt."""

    answered: tuple[tuple[Prompt, str], ...]
    missing: tuple[Prompt, ...]
    strangers: int


def join(prompts: Sequence[Prompt], answers: Mapping[str, str]) -> Joined:
    answered = tuple((p, answers[p.text]) for p in prompts if p.text in answers)
    missing = tuple(p for p in prompts if p.text not in answers)
    return Joined(answered, missing, len(answers) - len(answered))


def verdicts(prompt: Prompt, answer: str, kind: Kind) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Whether an answer follows each instruction, strict and loose, by checkers of one kind; where
    a benchmark draws, by its first draw. For rewards, of which each answer has one. Raises
    BadArguments as :func:`score` does."""
    texts = variants(answer)
    said = [
        _said(make(name, values, kind), texts)
        for name, values in zip(prompt.ids, prompt.arguments, strict=True)
    ]
    return tuple(strict for strict, _ in said), tuple(loose for _, loose in said)
