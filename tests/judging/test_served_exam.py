"""The exam and the benchmarks of a judge behind HTTP, which has a cache and a second reading."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from benchmark_doubles import pair
from command_lines import command
from exam_doubles import items, verdict
from judge_serving import served, served_beside

from flowright.config.judge import JudgeSection, JudgeServerSection
from flowright.config.root import JudgeServerConfig
from flowright.core.errors import DataError
from flowright.data.contamination import TrainedOn
from flowright.judging.build import build_judge
from flowright.judging.measuring.benchmark_judges import JudgeName, open_measured_judge
from flowright.judging.measuring.exam_probes import ExamPlan
from flowright.judging.measuring.exam_report import exam_report
from flowright.judging.measuring.judge_benchmark import training_overlap
from flowright.judging.measuring.judge_exam import hold_exam, open_exam_judges
from flowright.judging.service.app import create_app
from flowright.judging.verdict import JudgeQuery, Verdict

CONFIG = Path(__file__).parents[2] / "config/judge_server.yaml"
PLAN = ExamPlan(perturbations=(), repeats=3, resamples=200)


@dataclass
class Coin:
    """Tosses a coin for each request."""

    name: str = "coin"

    async def judge(self, query: JudgeQuery) -> Verdict:
        return verdict(hashlib.sha256(query.key.encode()).digest()[0] % 2 == 0)


@dataclass
class Forgetful:
    """A cache before the coin that ignores ``fresh``, as another house's may."""

    name: str = "forgetful"

    async def judge(self, query: JudgeQuery) -> Verdict:
        heads = hashlib.sha256(query.answer.encode()).digest()[0] % 2 == 0
        return replace(verdict(heads), source="cache")


async def exam_of(judge: Any) -> Mapping[str, Any]:
    async with served(create_app(judge, JudgeServerSection())) as (url, _):
        section = {"service": {"judge_url": url, "batch_timeout": 0.005}, "gate": False}
        config = JudgeServerConfig.model_validate({"judge": section})
        async with open_exam_judges(config, pairs=False) as judges:
            return await hold_exam(items(30), judges.judge, None, PLAN)


async def test_a_served_coin_is_not_stable() -> None:
    section = JudgeSection(cache_size=500, second_reading=True, breaker_threshold=5)
    record = await exam_of(build_judge(section, Coin()))
    assert record["service"]["source"] == {"llm": 1.0}, "no verdict of the cache"
    assert 0.05 < record["stability"]["value"] < 0.5, "a fair coin: a quarter"
    assert "cache" not in json.dumps(record)


async def test_cached_verdicts_give_no_stability() -> None:
    record = await exam_of(Forgetful())
    assert record["service"]["source"] == {"cache": 1.0}
    assert record["stability"]["value"] is None
    about = {"judge": "forgetful", "ask": "true_false", "mode": "judge", "gate": True, "data": "x"}
    report = exam_report({"about": about, **record})
    drawn = str(report)
    assert "from the service's cache" in drawn


async def test_only_a_fresh_request_passes_cache_breaker_and_second_reading() -> None:
    asked: list[JudgeQuery] = []

    @dataclass
    class Silent:
        name: str = "silent"

        async def judge(self, query: JudgeQuery) -> Verdict:
            asked.append(query)
            return verdict(None if query.answer == "?!" else True, status="declined")

    section = JudgeSection(cache_size=500, gate=False)
    judge = build_judge(section, Silent())
    query = JudgeQuery("q", "a", "a", key="k")
    assert [(await judge.judge(query)).source for _ in range(3)] == ["llm", "cache", "cache"]
    fresh = [await judge.judge(replace(query, fresh=True)) for _ in range(2)]
    assert [each.source for each in fresh] == ["llm", "llm"] and len(asked) == 3
    declined = replace(query, answer="?!")
    assert (await judge.judge(declined)).status == "ok", "the floor, or a second reading"
    assert (await judge.judge(replace(declined, fresh=True))).status == "declined"


async def test_a_service_shows_what_its_judge_was_trained_on(tmp_path: Path) -> None:
    rows = [pair(str(n), question=f"Question {n}?") for n in range(4)]
    record = TrainedOn.of(rows[:2])
    app = create_app(Coin(), JudgeServerSection(), trained_on=record)
    async with served(app) as (url, _), open_judge(url) as opened:
        assert opened.trained_on == record
        with pytest.raises(DataError, match="the judge was trained on"):
            training_overlap(rows, (), (), False, {url: opened.trained_on})
        found = training_overlap(rows, (), (), True, {url: opened.trained_on})
        assert found["files"] == [f"{url}/trained_on"] and found["found"]
    async with (
        served(create_app(Coin(), JudgeServerSection())) as (url, _),
        open_judge(url) as none,
    ):
        assert none.trained_on is None and none.folders == ()


def open_judge(url: str) -> Any:
    return open_measured_judge(JudgeName(url, CONFIG), lambda named: None)  # pyright: ignore


def test_a_benchmark_refuses_a_served_judge_that_was_trained_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pairs.jsonl"
    row = {"question": "What?", "first": "a", "second": "b", "label": "first"}
    path.write_text(json.dumps(row) + "\n")
    record = TrainedOn.of([pair("1", question="What?")])
    app = create_app(Coin(), JudgeServerSection(), trained_on=record)
    out = tmp_path / "out.json"
    with served_beside(app) as url:
        arguments = ["--judge", url, "--pairs", str(path), "--json", str(out)]
        assert command("judge benchmark")(arguments) == 2
        assert "the judge was trained on" in capsys.readouterr().err
        assert command("judge benchmark")([*arguments, "--allow-trained-on"]) == 0
    assert "TRAINED ON THESE ROWS" in capsys.readouterr().out
