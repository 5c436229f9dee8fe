"""MMLU, CommonsenseQA, GSM8K, HotpotQA and DROP; the sets of benchmarks.py have theirs there.

The reference of a multiple choice is a label, never a text: some rows repeat a choice's text, and
an MMLU choice may be the literal word None. DROP's answers are a number, a date or one or more
spans. Dates are written ``day month year`` as far as given. Several spans become one string joined
by " and ", as in the copy of openai/simple-evals (from which AFlow took its rows), where they can
no longer be separated.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from flowright.data.sources.dataset import Reader, UpstreamRow, json_table, tar_csv, zip_member
from flowright.data.task import Kind, Problem


def mmlu_csv(*folders: str) -> Reader:
    """A reader of these folders of the official tar."""
    return partial(tar_csv, folders=folders, columns=("question", "A", "B", "C", "D", "answer"))


def mmlu(row: UpstreamRow) -> Problem:
    """A CSV row of the official tar, or a row of the hub (``choices`` and a 0-3 ``answer``), which
    has those of auxiliary_train below ``train``."""
    if "train" in row:
        row = row.inner(row.table("train"), row.name)
    if "choices" in row:
        texts: Sequence[str] = row.texts("choices")
        answer = row.integer("answer")
        label = "ABCD"[answer] if 0 <= answer < 4 else str(answer)
    else:
        texts = [row.text(column).strip() for column in "ABCD"]
        label = row.text("answer").strip()
    choices = tuple(zip("ABCD", texts, strict=False))
    return choice_task(row, f"mmlu/{row.name}", row.text("question"), choices, label)


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
    return choice_task(row, f"commonsenseqa/{row.text('id')}", stem, choices, row.text("answerKey"))


def choice_task(
    row: UpstreamRow,
    id: str,
    question: str,
    choices: tuple[tuple[str, str], ...],
    label: str,
    kind: Kind = "qa",
) -> Problem:
    """A multiple choice. Raises DataError where ``label`` is none of the choices'."""
    labels = [choice_label for choice_label, _ in choices]
    if label not in labels:
        raise row.error(f"the answer {label!r} is not one of the labels {', '.join(labels)}")
    return Problem(
        id=id,
        kind=kind,
        source=id.partition("/")[0],
        question=question.strip(),
        reference=label,
        choices=choices,
    )


_NUMBER = re.compile(r"-?\d+(\.\d+)?")


def gsm8k(row: UpstreamRow) -> Problem:
    """A row of the official files (which the hub's rows equal).

    The answer is the solution's text, ending in ``#### 1,080``: the commas go. The ``<<3*4=12>>``
    marks are in the solution only, which the task does not carry.
    """
    solution, mark, final = row.text("answer").rpartition("####")
    if not mark or not solution.strip():
        raise row.error("answer has no '####' before its final number")
    return _number_task(row, row.name, final)


def gsm8k_aflow(row: UpstreamRow) -> Problem:
    """A row of AFlow's files: ``answer`` is the final number, ``id`` is ``gsm8k-test-<index>`` in
    the official test file, so that the task's id is the same as there."""
    return _number_task(
        row, row.text("id").removeprefix("gsm8k-").replace("-", "/"), row.text("answer")
    )


def _number_task(row: UpstreamRow, name: str, final: str) -> Problem:
    reference = final.strip().replace(",", "")
    if not _NUMBER.fullmatch(reference):
        raise row.error(f"the final answer {final.strip()!r} is not a number")
    return Problem(
        id=f"gsm8k/{name}",
        kind="math",
        source="gsm8k",
        question=row.text("question").strip(),
        reference=reference,
    )


def hotpotqa(row: UpstreamRow, source: str = "hotpotqa") -> Problem:
    """A row of the official files (``context`` is a list of title and sentences) or of the hub (one
    list of titles, one of sentences). Sentences carry their own spaces. An id of digits only is a
    number in AFlow's files. ``aliases`` count as answers."""
    if isinstance(row.get("context"), Mapping):
        context = row.inner(row.table("context"), row.name)
        titles, passages = context.items("title"), context.items("sentences")
    else:
        pairs = row.items("context")
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise row.error("context is not a list of [title, sentences]")
        titles, passages = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if len(titles) != len(passages) or not all(isinstance(text, list) for text in passages):
        raise row.error("context does not have a list of sentences for every title")
    blocks = [
        f"[{title}]\n{''.join(map(str, text)).strip()}"
        for title, text in zip(titles, passages, strict=True)
    ]
    return Problem(
        id=f"{source}/{row.get('_id' if '_id' in row else 'id')}",
        kind="qa",
        source=source,
        question=row.text("question").strip(),
        reference=row.text("answer").strip(),
        context="\n\n".join(blocks),
        alternatives=tuple(row.texts("aliases")) if "aliases" in row else (),
    )


def drop(row: UpstreamRow) -> Problem:
    """A question of the official files (from :func:`drop_questions`), or a row of
    openai/simple-evals or of AFlow, whose ``id`` is its index in the simple-evals file."""
    if "ref_text" in row:
        return _packed(row)
    checked = row.items("validated_answers") if "validated_answers" in row else []
    given = [row.inner(value, row.name) for value in [row.table("answer"), *checked]]
    answers = [_answer(value) for value in given]
    return _task(row, row.text("query_id"), row.text("passage"), row.text("question"), answers)


def drop_questions(split: str) -> Reader:
    """A reader of ``drop_dataset_<split>.json``, alone or inside the official zip: one row per
    question, with its passage."""

    def read(path: Path) -> Iterator[UpstreamRow]:
        name = f"drop_dataset/drop_dataset_{split}.json"
        document = zip_member(path, name) if path.suffix == ".zip" else json_table(path)
        for section_id, value in document.values.items():
            section = document.inner(value, section_id)
            passage = section.text("passage")
            for index, pair in enumerate(section.items("qa_pairs")):
                found = section.inner(pair, f"{section_id}/{index}", passage=passage)
                yield UpstreamRow(found.values, f"{document.where}: {found.name}", found.name)

    return read


def _answer(answer: UpstreamRow) -> str:
    spans = answer.texts("spans") if "spans" in answer else []
    date = answer.table("date") if "date" in answer else {}
    dated = " ".join(str(date[part]) for part in ("day", "month", "year") if date.get(part))
    number = answer.get("number") if "number" in answer else ""
    return str(number).strip() or " and ".join(spans) or dated


def _packed(row: UpstreamRow) -> Problem:
    text = row.text("context").removeprefix("Passage:").rstrip().removesuffix("Answer:")
    passage, mark, question = text.rpartition("\nQuestion:")
    if not mark:
        raise row.error("context has no 'Question:' after its passage")
    name = f"dev/{row.integer('id')}" if "id" in row else row.name
    return _task(row, name, passage, question, row.text("ref_text").split("|"))


def _task(row: UpstreamRow, name: str, passage: str, question: str, answers: list[str]) -> Problem:
    distinct = [a for a in dict.fromkeys(answer.strip() for answer in answers) if a]
    if not distinct:
        raise row.error("the question has no answer")
    return Problem(
        id=f"drop/{name}",
        kind="qa",
        source="drop",
        question=question.strip(),
        reference=distinct[0],
        context=passage.strip(),
        alternatives=tuple(distinct[1:]),
    )
