"""HealthBench's figure (arXiv 2505.08775) of responses that were given: rubric rows, joined to
responses by the whole conversation.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flowright.core.errors import DataError
from flowright.core.files import check_writable
from flowright.criteria.rubrics.points import healthbench_score
from flowright.data.row_files import UnusableRow, decoded, turns_of
from flowright.data.sources.rows import read_table
from flowright.evaluation.responses.asking import Progress
from flowright.evaluation.responses.grading import Graders
from flowright.evaluation.responses.score_session import Judged, graded, open_graders, write_record
from flowright.evaluation.responses.scoring import ResponseRow, key_of, texts_of
from flowright.runs.checkpoints import sha256_of

Conversation = tuple[tuple[str, str], ...]


def conversation_of(prompt: object) -> Conversation:
    """Roles and texts. A text that is no JSON of messages is a question. Raises UnusableRow."""
    if isinstance(prompt, str) and not prompt.lstrip().startswith("["):
        return (("user", prompt),)
    turns = turns_of(decoded(prompt, "prompt"), "prompt", "user")
    return tuple((turn.role, turn.content) for turn in turns)


def given_responses(paths: Sequence[Path]) -> dict[Conversation, tuple[str | None, ...]]:
    """Of rows ``prompt`` with ``response``, a text, or ``responses``, a list. Raises DataError."""
    found: dict[Conversation, tuple[str | None, ...]] = {}
    for path in paths:
        for row in read_table(path):
            try:
                name = "responses" if "responses" in row else "response"
                key, texts = conversation_of(row.get("prompt")), texts_of(row.get(name), name)
            except UnusableRow as error:
                raise row.error(error.why) from None
            if found.setdefault(key, texts) != texts:
                raise row.error("another response to this conversation stands above; keep one")
    return found


def joined_rows(
    data: Path, given: dict[Conversation, tuple[str | None, ...]], made: Graders, limit: int | None
) -> list[ResponseRow]:
    """The benchmark's rows with the responses; one without any is missing. Raises DataError where
    a row cannot be used, or no response belongs to any."""
    rows: list[ResponseRow] = []
    for place, row in enumerate(read_table(data)):
        if limit is not None and place >= limit:
            break
        try:
            texts = given.get(conversation_of(row.get("prompt")), (None,))
            grader = made(row.values, f"{data}:{row.name}", data)
        except UnusableRow as error:
            raise row.error(error.why) from None
        rows.append(ResponseRow(place, "healthbench", grader, texts))
    if all(text is None for row in rows for text in row.responses):
        raise DataError(f"no response to a conversation of {data}; they are compared exactly")
    return rows


async def score_healthbench(
    judged: Judged,
    data: Path,
    responses: Sequence[Path],
    out: Path,
    limit: int | None,
    overwrite: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Grade what is not graded yet, and write and return the record; ``healthbench`` in it is the
    benchmark's own figure. Raises UserError."""
    check_writable(out.parent)
    given = given_responses(responses)
    async with open_graders(judged) as opened:
        rows = joined_rows(data, given, opened.made, limit)
        files = {"data": sha256_of(data), "responses": [sha256_of(path) for path in responses]}
        about = {**opened.about, **files}
        record, grades = await graded(rows, opened, about, out, overwrite, progress)
    shares = [
        grade.share if (grade := grades.get(key_of(row, number))) else None
        for row in rows
        for number in range(len(row.responses))
    ]
    record["healthbench"] = asdict(healthbench_score(shares))
    return write_record(judged, data, opened, record, out)
