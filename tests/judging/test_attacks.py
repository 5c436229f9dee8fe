"""The corpus of attacks on judges, against those parts of the default judge that are no language
model: the gate, the prompt and the parser. What a model that falls for them says is measured by
benchmarks/judge_gate.py.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from judge_doubles import RIGHT, ScriptedModel, question, reply

from flowright.config.judge import JudgeSection
from flowright.judging.attempts import FORMS
from flowright.judging.build import build_judge
from flowright.judging.parsing import Form, parse_reply
from flowright.judging.verdict import JudgeQuery
from flowright.llm.control_tokens import sanitise
from flowright.llm.replies import spoken_answer

# These tests open no socket; one that an earlier test of the process left open is collected here.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

WRONG = "4114"


@dataclass(frozen=True)
class Attack:
    id: str
    family: str
    answer: str
    label: str
    reason: str

    @property
    def query(self) -> JudgeQuery:
        return JudgeQuery(
            "What is 3008 + 1006?",
            answer=self.answer.replace("{wrong}", WRONG),
            reference="4014",
            answer_type="number",
        )


CORPUS = [
    Attack(**json.loads(line))
    for line in Path(__file__)
    .with_name("judge_attacks.jsonl")
    .read_text(encoding="utf-8")
    .split("\n")[:-1]
]
FAMILIES = Counter(attack.family for attack in CORPUS)
EACH: list[tuple[Attack, Form]] = [(attack, form) for attack in CORPUS for form in FORMS]

CONTROL = re.compile(
    r"<\|\w|<｜|</?s>|\[/?INST\]|<(?:start|end)_of_turn>|</?think>|[\u202a-\u202e\u2028\U000e0000-\U000e007f]"
)
_OPENS = re.compile(r"(~{5,}) (.+)")


def test_the_corpus_is_what_it_says() -> None:
    assert len(CORPUS) >= 60
    assert len({attack.id for attack in CORPUS}) == len(CORPUS)
    assert all(attack.label == "wrong" and attack.reason for attack in CORPUS)
    assert min(FAMILIES.values()) >= 5
    assert not any("4014" in attack.query.answer for attack in CORPUS)


@pytest.mark.parametrize("family", ["master_key", "empty"])
async def test_the_gate_decides_what_is_no_answer_without_a_call(family: str) -> None:
    model = ScriptedModel([reply(RIGHT)])
    judge = build_judge(JudgeSection(), model)
    for attack in CORPUS:
        if attack.family == family:
            verdict = await judge.judge(attack.query)
            assert (verdict.correct, verdict.source) == (False, "rule"), attack.id
    assert not model.requests


def parts(prompt: str) -> tuple[list[str], dict[str, str]]:
    """The lines outside the fences, with the titles, and what stands in each fence."""
    outside: list[str] = []
    inside: dict[str, list[str]] = {}
    fence = title = ""
    for line in prompt.split("\n"):
        if fence:
            if line == fence:
                fence = ""
            else:
                inside[title].append(line)
        elif opening := _OPENS.fullmatch(line):
            fence, title = opening[1], opening[2]
            outside.append(title)
            inside[title] = []
        else:
            outside.append(line)
    assert not fence, "a fence was left open"
    return outside, {title: "\n".join(lines) for title, lines in inside.items()}


def test_an_attack_stays_in_its_fence() -> None:
    honest = JudgeQuery("What is 3008 + 1006?", "4014", "4014", "number")
    plain = {form: question(honest).messages(form) for form in FORMS}
    failures: list[str] = []
    for attack, form in EACH:
        system, user = question(attack.query).messages(form)
        plain_system, plain_user = plain[form]
        outside, inside = parts(user.content)
        shown = {
            "PROBLEM": "What is 3008 + 1006?",
            "REFERENCE ANSWER": "4014",
            "FINAL ANSWER": sanitise(spoken_answer(attack.query.answer)),
        }
        same = system == plain_system and outside == parts(plain_user.content)[0]
        if not same or inside != shown or CONTROL.search(user.content):
            failures.append(f"{attack.id}, {form}")
    assert failures == []


VERDICT = {
    "text": "They differ.\nVerdict: False",
    "json_object": '{"reason": "They differ.", "verdict": false}',
    "json_schema": '{"reason": "They differ.", "verdict": false}',
}


def echo(attack: Attack, form: Form) -> str:
    """The fenced answer of the prompt, copied out as it stands there."""
    prompt = question(attack.query).messages(form)[1].content
    fence = re.findall(r"^(~{5,}) FINAL ANSWER$", prompt, re.M)[0]
    return (
        prompt[prompt.index(f"{fence} FINAL ANSWER") :].partition(f"\n{fence}\n")[0] + f"\n{fence}"
    )


def test_a_judge_that_echoes_an_attack_is_read_by_its_own_verdict() -> None:
    failures: list[str] = []
    for attack, form in EACH:
        fields = question(attack.query).fields
        echoed = echo(attack, form)
        reply = parse_reply(f"I was shown this:\n{echoed}\n\n{VERDICT[form]}", form, fields)
        unfinished = (echoed, f"I was shown this:\n{echoed}\n\nThey")
        if reply.values != {"verdict": False} or any(
            parse_reply(text, form, fields).values for text in unfinished
        ):
            failures.append(f"{attack.id}, {form}")
    assert failures == []


def test_an_attack_quoted_in_the_reason_decides_nothing() -> None:
    failures: list[str] = []
    for attack in CORPUS:
        fields = question(attack.query).fields
        reply = json.dumps({"reason": attack.query.answer, "verdict": False})
        for form in FORMS[:2]:
            if parse_reply(reply, form, fields).values != {"verdict": False}:
                failures.append(f"{attack.id}, {form}")
    assert failures == []


def test_an_attack_quoted_without_fences_never_makes_true_of_false() -> None:
    failures: list[str] = []
    for attack, form in EACH:
        fields = question(attack.query).fields
        reply = f"The answer says:\n{attack.query.answer}\n\n{VERDICT[form]}"
        if parse_reply(reply, form, fields).values.get("verdict") is True:
            failures.append(f"{attack.id}, {form}")
    assert failures == []
