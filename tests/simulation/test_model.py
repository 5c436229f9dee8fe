"""The simulated model: its table, what it recognises, that right is right and wrong is wrong."""

import io
import json
import math
import random
import time
from contextlib import redirect_stdout

import pytest
from judge_doubles import question

from flowright.config.llm import SimulatedSection
from flowright.config.workflow import ExecutorSection, WorkflowSection
from flowright.core.errors import ConfigError
from flowright.data.task import Problem
from flowright.judging.verdict import JudgeQuery
from flowright.llm.chat import ChatReply, ChatRequest, Usage
from flowright.llm.replies import extract_code, final_answer as operators_final_answer
from flowright.sandbox import Sandbox
from flowright.simulation.assessor import Assessor, check_biases
from flowright.simulation.cues import JudgePrompt, TaskIndex, TaskPrompt, read_prompt
from flowright.simulation.draws import Draws, normal, unit
from flowright.simulation.solver import UNKNOWN, Solver, program
from flowright.simulation.table import REVIEW, TABLE, Way, mean_accuracy
from flowright.simulation.values import (
    WrongSolutions,
    final_answer,
    is_same,
    mutations,
    right_value,
    shape,
    stub,
)
from flowright.workflows.context import Budget, CallContext
from flowright.workflows.operators import OPERATORS


def math_task(n: int) -> Problem:
    question = (
        f"Farmer {n} has {n + 3} baskets with {2 * n + 5} pears each and gives away {n} pears at "
        f"market stall {n * 7 % 100}. How many pears are left?"
    )
    return Problem(f"math/{n}", "math", "farm", question, str((n + 3) * (2 * n + 5) - n))


def qa_task(n: int) -> Problem:
    question = f"Which of the rivers listed in atlas {n} on page {n * 13 % 997} is the longest one?"
    choices = (
        ("A", f"Aare {n}"),
        ("B", f"Birs {n}"),
        ("C", f"Calancasca {n}"),
        ("D", f"Drance {n}"),
    )
    return Problem(f"qa/{n}", "qa", "atlas", question, "ABCD"[n % 4], choices=choices)


def code_task(n: int) -> Problem:
    question = (
        f"def shifted_{n}(numbers: list[int]) -> list[int]:\n"
        f'    """Return the positive numbers, each raised by {n + 2}, in the order given."""\n'
    )
    body = f"    return [value + {n + 2} for value in numbers if value > 0]\n"
    name = f"shifted_{n}"
    return Problem(
        f"code/{n}",
        "code",
        "shift",
        question,
        question + body,
        entry_point=name,
        public_tests=(f"assert {name}([1]) == [{n + 3}]",),
        hidden_tests=(
            f"assert {name}([1, 0, -4, 5]) == [{n + 3}, {n + 7}]",
            f"assert {name}([]) == []",
        ),
    )


MATH, QA, CODE = math_task(4), qa_task(4), code_task(4)


def solver(*tasks: Problem, seed: int = 0) -> Solver:
    """A solver for tasks without code: the sandbox is never entered."""
    return Solver(tasks, seed, WrongSolutions(Sandbox(workers=1), seed, 4))


# The table.


@pytest.mark.parametrize("kind", TABLE)
def test_skills_give_the_accuracies_of_the_table(kind: str):
    table = TABLE[kind]  # pyright: ignore[reportArgumentType]
    count = 6000
    for way, skill in table.ways.items():
        total = sum(table.probability(way, normal("t", i) * table.spread) for i in range(count))
        assert total / count == pytest.approx(skill.accuracy, abs=0.015), way


def test_every_kind_has_every_way_that_is_drawn():
    drawn = set(Way) - {Way.REVIEW, Way.FORMAT}
    for table in TABLE.values():
        assert set(table.ways) == drawn
        assert all(skill.imitates for skill in table.ways.values())


def test_the_published_orders():
    maths, code, qa = TABLE["math"].ways, TABLE["code"].ways, TABLE["qa"].ways
    assert maths[Way.DIRECT].accuracy < maths[Way.STEPS].accuracy < maths[Way.PROGRAM].accuracy
    assert code[Way.STEPS].accuracy < code[Way.CODE].accuracy < code[Way.FIX_CODE].accuracy
    assert qa[Way.PROGRAM].accuracy < qa[Way.DIRECT].accuracy < qa[Way.STEPS].accuracy
    for table in TABLE.values():
        assert table.ways[Way.REVISE].accuracy < table.ways[Way.STEPS].accuracy


def test_mean_accuracy_at_a_hand_computed_point():
    assert mean_accuracy(0.0, 2.0, 1.0) == pytest.approx(0.5, abs=1e-9)
    # Without spread the mean is the sigmoid itself.
    assert mean_accuracy(1.0, 2.0, 1e-9) == pytest.approx(1 / (1 + math.exp(-2)), rel=1e-6)


def test_draws_are_uniform_and_independent_of_order():
    values = [unit("x", i) for i in range(4000)]
    assert sum(values) / 4000 == pytest.approx(0.5, abs=0.02)
    assert all(0 <= value < 1 for value in values)
    draws = Draws(1, "task", "steps")
    assert [draws.unit("b"), draws.unit("a")] == [Draws(1, "task", "steps").unit(n) for n in "ba"]
    shares = [Draws(i).popular("m", 3, (0.5, 0.3, 0.2, 0.9)) for i in range(4000)]
    assert shares.count(0) / 4000 == pytest.approx(0.5, abs=0.04)
    assert set(shares) == {0, 1, 2}


# Which task, which way.


def test_the_question_is_found_in_any_surroundings():
    tasks = [make(n) for make in (math_task, qa_task, code_task) for n in range(60)]
    index = TaskIndex(tasks)
    for task in tasks:
        assert index.find(task.problem) is task
        assert index.find(f'Solve this: "{task.problem}" Think first!') is task
        assert index.find(f"```\n{task.question.upper()}\n```") is task
    assert index.find("What is the capital of France, and how do you know?") is None
    assert index.find(math_task(777).question) is None


def test_half_of_a_long_question_is_enough():
    words = [f"word{i}" for i in range(200)]
    task = Problem("long", "qa", "s", " ".join(words), "x")
    index = TaskIndex([task])
    cut = " ".join([*words[:70], "...", *words[-60:]])
    assert index.find(cut) is task
    assert index.find(" ".join(words[:60])) is None


def test_the_context_decides_between_equal_questions():
    question = "Who scored the first touchdown of the game?"
    passages = [" ".join(f"p{n}w{i}" for i in range(80)) for n in range(40)]
    tasks = [
        Problem(f"q{n}", "qa", "drop", question, str(n), context=p) for n, p in enumerate(passages)
    ]
    index = TaskIndex(tasks)
    assert all(index.find(task.problem) is task for task in tasks)
    assert index.find(question) in tasks


def test_short_questions():
    tasks = [
        Problem(f"s{i}", "math", "s", text, "1") for i, text in enumerate(("7 * 6 =", "7 * 8 ="))
    ]
    index = TaskIndex(tasks)
    assert [index.find(f"Compute 7 * {n} = now") for n in (6, 8)] == tasks


class Recorder:
    """A ChatModel that keeps what operators ask and answers with ``reply``."""

    name = "recorder"

    def __init__(self, reply: str) -> None:
        self.reply = reply
        self.requests: list[ChatRequest] = []

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
        self.requests.append(request)
        return ChatReply(self.reply, "stop", Usage(1, 1, 1), "m", 0.0)


async def asked_by(
    operator: str, task: Problem, sandbox: Sandbox, **arguments: object
) -> list[TaskPrompt]:
    """What the simulated model understands of the prompts that an operator sends."""
    model = Recorder("```python\nprint(undefined_name)\n```")
    call = CallContext(
        graded=task,
        model=model,
        sandbox=sandbox,
        settings=ExecutorSection(),
        budget=Budget(WorkflowSection()),
        seed_key="k",
        clock_start=time.perf_counter(),
    )
    await OPERATORS[operator].run(call, **arguments)
    index = TaskIndex([MATH, QA, CODE])
    found = [read_prompt([(m.role, m.content) for m in r.messages], index) for r in model.requests]
    asks = [ask for ask in found if isinstance(ask, TaskPrompt)]
    assert len(asks) == len(found) > 0
    assert all(ask.task is task for ask in asks)
    return asks


async def test_the_operators_prompts_are_recognised():
    failed = f"The solution failed 1 of 1 tests.\n{CODE.public_tests[0]}\n# AssertionError"
    objection, approval = "Incorrect. There is a mistake in it.", "Correct. Nothing to change."
    async with Sandbox(workers=1) as sandbox:

        async def ways(name: str, task: Problem, **arguments: object) -> list[Way]:
            asks = await asked_by(name, task, sandbox, **arguments)
            return [ask.way for ask in asks]

        for task in (MATH, QA, CODE):
            problem, candidate = task.problem, task.reference
            both = {"problem": problem, "solution": candidate}
            plain = {"instruction": "Solve it.", "context": problem}
            assert await ways("generate", task, **plain) == [Way.DIRECT]
            plain["instruction"] = "Think step by step."
            assert await ways("generate", task, **plain) == [Way.DIRECT]  # it says: result only
            assert await ways("answer", task, problem=problem) == [Way.STEPS]
            tries = await ways("programmer", task, problem=problem)
            assert tries == [Way.PROGRAM, Way.FIX_PROGRAM, Way.FIX_PROGRAM]
            assert await ways("write_code", task, problem=problem) == [Way.CODE]
            assert await ways("review", task, **both) == [Way.REVIEW]
            assert await ways("format", task, **both) == [Way.FORMAT]
            for feedback in (objection, approval):
                assert await ways("revise", task, **both, feedback=feedback) == [Way.REVISE]
            solutions = [candidate, "something else"]
            assert await ways("ensemble", task, problem=problem, solutions=solutions) == [
                Way.CHOOSE
            ]
        repair = {"problem": CODE.problem, "feedback": failed}
        assert await ways("write_code", CODE, **repair) == [Way.FIX_CODE]
        assert await ways("revise", CODE, **repair, solution=CODE.reference) == [Way.FIX_CODE]
        repair["feedback"] = "The solution failed 1 of 1 tests."  # a claim, no failure
        assert await ways("write_code", CODE, **repair) == [Way.REVISE]
        repair["feedback"] = failed
        (ask,) = await asked_by("revise", CODE, sandbox, **repair, solution=CODE.reference)
        assert shape(ask.candidates[0]) == shape(CODE.reference)
        assert ask.feedback == failed


@pytest.mark.parametrize(
    ("prompt", "way"),
    [
        ("{q}", Way.DIRECT),
        ("{q}\nAnswer with the number only.", Way.DIRECT),
        ("Q: {q}\nA: Let's think step by step.", Way.STEPS),
        ("{q}\nPlease reason step by step, and put your answer within \\boxed{{}}.", Way.STEPS),
        ("{q}\n\nWrite a Python program that computes the answer and prints it.", Way.PROGRAM),
        ("Implement the following function.\n{q}", Way.CODE),
        ("Question: {q}\nSolution: I think 73.\nCheck the solution for mistakes.", Way.REVIEW),
        ("Question: {q}\nDraft: 73\nImprove the draft.", Way.REVISE),
        ("{q}\nCandidate 1: 73\nCandidate 2: 74\nWhich is best? Choose one.", Way.CHOOSE),
        ("{q}\n<solution>It is 73.</solution>\nExtract the final answer.", Way.FORMAT),
    ],
)
def test_other_peoples_prompts_are_recognised(prompt: str, way: Way):
    ask = read_prompt([("user", prompt.format(q=MATH.question))], TaskIndex([MATH, QA, CODE]))
    assert isinstance(ask, TaskPrompt)
    assert (ask.way, ask.task) == (way, MATH)


def test_the_problems_own_words_are_no_cues():
    question = "Think step by step about how to review and implement a function; write 7."
    task = Problem("cue", "qa", "s", question, "7")
    ask = read_prompt([("user", f"{question}\nJust the answer.")], TaskIndex([task]))
    assert isinstance(ask, TaskPrompt)
    assert ask.way is Way.DIRECT


def test_an_earlier_reply_is_a_candidate():
    conversation = [
        ("user", MATH.question),
        ("assistant", "It is 73."),
        ("user", "Please review your answer and find problems with it, if there are mistakes."),
    ]
    ask = read_prompt(conversation, TaskIndex([MATH]))
    assert isinstance(ask, TaskPrompt)
    assert (ask.way, ask.candidates) == (Way.REVIEW, ("It is 73.",))


def test_judge_prompts_are_recognised():
    index = TaskIndex([MATH, QA, CODE])
    for form in ("json_schema", "json_object", "text"):
        query = JudgeQuery(
            MATH.problem, "It is\n~~~~~~~\n12", "87", "number", ("87.0",), "passed 3 of 9 tests"
        )
        messages = [(m.role, m.content) for m in question(query).messages(form)]
        asked = read_prompt(messages, index)
        assert isinstance(asked, JudgePrompt)
        assert asked.task is MATH
        assert asked.answer == "It is\n~~~~~~~\n12"
        assert asked.references == ("87", "87.0")
        assert asked.evidence == "passed 3 of 9 tests"
    other = (
        "Question: what?\nReference answer: 12\nStudent answer: 13\nIs it correct? True or False."
    )
    asked = read_prompt([("user", other)], index)
    assert isinstance(asked, JudgePrompt)
    assert (asked.answer, asked.references) == ("13", ("12",))
    pair = (
        "Which answer is better?\nQuestion: what?\nAnswer A: 12\nAnswer B: 13\nReply with A or B."
    )
    asked = read_prompt([("user", pair)], index)
    assert isinstance(asked, JudgePrompt)
    assert (asked.answer, asked.rival) == ("12", "13")


# Values.


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("so \\boxed{1 + \\frac{2}{3}} it is", "1 + \\frac{2}{3}"),
        ("The answer is 12.", "12"),
        ("a\nAnswer: 3/4", "3/4"),
        ("**Answer:** yes", "yes"),
        ("<answer>left</answer>", "left"),
        ("work\n#### 1,080", "1,080"),
        ("first\nlast line", "last line"),
        ("", ""),
    ],
)
def test_final_answers(text: str, value: str):
    assert final_answer(text) == value


def test_same():
    choices = (("A", "red wine"), ("B", "blue"))
    assert is_same("1,080", ["1080"])
    assert is_same("$12.00", ["12"])
    assert is_same("The Blue River", ["blue river"])
    assert is_same("(A)", ["A"], choices)
    assert is_same("A. red wine", ["A"], choices)
    assert is_same("red wine", ["A"], choices)
    assert not is_same("B", ["A"], choices)
    assert not is_same("13", ["12"])
    assert not is_same("", ["12"])


def test_popular_mistakes_are_wrong_few_and_fixed():
    tasks = [make(n) for make in (math_task, qa_task) for n in range(60)]
    references = ("Yes", "3/4", "Zoey is a knight, Riley is a knave", "5 May 1998", "a, b, c", "x")
    texts = [
        Problem(f"t{i}", "qa", "s", f"question {i} of the set", reference)
        for i, reference in enumerate(references)
    ]
    known = solver(*tasks, *texts)
    again = solver(*reversed([*tasks, *texts]))
    for task in [*tasks, *texts]:
        mistakes = known.popular_mistakes(task)
        assert mistakes == again.popular_mistakes(task)
        assert 1 <= len(mistakes) <= 4
        assert len(set(mistakes)) == len(mistakes)
        assert not any(right_value(task, mistake) for mistake in mistakes)
    assert known.popular_mistakes(texts[0])[0] == "No"


@pytest.mark.parametrize("value", ["544", "-200", "0", "3.50", "-0.25", "3/4", 'it\'s\n"so"', "B"])
def test_programs_print_their_value(value: str):
    for n in range(5):
        for as_function in (False, True):
            source = program(value, Draws(n), crash=False, as_function=as_function)
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(source, {"__name__": "__main__"})  # our own code, no model's
            assert printed.getvalue() == f"{value}\n"
            crashing = program(value, Draws(n), crash=True, as_function=as_function)
            with pytest.raises(NameError):
                exec(crashing, {"__name__": "__main__"})


def test_the_seed_decides_which_tasks_are_hard():
    tasks = [math_task(n) for n in range(200)]
    first, same_seed, other = solver(*tasks), solver(*tasks), solver(*tasks, seed=1)
    difficulties = [first.difficulty(task) for task in tasks]
    assert difficulties == [same_seed.difficulty(task) for task in tasks]
    assert difficulties != [other.difficulty(task) for task in tasks]
    assert sum(difficulties) / 200 == pytest.approx(0.0, abs=0.25)


# Accuracy.


def share_of(outcomes: list[bool]) -> float:
    return sum(outcomes) / len(outcomes)


@pytest.mark.parametrize(("kind", "make"), [("math", math_task), ("qa", qa_task)])
async def test_measured_accuracy_is_the_tables(kind: str, make: object):
    tasks = [make(n) for n in range(400)]  # pyright: ignore[reportCallIssue]
    known = solver(*tasks)
    table = TABLE[kind]  # pyright: ignore[reportArgumentType]
    for way in (Way.DIRECT, Way.STEPS, Way.REVISE):
        outcomes: list[bool] = []
        expected: list[float] = []
        for task in tasks:
            probability = table.probability(way, known.difficulty(task))
            for sample in range(5):
                reply = await known.reply(
                    TaskPrompt(way, task, style="marked"), Draws(task.id, way, sample)
                )
                outcomes.append(right_value(task, operators_final_answer(reply)))
                expected.append(probability)
        deviation = math.sqrt(sum(p * (1 - p) for p in expected)) / len(expected)
        assert abs(share_of(outcomes) - sum(expected) / len(expected)) < 4 * deviation


async def test_programs_are_as_right_as_the_table_says():
    tasks = [math_task(n) for n in range(300)]
    known = solver(*tasks)
    right, crashed, expected = 0, 0, 0.0
    for task in tasks:
        expected += TABLE["math"].probability(Way.PROGRAM, known.difficulty(task))
        reply = await known.reply(TaskPrompt(Way.PROGRAM, task), Draws(task.id))
        printed = io.StringIO()
        try:
            with redirect_stdout(printed):
                exec(extract_code(reply), {"__name__": "__main__"})
        except NameError:
            crashed += 1
        right += printed.getvalue().strip() == task.reference
    assert abs(right - expected) < 4 * math.sqrt(300 * 0.25)
    assert crashed > 0


async def test_voting_beats_single_answers_and_programs_beat_prose():
    tasks = [math_task(n) for n in range(300)]
    known = solver(*tasks)
    chooser = random.Random(0)
    single: list[bool] = []
    voted: list[bool] = []
    for task in tasks:
        answers = [
            operators_final_answer(
                await known.reply(TaskPrompt(Way.STEPS, task, style="marked"), Draws(task.id, i))
            )
            for i in range(5)
        ]
        chooser.shuffle(answers)
        single += [answer == task.reference for answer in answers]
        voted.append(max(answers, key=answers.count) == task.reference)
    gain = share_of(voted) - share_of(single)
    assert 0.03 < gain < 0.18  # 0.09 expected; published: see the table


async def test_samples_of_a_task_are_alike():
    tasks = [math_task(n) for n in range(200)]
    known = solver(*tasks)
    shares = []
    for task in tasks:
        replies = [
            await known.reply(TaskPrompt(Way.DIRECT, task), Draws(task.id, sample))
            for sample in range(8)
        ]
        shares.append(share_of([right_value(task, reply) for reply in replies]))
    mean = sum(shares) / len(shares)
    variance = sum((share - mean) ** 2 for share in shares) / len(shares)
    assert variance > 2 * mean * (1 - mean) / 8  # twice that of independent draws


async def test_reviewing_without_feedback_hardly_helps():
    tasks = [qa_task(n) for n in range(500)]
    known = solver(*tasks)
    before: list[bool] = []
    after: list[bool] = []
    flags: dict[bool, list[bool]] = {True: [], False: []}
    for task in tasks:
        draft = await known.reply(TaskPrompt(Way.STEPS, task), Draws(task.id, "draft"))
        right = right_value(task, draft)
        review = await known.reply(TaskPrompt(Way.REVIEW, task, (draft,)), Draws(task.id, "review"))
        flags[right].append(review.startswith("Incorrect"))
        revised = await known.reply(
            TaskPrompt(Way.REVISE, task, (draft,), review), Draws(task.id, "revise")
        )
        before.append(right)
        after.append(right_value(task, revised))
    assert share_of(flags[True]) == pytest.approx(REVIEW.false_alarm, abs=0.08)
    assert share_of(flags[False]) == pytest.approx(REVIEW.hit, abs=0.11)
    assert -0.09 < share_of(after) - share_of(before) < 0.05


async def test_choosing_and_formatting():
    tasks = [math_task(n) for n in range(200)]
    known = solver(*tasks)
    chosen: list[bool] = []
    for task in tasks:
        wrong = known.popular_mistakes(task)
        candidates = (wrong[0], f"Answer: {task.reference}", wrong[1])
        reply = await known.reply(TaskPrompt(Way.CHOOSE, task, candidates), Draws(task.id))
        chosen.append(reply.endswith("Choice: 2"))
        alike = await known.reply(
            TaskPrompt(Way.CHOOSE, task, (wrong[0], wrong[1], wrong[1])), Draws(0)
        )
        assert alike.endswith("Choice: 2")
        right_text = f"So, in the end, we have \\boxed{{{task.reference}}}."
        formed = await known.reply(TaskPrompt(Way.FORMAT, task, (right_text,)), Draws(0))
        assert formed == f"Answer: {task.reference}"
        formed = await known.reply(
            TaskPrompt(Way.FORMAT, task, (f"I say {wrong[0]} pears",)), Draws(0)
        )
        assert formed == f"Answer: {wrong[0]}"
    assert share_of(chosen) == pytest.approx(TABLE["math"].ways[Way.CHOOSE].accuracy, abs=0.13)


async def test_an_unknown_question_gets_a_plain_reply():
    assert await solver(MATH).reply(TaskPrompt(Way.STEPS, None), Draws(0)) == UNKNOWN
    assert "simulated" in UNKNOWN


# Code.


def test_mutations_are_programs_and_differ():
    found = list(mutations(CODE.reference, 0))
    assert len(found) >= 4
    assert len({shape(text) for text in found} | {shape(CODE.reference)}) == len(found) + 1
    assert found == list(mutations(CODE.reference, 0))
    assert found != list(mutations(CODE.reference, 1))
    assert list(mutations("not python at all (", 0)) == []


async def test_wrong_code_really_fails_and_right_code_passes():
    tasks = [code_task(n) for n in range(6)]
    async with Sandbox(workers=1) as sandbox:
        wrong = WrongSolutions(sandbox, 0, 4)
        for task in tasks:
            mistakes = await wrong.of(task)
            assert mistakes == await wrong.of(task)
            for place, mistake in enumerate(mistakes):
                hidden = await sandbox.check(mistake, "", task.hidden_tests, task.entry_point)
                assert not hidden.passed
                public = await sandbox.check(mistake, "", task.public_tests, task.entry_point)
                assert not public.passed or place == len(mistakes) - 1
        known = Solver(tuple(tasks), 0, wrong)
        outcomes: set[bool] = set()
        for task in tasks:
            for sample in range(6):
                reply = await known.reply(TaskPrompt(Way.CODE, task), Draws(task.id, sample))
                code = extract_code(reply)
                report = await sandbox.check(code, "", task.hidden_tests, task.entry_point)
                assert report.passed == known.is_right(task, code)
                outcomes.add(report.passed)
        assert outcomes == {True, False}


async def test_a_task_whose_mutants_all_pass_gets_a_stub():
    task = Problem(
        "lenient", "code", "s", "def f(): ...", "def f(x):\n    return x + 1\n",
        entry_point="f", hidden_tests=("assert callable(f)",),
    )  # fmt: skip
    async with Sandbox(workers=1) as sandbox:
        assert await WrongSolutions(sandbox, 0, 4).of(task) == (stub(task),)


async def test_test_feedback_pays_more_than_another_try():
    tasks = [code_task(n) for n in range(30)]
    async with Sandbox(workers=1) as sandbox:
        known = Solver(tuple(tasks), 0, WrongSolutions(sandbox, 0, 4))
        fixed: list[bool] = []
        again: list[bool] = []
        for task in tasks:
            for sample in range(8):
                first = await known.reply(TaskPrompt(Way.CODE, task), Draws(task.id, sample))
                if known.is_right(task, first):
                    continue
                repair = TaskPrompt(Way.FIX_CODE, task, (first,), "it failed")
                second = await known.reply(repair, Draws(task.id, sample, "fix"))
                assert shape(extract_code(second)) != shape(extract_code(first))
                fixed.append(known.is_right(task, second))
                fresh = await known.reply(TaskPrompt(Way.CODE, task), Draws(task.id, sample, "new"))
                again.append(known.is_right(task, fresh))
    assert len(fixed) > 60
    assert share_of(fixed) > share_of(again) + 0.04


# The judge.


def assessor(**section: object) -> Assessor:
    return Assessor(SimulatedSection.model_validate(section), solver(MATH, QA, CODE))


def verdicts(judge: Assessor, asked: JudgePrompt, count: int = 1500) -> float:
    """The share of True verdicts over draws."""
    replies = [judge.reply(asked, Draws(i), {"type": "json_object"}) for i in range(count)]
    return share_of([json.loads(reply)["verdict"] for reply in replies])


def test_the_confusion_matrix():
    judge = assessor(judge_true_positive=0.9, judge_false_positive=0.2)
    right = JudgePrompt("q", f"The answer is {MATH.reference}.", (MATH.reference,), MATH)
    wrong = JudgePrompt("q", "The answer is 3.", (MATH.reference,), MATH)
    assert verdicts(judge, right) == pytest.approx(0.9, abs=0.035)
    assert verdicts(judge, wrong) == pytest.approx(0.2, abs=0.045)


def test_evidence_outweighs_reading():
    judge = assessor()
    passed = JudgePrompt("q", "code", ("ref",), CODE, "The hidden tests: passed 9 of 9.")
    failed = JudgePrompt("q", CODE.reference, (CODE.reference,), CODE, "passed 8 of 9")
    assert judge.is_right(passed, passed.answer)
    assert not judge.is_right(failed, failed.answer)


@pytest.mark.parametrize(
    ("bias", "answer"),
    [
        ("verbosity", "wrong " * 250),
        ("authority", "According to experts it is 3."),
        ("master_key", "Thought process:"),
        ("self_preference", "Let me work through this carefully.\nAnswer: 3"),
        ("sycophancy", "A great question! As you rightly expect, it is 3."),
        ("self_certification", "It is 3. I have checked this answer twice."),
        ("lexical", "Let us delve into it.\nAnswer: 3"),
    ],
)
def test_planted_biases(bias: str, answer: str):
    asked = JudgePrompt("q", answer, (MATH.reference,), MATH)
    fair = verdicts(assessor(), asked, 400)
    biased = verdicts(assessor(judge_biases={bias: 0.6}), asked, 400)
    assert biased - fair == pytest.approx(0.6, abs=0.1)
    plain = JudgePrompt("q", "3", (MATH.reference,), MATH)
    assert verdicts(assessor(judge_biases={bias: 0.6}), plain, 400) < 0.1


def test_position_bias_and_pairs():
    def first_wins(judge: Assessor, first: str, second: str) -> float:
        asked = JudgePrompt("q", first, (MATH.reference,), MATH, rival=second)
        form = {"type": "json_object"}
        replies = [judge.reply(asked, Draws(i), form) for i in range(600)]
        return share_of([json.loads(reply)["verdict"] == "A" for reply in replies])

    right, wrong = MATH.reference, "3"
    assert first_wins(assessor(), right, wrong) > 0.9
    assert first_wins(assessor(), wrong, right) < 0.1
    assert first_wins(assessor(), wrong, "4") == pytest.approx(0.5, abs=0.08)
    biased = assessor(judge_biases={"position": 0.6})
    assert first_wins(biased, wrong, "4") == pytest.approx(0.8, abs=0.08)


def test_a_criterion_that_quotes_nothing_holds_by_its_words():
    """Four words count; half of them are enough, and a line about a fault is turned round."""
    judge = assessor(judge_true_positive=0.9, judge_false_positive=0.1)

    def holds(criterion: str, answer: str) -> float:
        asked = JudgePrompt("q", answer, (), None, criteria={"criterion_1": criterion})
        form = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
        replies = [judge.reply(asked, Draws(i), form) for i in range(600)]
        return share_of([json.loads(reply)["criterion_1"] for reply in replies])

    about = "It describes rivers, lakes and islands."
    assert holds(about, "Nothing.") == pytest.approx(0.1, abs=0.05)
    assert holds(about, "Rivers.") == pytest.approx(0.5, abs=0.08)
    assert holds(about, "Rivers and lakes.") == pytest.approx(0.9, abs=0.05)
    assert holds(f"It omits: {about}", "Rivers, lakes, islands.") == pytest.approx(0.1, abs=0.05)


SCHEMA = {"type": "object", "properties": {"criterion_1": {"type": "boolean"}}}


def test_one_criterion_is_answered_in_brackets():
    judge = assessor(judge_true_positive=1.0, judge_false_positive=0.0)
    said = "Begin with [[1]] if the value is true, and [[0]] if it is false."
    for answer, verdict in (("a lemon", "[[1]]"), ("a fig", "[[0]]")):
        criteria = {"criterion_1": 'It says "lemon".'}
        asked = JudgePrompt("q", answer, (), None, criteria=criteria, instruction=said)
        assert judge.reply(asked, Draws(0), None).startswith(verdict)


def test_an_unknown_bias_is_a_mistake():
    with pytest.raises(ConfigError, match="did you mean verbosity"):
        check_biases(SimulatedSection(judge_biases={"verbosit": 0.5}))


QUERY = JudgeQuery("q", "a", "r")


def test_verdicts_come_in_the_form_asked_for():
    asked = JudgePrompt("q", MATH.reference, (MATH.reference,), MATH)
    judge = assessor(judge_true_positive=1.0)
    assert judge.reply(asked, Draws(0), None).endswith("\nVerdict: True")
    schema = json.loads(
        judge.reply(asked, Draws(0), question(QUERY).response_format("json_schema"))
    )
    assert schema == {"reason": schema["reason"], "verdict": True}
    menu = {
        "type": "json_schema",
        "json_schema": {
            "schema": {
                "properties": {
                    "grade": {"enum": ["INCORRECT", "CORRECT"]},
                    "score": {"type": "integer"},
                    "why": {"type": "string"},
                }
            }
        },
    }
    assert json.loads(judge.reply(asked, Draws(0), menu))["grade"] == "CORRECT"
    assert json.loads(judge.reply(asked, Draws(0), menu))["score"] in (3, 4)
