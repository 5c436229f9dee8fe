"""Real rows and a real judge's recorded replies, from github.com/hhh2210/RuscaRL (Apache-2.0). They
stay outside the repository."""

import json
import os
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flowright.criteria.rubrics.checkers import PLAIN_RESPONSE, run_rule
from flowright.criteria.rubrics.points import points_share
from flowright.criteria.rubrics.rows import read_rubrics, read_verif, rubric_row
from flowright.judging.rubrics.criteria_judge import read_bracketed, read_presence
from flowright.sandbox import Sandbox


def upstream(name: str) -> Path:
    default = Path(__file__).parents[3] / "shared" / "data"
    path = Path(os.environ.get("FLOWRIGHT_SHARED_DATA", default)) / "rubrics" / name
    if not path.exists():
        pytest.skip(f"no upstream rubrics at {path}")
    return path


def recorded(source: str) -> list[Mapping[str, Any]]:
    """The judge's replies to rows of a source, with the scores that upstream stored."""
    lines = upstream("scores.clean.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line["source"] == source]


def test_recorded_replies_come_to_the_stored_scores() -> None:
    lines = upstream("judge_bias_eval_10_with_qwen3-8b.jsonl").read_text(encoding="utf-8")
    rows = {
        given["id"]: rubric_row(
            {"prompt": given["meta"]["prompt_messages"], "rubrics": given["spec"]["rubrics"]},
            given["id"],
            Path("recorded"),
        )
        for given in map(json.loads, lines.splitlines())
        if given["source"] == "healthbench"
    }
    replies = recorded("healthbench")
    assert len(replies) == 14
    for line in replies:
        items = rows[line["id"]].items
        said = read_presence(line["judge_debug"]["response_text"], len(items))
        met = [said.get(number) for number in range(1, len(items) + 1)]
        share = points_share(items, met)
        assert None not in met and share is not None
        assert max(0.0, share) == line["score"]


def test_recorded_verdicts_are_read_as_they_were_stored() -> None:
    lines = recorded("verinstruct_verif")
    assert len(lines) == 15
    for line in lines:
        verdict = read_bracketed(line["judge_debug"]["judge_text"])
        assert verdict is not None and float(verdict) == line["score"]
    texts = [line["judge_debug"]["judge_text"] for line in lines]
    assert 0 < sum("理由" in text for text in texts) < len(texts)


def test_all_rows_are_used() -> None:
    health = read_rubrics([upstream("healthbench_val.parquet")])
    instructions = read_rubrics([upstream("verinstruct_val.parquet")])
    assert (health.report.lines(), len(health.rows)) == (["500 of 500 rows used"], 500)
    assert (instructions.report.lines(), len(instructions.rows)) == (["275 of 275 rows used"], 275)
    assert max(len(row.conversation) for row in health.rows) == 15
    assert max(len(row.items) for row in health.rows) == 33
    assert min(item.points for row in health.rows for item in row.items) == -10
    assert {row.source for row in instructions.rows} == {"verinstruct"}


async def test_rules_of_verif_run_in_the_sandbox(sandbox: Sandbox) -> None:
    """Forty of the 399; benchmarks/verif_rules.py runs them all."""
    found = read_verif([upstream("verinstruct_verif_val.parquet")])
    assert found.report.lines() == ["274 of 274 rows used"]
    kinds = Counter(each.kind for row in found.rows for each in row.constraints)
    assert kinds == {"soft": 1591, "rule": 399}
    rules = [(row, c) for row in found.rows for c in row.constraints if c.kind == "rule"]
    for row, constraint in random.Random(0).sample(rules, 40):
        result = await run_rule(constraint.function, row.instruction, PLAIN_RESPONSE, sandbox)
        assert result.followed is not None, f"{row.id}: {constraint.text}: {result}"
