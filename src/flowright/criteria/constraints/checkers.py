"""All checkers by id, files of prompts and verdicts, and the strict and loose scores of answers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowright.core.errors import DataError
from flowright.core.plugins import suggest
from flowright.criteria.constraints import (
    ifbench_counts,
    ifbench_custom,
    ifbench_form,
    ifbench_words,
    ifeval_form,
    ifeval_words,
)
from flowright.criteria.constraints.table import (
    KINDS,
    Arguments,
    BadArguments,
    CheckerTable,
    Factory,
    Kind,
    Met,
)
from flowright.data.sources.dataset import UpstreamRow, read_table
from flowright.llm.replies import spoken_answer

BENCHMARKS: Mapping[str, tuple[CheckerTable, ...]] = {
    "ifeval": (ifeval_words.TABLE, ifeval_form.TABLE),
    "ifbench": (
        ifbench_counts.TABLE,
        ifbench_words.TABLE,
        ifbench_form.TABLE,
        ifbench_custom.TABLE,
    ),
}
_TABLES = tuple(table for tables in BENCHMARKS.values() for table in tables)
IDS: Mapping[str, Factory] = {
    name: factory for table in _TABLES for name, factory in table.canonical.items()
}
FIXED: Mapping[str, Factory] = {
    name: factory for table in _TABLES for name, factory in table.fixed.items()
}
REASONS: Mapping[str, str] = {
    name: reason for table in _TABLES for name, reason in table.reasons.items()
}
"""By id of the checkers whose kinds differ: what the canonical one gets wrong."""

LANGUAGE = "en:"  # before the ids of M-IFEval's English part, which is IFEval

_LANGUAGE_SEEDS = 6


@dataclass(frozen=True, slots=True)
class Checker:
    """One instruction of a prompt."""

    id: str
    kind: Kind
    met: Met


def make(name: str, values: Mapping[str, Any], kind: Kind = "canonical", seed: int = 0) -> Checker:
    """A checker from its id and the arguments of a row, of which those that are null don't count.
    ``seed`` is of what the benchmark draws: see :func:`seeds`. Raises BadArguments."""
    name = name.removeprefix(LANGUAGE)
    canonical = IDS.get(name)
    if canonical is None:
        raise BadArguments(f"unknown instruction {name!r}{suggest(name, list(IDS))}")
    factory = FIXED.get(name, canonical) if kind == "fixed" else canonical
    arguments = Arguments(values, seed)
    try:
        met = factory(arguments)
        arguments.end()
    except BadArguments as error:
        raise BadArguments(f"{name}: {error}") from None
    return Checker(name, kind, met)


def seeds(name: str, values: Mapping[str, Any]) -> int:
    """With how many seeds the canonical checker is to be asked, for all that it may say: 1 where
    the benchmark draws nothing; every letter; of a language, a few."""
    name = name.removeprefix(LANGUAGE)
    if name == ifeval_words.LETTER:
        drawn = ifeval_words.draws_a_letter(str(values.get("letter") or ""))
        return len(ifeval_words.LETTERS) if drawn else 1
    return _LANGUAGE_SEEDS if name in ifeval_words.DETECTING else 1


_SHOWN = 10  # problems of a file


@dataclass(frozen=True, slots=True)
class InstructedPrompt:
    """A row of a benchmark: what is asked, and the instructions with the arguments of each."""

    key: str
    text: str
    ids: tuple[str, ...]
    arguments: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Verdicts on each instruction of a prompt; None for a reading that a file lacks."""

    strict: tuple[bool, ...] | None
    loose: tuple[bool, ...] | None


def read_prompts(path: Path) -> tuple[InstructedPrompt, ...]:
    """The rows of IFEval's, IFBench's or M-IFEval's English file: ``key``, ``prompt``,
    ``instruction_id_list`` and ``kwargs``. Raises DataError with the place of each row that cannot
    be used, an unknown id or argument included."""
    prompts: dict[str, InstructedPrompt] = {}
    problems: list[str] = []
    for row in read_table(path):
        try:
            prompt = prompt_of(row)
            if prompt.text in prompts:
                raise row.error(f"the prompt was that of key {prompts[prompt.text].key}, too")
        except DataError as error:
            problems += error.problems
            continue
        prompts[prompt.text] = prompt
    if problems or not prompts:
        raise DataError(*(problems[:_SHOWN] or [f"{path}: no prompt in it"]))
    return tuple(prompts.values())


def prompt_of(row: UpstreamRow) -> InstructedPrompt:
    """Return the request and the instructions of a row. Raises DataError."""
    key = str(row.values.get("key", row.name))
    ids, arguments = row.items("instruction_id_list"), row.items("kwargs")
    if not ids or len(ids) != len(arguments):
        raise row.error(f"key {key}: {len(ids)} instructions, arguments of {len(arguments)}")
    for name, values in zip(ids, arguments, strict=True):
        if not isinstance(name, str) or not isinstance(values, dict):
            raise row.error(f"key {key}: an instruction is a text, its arguments are an object")
        try:
            for kind in KINDS:
                make(name, values, kind)
        except BadArguments as error:
            raise row.error(f"key {key}: {error}") from None
    ids = tuple(name.removeprefix(LANGUAGE) for name in ids)
    return InstructedPrompt(key, _exact(row, "prompt"), ids, tuple(arguments))


def read_answers(paths: Iterable[Path]) -> dict[str, str]:
    """Return answers by prompt, of rows ``prompt`` and ``response``, or ``responses``, a list of
    one; a response of null is missing. Raises DataError."""
    answers: dict[str, str] = {}
    for path in paths:
        for row in read_table(path):
            prompt = _exact(row, "prompt")
            name = "response" if "response" in row.values else "responses"
            answer = row.values.get(name) if name in row.values else row.get("response")
            if isinstance(answer, list) and len(answer) != 1:
                raise row.error(
                    f"{name}: {len(answer)} to one prompt; generate with --n-samples 1, or average "
                    "over all: flowright instructions score --reward constraints"
                )
            answer = answer[0] if isinstance(answer, list) else answer
            if answer is None:
                continue
            if not isinstance(answer, str):
                raise row.error(f"{name} is {type(answer).__name__}, not a string")
            if answers.setdefault(prompt, answer) != answer:
                raise row.error("another answer to this prompt stands above; keep one of them")
    return answers


def read_verdicts(paths: Sequence[Path]) -> dict[str, Verdicts]:
    """Read recorded verdicts by prompt: rows ``prompt``, ``strict`` and ``loose``, or those of
    IFEval's program, ``prompt`` and ``follow_instruction_list``, in a file with strict or loose in
    its name. Raises DataError."""
    found: dict[str, dict[str, tuple[bool, ...]]] = {}
    for path in paths:
        for row in read_table(path):
            readings = found.setdefault(_exact(row, "prompt"), {})
            if "follow_instruction_list" in row:
                readings[_reading(path)] = _flags(row, "follow_instruction_list")
            else:
                readings |= {name: _flags(row, name) for name in ("strict", "loose")}
    return {p: Verdicts(each.get("strict"), each.get("loose")) for p, each in found.items()}


def _reading(path: Path) -> str:
    for name in ("strict", "loose"):
        if name in path.name:
            return name
    raise DataError(f"{path}: a file of verdicts needs strict or loose in its name")


def _flags(row: UpstreamRow, name: str) -> tuple[bool, ...]:
    values = row.items(name)
    if not all(isinstance(value, bool) for value in values):
        raise row.error(f"{name} is a list of true and false")
    return tuple(values)


def _exact(row: UpstreamRow, name: str) -> str:
    """Line ends included, unlike :meth:`UpstreamRow.text`: checkers see them."""
    value = row.get(name)
    if not isinstance(value, str):
        raise row.error(f"{name} is {type(value).__name__}, not a string")
    return value


@dataclass(frozen=True, slots=True)
class Followed:
    """Verdicts on one answer for each instruction. ``could`` has the possible verdicts over seeds:
    both True and False where the benchmark draws at random and the draw decides."""

    strict: tuple[bool, ...]
    loose: tuple[bool, ...]
    could_strict: tuple[frozenset[bool], ...]
    could_loose: tuple[frozenset[bool], ...]


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """A prompt that was answered, by each kind of checkers."""

    prompt: InstructedPrompt
    followed: Mapping[Kind, Followed]


def variants(answer: str) -> list[str]:
    """The texts of the loose reading, none twice and none blank; the answer itself first."""
    lines = answer.split("\n")
    parts = [answer, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    texts = dict.fromkeys([*parts, *(part.replace("*", "") for part in parts)])
    return [text for text in texts if text.strip()]


def score(prompt: InstructedPrompt, answer: str) -> ScoredPrompt:
    """Score an answer without the thinking that it opens with. Raises BadArguments for instructions
    that are none; :func:`read_prompts` has looked."""
    texts = variants(spoken_answer(answer))
    return ScoredPrompt(prompt, {kind: _followed(prompt, kind, texts) for kind in KINDS})


def _followed(prompt: InstructedPrompt, kind: Kind, texts: list[str]) -> Followed:
    strict, loose, could_strict, could_loose = [], [], [], []
    for name, values in zip(prompt.ids, prompt.arguments, strict=True):
        drawn = range(seeds(name, values) if kind == "canonical" else 1)
        pairs = [_verdict(make(name, values, kind, seed), texts) for seed in drawn]
        strict.append(pairs[0][0])
        loose.append(pairs[0][1])
        could_strict.append(frozenset(one for one, _ in pairs))
        could_loose.append(frozenset(other for _, other in pairs))
    return Followed(tuple(strict), tuple(loose), tuple(could_strict), tuple(could_loose))


def _verdict(checker: Checker, texts: list[str]) -> tuple[bool, bool]:
    """Return the strict and the loose verdict; the answer, where it is not blank, is the first of
    the texts."""
    strict = bool(texts) and checker.met(texts[0])
    return strict, strict or any(map(checker.met, texts[1:]))


@dataclass(frozen=True, slots=True)
class Joined:
    """Answers beside the prompts that they answer. ``missing``: prompts without an answer;
    ``strangers``: how many answers are to no prompt."""

    answered: tuple[tuple[InstructedPrompt, str], ...]
    missing: tuple[InstructedPrompt, ...]
    strangers: int


def join(prompts: Sequence[InstructedPrompt], answers: Mapping[str, str]) -> Joined:
    answered = tuple((p, answers[p.text]) for p in prompts if p.text in answers)
    missing = tuple(p for p in prompts if p.text not in answers)
    return Joined(answered, missing, len(answers) - len(answered))


def verdicts(
    prompt: InstructedPrompt, answer: str, kind: Kind
) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Check an answer against each instruction, strict and loose, by checkers of one kind; where a
    benchmark draws at random, by its first draw. For rewards. Raises BadArguments as :func:`score`
    does."""
    texts = variants(answer)
    pairs = [
        _verdict(make(name, values, kind), texts)
        for name, values in zip(prompt.ids, prompt.arguments, strict=True)
    ]
    return tuple(strict for strict, _ in pairs), tuple(loose for _, loose in pairs)
