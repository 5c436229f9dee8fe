import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowright.core.batch_calls import PATIENCE, Outcome, ServerDown, call_all
from flowright.core.errors import DataError, UserError
from flowright.core.journal import Journal

OUTCOMES: dict[str, Outcome] = {"timeout": "down", "unavailable": "down", "gate": "neutral"}


def outcome(result: str) -> Outcome:
    return OUTCOMES.get(result, "reached")


class Server:
    """Replies by item; counts the calls and how many run at once."""

    def __init__(self, replies: dict[int, str] | None = None, usual: str = "ok") -> None:
        self.replies = replies or {}
        self.usual = usual
        self.calls: list[int] = []
        self.running = self.most = 0

    async def call(self, item: int) -> str:
        self.calls.append(item)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return self.replies.get(item, self.usual)


def numbered(count: int) -> list[tuple[str, int]]:
    return [(f"k{i}", i) for i in range(count)]


def ask(server: Server, count: int, concurrency: int = 8, **more) -> dict[str, str]:
    return asyncio.run(
        call_all(
            numbered(count),
            server.call,
            concurrency=concurrency,
            outcome=outcome,
            why=str,
            **more,
        )
    )


def test_results_stand_in_the_order_of_the_items_whichever_came_first():
    gates = [asyncio.Event() for _ in range(4)]
    ended: list[str] = []

    async def call(item: int) -> str:
        if item < 3:
            await gates[item + 1].wait()
        gates[item].set()
        return f"r{item}"

    async def both() -> dict[str, str]:
        return await call_all(
            numbered(4),
            call,
            concurrency=4,
            outcome=outcome,
            why=str,
            keep=lambda key, result: ended.append(key),
        )

    results = asyncio.run(both())
    assert ended == ["k3", "k2", "k1", "k0"]
    assert list(results.items()) == [(f"k{i}", f"r{i}") for i in range(4)]


def test_no_more_calls_at_once_than_allowed():
    server = Server()
    assert len(ask(server, 50, 7)) == 50
    assert server.most == 7


@pytest.mark.parametrize("answers", [0, 1, 4000])
@pytest.mark.parametrize("concurrency", [1, 32])
def test_a_server_that_dies_is_asked_no_more_than_patience_and_concurrency_allow(
    answers: int, concurrency: int
):
    server = Server(dict.fromkeys(range(answers), "ok"), usual="unavailable")
    with pytest.raises(ServerDown) as caught:
        ask(server, 5000, concurrency, name="judge 'a'", remedy="start it")
    down = caught.value
    assert len(server.calls) <= answers + PATIENCE + concurrency
    assert down.answered == answers
    assert PATIENCE <= down.failed < PATIENCE + concurrency
    assert down.answered + down.failed + down.not_asked == 5000
    assert [key for key, result in down.results.items() if result == "ok"] == [
        f"k{i}" for i in range(answers)
    ]
    assert down.problems == (
        f"judge 'a' is down: {down.failed} calls in a row failed (unavailable)",
        f"{answers:,} answered, {down.failed} failed, {down.not_asked:,} not asked; start it",
    )
    assert down.exit_code == 1


def test_an_answer_that_comes_as_the_calls_stop_does_not_hide_the_failures():
    replies = {PATIENCE: "ok", PATIENCE + 1: "gate"}
    with pytest.raises(ServerDown, match=f"{PATIENCE} calls in a row failed") as caught:
        ask(Server(replies, usual="timeout"), PATIENCE + 2, PATIENCE + 2)
    assert caught.value.results["k20"] == "ok"


def test_replies_of_no_use_never_count_as_a_dead_server():
    assert len(ask(Server(usual="unreadable"), 200)) == 200


def test_failures_between_answers_are_results_like_others():
    replies = {i: "timeout" for i in range(1000) if i % 4}
    results = ask(Server(replies), 1000)
    assert sum(result == "timeout" for result in results.values()) == 750


def test_what_needed_no_server_does_not_hide_that_it_is_dead():
    replies = {i: "gate" for i in range(1000) if i % 2}
    server = Server(replies, usual="timeout")
    with pytest.raises(ServerDown):
        ask(server, 1000, 4)
    assert len(server.calls) <= 2 * PATIENCE + 4


def test_few_items_that_all_failed_are_a_dead_server_unless_something_is_kept():
    with pytest.raises(ServerDown, match="3 calls in a row failed"):
        ask(Server(usual="timeout"), 3)
    assert set(ask(Server(usual="timeout"), 3, kept={"k0": "ok"}).values()) == {"ok", "timeout"}
    assert ask(Server({1: "gate"}, usual="timeout"), 3)["k1"] == "gate"
    assert ask(Server(), 0) == {}


def test_kept_items_are_not_called_and_a_later_call_continues(tmp_path: Path):
    path = tmp_path / "kept.jsonl"
    dying = Server(dict.fromkeys(range(30), "ok"), usual="unavailable")

    def run(server: Server) -> dict[str, str]:
        with Journal(path, {"judge": "a"}) as journal:
            kept = {key: record["said"] for key, record in journal.latest("row").items()}

            def keep(key: str, result: str) -> None:
                if outcome(result) != "down":
                    journal.append({"row": key, "said": result})

            return ask(server, 100, 4, kept=kept, keep=keep)

    with pytest.raises(ServerDown):
        run(dying)
    alive = Server()
    results = run(alive)
    assert sorted(alive.calls) == list(range(30, 100))
    assert list(results) == [f"k{i}" for i in range(100)]
    again = Server()
    assert run(again) == results and again.calls == []


def test_progress_counts_each_call_once():
    ticks: list[None] = []
    ask(Server(), 20, kept={"k3": "ok"}, progress=lambda: ticks.append(None))
    assert len(ticks) == 19


def test_cancelling_keeps_what_was_answered():
    kept: dict[str, str] = {}
    never = asyncio.Event()

    async def call(item: int) -> str:
        if item >= 5:
            await never.wait()
        return "ok"

    async def run() -> None:
        answered = asyncio.Event()

        def keep(key: str, result: str) -> None:
            kept[key] = result
            if len(kept) == 5:
                answered.set()

        calls = call_all(numbered(50), call, concurrency=3, outcome=outcome, why=str, keep=keep)
        task = asyncio.create_task(calls)
        await answered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert list(kept) == ["k0", "k1", "k2", "k3", "k4"]


def test_items_are_read_as_calls_begin():
    server = Server()
    ahead: list[int] = []

    def items() -> Iterator[tuple[int, int]]:
        for number in range(100):
            ahead.append(number - len(server.calls))
            yield number, number
        raise DataError("x.jsonl:101: not JSON")

    with pytest.raises(DataError, match=r"x\.jsonl:101"):
        asyncio.run(call_all(items(), server.call, concurrency=5, outcome=outcome, why=str))
    assert max(ahead) <= 5


@pytest.mark.parametrize("error", [UserError("mend it"), KeyError("a bug")])
def test_other_exceptions_stop_the_calls_and_come_as_they_are(error: Exception):
    calls: list[int] = []

    async def call(item: int) -> str:
        calls.append(item)
        await asyncio.sleep(0)
        if item == 3:
            raise error
        return "ok"

    with pytest.raises(type(error)) as caught:
        asyncio.run(call_all(numbered(100), call, concurrency=2, outcome=outcome, why=str))
    assert caught.value is error and len(calls) <= 6
