"""VerIF's reward: rule functions in the sandbox, one verdict on all soft constraints, and whose
fault it is when something fails."""

import pytest
from criteria_doubles import ASKED, CriteriaModel, blocks_of
from lost_sandbox import LostSandbox

from flowright.config.judge import JudgeSection
from flowright.core.errors import Reason
from flowright.criteria.rubrics.checkers import PLAIN_RESPONSE, RuleResult, run_rule
from flowright.criteria.rubrics.rows import Constraint, VerifRow
from flowright.judging.rubrics.criteria_judge import criteria_judge
from flowright.judging.rubrics.rewards import Rules, VerifReward
from flowright.sandbox import Limits, Sandbox


def rule(body: str) -> Constraint:
    source = f"import re\n\ndef check_following(instruction, response):\n    {body}\n"
    return Constraint(f"Rule: {body}", "rule", source)


FEW = rule("return len(response.split()) <= 3")
NO_COLON = rule("return ':' not in response")
FRUITY = Constraint("It says `apple`.", "soft")
SWEET = Constraint("It says `pie`.", "soft")


def row(*constraints: Constraint) -> VerifRow:
    return VerifRow(ASKED, constraints, "fruit", "if", "file:1")


def reward(model: CriteriaModel, sandbox: Sandbox, rules: Rules = "run") -> VerifReward:
    return VerifReward(criteria_judge(model, JudgeSection()), sandbox, rules)


@pytest.mark.parametrize(
    ("answer", "value", "share", "soft"),
    [
        ("apple pie", 1.0, 1.0, True),
        ("apple: pie", 0.5, 0.5, True),
        ("apple", 0.0, 1.0, False),
        ("an apple pie: mine", 0.0, 0.0, True),
    ],
)
async def test_the_share_of_rules_times_one_verdict(
    answer: str, value: float, share: float, soft: bool, sandbox: Sandbox
) -> None:
    model = CriteriaModel()
    grade = await reward(model, sandbox).grade(row(FEW, FRUITY, NO_COLON, SWEET), answer, "k")
    assert (grade.value, grade.rule_share, grade.soft) == (value, share, soft)
    (request,) = model.requests
    shown = blocks_of(request.messages[-1].content)
    assert shown["CRITERION 1"] == "- It says `apple`.\n- It says `pie`."
    assert "Rule" not in shown["CRITERION 1"] and "Name fruit." in shown["PROBLEM"]


async def test_nobody_is_asked_without_soft_constraints(sandbox: Sandbox) -> None:
    model = CriteriaModel(lost=1.0)
    grade = await reward(model, sandbox).grade(row(FEW, NO_COLON), "apple: pie", "k")
    assert (grade.value, grade.soft, model.requests) == (0.5, None, [])


async def test_rules_may_be_the_judges_or_nobodys(sandbox: Sandbox) -> None:
    model = CriteriaModel()
    constraints = row(rule("return False  # `apple`"), FRUITY)
    skipped = await reward(model, LostSandbox(workers=1), "skip").grade(constraints, "apple", "k")
    assert (skipped.value, skipped.rules) == (1.0, ())
    shown = blocks_of(model.requests[0].messages[-1].content)["CRITERION 1"]
    assert shown == "- It says `apple`.\n- Rule: return False  # `apple`"
    ignored = await reward(model, sandbox, "ignore").grade(constraints, "apple", "k")
    assert (ignored.value, ignored.rules) == (1.0, ())
    assert "Rule" not in blocks_of(model.requests[1].messages[-1].content)["CRITERION 1"]
    nothing = await reward(model, sandbox, "ignore").grade(row(FEW), "apple", "k")
    assert nothing.value is None and nothing.failure is not None
    assert "nothing to grade" in nothing.failure.message


async def test_a_function_gets_the_instruction_and_the_response(sandbox: Sandbox) -> None:
    response = 'it\'s "quoted" \\ \u2028 é \U0001f34e\nline 2 \ud800'
    body = f"return (instruction, response) == ('Which?', {response!r})"
    assert await run_rule(rule(body).function, "Which?", response, sandbox) == RuleResult(True)


async def test_a_result_is_read_as_true_or_false(sandbox: Sandbox) -> None:
    searched = rule("return re.search('pear', response) and re.search('pie', response)").function
    found = [await run_rule(searched, "Which?", r, sandbox) for r in ("pear pie", "pear", "pie")]
    assert found == [RuleResult(True), RuleResult(False), RuleResult(False)]


CRASHES = [
    ("return 1 / 0", "ZeroDivisionError"),
    ("return nowhere", "NameError"),
    ("import os; os._exit(0)", "ended"),
    ("return open('/etc/passwd').read() == ''", "Error"),
    ("import socket; socket.create_connection(('127.0.0.1', 9)); return True", "Error"),
    ("return (", "SyntaxError"),
]


@pytest.mark.parametrize(("body", "why"), CRASHES)
async def test_a_function_that_fails_on_any_response_leaves_the_mean(
    body: str, why: str, sandbox: Sandbox
) -> None:
    grade = await reward(CriteriaModel(), sandbox).grade(row(rule(body), FEW, FRUITY), "apple", "k")
    assert (grade.value, grade.rule_share, grade.failure) == (1.0, 1.0, None)
    assert [result.followed for result in grade.rules] == [None, True]
    (fault,) = grade.faults
    assert fault.startswith("file:1: ") and "Rule: " in fault and why in fault


async def test_an_endless_function_is_ended(sandbox: Sandbox) -> None:
    limits = Limits(cpu_seconds=0.2, wall_seconds=20.0)
    endless = rule("while True: pass").function
    result = await run_rule(endless, "Which?", "apple", sandbox, limits)
    assert result.followed is None and "timeout" in result.fault


async def test_a_response_that_breaks_a_sound_function_does_not_follow_it(sandbox: Sandbox) -> None:
    first = rule("return response.splitlines()[2] != 'x'")
    result = await run_rule(first.function, "Which?", "apple", sandbox)
    assert result.followed is False and "IndexError" in result.fault
    assert (await run_rule(first.function, "Which?", PLAIN_RESPONSE, sandbox)).followed


async def test_what_is_left_of_a_row_without_a_sound_rule(sandbox: Sandbox) -> None:
    broken = rule("return 1 / 0")
    soft = await reward(CriteriaModel(), sandbox).grade(row(broken, FRUITY), "apple", "k")
    assert (soft.value, soft.rule_share) == (1.0, 1.0)
    nothing = await reward(CriteriaModel(), sandbox).grade(row(broken), "apple", "k")
    assert nothing.value is None and nothing.failure is not None
    assert "no rule of the row can be run" in nothing.failure.message


async def test_a_lost_sandbox_is_ours() -> None:
    lost = LostSandbox(workers=1)
    grade = await reward(CriteriaModel(), lost).grade(row(FEW, FRUITY), "apple", "k")
    assert grade.value is None and grade.faults == ()
    assert grade.failure is not None and grade.failure.reason is Reason.SANDBOX_LOST


async def test_a_judge_that_is_gone_or_silenced(sandbox: Sandbox) -> None:
    gone = await reward(CriteriaModel(lost=1.0), sandbox).grade(row(FEW, FRUITY), "apple", "k")
    assert (gone.value, gone.rule_share, gone.soft) == (None, 1.0, None)
    assert gone.failure is not None and gone.failure.reason is Reason.JUDGE_FAILED
    mute = CriteriaModel(mutes=["hush"])
    floored = await reward(mute, sandbox).grade(row(FEW, FRUITY), "apple hush", "k")
    assert (floored.value, floored.soft, floored.floored) == (0.0, None, True)
    empty = await reward(mute, sandbox).grade(row(FEW, FRUITY), "<think>apple", "k")
    assert (empty.value, empty.floored) == (0.0, True)
