"""Judges that a benchmark can measure: a model that compares, rates or chooses, and a judge behind
HTTP; and opening the judge that a command line names.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Literal

from flowright.config.judge import WORDING, JudgeSection
from flowright.config.loading import load_judge_server
from flowright.config.root import JudgeServerConfig
from flowright.core.batch_calls import ServerDown
from flowright.core.errors import UserError
from flowright.core.tables import parse_row
from flowright.data.contamination import TrainedOn
from flowright.data.sources.dataset import UpstreamRow
from flowright.data.task import Pair, Preferred
from flowright.judging.attempts import RetryingAsker
from flowright.judging.build import build_judge, fingerprint, model_folders, open_terms
from flowright.judging.measuring.measured_judges import (
    AnswerChoice,
    Conversation,
    GameOutcome,
    Games,
    LengthJudge,
    MeasuredJudge,
    PanelJudge,
    RandomJudge,
    Rating,
    Status,
    key_of,
    vote,
)
from flowright.judging.panel import voting_samples
from flowright.judging.payloads import prompt_text
from flowright.judging.prompts import WITHOUT_REFERENCE, Block, Question
from flowright.judging.remote import RemoteJudge
from flowright.judging.schemas import WRAPPING, AnswerSchema, Field, Value, folded
from flowright.judging.terms import NoJudge, RewardTerms, WithTerms, terms_hash
from flowright.judging.verdict import Judge, JudgeQuery, Status as VerdictStatus, Verdict
from flowright.llm.chat import ChatModel
from flowright.simulation.large_models import open_models

Way = Literal["pairwise", "score", "pointwise"]
"""Question about a pair: for the better one, or for a score (0 to 1) or a grade (0 to 4) of
each."""

TOP_RATING = 10
LETTERS = "ABCD"
_NO_REPLY: frozenset[VerdictStatus] = frozenset({"timeout", "unavailable", "overloaded"})

_NUMBER = re.compile(r"\d{1,2}", re.ASCII)
_LETTER = re.compile(r"(?:answer |response )?\(?([a-d])\)?")


def _word(value: object) -> str:
    if not isinstance(value, str) or len(value) > 40:
        return ""
    return folded(value).strip(WRAPPING).rstrip(".").casefold()


def _read_rating(value: object) -> int | None:
    if isinstance(value, str) and _NUMBER.fullmatch(word := _word(value)):
        value = int(word)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if value in range(1, TOP_RATING + 1) else None


def _read_letter(value: object) -> str | None:
    found = _LETTER.fullmatch(_word(value))
    return found[1].upper() if found else None


RATING = AnswerSchema(
    _read_rating,
    "a whole number from 1 to 10",
    {"type": "integer", "enum": list(range(1, TOP_RATING + 1))},
    TOP_RATING,
)
LETTER = AnswerSchema(_read_letter, "A|B|C|D", {"type": "string", "enum": list(LETTERS)})

_RATES = "You are the grader of one answer to one request. Rate it."
_RATE = (
    "How good is the final answer as a reply to the request? The rating is a whole number from 1 "
    "to 10. 10: it does all that is asked, and nothing in it is wrong; 1: it does nothing of it, "
    "or is wrong throughout."
)
_CHOOSES = "You compare four answers to one request. Decide which of them is the best one."
_CHOOSE = (
    "Which answer is best, A, B, C or D? An answer that is correct and does what the request asks "
    "is better than one that is not. Which of them stands first means nothing."
)


class ModelJudge(MeasuredJudge):
    """A model, asked in one way. It compares in both orders at once, each with all of the section's
    attempts; several samples vote order by order, or by their mean score. ``meta`` is the model of
    ``judge.meta``. Ratings and choices that its way does not give are questions of this module.

    ``section`` is one of :func:`measured_section`.
    """

    chooses = True

    def __init__(
        self,
        model: ChatModel,
        section: JudgeSection,
        way: Way,
        simulated: bool = False,
        meta: ChatModel | None = None,
        terms: RewardTerms | None = None,
    ) -> None:
        self.name, self.simulated = model.name, simulated
        self._way: Way = way
        self._is_sampled = section.samples > 1 and terms is None  # else they are weighed as one
        asked = section.model_copy(update={"ask": way})
        self._judge: Judge = build_judge(asked, model, meta=meta)
        if terms is not None:
            self._judge = WithTerms(self._judge, terms)
        self._asker = RetryingAsker(model, section)
        is_ours = section.wording in WORDING
        self._instruction = WITHOUT_REFERENCE.get(way, "") if is_ours else ""

    async def compare(self, pair: Pair) -> Games:
        if self._way != "pairwise":
            return await super().compare(pair)
        verdict = await self._judge.judge(_query(pair))
        samples = self._samples(verdict)
        if any(len(sample.members) != 2 for sample in samples):  # the gate decided
            return Games(outcome_of(verdict), outcome_of(verdict))
        straight, swapped = (
            [outcome_of(sample.members[place]) for sample in samples] for place in (0, 1)
        )
        return Games(vote(straight), vote(swapped))

    def _samples(self, verdict: Verdict) -> list[Verdict]:
        """Return the samples that vote; the verdict itself if it is the only one."""
        is_sampled = self._is_sampled and verdict.members
        return voting_samples(verdict.members) if is_sampled else [verdict]

    async def rate(self, conversation: Conversation, answer: str, key: str) -> Rating:
        if self._way == "pairwise":
            blocks = (Block("REQUEST", shown(conversation)), Block("FINAL ANSWER", answer))
            rating = Field("rating", RATING, tagged=True)
            question = Question(blocks, (rating,), "", _RATES, _RATE)
            value, status, texts = await self._ask(question, key)
            return Rating(None if value is None else float(value), status, *texts)
        query = JudgeQuery(shown(conversation), answer, "", instruction=self._instruction, key=key)
        verdict = await self._judge.judge(replace(query, fresh=True))
        scores = [s.score for s in self._samples(verdict) if s.score is not None]
        status = "ok" if scores else status_of(verdict.status)
        return Rating(fmean(scores) if scores else None, status, *_texts(verdict))

    async def choose(
        self, conversation: Conversation, answers: Sequence[str], key: str
    ) -> AnswerChoice:
        lettered = zip(LETTERS, answers, strict=True)
        answered = (Block(f"ANSWER {letter}", text) for letter, text in lettered)
        blocks = (Block("REQUEST", shown(conversation)), *answered)
        best = Field("best", LETTER, tagged=True)
        question = Question(blocks, (best,), "", _CHOOSES, _CHOOSE)
        value, status, texts = await self._ask(question, key)
        return AnswerChoice(None if value is None else LETTERS.index(str(value)), status, *texts)

    async def _ask(
        self, question: Question, key: str
    ) -> tuple[Value | None, Status, tuple[str, tuple[str, ...]]]:
        """The value of the question's one field, its status, its reason and the replies."""
        result = await self._asker.ask(question, key)
        texts = result.reason, tuple(reply.text for reply in result.replies)
        return result.values.get(question.fields[0].key), status_of(result.status), texts


class ServiceJudge(MeasuredJudge):
    """A judge behind HTTP. With ``pairwise`` each order is a separate request; a service that asks
    in both orders itself gives the same answer to both."""

    def __init__(self, judge: Judge, way: Way, simulated: bool = False) -> None:
        self.name, self.simulated = judge.name, simulated
        self._judge, self._way = judge, way

    async def compare(self, pair: Pair) -> Games:
        if self._way != "pairwise":
            return await super().compare(pair)
        straight, swapped = await asyncio.gather(
            self._judge.judge(_query(pair)),
            self._judge.judge(_query(pair.swapped(), "/swapped")),
        )
        return Games(outcome_of(straight), outcome_of(swapped).turned())

    async def rate(self, conversation: Conversation, answer: str, key: str) -> Rating:
        query = JudgeQuery(shown(conversation), answer, "", key=key, fresh=True)
        verdict = await self._judge.judge(query)
        return Rating(verdict.score, status_of(verdict.status), *_texts(verdict))


def measured_section(section: JudgeSection) -> JudgeSection:
    """Return a section as it is measured: verdicts of single models or of their samples. Raises
    UserError for settings that would hide them."""
    problems = []
    if section.mode != "judge":
        problems.append(f"judge.mode: {section.mode}: rules need references; set judge.mode=judge")
    if section.weights or section.combine != "majority" or section.min_confidence:
        problems.append(
            "judge.weights, judge.combine, judge.min_confidence: members of a panel count alike "
            "and vote by majority here; leave them out"
        )
    if problems:
        raise UserError(*problems)
    return section.model_copy(update={"panel": (), "quorum": 1, "both_orders": True})


def shown(conversation: Conversation) -> str:
    """Return a conversation as a judge sees it: the one message, or each turn in its own fence."""
    return prompt_text([{"role": turn.role, "content": turn.content} for turn in conversation])


def outcome_of(verdict: Verdict) -> GameOutcome:
    """Convert a verdict on an answer and its rival to the outcome of their pair."""
    if verdict.score is None:
        return GameOutcome(None, status_of(verdict.status), None, *_texts(verdict))
    preferred: Preferred = "tie" if verdict.score == 0.5 else "second"
    preferred = "first" if verdict.score > 0.5 else preferred
    return GameOutcome(preferred, "ok", None, *_texts(verdict))


def status_of(status: VerdictStatus) -> Status:
    """Convert a verdict's status: a judge that is up without a usable verdict is unreadable."""
    if status == "ok":
        return "ok"
    return "failed" if status in _NO_REPLY else "unreadable"


def _query(pair: Pair, order: str = "") -> JudgeQuery:
    key = f"{key_of(pair)}{order}"
    shown_pair = shown(pair.conversation), pair.first
    return JudgeQuery(*shown_pair, "", rival=pair.second, key=key, fresh=True)


def _texts(verdict: Verdict) -> tuple[str, tuple[str, ...]]:
    return verdict.reason, tuple(reply.text for reply in verdict.replies)


# From a name to an opened judge.

BASELINES = ("length", "random")
_URL = re.compile(r"https?://\S+")
_KINDS = (
    "a baseline (length, random), the address of a judge service, a judge's YAML file, a folder "
    "with a trained judge, a model of llm.file (several with commas)"
)


@dataclass(frozen=True, slots=True)
class JudgeName:
    """A judge as the command line names it. ``config`` is a judge service's file, of which the
    sections ``judge``, ``llm`` and ``simulated`` are read, with ``overrides``."""

    judge: str
    config: Path
    overrides: Sequence[str] = ()
    way: Way = "pairwise"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class OpenedJudge:
    """A judge that can be asked. ``about`` is what else its verdicts depend on, as JSON;
    ``folders`` are the known ones of its models, None for a baseline; ``trained_on`` is a service's
    own record."""

    judge: MeasuredJudge
    concurrency: int
    about: dict[str, str]
    folders: Sequence[Path] | None = ()
    trained_on: TrainedOn | None = None


JudgeOpener = Callable[[JudgeName], AbstractAsyncContextManager[OpenedJudge]]


@asynccontextmanager
async def open_measured_judge(
    named: JudgeName, open_folder: JudgeOpener
) -> AsyncIterator[OpenedJudge]:
    """Open the judge that a command line names; ``open_folder`` opens a trained one. Raises
    UserError for a name or a setting that cannot be used, ServerDown."""
    name = named.judge
    if name in BASELINES:
        baseline = LengthJudge() if name == "length" else RandomJudge(named.seed)
        yield OpenedJudge(baseline, 1, {}, None)
    elif Path(name).is_dir() and not name.endswith((".yaml", ".yml")):
        async with open_folder(named) as opened:
            yield opened
    else:
        async with _of_config(named, _config_of(named)) as opened:
            yield opened


def _config_of(named: JudgeName) -> JudgeServerConfig:
    name = named.judge
    if _URL.fullmatch(name):
        url = f"judge.service.judge_url={name}"
        return load_judge_server(named.config, [url, *named.overrides])
    if name.endswith((".yaml", ".yml")):
        return load_judge_server(Path(name), named.overrides)
    # Names of models may hold a slash as well.
    if ("/" in name or name.startswith(".")) and Path(name).exists():
        raise UserError(f"--judge {name}: not a judge that can be measured; a judge is {_KINDS}")
    first, *others = [model.strip() for model in name.split(",")]
    models = [f'judge.model="{first}"', f"judge.panel={others}"]
    return load_judge_server(named.config, [*models, *named.overrides])


@asynccontextmanager
async def _of_config(named: JudgeName, config: JudgeServerConfig) -> AsyncIterator[OpenedJudge]:
    """The service that a configuration names, or its model with its panel."""
    section = measured_section(config.judge)
    if config.reward.has_terms and (named.way == "pairwise" or section.service is not None):
        raise UserError(
            "reward.terms: terms score single answers of models that are asked here: --ask score "
            "or pointwise, and no address; a service adds its own terms"
        )
    about = {"terms": terms_hash(config.reward)} if config.reward.has_terms else {}
    if not config.reward.asks_model and (terms := open_terms(config.reward, section)) is not None:
        judge = ServiceJudge(WithTerms(NoJudge(), terms), named.way)
        yield OpenedJudge(judge, config.llm.in_flight(1), {"way": named.way, **about}, None)
        return
    if section.service is not None and (config.judge.panel or section.samples > 1):
        raise UserError("judge.panel, judge.samples: a service is measured alone; leave them out")
    way = named.way
    if section.service is not None:
        judge = RemoteJudge(section.service)
        try:
            if problems := await judge.check():
                raise ServerDown(*problems, "nothing was measured")
            concurrency = section.service.max_concurrent_requests * section.service.max_batch_size
            measured = ServiceJudge(judge, way, judge.simulated)
            name = judge.name
            record = await judge.page("/trained_on")
            value = parse_row(record) if record is not None else {}
            row = UpstreamRow({} if isinstance(value, str) else value, f"{name}/trained_on", "")
            trained_on = TrainedOn.of_table(row) if value else None
            yield OpenedJudge(measured, concurrency, {"way": way}, (), trained_on)
        finally:
            await judge.aclose()
        return
    async with open_models(config.models, config.llm, config.simulated, None, ()) as models:
        if problems := await models.check():
            raise ServerDown(*problems, "nothing was measured")
        clients = {name: client.as_role("judge") for name, client in models.clients.items()}
        meta = clients[section.meta] if section.meta else None
        members = [
            ModelJudge(
                clients[name],
                section,
                way,
                clients[name].simulated,
                meta,
                open_terms(config.reward, section, clients[name]),
            )
            for name in (config.judge.model or "", *config.judge.panel)
        ]
        one = members[0] if len(members) == 1 else PanelJudge(members, config.judge.quorum)
        asked = fingerprint(section.model_copy(update={"ask": way}))
        folders = model_folders(config.llm.file, config.models)
        about = {"way": way, "asked": asked, **about}
        concurrency = max(client.concurrency for client in clients.values())
        yield OpenedJudge(one, concurrency, about, folders or None)
