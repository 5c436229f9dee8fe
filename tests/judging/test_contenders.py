"""Who is measured: baselines, judges of the house over scripted models, services, panels."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from benchmark_doubles import Rater, pair
from judge_doubles import ScriptedModel, reply, unavailable

from flowright.config.judge import JudgeSection
from flowright.core.errors import UserError
from flowright.data.task import Pair
from flowright.judging.measuring.benchmark_judges import (
    ModelJudge,
    ServiceJudge,
    Way,
    measured_section,
)
from flowright.judging.measuring.measured_judges import (
    GameOutcome,
    Games,
    LengthJudge,
    PanelJudge,
    RandomJudge,
    Rating,
    from_row,
    games_of_ratings,
    to_row,
)
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.llm.chat import ChatRequest, Message

PAIR = Pair("1", "mine", (Message("user", "Say hello."),), "Hello!", "Goodbye.", "first")
Said = Callable[[ChatRequest], Any]


def model(said: Said | Any, way: Way = "pairwise", **section: Any) -> ModelJudge:
    """A judge whose model says this, as the JSON that it is asked for."""

    def step(request: ChatRequest) -> Any:
        given = said(request) if callable(said) else said
        return given if isinstance(given, Exception) else reply(json.dumps(given))

    section = {"max_attempts": 1} | section
    asked = measured_section(JudgeSection.model_validate({"model": "m", **section}))
    return ModelJudge(ScriptedModel([step]), asked, way)


def sides(games: Games) -> tuple[Any, ...]:
    return tuple(game.preferred or game.status for game in games.both)


async def test_samples_vote_order_by_order_and_by_their_mean() -> None:
    """Where the shorter answer stands first, two samples of three take it for the better one."""
    swapped = iter("AAB")

    def said(request: ChatRequest) -> Any:
        shown = request.messages[-1].content
        if "score" in shown:
            return {"reason": "", "score": next(scores)}
        is_first = shown.index("Hello!") < shown.index("Goodbye.")
        return {"reason": "", "better": "A" if is_first else next(swapped)}

    games = await model(said, samples=3).compare(PAIR)
    assert sides(games) == ("first", "second")
    assert [len(game.replies) for game in games.both] == [3, 3]
    scores = iter([1.0, 0.5, 0.0])
    rating = await model(said, "score", samples=3).rate(PAIR.conversation, "Hello!", "k")
    assert rating.score == 0.5, "a panel of answers that are right or wrong would abstain"


async def test_a_model_is_asked_in_both_orders() -> None:
    always_a = await model({"reason": "It is.", "better": "A"}).compare(PAIR)
    assert sides(always_a) == ("first", "second"), "the place shown first wins, twice"
    assert [len(game.replies) for game in always_a.both] == [1, 1]

    def honest(request: ChatRequest) -> Any:
        shown = request.messages[-1].content
        is_first = shown.index("Hello!") < shown.index("Goodbye.")
        return {"reason": "It greets.", "better": "A" if is_first else "B"}

    assert sides(await model(honest).compare(PAIR)) == ("first", "first")
    assert sides(await model(honest).compare(PAIR.swapped())) == ("second", "second")
    assert sides(await model({"reason": "", "better": "tie"}).compare(PAIR)) == ("tie", "tie")


@pytest.mark.parametrize(
    ("said", "status"), [({"reason": "Hm."}, "unreadable"), (unavailable(), "failed")]
)
async def test_what_cannot_be_read_and_what_failed_are_told_apart(said: Any, status: str) -> None:
    judge = model(said)
    assert sides(await judge.compare(PAIR)) == (status, status)
    assert (await judge.rate(PAIR.conversation, "a", "k")).status == status
    choice = await judge.choose(PAIR.conversation, ["a", "b", "c", "d"], "k")
    assert (choice.place, choice.status) == (None, status)


@pytest.mark.parametrize(
    ("way", "said", "score"),
    [
        ("pairwise", {"reason": "", "rating": 7}, 7),
        ("score", {"reason": "", "score": 0.25}, 0.25),
        ("pointwise", {"reason": "", "score": 3}, 0.75),
    ],
)
async def test_ratings_in_three_scales(way: Way, said: Any, score: float) -> None:
    judge = model(said, way)
    assert (await judge.rate(PAIR.conversation, "Hello!", "k")).score == score
    if way != "pairwise":
        assert sides(await judge.compare(PAIR)) == ("tie", "tie"), "equal scores are a tie"


async def test_a_rating_out_of_its_scale_is_unreadable() -> None:
    for rating in (0, 11, 7.5, "seven", True):
        said = await model({"reason": "", "rating": rating}).rate(PAIR.conversation, "a", "k")
        assert (said.score, said.status) == (None, "unreadable")


async def test_the_best_of_four_is_named_by_its_letter() -> None:
    judge = model({"reason": "", "best": "C"})
    assert (await judge.choose(PAIR.conversation, ["a", "b", "c", "d"], "k")).place == 2


async def test_a_whole_conversation_is_shown() -> None:
    seen: list[str] = []

    def said(request: ChatRequest) -> Any:
        seen.append(request.messages[-1].content)
        return {"reason": "", "better": "A"}

    turns = (Message("system", "Be brief."), Message("user", "2 + 2?"), Message("assistant", "4"),
             Message("user", "And 3?"))  # fmt: skip
    await model(said).compare(Pair("1", "mine", turns, "7", "8", "first"))
    assert all(turn.content in seen[0] for turn in turns) and "REFERENCE" not in seen[0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"mode": "rules", "model": None}, "rules need references"),
        ({"min_confidence": 0.6}, "judge.min_confidence"),
    ],
)
def test_settings_that_would_hide_a_judges_own_verdicts(change: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        measured_section(JudgeSection.model_validate({"model": "m", **change}))


class Service:
    """A judge that calls the longer answer better."""

    name = "http://service"

    def __init__(self) -> None:
        self.queries: list[JudgeQuery] = []

    async def judge(self, query: JudgeQuery) -> Verdict:
        self.queries.append(query)
        if query.rival is None:
            return Verdict(None, None, "llm", "overloaded", "full")
        score = float(len(query.answer) > len(query.rival))
        return Verdict(score, score > 0.5, "llm", "ok")


async def test_a_service_is_asked_in_both_orders() -> None:
    service = Service()
    assert sides(await ServiceJudge(service, "pairwise").compare(PAIR)) == ("second", "second")
    assert [query.answer for query in service.queries] == ["Hello!", "Goodbye."]
    assert len({query.key for query in service.queries}) == 2
    assert sides(await ServiceJudge(service, "score").compare(PAIR)) == ("failed", "failed")


async def test_the_baselines() -> None:
    assert sides(await LengthJudge().compare(PAIR)) == ("second", "second")
    assert sides(await LengthJudge().compare(pair("1"))) == ("second", "second")
    tosses = [await RandomJudge(3).compare(pair(f"{n}")) for n in range(200)]
    assert tosses == [await RandomJudge(3).compare(pair(f"{n}")) for n in range(200)]
    firsts = [game.preferred == "first" for games in tosses for game in games.both]
    assert 160 < sum(firsts) < 240
    assert 60 < sum(sides(games)[0] == sides(games)[1] for games in tosses) < 140


def rater(above: float | None, name: str = "rater") -> Rater:
    """Rates the answer ``one ...`` so much above the other, or fails."""
    return Rater(lambda a: None if above is None else above * a.startswith("one"), name)


@pytest.mark.parametrize(
    ("members", "quorum", "found"),
    [
        ((1, 1, -1), 1, "first"),
        ((1, -1), 1, "tie"),
        ((0, 0, 1), 1, "tie"),
        ((1, None), 1, "first"),  # who failed leaves the vote
        ((1, None), 2, "failed"),
        ((None, None), 1, "failed"),
    ],
)
async def test_several_judges_vote(
    members: tuple[float | None, ...], quorum: int, found: str
) -> None:
    panel = PanelJudge([rater(above) for above in members], quorum)
    assert sides(await panel.compare(pair("x"))) == (found, found)
    assert panel.name.count("rater") == len(members) and not panel.chooses


async def test_several_judges_rate_and_choose() -> None:
    panel = PanelJudge([rater(1), rater(0.5)])
    assert (await panel.rate((), "one", "k")).score == 0.75
    choosers = PanelJudge([RandomJudge(seed) for seed in range(3)])
    places = [(await RandomJudge(s).choose((), "abcd", "k")).place for s in range(3)]
    chosen = (await choosers.choose((), "abcd", "k")).place
    assert chosen == max(places, key=places.count)


def test_what_was_said_survives_a_file() -> None:
    games = Games(
        GameOutcome("first", "ok", (1.0, 0.5), "so", ("r",)), GameOutcome(None, "unreadable")
    )
    assert from_row(Games, json.loads(json.dumps(to_row(games)))) == games
    assert from_row(Rating, to_row(Rating(0.0))) == Rating(0.0)
    with pytest.raises(ValueError, match="status"):
        GameOutcome(None, "ok")
    failed = games_of_ratings(Rating(1.0), Rating(None, "failed"))
    assert failed.failed
