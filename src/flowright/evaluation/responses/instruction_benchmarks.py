"""IFEval, IFBench and HealthBench: prompts, a model's answers to them, and the records of the
scores."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flowright.core.errors import DataError
from flowright.core.files import check_writable, read_json
from flowright.core.plugins import suggest
from flowright.core.tables import read_rows, write_rows
from flowright.criteria.constraints.checkers import (
    BENCHMARKS,
    InstructedPrompt,
    ScoredPrompt,
    join,
    read_prompts,
    read_verdicts,
    score,
)
from flowright.criteria.constraints.language import NoTagger
from flowright.criteria.rubrics.points import healthbench_score
from flowright.data.row_files import UnusableRow, decoded, turns_of
from flowright.data.sources.registry import no_prompts
from flowright.evaluation.responses.generate import (
    AnswerProgress,
    Generated,
    Rows,
    generate_answers,
)
from flowright.evaluation.responses.instruction_figures import compare, record_of, rows_of
from flowright.evaluation.responses.response_models import (
    DrawSettings,
    ModelName,
    ResponseQuestion,
)
from flowright.evaluation.responses.score_responses import (
    GraderOfRow,
    GraderSettings,
    ResponseRow,
    grade_rows,
    key_of,
    open_graders,
    texts_of,
    thinking_in,
    write_scores,
)
from flowright.llm.chat import Message
from flowright.llm.replies import spoken_answer
from flowright.policy.base_models import model_id
from flowright.runs.run_files import sha256_of

FILES: Mapping[str, str] = {
    "ifeval": "ifeval/input_data.jsonl",
    "ifbench": "ifbench/IFBench_test.jsonl",
}
"""Below the folder of the downloaded files."""


@dataclass(frozen=True, slots=True)
class PromptSet:
    """A benchmark and its prompts, of ``total`` in its file."""

    benchmark: str
    data: Path
    prompts: tuple[InstructedPrompt, ...]
    total: int


def open_prompts(
    names: str, folder: Path, data: Path | None, limit: int | None = None
) -> list[PromptSet]:
    """Read the prompts of benchmarks, the first ``limit`` of each. ``names`` are separated by
    commas; ``data`` is a file instead of the one in ``folder``. Raises DataError."""
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in BENCHMARKS:
            known = list(BENCHMARKS)
            raise DataError(
                f"--benchmark {name}: not one of {', '.join(known)}{suggest(name, known)}"
            )
    if data is not None and len(chosen) > 1:
        raise DataError("--data is the file of one benchmark; measure one at a time")
    opened: list[PromptSet] = []
    for name in dict.fromkeys(chosen):
        path = data or folder / FILES[name]
        if data is None and not path.exists():
            raise DataError(f"{path}: {no_prompts(path)}, or give --data FILE")
        prompts = read_prompts(path)
        opened.append(PromptSet(name, path, prompts[:limit], len(prompts)))
    return opened


def score_instructions(
    sets: Sequence[PromptSet],
    answers: Mapping[str, str],
    verdicts: Sequence[Path] = (),
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Return the record of answers by prompt. A prompt that cannot be scored here is named and in
    no figure. Raises DataError where no prompt is answered."""
    theirs = read_verdicts(verdicts) if verdicts else None
    benchmarks: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    known: set[str] = set()
    for one in sets:
        joined = join(one.prompts, answers)
        if not joined.answered:
            raise DataError(f"no answer to a prompt of {one.data}; prompts are compared exactly")
        scored: list[ScoredPrompt] = []
        unscored: dict[str, str] = {}
        for prompt, answer in joined.answered:
            try:
                scored.append(score(prompt, answer))
            except NoTagger as error:
                unscored[prompt.key] = str(error)
            progress()
        thinking = thinking_in(answer for _, answer in joined.answered)
        comparison = None if theirs is None else compare(scored, theirs)
        benchmarks[one.benchmark] = record_of(
            {"data": str(one.data), "of": one.total, "unscored": unscored, "thinking": thinking},
            joined,
            scored,
            comparison,
        )
        rows += rows_of(one.benchmark, scored)
        known |= {prompt.text for prompt in one.prompts}
    strangers = sum(prompt not in known for prompt in answers)
    return {"benchmarks": benchmarks, "strangers": strangers, "rows": rows}


def write_record(record: Mapping[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def record_place(path: Path, generation: Mapping[str, Mapping[str, Any]]) -> Path:
    """Return where the record of a model's answers goes: ``path``, or a name with the hash of its
    weights beside it where ``path`` has the record of another model."""

    def models(answers: Mapping[str, Mapping[str, Any]]) -> set[str]:
        return {str(one.get("weights") or Path(one["model"]).name) for one in answers.values()}

    ours = models(generation)
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        theirs = models(read_json(path)["generation"])
        if theirs and ours and theirs != ours:
            return path.with_name(f"{path.stem}-{'-'.join(sorted(ours))}{path.suffix}")
    return path


# A model's answers.


@dataclass(frozen=True, slots=True)
class BenchmarkAnswers:
    """Answers by prompt, without missing ones. ``about`` is for the record: the model, its
    settings, and a summary."""

    answers: Mapping[str, str]
    generated: Generated
    about: Mapping[str, Any]


async def answer_benchmark(
    named: ModelName,
    settings: DrawSettings,
    prompt_set: PromptSet,
    out: Path,
    overwrite: bool,
    progress: AnswerProgress,
) -> BenchmarkAnswers:
    """Ask a model the benchmark's prompts, each in its own conversation. ``out`` gets rows
    ``prompt`` and ``response``, also after an interruption. Raises UserError."""
    prompts = prompt_set.prompts
    questions = [
        ResponseQuestion(place, (Message("user", prompt.text),))
        for place, prompt in enumerate(prompts)
    ]

    def write(rows: Rows) -> None:
        lines = [
            {"prompt": prompt.text, "response": spoken_answer(answer.text)}
            for prompt, (answer, *_) in zip(prompts, rows, strict=True)
            if answer is not None
        ]
        write_rows(out, lines)

    data = {"data": sha256_of(prompt_set.data)}
    done = await generate_answers(named, settings, questions, data, out, overwrite, write, progress)
    answers = {
        prompt.text: answer.text
        for prompt, (answer, *_) in zip(prompts, done.answers, strict=True)
        if answer is not None
    }
    about = {
        "model": named.model or named.server or "VLLM_MODEL",
        "weights": model_id(named.model) if named.model is not None else None,
        "drawing": asdict(settings),
        "responses": str(out),
        "lines": done.lines(),
    }
    return BenchmarkAnswers(answers, done, about)


# HealthBench (arXiv 2505.08775): rubric rows, joined to responses by the whole conversation.

RoleTexts = tuple[tuple[str, str], ...]


def conversation_of(prompt: object) -> RoleTexts:
    """Return roles and texts. A text that is not a JSON list of messages is a question. Raises
    UnusableRow."""
    if isinstance(prompt, str) and not prompt.lstrip().startswith("["):
        return (("user", prompt),)
    turns = turns_of(decoded(prompt, "prompt"), "prompt", "user")
    return tuple((turn.role, turn.content) for turn in turns)


def responses_by_conversation(paths: Sequence[Path]) -> dict[RoleTexts, tuple[str | None, ...]]:
    """Read rows with a ``prompt`` and a ``response`` (a text) or ``responses`` (a list). Raises
    DataError."""
    found: dict[RoleTexts, tuple[str | None, ...]] = {}
    for path in paths:
        for place, row in read_rows(path):
            try:
                name = "responses" if "responses" in row else "response"
                key, texts = conversation_of(row.get("prompt")), texts_of(row.get(name), name)
            except UnusableRow as error:
                raise place.error(error.why) from None
            if found.setdefault(key, texts) != texts:
                raise place.error("an earlier row has another response to this conversation")
    return found


def joined_rows(
    data: Path,
    responses: Mapping[RoleTexts, tuple[str | None, ...]],
    grader_of: GraderOfRow,
    limit: int | None,
) -> list[ResponseRow]:
    """Return the benchmark's rows with their responses; a row without any misses one. Raises
    DataError for an unusable row, or where no response belongs to any."""
    rows: list[ResponseRow] = []
    for number, (place, row) in enumerate(read_rows(data)):
        if limit is not None and number >= limit:
            break
        try:
            texts = responses.get(conversation_of(row.get("prompt")), (None,))
            grader = grader_of(row, str(place), data)
        except UnusableRow as error:
            raise place.error(error.why) from None
        rows.append(ResponseRow(number, "healthbench", grader, texts, _theme(row)))
    if all(text is None for row in rows for text in row.responses):
        raise DataError(f"no response to a conversation of {data}; they are compared exactly")
    return rows


def _theme(row: Mapping[str, Any]) -> str:
    """The theme of a row in HealthBench's own file, among its ``example_tags``; else nothing."""
    tags = row.get("example_tags")
    found = [t for t in tags if str(t).startswith("theme:")] if isinstance(tags, list) else []
    return str(found[0]).partition(":")[2] if found else ""


async def score_healthbench(
    settings: GraderSettings,
    data: Path,
    responses: Sequence[Path],
    out: Path,
    limit: int | None,
    overwrite: bool,
    progress: AnswerProgress,
) -> dict[str, Any]:
    """Grade what is not graded yet; write and return the record, whose ``healthbench`` is the
    benchmark's own figure, also ``by`` theme and axis. Raises UserError."""
    check_writable(out.parent)
    texts = responses_by_conversation(responses)
    async with open_graders(settings) as opened:
        rows = joined_rows(data, texts, opened.grader_of, limit)
        files = {"data": sha256_of(data), "responses": [sha256_of(path) for path in responses]}
        about = {**opened.about, **files}
        record, grades = await grade_rows(rows, opened, about, out, overwrite, progress)
    shares: list[float | None] = []
    by: dict[str, list[float | None]] = {}
    for row in rows:
        for number in range(len(row.responses)):
            grade = grades.get(key_of(row, number))
            shares.append(grade.share if grade else None)
            if grade and row.theme:
                by.setdefault(f"theme: {row.theme}", []).append(grade.share)
            for axis, share in grade.axes.items() if grade else ():
                by.setdefault(f"axis: {axis}", []).append(share)
    record["healthbench"] = asdict(healthbench_score(shares)) | {
        "limit": limit,
        "by": {name: asdict(healthbench_score(by[name])) for name in sorted(by, reverse=True)},
    }
    return write_scores(data, opened, record, out)
