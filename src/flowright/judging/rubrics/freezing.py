"""Make a rubric, freeze it in a file of rubric rows with a manifest, and check on held-out pairs
that it predicts their labels. ``flowright data rubrics`` is the command.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import flowright
from flowright.config.loading import load_judge_server
from flowright.config.root import JudgeServerConfig
from flowright.core.batch_calls import ServerDown, call_all
from flowright.core.errors import DataError
from flowright.core.files import write_json
from flowright.core.tables import write_rows
from flowright.criteria.rubrics.rows import Item, RubricRow, criteria_sha256, manifest_path
from flowright.criteria.rubrics.scaffolding import standard_wording
from flowright.data.contamination import conversation_key
from flowright.data.preference_files import share_of
from flowright.data.row_files import column, decoded, read_row_files, text_of, turns_of
from flowright.data.task import Conversation, Pair
from flowright.judging.attempts import RetryingAsker
from flowright.judging.build import fingerprint
from flowright.judging.measuring.benchmark_judges import ModelJudge, measured_section, status_of
from flowright.judging.measuring.benchmark_rows import RowJournal, journal_path, sha256_of
from flowright.judging.measuring.measured_judges import Status, from_row, key_of, to_row
from flowright.judging.prompts import Question
from flowright.judging.rubrics.criteria_judge import ask_criteria, criteria_judge
from flowright.judging.rubrics.proposals import (
    WORDING_SHA256,
    Basis,
    about_pairs,
    about_problem,
    about_task,
    better_and_worse,
    merge_criteria,
    read_criteria,
    to_items,
)
from flowright.judging.rubrics.selection import Graded, check_labels, games_share, select
from flowright.llm.chat import Message
from flowright.simulation.large_models import OpenModels, open_models

T = TypeVar("T")
Rubric = Sequence[Item]

CANDIDATES = 20
"""Criteria from pairs or a task, from which those of the rubric are chosen."""
PROPOSALS = 12
"""Requests for criteria from pairs, at most."""
PAIRS_PER_PROPOSAL = 4


@dataclass(frozen=True, slots=True)
class RubricRequest:
    """Options of the command. ``pairs`` have a better answer; ``prompts`` get a row each, by
    default those of the pairs. ``most`` criteria are in a rubric; ``held_out`` is the share of the
    pairs that criteria from pairs are checked on."""

    basis: Basis
    out: Path
    task: str
    pairs: Sequence[Pair]
    prompts: Sequence[Conversation]
    config: Path
    judge: str
    writer: str
    overrides: Sequence[str] = ()
    most: int = 6
    held_out: float = 0.5
    seed: int = 0
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class ModelResult:
    """Result of one call: a list of criteria as JSON, the criteria that an answer meets, or a share
    of games; empty if no reply could be read."""

    values: tuple[str | bool | float | None, ...] = ()
    status: Status = "ok"
    reason: str = ""


def read_rubric_prompts(paths: Sequence[Path]) -> list[Conversation]:
    """Return the conversations of files with a column ``prompt``: text, or messages that end with
    the user. Raises DataError."""

    def read(values: Mapping[str, Any], place: str, path: Path) -> Conversation:
        prompt = column(values, "prompt")
        if isinstance(prompt, str) and not prompt.lstrip().startswith("["):
            return (Message("user", text_of(prompt, "prompt")),)
        return turns_of(decoded(prompt, "prompt"), "prompt", "user")

    return [*read_row_files(paths, read, "prompt").rows] if paths else []


async def freeze_rubrics(
    request: RubricRequest, progress: Callable[[str, int], Callable[[], None]]
) -> dict[str, Any]:
    """Write the rubric rows and their manifest, and return the manifest. Replies are kept in a
    journal beside it; the same call resumes. Raises UserError, and ServerDown if any call failed:
    nothing is frozen from a part of the evidence."""
    named = [f'judge.model="{request.judge}"', "judge.panel=[]", *request.overrides]
    config = load_judge_server(request.config, named)
    prompts = [{"prompt": [asdict(turn) for turn in prompt]} for prompt in request.prompts]
    names = ("basis", "task", "judge", "writer", "most", "held_out", "seed")
    about = {
        **{name: getattr(request, name) for name in names},
        "wording_sha256": WORDING_SHA256,
        "judge_settings": fingerprint(config.judge.model_copy(update={"ask": "rubric"})),
        "source_sha256": sha256_of([*map(asdict, request.pairs), *prompts]),
    }
    used = {request.judge, request.writer}
    async with open_models(used, config.llm, config.simulated, None, ()) as models:
        if problems := await models.check():
            raise ServerDown(*problems, "nothing was asked")
        path = journal_path(manifest_path(request.out))
        with RowJournal(path, about, request.overwrite) as journal:
            rows, made = await _RubricCalls(request, config, models, journal, progress).make()
    tags = {"basis": request.basis} | ({"simulated": "true"} if models.simulated else {})
    manifest = {
        "flowright": flowright.__version__,
        "simulated": models.simulated,
        "settings": about,
        **made,
        "rows": len(rows),
        "criteria_sha256": criteria_sha256(rows),
    }
    # The manifest first: rows that are older than it are refused.
    write_json(manifest_path(request.out), manifest)
    write_rows(
        request.out,
        [
            {
                "prompt": [asdict(turn) for turn in row.conversation],
                "rubrics": [{**item, "tags": tags} for item in criteria_json(row.items)],
                "data_source": f"rubrics/{request.basis}",
            }
            for row in rows
        ],
    )
    return manifest


def criteria_json(items: Rubric) -> list[dict[str, Any]]:
    return [{"criterion": item.criterion, "points": item.points} for item in items]


class _RubricCalls:
    """The calls of one command: proposals, grades on training pairs, grades on held-out ones."""

    def __init__(
        self,
        request: RubricRequest,
        config: JudgeServerConfig,
        models: OpenModels,
        journal: RowJournal,
        progress: Callable[[str, int], Callable[[], None]],
    ) -> None:
        self._request, self._journal, self._progress = request, journal, progress
        judge = models.clients[request.judge].as_role("judge")
        writer = models.clients[request.writer].as_role("executor")
        self._asker = RetryingAsker(writer, config.judge, read=read_criteria)
        self._judge = criteria_judge(judge, config.judge)
        self._plain = ModelJudge(judge, measured_section(config.judge), "pairwise")
        self._concurrency = max(judge.concurrency, writer.concurrency)
        self._questions: dict[str, int] = {}

    async def make(self) -> tuple[list[RubricRow], dict[str, Any]]:
        request = self._request
        of_pairs = [pair.conversation for pair in request.pairs]
        written = request.prompts or of_pairs or [(Message("user", request.task),)]
        prompts = {conversation_key(p): p for p in (*written, *of_pairs)}
        train, held_out = self._split()
        facts: dict[str, Any] = {}
        if request.basis == "problem":
            rubrics = await self._propose({k: about_problem(p) for k, p in prompts.items()})
        else:
            if request.basis == "task":
                items = (await self._propose({"task": about_task(request.task)}))["task"]
            else:
                items, facts = await self._from_pairs(train)
            facts |= {"criteria": criteria_json(items)}
            rubrics = dict.fromkeys(prompts, items)
        facts["check"] = await self._check(held_out, rubrics) if held_out else None
        keys = dict.fromkeys(map(conversation_key, written))
        rows = [RubricRow(prompts[key], tuple(rubrics[key])) for key in keys if rubrics[key]]
        return rows, {**facts, "questions": self._questions}

    def _split(self) -> tuple[list[Pair], list[Pair]]:
        """Divide the pairs by conversation; all are held out where no label is used."""
        request = self._request
        if request.basis != "pairs":
            return [], [*request.pairs]
        sides: tuple[list[Pair], list[Pair]] = [], []
        for pair in request.pairs:
            place = share_of(f"{request.seed}/rubrics/{conversation_key(pair.conversation)}")
            sides[place < request.held_out].append(pair)
        if not all(sides):
            counts = f"{len(sides[0])} pairs to learn from and {len(sides[1])} held out"
            raise DataError(f"{counts}: name more, or give another --held-out or --seed")
        return sides

    async def _propose(self, questions: Mapping[str, Question]) -> dict[str, list[Item]]:
        """Return a rubric for each question; empty if no reply was usable."""
        replies = await self._ask_writer(questions)
        return {
            key: merge_criteria([(items, ())], self._request.most)[0]
            for key, items in replies.items()
        }

    async def _from_pairs(self, train: Sequence[Pair]) -> tuple[Rubric, dict[str, Any]]:
        size = PAIRS_PER_PROPOSAL
        groups = [train[at : at + size] for at in range(0, len(train), size)][:PROPOSALS]
        questions = {f"pairs {n}": about_pairs(some) for n, some in enumerate(groups)}
        replies = await self._ask_writer(questions)
        answers = [[text for pair in some for text in better_and_worse(pair)] for some in groups]
        items, left_out = merge_criteria(zip(replies.values(), answers, strict=True), CANDIDATES)
        if not items:
            raise DataError(f"no proposed criterion can be used ({dict(left_out)})")
        graded = await self._grades("answers of training pairs", [(pair, items) for pair in train])
        chosen, counts = select(items, graded, self._request.most)
        candidates = [asdict(each) for each in counts]
        return chosen, {"left_out": dict(left_out), "candidates": candidates}

    async def _check(self, pairs: Sequence[Pair], rubrics: Mapping[str, Rubric]) -> dict[str, Any]:
        both = [(pair, rubrics[conversation_key(pair.conversation)]) for pair in pairs]
        graded = await self._grades("answers of held-out pairs", both)

        async def compare(pair: Pair) -> ModelResult:
            games = await self._plain.compare(pair)
            failed = ModelResult((), "failed", games.why)
            return failed if games.failed else ModelResult((games_share(pair, games),))

        items = {f"plain/{key_of(pair)}": pair for pair in pairs}
        plain = await self._call("pairs without a rubric, in both orders", items, compare)
        return check_labels(both, graded, [float(one.values[0] or 0) for one in plain])

    # Calls.

    async def _ask_writer(self, questions: Mapping[str, Question]) -> dict[str, list[Item]]:
        async def ask(named: tuple[str, Question]) -> ModelResult:
            result = await self._asker.ask(named[1], f"{self._request.seed}/{named[0]}")
            found = tuple(str(value) for value in result.values.values())
            return ModelResult(found, status_of(result.status), result.reason)

        items = {f"criteria/{key}": (key, question) for key, question in questions.items()}
        replies = await self._call("proposals", items, ask)
        if not any(reply.values for reply in replies):
            raise DataError(f"no reply has criteria ({replies[0].reason[:400]}); see --writer")
        self._questions["of them unreadable"] = sum(not reply.values for reply in replies)
        found = [to_items(str(reply.values[0])) if reply.values else [] for reply in replies]
        return dict(zip(questions, found, strict=True))

    async def _grades(self, stage: str, pairs: Sequence[tuple[Pair, Rubric]]) -> list[Graded]:
        """Grade both answers of each pair by its criteria."""
        items: dict[str, tuple[str, Pair, str, list[str]]] = {}
        for pair, rubric in pairs:
            criteria = [item.criterion for item in rubric]
            digest = sha256_of([{"criteria": criteria}])[:12]  # other criteria, other grades
            for side, answer in zip(("better", "worse"), better_and_worse(pair), strict=True):
                key = f"grade/{digest}/{key_of(pair)}/{side}"
                items[key] = key, pair, answer, criteria

        async def ask(item: tuple[str, Pair, str, list[str]]) -> ModelResult:
            key, pair, answer, criteria = item
            instruction = standard_wording().rubric
            found = await ask_criteria(
                self._judge, pair.conversation, answer, criteria, instruction, key
            )
            if found.floored:
                return ModelResult((False,) * len(criteria), reason=found.reason)
            failed = any(status_of(verdict.status) == "failed" for verdict in found.verdicts)
            is_down = failed and None in found.met
            return ModelResult(found.met, "failed" if is_down else "ok", found.reason)

        met = [
            [None if each is None else bool(each) for each in result.values]
            for result in await self._call(stage, items, ask)
        ]
        return [*zip(met[::2], met[1::2], strict=True)]

    async def _call(
        self, stage: str, items: Mapping[str, T], call: Callable[[T], Awaitable[ModelResult]]
    ) -> list[ModelResult]:
        """Return the results in order; those of the journal are not asked for again. Raises
        ServerDown if any call failed."""
        journal = self._journal
        kept = journal.decoded(lambda row: from_row(ModelResult, row), items)
        advance = self._progress(stage, len(items))
        for _ in kept:
            advance()
        found = await call_all(
            items.items(),
            call,
            concurrency=self._concurrency,
            outcome=lambda result: "down" if result.status == "failed" else "reached",
            why=lambda result: result.reason,
            kept=kept,
            keep=lambda key, result: (
                journal.put(key, to_row(result)) if result.status != "failed" else None
            ),
            progress=advance,
        )
        failures = [result.reason for result in found.values() if result.status == "failed"]
        if failures:
            raise ServerDown(
                f"{stage}: {len(failures)} of {len(found)} calls failed ({failures[0][:300]})",
                "nothing was frozen; replies are kept, the same command asks for the others",
            )
        self._questions[stage] = len(items)
        return [*found.values()]
