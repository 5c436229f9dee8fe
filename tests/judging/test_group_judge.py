"""Answers ranked within their group: scores, calls, position, and whose fault failures are."""

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from criteria_doubles import blocks_of
from judge_doubles import Step, reply, unavailable

from flowright.config.judge import JudgeSection
from flowright.core.report import Fact
from flowright.grading import Gold
from flowright.judging.audit import audit
from flowright.judging.build import build_judge
from flowright.judging.group_judge import (
    PRIOR,
    Game,
    GroupJudge,
    planned_calls,
    ranking_field,
    strengths,
    swiss_pairs,
)
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.llm.chat import ChatReply, ChatRequest
from flowright.viewer.rollout_records import record_facts

BAIT = "xyzzy"
METHODS = ("round_robin", "swiss", "list")


def worth(answer: str) -> float:
    """The number that an answer ends in; 0 without one."""
    last = answer.split()[-1]
    return float(last) if last.isdigit() else 0.0


@dataclass
class Ranker:
    """Compares and ranks answers by their numbers; answers less than ``blur`` apart are to it in
    the order shown. Where it reads the bait it has a ``fault``; ``down``: requests, counted from 1,
    without a server."""

    blur: float = 0.0
    fault: Callable[[ChatRequest], Step] = lambda request: reply("I cannot judge this.")
    down: range = range(0)
    name: str = "ranker"
    requests: list[ChatRequest] = field(default_factory=list)

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
        self.requests.append(request)
        blocks = blocks_of(request.messages[-1].content)
        shown = {title: text for title, text in blocks.items() if title.startswith("ANSWER ")}
        step = reply(self.text(shown, request))
        if len(self.requests) in self.down:
            step = unavailable("HTTP 500")
        elif any(BAIT in text for text in shown.values()):
            step = self.fault(request)
        if isinstance(step, Exception):
            raise step
        return step

    def text(self, shown: dict[str, str], request: ChatRequest) -> str:
        worths = [*map(worth, shown.values())]
        if self.blur:
            worths = [value // self.blur for value in worths]
        order = sorted(range(len(worths)), key=lambda place: (-worths[place], place))
        letters = ["ABCDEFGHIJKLMNOPQRSTUVWXYZ"[place] for place in order]
        is_list = "Rank the answers" in request.messages[-1].content
        said = {"ranking": ", ".join(letters)} if is_list else {"better": letters[0]}
        if request.response_format is not None:
            return json.dumps({"reason": "So it is.", **said})
        ((key, value),) = said.items()
        return f"So it is.\n<{key}>{value}</{key}>"


def section(method: str, **more: object) -> JudgeSection:
    group = {"method": method, "rounds": more.pop("rounds", 3), "orders": more.pop("orders", 2)}
    return JudgeSection.model_validate({"group": group, **more})


def ranking(model: Ranker, section: JudgeSection, seed: int = 0) -> GroupJudge:
    pairs = build_judge(section.model_copy(update={"ask": "pairwise"}), model)
    return GroupJudge(section, pairs, model, seed)


def queries(*answers: str | None) -> list[JudgeQuery | None]:
    return [
        None if answer is None else JudgeQuery("How many?", answer, "9", "number", key=f"1/0/{n}")
        for n, answer in enumerate(answers)
    ]


async def ranked(
    model: Ranker, section: JudgeSection, *answers: str | None, seed: int = 0
) -> list[Verdict | None]:
    return await ranking(model, section, seed).rank(queries(*answers))


def scores(verdicts: list[Verdict | None]) -> list[float | None]:
    return [None if v is None or v.score is None else round(v.score, 6) for v in verdicts]


NUMBERS = [f"It is {n}" for n in (3, 1, 4, 0, 5, 9, 2, 6)]
IN_ORDER = [3 / 7, 1 / 7, 4 / 7, 0.0, 5 / 7, 1.0, 2 / 7, 6 / 7]


@pytest.mark.parametrize("both", [True, False])
async def test_all_pairs_score_by_the_share_of_wins(both: bool) -> None:
    model, how = Ranker(), section("round_robin", both_orders=both)
    verdicts = await ranked(model, how, *NUMBERS)
    assert scores(verdicts) == pytest.approx(IN_ORDER, abs=1e-6)
    assert len(model.requests) == planned_calls(how, 8) == 28 * (1 + both)
    best = verdicts[5]
    assert best is not None and best.standing is not None and best.correct is None
    assert (best.standing.rank, best.standing.of) == (1, 8)
    assert (best.standing.wins, best.standing.losses) == (7, 0)
    known = [verdict for verdict in verdicts if verdict is not None]
    assert sum(verdict.attempts for verdict in known) == len(model.requests), "each call once"
    assert sum(verdict.usage.calls for verdict in known) == len(model.requests)
    assert len(best.members) == 7 and all(member.score == 1 for member in best.members)


async def test_swiss_rounds_pair_answers_of_about_the_same_score() -> None:
    model, how = Ranker(), section("swiss", rounds=3)
    verdicts = await ranked(model, how, *NUMBERS)
    assert len(model.requests) == planned_calls(how, 8) == 3 * 4 * 2
    found = dict(zip((3, 1, 4, 0, 5, 9, 2, 6), scores(verdicts), strict=True))
    assert found[9] == max(found.values()), "the best one won all its games"
    in_order = [found[a] > found[b] for a in found for b in found if a > b]
    assert sum(in_order) > 0.8 * len(in_order)
    again = await ranked(Ranker(), how, *NUMBERS)
    assert scores(again) == scores(verdicts)
    drawn = {tuple(scores(await ranked(Ranker(), how, *NUMBERS, seed=n))) for n in range(5)}
    assert len(drawn) > 1, "the first round is drawn from the seed"


def test_swiss_never_pairs_twice_and_rests_in_turn() -> None:
    for size in range(2, 12):
        met: set[frozenset[int]] = set()
        rests: list[int] = []
        order = [*range(size)]
        for number in range((size - 1) // 2 + 1):
            pairs = swiss_pairs(order, met, rests)
            sides = [side for pair in pairs for side in pair]
            assert len(sides) == len(set(sides)) == size - size % 2, (size, number)
            assert met.isdisjoint(map(frozenset, pairs))
            met |= {frozenset(pair) for pair in pairs}
            rests += set(order) - set(sides)
            order = order[1:] + order[:1]
        assert len(rests) == len(set(rests)), "nobody rests twice before all others"


def test_strengths_maximise_the_posterior() -> None:
    outcomes = [(0, 1, 1.0), (0, 2, 1.0), (1, 2, 0.5), (2, 3, 1.0), (3, 1, 0.0), (0, 3, 1.0)]
    games = [Game(a, b, verdict_of(score)) for a, b, score in outcomes]

    def posterior(logs: list[float]) -> float:
        def win(a: float, b: float) -> float:
            return -math.log1p(math.exp(b - a))

        played = sum(
            s * win(logs[a], logs[b]) + (1 - s) * win(logs[b], logs[a]) for a, b, s in outcomes
        )
        return played + PRIOR * sum(win(log, 0) + win(0, log) for log in logs)

    # Coordinate by coordinate, which needs no formula of ours: the posterior is concave.
    logs, step = [0.0] * 4, 1.0
    while step > 1e-7:
        moves = [(posterior([*logs[:i], logs[i] + d, *logs[i + 1 :]]), i, d)
                 for i in range(4) for d in (step, -step)]  # fmt: skip
        best, i, d = max(moves)
        if best > posterior(logs):
            logs[i] += d
        else:
            step /= 2
    beats = [
        sum(1 / (1 + math.exp(logs[m] - logs[n])) for m in range(4) if m != n) / 3 for n in range(4)
    ]
    found = strengths(games, range(4))
    assert [found[n] for n in range(4)] == pytest.approx(beats, abs=1e-4)


def verdict_of(score: float) -> Verdict:
    return Verdict(score, None if score == 0.5 else score > 0.5, "llm", "ok")


async def test_a_list_is_one_call_an_order_and_its_orders_are_reversed() -> None:
    model, how = Ranker(), section("list", orders=4)
    verdicts = await ranked(model, how, *NUMBERS)
    assert scores(verdicts) == pytest.approx(IN_ORDER, abs=1e-6)
    assert len(model.requests) == planned_calls(how, 8) == 4
    shown = [[*blocks_of(r.messages[-1].content).values()][2:] for r in model.requests]
    assert shown[1] == shown[0][::-1] and shown[3] == shown[2][::-1] and shown[2] != shown[0]
    assert sorted(shown[0]) == sorted(NUMBERS)


@pytest.mark.parametrize("method", METHODS)
async def test_a_judge_that_knows_the_first_place_alone_ranks_nobody(method: str) -> None:
    verdicts = await ranked(Ranker(blur=100), section(method), *NUMBERS)
    assert scores(verdicts) == [0.5] * 8


@pytest.mark.parametrize("method", METHODS)
async def test_equal_answers_are_judged_once(method: str) -> None:
    model = Ranker()
    verdicts = await ranked(model, section(method), "It is 1", "It is 2", "It is 1", " It is 2")
    assert scores(verdicts) == [0.0, 1.0, 0.0, 1.0]
    assert len(model.requests) == 2
    assert [v.standing.rank for v in verdicts if v and v.standing] == [3, 1, 3, 1]
    assert "the same answer as attempt 1" in (verdicts[2] or verdict_of(0)).reason
    model = Ranker()
    same = await ranked(model, section(method), "It is 1", "It is 1")
    assert scores(same) == [0.5, 0.5] and not model.requests


@pytest.mark.parametrize("method", METHODS)
async def test_attempts_without_an_answer_are_beaten(method: str) -> None:
    model = Ranker()
    verdicts = await ranked(model, section(method), "It is 1", None, "It is 2", "", "...")
    assert scores(verdicts) == [0.5, None, 1.0, 0.0, 0.0]
    assert verdicts[3] is not None and verdicts[3].source == "rule"
    assert len(model.requests) == 2
    assert scores(await ranked(model, section(method), "It is 1", None)) == [1.0, None]
    assert scores(await ranked(model, section(method), "", "")) == [0.0, 0.0]
    assert await ranked(model, section(method), "It is 1") == [None], "alone: evaluations"
    assert len(model.requests) == 2


FAULTS: dict[str, Callable[[ChatRequest], Step]] = {
    "declined": lambda request: reply("I'm sorry, but I can't help with that."),
    "empty": lambda request: reply(""),
    "truncated": lambda request: reply("", "length", tokens=request.max_tokens or 0),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", METHODS)
async def test_an_answer_that_the_judge_fails_on_loses(method: str, fault: str) -> None:
    baits = f"It is 8 {BAIT} 8", f"It is 7 {BAIT} 7"
    for answers in ((*NUMBERS[:3], baits[0]), (baits[0], *NUMBERS[:2], baits[1])):
        verdicts = await ranked(Ranker(fault=FAULTS[fault]), section(method), *answers)
        for answer, verdict in zip(answers, verdicts, strict=True):
            assert verdict is not None and verdict.score is not None
            assert (verdict.score == 0) == (BAIT in answer), answer
            assert (verdict.source == "floor") == (BAIT in answer)


@pytest.mark.parametrize("method", METHODS)
async def test_a_judge_that_is_down_scores_nobody(method: str) -> None:
    verdicts = await ranked(Ranker(down=range(1, 10_000)), section(method), *NUMBERS[:3], "")
    assert scores(verdicts) == [None, None, None, 0.0]
    assert [v.status for v in verdicts if v] == ["unavailable"] * 3 + ["ok"]


async def test_a_pair_without_a_verdict_leaves_the_statistics() -> None:
    # The first pair's first order, with all its attempts.
    model = Ranker(down=range(1, 2))
    verdicts = await ranked(model, section("round_robin", max_attempts=1), *NUMBERS[:3])
    assert scores(verdicts) == [0.0, 0.0, 1.0]
    standings = [v.standing for v in verdicts if v and v.standing]
    assert [s.unjudged for s in standings] == [1, 1, 0]
    measured = audit(verdicts, [None] * 3)
    assert measured["judge/unjudged_pairs"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("bad", ["A, B", "A, B, B", "A, B, C, D", "B", "A and B, C"])
async def test_a_list_that_omits_or_repeats_an_answer_is_asked_for_again(bad: str) -> None:
    class Careless(Ranker):
        wrong = 1

        def text(self, shown: dict[str, str], request: ChatRequest) -> str:
            if len(self.requests) <= self.wrong:
                return json.dumps({"reason": "", "ranking": bad})
            return super().text(shown, request)

    model = Careless()
    verdicts = await ranked(model, section("list", orders=1), *NUMBERS[:3])
    assert scores(verdicts) == [0.5, 0.0, 1.0] and len(model.requests) == 2
    model = Careless()
    model.wrong = 10_000
    verdicts = await ranked(model, section("list", orders=1), *NUMBERS[:3])
    assert scores(verdicts) == [None] * 3, "it judges no pair either: the fault is ours"
    assert verdicts[0] is not None and verdicts[0].status == "parse_error"


def test_rankings_are_read_as_models_write_them() -> None:
    read = ranking_field(3).schema.read
    for text in ("B, A, C", "b,a,c", "B > A > C", "[B, A, C]", "Answer B, Answer A, Answer C."):
        assert read(text) == "B, A, C"
    for text in ("B, A", "B, A, C, C", "B = A > C", "B, A, D", "", ["B", "A", "C"], None, 3):
        assert read(text) is None


async def test_evidence_stands_beside_the_answer_that_it_is_about() -> None:
    asked = [
        replace(query, evidence=f"passed {n} of 3 tests")
        for n, query in enumerate(filter(None, queries(*NUMBERS[:3])))
    ]
    for method in ("round_robin", "list"):
        model = Ranker()
        await ranking(model, section(method)).rank(asked)
        for request in model.requests:
            blocks = blocks_of(request.messages[-1].content)
            on = {t.split(",")[0]: text for t, text in blocks.items() if t.startswith("EVIDENCE")}
            answers = {t: text for t, text in blocks.items() if t.startswith("ANSWER ")}
            assert on == {
                f"EVIDENCE ON {title}": f"passed {NUMBERS.index(text)} of 3 tests"
                for title, text in answers.items()
            }


async def test_the_audit_of_a_ranking_is_the_share_of_pairs_in_order() -> None:
    golds = [Gold(value, "exact") for value in (True, False, True, False)]
    verdicts = [*await ranked(Ranker(), section("round_robin"), *NUMBERS[:4]), verdict_of(1.0)]
    measured = audit(verdicts, [*golds, None])
    assert measured["judge/agreement_with_gold"] == 1
    turned = [Gold(not gold.correct, "exact") for gold in golds]
    assert audit(verdicts, [*turned, None])["judge/agreement_with_gold"] == 0
    blurred = await ranked(Ranker(blur=100), section("list"), *NUMBERS[:4])
    assert audit(blurred, golds)["judge/agreement_with_gold"] == 0.5
    assert "judge/drift" not in audit(blurred, golds), "half of all pairs is won, whatever happens"
    assert audit(blurred, golds)["judge/no_verdict_rate_right"] == 0
    other = [replace(q, key=f"2/{q.key}") for q in filter(None, queries(*NUMBERS[:4]))]
    both = [*verdicts[:4], *await ranking(Ranker(), section("round_robin")).rank(other)]
    assert audit(both, [*golds, *turned])["judge/agreement_with_gold"] == 0.5, "group by group"


async def test_a_record_shows_rank_and_wins() -> None:
    from dataclasses import asdict  # as records are written

    verdicts = await ranked(Ranker(), section("round_robin"), *NUMBERS[:4])
    facts = record_facts({"verdict": asdict(verdicts[0] or verdict_of(0)), "reward": {}})
    judge = next(fact for fact in facts if isinstance(fact, Fact) and fact.name == "Judge")
    assert "score 0.666667, rank 2 of 4: 2 wins, 1 losses, 0 ties" in judge.text


@pytest.mark.parametrize(
    "keys",
    [
        {"mode": "rules"},
        {"mode": "rules_then_judge"},
        {"ask": "score"},
        {"service": {"judge_url": "http://localhost:1"}},
        {"low_agreement": "rules"},
    ],
)
def test_settings_that_do_not_fit_are_refused(keys: dict[str, object]) -> None:
    for method in METHODS:
        with pytest.raises(ValueError, match=f"leave out with group.method: {method}"):
            JudgeSection.model_validate({"group": {"method": method}, **keys})


def test_calls_of_a_panel_and_of_samples_are_planned() -> None:
    how = section("swiss", rounds=50, panel=("a", "b"), samples=2)
    assert planned_calls(how, 5) == 10 * 2 * 3 * 2, "no more than all pairs"
    assert list(itertools.chain([planned_calls(section("list", orders=3), 9)])) == [3]
