"""A model's answers to the prompts of IFEval and IFBench, to be held against their instructions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flowright.core.files import disk_errors, write_text
from flowright.core.off_loop import off_loop
from flowright.criteria.constraints.session import Asked
from flowright.evaluation.responses.asking import Drawing, Progress, Rows
from flowright.evaluation.responses.opening import Named
from flowright.evaluation.responses.questions import Question
from flowright.evaluation.responses.session import Generated, answers_of
from flowright.llm.chat import Message
from flowright.llm.replies import spoken_answer
from flowright.runs.checkpoints import sha256_of


@dataclass(frozen=True, slots=True)
class BenchmarkAnswers:
    """Answers by prompt, without their thinking; a prompt that is not in it has none. ``told`` is
    for the record: who answered, how, and what it took."""

    answers: Mapping[str, str]
    generated: Generated
    told: Mapping[str, Any]


def first_prompts(asked: Sequence[Asked], limit: int | None) -> list[Asked]:
    """The first ``limit`` prompts of each benchmark alone."""
    return [replace(one, prompts=one.prompts[:limit]) for one in asked]


def responses_file(path: Path, benchmark: str, several: bool) -> Path:
    """Where a benchmark's responses go: each of several into a file of its own."""
    return path.with_name(f"{path.stem}.{benchmark}{path.suffix}") if several else path


async def answer_benchmark(
    named: Named,
    drawing: Drawing,
    asked: Asked,
    out: Path,
    overwrite: bool,
    progress: Progress,
) -> BenchmarkAnswers:
    """Ask a model the benchmark's prompts, each in a conversation of its own. ``out`` gets rows
    ``prompt`` and ``response``, also where this is interrupted. Raises UserError."""
    questions = [
        Question(place, (Message("user", prompt.text),))
        for place, prompt in enumerate(asked.prompts)
    ]

    def write(rows: Rows) -> None:
        lines = [
            {"prompt": prompt.text, "response": spoken_answer(answer.text)}
            for prompt, (answer, *_) in zip(asked.prompts, rows, strict=True)
            if answer is not None
        ]
        with disk_errors(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
            write_text(out, text)

    about = {"data": sha256_of(asked.data)}
    done = await answers_of(named, drawing, questions, about, out, overwrite, write, progress)
    answers: dict[str, str] = {}
    for prompt, (answer, *_) in zip(asked.prompts, done.found.answers, strict=True):
        if answer is not None:
            text = answer.text
            answers[prompt.text] = await off_loop(lambda text=text: spoken_answer(text), text)
    told = {
        "model": named.model or named.server or "VLLM_MODEL",
        "drawing": asdict(drawing),
        "responses": str(out),
        "lines": done.lines(),
    }
    return BenchmarkAnswers(answers, done, told)
