"""Rank the answers of a group by comparing them: all pairs, Swiss rounds, or lists.

Scores are relative to the group, in [0, 1]. They share one scale: the share of other answers that
an answer beats, a tie counting half, where the other answers are

- the group's different answers: equal ones are judged once and have one score;
- one more for all attempts without a real answer: those that failed by their own fault, those that
  the gate rejects, and those that keep the judge from judging. Every answer beats them; their own
  score is 0.

Comparisons without a verdict leave the statistics.
"""

import asyncio
import math
import random
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_uppercase

from flowright.config.judge import JudgeSection
from flowright.core.off_loop import off_loop
from flowright.judging.attempts import QuestionResult, RetryingAsker
from flowright.judging.llm_judge import lettered_blocks, task_blocks
from flowright.judging.prompts import Question, wording_of
from flowright.judging.rules import gate
from flowright.judging.schemas import WRAPPING, AnswerSchema, Field, folded
from flowright.judging.verdict import Judge, JudgeQuery, Standing, Status, Verdict
from flowright.judging.wrappers import NO_ANSWER, STEERABLE, shortened
from flowright.llm.chat import ChatModel, Usage
from flowright.llm.replies import spoken_answer

CAUSED: frozenset[Status] = STEERABLE - {"abstain"}
"""Failures of a comparison that an answer can cause."""

_SEPARATORS = re.compile(r"[\s,;>]+")


def planned_calls(section: JudgeSection, size: int) -> float:
    """Return the judge's calls about a group of ``size`` different answers, without failures."""
    group, pairs = section.group, size * (size - 1) // 2
    if group.method == "list":
        return group.orders
    if group.method == "swiss":
        pairs = min(pairs, group.rounds * (size // 2))
    calls = section.samples * (1 + section.both_orders + bool(section.meta))
    return pairs * calls * (1 + len(section.panel))


def ranking_field(count: int) -> Field:
    """Return the field of a ranking of ``count`` lettered answers, each once, as ``B, A, C``."""
    letters = ascii_uppercase[:count]

    def read(value: object) -> str | None:
        if not isinstance(value, str):
            return None
        named = folded(value).upper().strip(WRAPPING + ".[]")
        found = _SEPARATORS.split(named.replace("ANSWER ", ""))
        return ", ".join(found) if sorted(found) == list(letters) else None

    each = f"[{letters[0]}-{letters[-1]}]"
    pattern = f"^{each}(, {each}){{{count - 1}}}$"
    shown = f"the letters of all {count} answers, the best first, with commas"
    return Field("ranking", AnswerSchema(read, shown, {"type": "string", "pattern": pattern}), True)


@dataclass(slots=True)
class Game:
    """A comparison of two answers, by their numbers; ``score`` of the first, None without a
    verdict."""

    first: int
    second: int
    verdict: Verdict

    @property
    def sides(self) -> tuple[int, int]:
        return self.first, self.second

    def for_side(self, number: int) -> float:
        """Return the score of one of the sides, of a game with a verdict."""
        assert self.verdict.score is not None
        return self.verdict.score if number == self.first else 1 - self.verdict.score

    def seen_from(self, number: int) -> Verdict:
        """Return the verdict for one of the sides. The cost is the first side's."""
        if number == self.first:
            reason = f"against answer {self.second + 1}: {self.verdict.reason}"
            return replace(self.verdict, reason=reason)
        turned = replace(
            self.verdict, reason=f"against answer {self.first + 1}: {self.verdict.reason}",
            attempts=0, usage=Usage(), replies=(),
        )  # fmt: skip
        if turned.score is None:
            return turned
        correct = None if turned.correct is None else not turned.correct
        return replace(turned, score=1 - turned.score, correct=correct)


@dataclass(slots=True)
class _Table:
    """The comparisons of one group's different answers. ``lost``: answers that lose to all others,
    with the verdict on each; ``lists``: replies about all answers, with the order of each."""

    answers: Sequence[JudgeQuery]
    lost: dict[int, Verdict]
    games: list[Game] = field(default_factory=list)
    orders: list[list[int]] = field(default_factory=list)
    lists: list[QuestionResult] = field(default_factory=list)
    alone: dict[int, Verdict] = field(default_factory=dict)  # trials of single answers

    @property
    def live(self) -> list[int]:
        return [number for number in range(len(self.answers)) if number not in self.lost]


class GroupJudge:
    """Ranks the answers of a group by ``section.group``. ``pairs`` compares two answers, in a list
    those that may keep the judge from judging; ``model`` ranks lists. Raises ConfigError for a
    wording without lists."""

    def __init__(
        self, section: JudgeSection, pairs: Judge, model: ChatModel | None, seed: int = 0
    ) -> None:
        self.name = pairs.name
        self._section, self._pairs, self._seed = section, pairs, seed
        self._asker: RetryingAsker | None = None
        if section.group.method == "list":
            assert model is not None
            self._wording = wording_of(section)
            self._words = self._wording.for_ask("list", section.wording)
            self._asker = RetryingAsker(model, section)

    async def rank(self, queries: Sequence[JudgeQuery | None]) -> list[Verdict | None]:
        """Return a verdict, with a standing, for each answer of a group. None stands for an attempt
        that failed by its own fault, which has no verdict; nor has the only answer of a group."""
        began = time.monotonic()
        if len(queries) < 2 or not any(queries):
            return [None] * len(queries)
        different: dict[str, JudgeQuery] = {}
        for query in filter(None, queries):
            different.setdefault(_text(query), query)
        numbers = {text: number for number, text in enumerate(different)}
        places = [None if query is None else numbers[_text(query)] for query in queries]
        answers = [*different.values()]
        texts = [query.answer for query in answers]
        gated = await off_loop(lambda: [gate(query) for query in answers], *texts)
        gates = self._section.gate
        table = _Table(answers, {n: v for n, v in enumerate(gated) if gates and v is not None})
        await self._compare(table)
        has_beaten = bool(table.lost) or None in places
        verdicts = [self._verdict(table, number, has_beaten) for number in range(len(answers))]
        return _placed(places, verdicts, time.monotonic() - began)

    # Comparisons.

    async def _compare(self, table: _Table) -> None:
        group, count = self._section.group, len(table.live)
        if count < 2:
            return
        if self._asker is not None:
            await self._list(table, self._asker)
            return
        pairs = [(a, b) for a in table.live for b in table.live if a < b]
        if group.method == "round_robin" or group.rounds >= count - 1:
            await self._play(table, pairs)
            return
        draw = random.Random(f"{self._seed}/{table.answers[0].key}/swiss")
        tie_breaks = [draw.random() for _ in table.answers]
        rests: list[int] = []
        for _ in range(group.rounds):
            share = {n: _share_won(table, n)[0] for n in table.live}
            order = sorted(table.live, key=lambda n: (-share[n], tie_breaks[n]))
            met = {frozenset(game.sides) for game in table.games}
            paired = swiss_pairs(order, met, rests)
            rests += set(order) - {n for pair in paired for n in pair}
            await self._play(table, paired)

    async def _play(self, table: _Table, pairs: Sequence[tuple[int, int]]) -> None:
        played = await asyncio.gather(*(self._game(table, *sorted(pair)) for pair in pairs))
        table.games += played
        table.lost |= {
            game.first: game.verdict for game in played if game.verdict.source == "floor"
        }
        doubtful = {n for g in played if g.verdict.status in CAUSED for n in g.sides}
        await self._find_faults(table, doubtful)

    async def _game(self, table: _Table, first: int, second: int) -> Game:
        one, other = table.answers[first], table.answers[second]
        key = f"{one.key}/against {other.key}"
        evidence = None if one.evidence is None else other.evidence or ""
        query = replace(one, rival=other.answer, rival_evidence=evidence, key=key)
        return Game(first, second, await self._pairs.judge(query))

    async def _find_faults(self, table: _Table, doubtful: Collection[int]) -> None:
        """Compare each doubtful answer with none: one that the judge fails on, while it judges the
        control of a second reading, loses."""
        numbers = sorted(set(doubtful) - set(table.lost) - set(table.alone))
        queries = [table.answers[n] for n in numbers]
        found = await asyncio.gather(
            *(
                self._pairs.judge(
                    replace(query, rival=NO_ANSWER, rival_evidence="", key=f"{query.key}/alone")
                )
                for query in queries
            )
        )
        table.alone |= dict(zip(numbers, found, strict=True))
        table.lost |= {n: v for n, v in table.alone.items() if v.source == "floor"}

    async def _list(self, table: _Table, asker: RetryingAsker) -> None:
        """Rank lists; those that fail because of an answer once more, without those at fault and
        with the others shortened."""
        live = table.live
        draw = random.Random(f"{self._seed}/{table.answers[0].key}/list")
        orders: list[list[int]] = []
        for number in range(self._section.group.orders):
            orders.append(orders[-1][::-1] if number % 2 else draw.sample(live, len(live)))

        async def ask(number: int, step: str = "") -> None:
            order = [n for n in orders[number] if n not in table.lost]
            if len(order) < 2:
                return
            answers = [table.answers[n] for n in order]
            texts = [query.answer for query in answers]
            if step:
                answers = await off_loop(lambda: [shortened(query) for query in answers], *texts)
            question = self._question(answers, f"list {number + 1}{step}")
            key = f"{table.answers[live[0]].key}/{question.name}"
            result = await asker.ask(question, key)
            table.lists.append(result)
            ranking = str(result.values.get("ranking") or "")
            found = [
                order[ascii_uppercase.index(letter)] for letter in ranking.split(", ") if letter
            ]
            results[number] = result.status, found

        results: dict[int, tuple[Status, list[int]]] = {}
        await asyncio.gather(*(ask(number) for number in range(len(orders))))
        again = [number for number, (status, _) in results.items() if status in CAUSED]
        if again:
            await self._find_faults(table, live)
            await asyncio.gather(*(ask(number, ", shortened") for number in again))
        ranked = [results[number][1] for number in sorted(results)]
        table.orders = [[n for n in order if n not in table.lost] for order in ranked if order]

    def _question(self, answers: Sequence[JudgeQuery], name: str) -> Question:
        shown = [(query.answer, query.evidence) for query in answers]
        alone = replace(answers[0], rival_evidence="")  # the evidence stands beside each answer
        blocks = (*task_blocks(alone), *lettered_blocks(shown, self._section))
        fields, instruction = (ranking_field(len(answers)),), self._words.instruction
        if "{criteria}" in instruction:
            instruction = instruction.replace(
                "{criteria}", self._wording.criteria[alone.answer_type]
            )
        return Question(blocks, fields, name, self._words.system, instruction)

    # Scores.

    def _verdict(self, table: _Table, number: int, has_beaten: bool) -> Verdict:
        """Return the verdict on one of the different answers; its standing has no rank yet."""
        games = [game.seen_from(number) for game in table.games if number in game.sides]
        lists = table.lists if number == min(table.live, default=0) else []
        members = [*games, *(v for n, v in table.alone.items() if n == number)]

        def with_cost(verdict: Verdict) -> Verdict:
            return replace(
                verdict,
                attempts=sum(each.attempts for each in (*members, *lists)),
                usage=sum((each.usage for each in (*members, *lists)), Usage()),
                members=tuple(replace(member, members=()) for member in members),
                replies=tuple(reply for result in lists for reply in result.replies),
            )

        standing = Standing(table.answers[0].key, 0, 0)
        if number in table.lost:
            lost = table.lost[number]
            return with_cost(replace(lost, score=0.0, correct=None, standing=standing))
        others = len(table.live) - 1
        share, compared, wins, losses, ties = _share_won(table, number)
        if others and not compared:
            return with_cost(self._failed(table, games))
        unjudged = sum(game.score is None for game in games)
        if self._asker is not None:
            unjudged = (self._section.group.orders - len(table.orders)) * others
        if self._section.group.method == "swiss" and self._section.group.rounds < others:
            share, compared = strengths(table.games, table.live)[number], others
        score = 0.5  # all answers are the same
        if compared or has_beaten:
            score = (share * compared + has_beaten) / (compared + has_beaten)
        reason = "there is no other answer to compare it with"
        if others:
            reason = f"won {wins}, lost {losses}, tied {ties}, {unjudged} without a verdict"
        if table.orders:
            shown = ", ".join(str(order.index(number) + 1) for order in table.orders)
            why = next(result.reason for result in table.lists if result.status == "ok")
            reason = f"place {shown} of {others + 1}: {why}"
        standing = replace(standing, wins=wins, losses=losses, ties=ties, unjudged=unjudged)
        source = "llm" if others else "rule"
        return with_cost(
            Verdict(score, None, source, "ok", reason, judge=self.name, standing=standing)
        )

    def _failed(self, table: _Table, games: Sequence[Verdict]) -> Verdict:
        """Return the verdict on an answer without any comparison: the first failure."""
        failed = [each for each in (*games, *table.lists) if each.status != "ok"]
        status, reason = failed[0].status, failed[0].reason
        return Verdict(None, None, "llm", status, reason, judge=self.name)


def _text(query: JudgeQuery) -> str:
    return spoken_answer(query.answer).strip()


def _share_won(table: _Table, number: int) -> tuple[float, float, int, int, int]:
    """Return the share of comparisons with live answers that an answer wins, ties counting half
    (0.5 without any), how many other answers it was compared with, wins, losses and ties."""
    live = set(table.live)
    outcomes = [
        game.for_side(number)
        for game in table.games
        if game.verdict.status == "ok" and number in game.sides and live.issuperset(game.sides)
    ]
    compared = len(outcomes)
    for order in table.orders:
        above = order.index(number)
        outcomes += [0.0] * above + [1.0] * (len(order) - 1 - above)
        compared = len(order) - 1
    share = sum(outcomes) / len(outcomes) if outcomes else 0.5
    wins, losses = outcomes.count(1.0), outcomes.count(0.0)
    return share, compared, wins, losses, len(outcomes) - wins - losses


def _placed(
    places: Sequence[int | None], verdicts: Sequence[Verdict], seconds: float
) -> list[Verdict | None]:
    """Return the verdict on each attempt with its rank; of equal answers the first has the cost."""
    scores = [None if n is None else verdicts[n].score for n in places]
    known = [score for score in scores if score is not None]
    found: list[Verdict | None] = []
    for index, number in enumerate(places):
        if number is None:
            found.append(None)
            continue
        verdict = replace(verdicts[number], seconds=seconds)
        if (score := verdict.score) is not None and verdict.standing is not None:
            rank = 1 + sum(other > score + 1e-12 for other in known)
            standing = replace(verdict.standing, rank=rank, of=len(known))
            verdict = replace(verdict, standing=standing)
        if (same := places.index(number)) != index:
            reason = f"the same answer as attempt {same + 1}: {verdict.reason}"
            verdict = replace(
                verdict, reason=reason, attempts=0, usage=Usage(), members=(), replies=()
            )
        found.append(verdict)
    return found


def swiss_pairs(
    order: Sequence[int], met: Collection[frozenset[int]], rests: Sequence[int]
) -> list[tuple[int, int]]:
    """Pair neighbours in an order, best first, that have not met. With an odd number one rests: of
    those with the fewest ``rests``, the last for whom the others can be paired. If no such pairing
    exists, answers are left out from the top."""

    def paired(some: Sequence[int]) -> list[tuple[int, int]] | None:
        if not some:
            return []
        first, *others = some
        for other in others:
            if frozenset((first, other)) not in met:
                rest = paired([n for n in others if n != other])
                if rest is not None:
                    return [(first, other), *rest]
        return None

    if len(order) % 2 == 0:
        whole = paired(order)
        return whole if whole is not None else swiss_pairs(order[1:], met, rests)
    for resting in sorted(order, key=lambda n: (rests.count(n), -order.index(n))):
        whole = paired([n for n in order if n != resting])
        if whole is not None:
            return whole
    return swiss_pairs(order[1:], met, rests)


PRIOR = 0.5
"""Games that every answer wins, and as many that it loses, against one of strength 1."""
_ROUNDS = 200


def strengths(games: Sequence[Game], live: Sequence[int]) -> Mapping[int, float]:
    """Return the mean probability that each answer beats another of the group, by Bradley and Terry
    (1952): P(i beats j) = p_i / (p_i + p_j), with a tie as half a win. The p maximise the posterior
    with :data:`PRIOR`, by Hunter's iteration (2004, "MM algorithms for generalized Bradley-Terry
    models"). Answers of a Swiss tournament meet others of about their own score, so that their
    shares of wins cannot be compared; where all have met, both orders agree."""
    known = [g for g in games if g.verdict.status == "ok" and {*g.sides} <= {*live}]
    wins = {n: PRIOR + sum(g.for_side(n) for g in known if n in g.sides) for n in live}
    p = dict.fromkeys(live, 1.0)
    for _ in range(_ROUNDS):
        weights = {n: 2 * PRIOR / (p[n] + 1) for n in live}
        for game in known:
            for n in game.sides:
                weights[n] += 1 / (p[game.first] + p[game.second])
        p = {n: wins[n] / weights[n] for n in live}
    others = max(1, len(live) - 1)
    return {n: math.fsum(p[n] / (p[n] + p[m]) for m in live if m != n) / others for n in live}
