"""MMLU and CommonsenseQA: multiple choice. The reference is a label, never a text: some rows repeat
a choice's text, and an MMLU choice may be the literal word None."""

from collections.abc import Sequence
from functools import partial

from flowright.data.sources.rows import Reader, UpstreamRow, tar_csv
from flowright.data.task import Problem


def mmlu_csv(*folders: str) -> Reader:
    """A reader of these folders of the official tar."""
    return partial(tar_csv, folders=folders, columns=("question", "A", "B", "C", "D", "answer"))


def mmlu(row: UpstreamRow) -> Problem:
    """A CSV row of the official tar, or a row of the hub (``choices`` and a 0-3 ``answer``)."""
    if "choices" in row:
        texts: Sequence[str] = row.texts("choices")
        answer = row.integer("answer")
        label = "ABCD"[answer] if 0 <= answer < 4 else str(answer)
    else:
        texts = [row.text(column).strip() for column in "ABCD"]
        label = row.text("answer").strip()
    choices = tuple(zip("ABCD", texts, strict=False))
    return _task(row, f"mmlu/{row.name}", row.text("question"), choices, label)


def commonsenseqa(row: UpstreamRow) -> Problem:
    """An official row (``question.stem``) or a hub row (``question`` a string, parallel lists).

    Rows of the official test file have no label and are refused.
    """
    if isinstance(row.get("question"), str):
        lists = row.inner(row.table("choices"), row.name)
        choices = tuple(zip(lists.texts("label"), lists.texts("text"), strict=True))
        stem = row.text("question")
    else:
        question = row.inner(row.table("question"), row.name)
        entries = [question.inner(entry, row.name) for entry in question.items("choices")]
        choices = tuple((entry.text("label"), entry.text("text").strip()) for entry in entries)
        stem = question.text("stem")
    return _task(row, f"commonsenseqa/{row.text('id')}", stem, choices, row.text("answerKey"))


def _task(
    row: UpstreamRow, id: str, question: str, choices: tuple[tuple[str, str], ...], label: str
) -> Problem:
    labels = [choice_label for choice_label, _ in choices]
    if label not in labels:
        raise row.error(f"the answer {label!r} is not one of the labels {', '.join(labels)}")
    return Problem(
        id=id,
        kind="qa",
        source=id.partition("/")[0],
        question=question.strip(),
        reference=label,
        choices=choices,
    )
