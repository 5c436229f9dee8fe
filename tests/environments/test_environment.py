"""The environment of instructions: completions in, rewards, metrics and records out."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from criteria_doubles import CriteriaModel
from judge_serving import served

from flowright.config.judge import JudgeSection, JudgeServerSection
from flowright.config.root import Config
from flowright.core.errors import ConfigError, DataError, Reason, UserError
from flowright.core.report import Fact
from flowright.criteria.rubrics.rows import Constraint, VerifRow
from flowright.environments.base import make_environment
from flowright.environments.display import blocks_of, display_of
from flowright.environments.episode import Episode
from flowright.environments.instructions.environment import InstructionsEnvironment
from flowright.environments.instructions.grader import grader_of, judge_of, open_grader
from flowright.environments.instructions.reward import (
    JudgedGrader,
    RankingGrader,
    instruction_metrics,
    record_of,
    roll_out,
)
from flowright.environments.instructions.tasks import InstructionTask, task_of
from flowright.environments.registry import make_config
from flowright.environments.rollout import Rollout, outcome_metrics, to_record
from flowright.evaluation.evaluator import make_row
from flowright.judging.group_judge import GroupJudge
from flowright.judging.service.app import create_app
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.llm.chat import ChatModel, Message
from flowright.policy.sampling import Sample
from flowright.sandbox import Sandbox

SMALL = {"train": 30, "held_out": 10}


def config_of(**instructions: object) -> Config:
    keys = {"known_rule": SMALL, **instructions}
    return make_config({"environment": "instructions", "instructions": keys})


def environment(**instructions: object) -> InstructionsEnvironment:
    made = make_environment(config_of(**instructions))
    assert isinstance(made, InstructionsEnvironment)
    return made


def completions(task: InstructionTask, *answers: str) -> list[Episode]:
    return [
        Episode.single(task, Sample((1,), (0.0,), text, "stop", 0), f"1/{task.id}/{n}")
        for n, text in enumerate(answers)
    ]


async def played(
    model: ChatModel, sandbox: Sandbox, task: InstructionTask, *answers: str, **keys: object
) -> list[Rollout]:
    """One group of answers, judged by this model."""
    config = config_of(**keys)
    config = config.model_copy(
        update={"judge": config.judge.model_copy(update={"max_attempts": 2})}
    )
    grader = grader_of(config, judge_of(config, model), sandbox)
    (rollouts,) = await roll_out(grader, [completions(task, *answers)])
    return rollouts


def values(rollouts: Sequence[Rollout]) -> list[float | None]:
    return [rollout.reward.value for rollout in rollouts]


def words_of(task: InstructionTask) -> tuple[list[str], str]:
    """The words that a prompt of the known rule asks for, and the one to leave out."""
    named, left_out = task.question.removeprefix("Name ").removesuffix(".").split(". Leave out ")
    return named.split(", "), left_out


def test_the_tasks_of_the_known_rule_are_the_same_for_every_reward() -> None:
    asked = []
    for reward in ("rubric", "verif", "constraints", "judge"):
        made = environment(reward=reward)
        sets = made.tasks()
        assert (len(sets.train), len(sets.val)) == (30, 10)
        asked.append([task.question for task in (*sets.train, *sets.val)])
        assert made.task_notes()[0].startswith("SYNTHETIC")
    assert asked[0] == asked[1] == asked[2] == asked[3] and len({*asked[0]}) == 40
    with pytest.raises(ConfigError, match="half as many rows"):
        environment(known_rule={"words": 1, "train": 1000}).tasks()


async def test_constraints_earn_all_or_their_share() -> None:
    made = environment(reward="constraints")
    task = made.tasks().train[0]
    assert isinstance(task, InstructionTask)
    named, left_out = words_of(task)
    every = ", ".join(named)
    answers = (every, f"{every}, {left_out}", left_out, "", f"<think>{left_out}</think>{every}")
    for score, earned in (("all", [1, 0, 0, 0, 1]), ("share", [1, 0.5, 0, 0, 1])):
        made = environment(reward="constraints", constraints_score=score)
        async with made.open([task]):
            (rollouts,) = await made.rollout([completions(task, *answers)])
            assert values(rollouts) == earned
            assert [rollout.gold_score for rollout in rollouts] == [1, 0, 0, 0, 1]
            metrics = made.summarise(rollouts)
            assert metrics["reward/by_source/known_rule"] == pytest.approx(sum(earned) / 5)
            assert metrics["instructions/met"] == pytest.approx(5 / 10)
            assert metrics["instructions/floored"] == 1 / 5
            assert made.counters() == () and made.simulated is False
            assert made.reward_bounds is None, "it tells who follows all"


class LongIsGood:
    """A judge by length alone: a hundred letters are worth 1. A silent one says nothing of ``?``,
    and the checkers are not its business."""

    name = "long is good"

    async def judge(self, query: JudgeQuery) -> Verdict:
        assert query.reference == "" and not query.criteria and query.question
        if query.answer == "?":
            return Verdict(None, None, "llm", "unavailable", "nobody is there")
        score = min(1.0, len(query.answer) / 100)
        return Verdict(score, score >= 0.5, "llm", "ok", f"{len(query.answer)} letters")


async def test_a_judge_rewards_and_checkers_say_what_an_answer_is_worth() -> None:
    made = environment(reward="judge")
    task = _known(made.tasks().train[0])
    named, _ = words_of(task)
    every = ", ".join(named)
    answers = ("x" * 80, every, f"<think>{'x' * 99}</think>{every}", "?")
    grader = JudgedGrader(LongIsGood(), made.config.instructions)
    (rollouts,) = await roll_out(grader, [completions(task, *answers)])
    assert values(rollouts) == [0.8, len(every) / 100, len(every) / 100, None]
    assert [rollout.gold_score for rollout in rollouts] == [0, 1, 1, 0]
    lost = rollouts[-1].failure
    assert lost and lost.reason is Reason.JUDGE_FAILED and "nobody is there" in lost.message
    metrics = outcome_metrics(rollouts) | instruction_metrics(rollouts)
    assert metrics["judge/drift"] == pytest.approx(1 / 3 - 2 / 3)
    assert metrics["instructions/met"] == pytest.approx(6 / 8), "by the checkers, of all four"
    assert made.reward_bounds is None, "the table has gold and judge side by side"


async def test_a_judge_service_rewards_answers_to_prompts() -> None:
    app = create_app(LongIsGood(), JudgeServerSection(), simulated=True)
    async with served(app) as (url, _):
        config = make_config(
            {
                "environment": "instructions",
                "instructions": {"reward": "judge", "known_rule": SMALL},
                "judge": {"service": {"judge_url": url}},
            }
        )
        assert config.models == frozenset() and config.judge_names == (url,)
        made = make_environment(config)
        assert await dict(made.checks())["judge"]() == f"judge service at {url}"
        task = _known(made.tasks().train[0])
        async with made.open([task]):
            (rollouts,) = await made.rollout([completions(task, "x" * 60, ":", "y")])
            assert values(rollouts) == [0.6, 0, 0.01], "the gate knows a lone colon"
            assert made.simulated, "as the service says of itself"
            assert any(url in line for line in made.introduction())
            assert made.about()["judge"] == url and made.counters()
    with pytest.raises(UserError, match="judge"):
        await dict(made.checks())["judge"]()


async def test_a_model_judges_answers_without_a_reference() -> None:
    """Asked for a score or a grade in words that speak of no reference."""
    config = config_of(reward="judge")
    for ask, start in (("score", "How good is"), ("pointwise", "What grade")):
        asked = config.model_copy(
            update={"judge": config.judge.model_copy(update={"ask": ask, "temperature": 0.0})}
        )
        async with open_grader(asked) as opened:
            task = _known(environment(reward="judge").tasks().train[0])
            (rollouts,) = await roll_out(opened.grader, [completions(task, "forest, river")])
            verdict = rollouts[0].verdict
            assert verdict and verdict.replies and start in verdict.replies[0].prompt
            assert "reference" not in verdict.replies[0].prompt.split("FINAL ANSWER")[-1].lower()


async def test_the_loose_reading_forgives_a_first_line() -> None:
    row = {"key": 1, "prompt": "No commas.", "kwargs": [{}]}
    row["instruction_id_list"] = ["punctuation:no_comma"]
    for reading, earned in (("strict", 0), ("loose", 1)):
        made = environment(reward="constraints", reading=reading)
        (task,) = tasks_of(made, [row])
        async with made.open([task]):
            (rollouts,) = await made.rollout([completions(task, "Sure, here:\nNone at all.")])
        assert values(rollouts) == [earned]


def tasks_of(made: InstructionsEnvironment, rows: Sequence[Any]) -> list[InstructionTask]:
    """Tasks of a file with these rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder) / "rows.jsonl", *rows)
        return [task for task in made.read_tasks(str(path)) if isinstance(task, InstructionTask)]


def written(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def rubric_row(asked: str, *items: tuple[str, float], system: str = "") -> dict[str, Any]:
    turns = [{"role": "system", "content": system}] * bool(system)
    rubrics = [{"criterion": text, "points": points, "tags": {}} for text, points in items]
    return {
        "prompt": [*turns, {"role": "user", "content": asked}],
        "data_source": "fruit",
        "reward_model": {"style": "rubric", "rubrics": rubrics},
    }


FRUIT = rubric_row("Which?", ("It says `fig`.", 3), ("It says `plum`.", -1), system="Name fruit.")


async def test_a_rubric_earns_its_points_and_a_lost_judge_nothing(sandbox: Sandbox) -> None:
    (task,) = tasks_of(environment(), [FRUIT])
    assert environment().messages(task) == [
        Message("system", "Name fruit."), Message("user", "Which?"),
    ]  # fmt: skip
    rollouts = await played(CriteriaModel(), sandbox, task, "fig", "fig, plum", "plum", "")
    assert values(rollouts) == [1, pytest.approx(2 / 3), 0, 0]
    sources = [rollout.verdict.source for rollout in rollouts if rollout.verdict]
    assert sources == ["llm", "llm", "llm", "floor"]
    row = make_row("p", "policy", [rollouts], environment())
    assert row.sources["fruit"].headline.value == pytest.approx(5 / 12)
    lost = await played(CriteriaModel(lost=1.0), sandbox, task, "fig", "plum")
    assert values(lost) == [None, None]
    assert {r.failure.reason for r in lost if r.failure} == {Reason.JUDGE_FAILED}
    every = [*rollouts, *lost]
    metrics = outcome_metrics(every) | instruction_metrics(every)
    assert metrics["rollout/unscored"] == 2 / 6
    assert metrics["instructions/ungraded"] == 2 / 6
    assert metrics["reward/by_source/fruit"] == pytest.approx(5 / 12)
    assert metrics["instructions/penalties_met"] == pytest.approx(2 / 3)


async def test_verif_earns_its_rules_times_one_verdict(sandbox: Sandbox) -> None:
    source = "def check_following(instruction, response):\n    return {}\n"
    constraints = (
        Constraint("Say `fig`.", "soft"),
        Constraint("No comma.", "rule", source.format("',' not in response")),
        Constraint("Broken.", "rule", source.format("1 / 0")),
    )
    turns = tasks_of(environment(), [FRUIT])[0].conversation
    task = task_of(VerifRow(turns, constraints, "fruit", "", "f:1"), "fruit", "f:1")
    rollouts = await played(CriteriaModel(), sandbox, task, "fig", "fig, plum", "p", reward="verif")
    assert values(rollouts) == [1, 0, 0]
    own = record_of(rollouts[1])["instructions"]
    assert [(part["by"], part["met"]) for part in own["parts"]] == [
        ("rule", False), ("rule", None), ("judge", True),
    ]  # fmt: skip
    assert "Broken" in own["faults"][0]
    skipped = await played(
        CriteriaModel(), sandbox, task, "fig, plum", reward="verif", rules="skip"
    )
    assert values(skipped) == [1] and len(record_of(skipped[0])["instructions"]["parts"]) == 1


async def test_records_show_who_said_what(sandbox: Sandbox) -> None:
    (task,) = tasks_of(environment(), [FRUIT])
    for model, shown in ((CriteriaModel(), "holds"), (CriteriaModel(lost=1.0), "ungraded")):
        (rollout,) = await played(model, sandbox, task, "fig")
        record = json.loads(json.dumps(to_record(rollout, record_of(rollout), 1, 0, 0, None)))
        display = display_of({"environment": "instructions"})
        fact = next(block for block in blocks_of(display, record) if isinstance(block, Fact))
        assert (fact.name, fact.detail) == (shown, "by judge, +3 points")


def test_rows_that_are_held_out_are_not_trained_on(tmp_path: Path) -> None:
    rows = [rubric_row(f"Question {n}?", ("It says so.", 1)) for n in range(8)]
    train = written(tmp_path / "train-1.jsonl", *rows)
    files = {"data": "files", "train_files": [str(tmp_path / "train-*.jsonl")]}
    sets = environment(**files, held_out=3).tasks()
    assert (len(sets.train), len(sets.val)) == (5, 3)
    assert not {t.question for t in sets.train} & {t.question for t in sets.val}
    assert environment(**files, held_out=3).tasks() == sets
    val = written(tmp_path / "val.jsonl", *rows[:2])
    made = environment(**files, val_files=[str(val)])
    sets = made.tasks()
    assert (len(sets.train), len(sets.val)) == (6, 2)
    assert "held out 2" in made.task_notes()[0]
    written(train, *rows[:2])
    with pytest.raises(DataError, match="are held out, too"):
        environment(**files, val_files=[str(val)]).tasks()
    with pytest.raises(DataError, match="no such file"):
        environment(data="files", train_files=["nowhere/*.jsonl"]).tasks()


def test_prompts_that_are_too_long_are_left_out_cut_or_an_error() -> None:
    made = environment()
    sets = made.tasks()

    def tokens(messages: Sequence[Message]) -> int:
        return 100 if messages[0].content == sets.train[0].question else 10

    fitted = made.fitted(sets, tokens, 50)
    assert len(fitted.train) == 29 and "1 of 30 rows over 50; 0 cut, 1 dropped" in str(
        made.task_notes()
    )
    assert len(environment(overlong="cut").fitted(sets, tokens, 50).train) == 30
    with pytest.raises(DataError, match="1 of 30 rows have more than 50 tokens"):
        environment(overlong="error").fitted(sets, tokens, 50)
    with pytest.raises(DataError, match="all 30 prompts"):
        environment().fitted(sets, tokens, 5)


def test_scaffolds_show_less_and_less_to_the_policy() -> None:
    shown = {"enabled": True, "decay": "step_linear"}
    made = environment(scaffolding=shown)
    task = made.tasks().train[0]
    first = made.scaffolds(task, 1, 11, 4)
    assert first is not None and first == made.scaffolds(task, 1, 11, 4)
    assert [seen.messages[0].role for seen in first] == ["system", "system", "system", "user"]
    assert [seen.messages[-1] for seen in first] == made.messages(task) * 4
    listed = [seen.messages[0].content.count("point") for seen in first]
    assert listed[0] > listed[2]
    last = made.scaffolds(task, 11, 11, 4)
    assert last is not None and [list(seen.messages) for seen in last] == [made.messages(task)] * 4
    assert environment().scaffolds(environment().tasks().train[0], 1, 11, 4) is None


def test_scaffolding_needs_criteria(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rows of reward: verif have no rubric"):
        config_of(reward="verif", scaffolding={"enabled": True})
    truth = json.dumps({"checkers": ["Say so. [llm]"], "functions": [""]})
    rows = [
        {**rubric_row(f"Question {n}?"), "reward_model": {"ground_truth": truth}} for n in range(4)
    ]
    train = written(tmp_path / "verif.jsonl", *rows)
    rubrics = [rubric_row(f"Question {n}?", ("It says `fig`.", 1)) for n in range(4)]
    files = {
        "reward": "verif",
        "data": "files",
        "train_files": [str(train)],
        "scaffolding": {"enabled": True, "files": [str(tmp_path / "rubrics.jsonl")]},
    }
    written(tmp_path / "rubrics.jsonl", *rubrics)
    made = environment(**files)
    scaffolds = made.scaffolds(made.tasks().train[0], 1, 10, 2)
    assert scaffolds is not None and "fig" in scaffolds[0].messages[0].content
    written(tmp_path / "rubrics.jsonl", rubrics[0])
    with pytest.raises(ConfigError, match="have no rubric there"):
        environment(**files).tasks()


def test_rows_of_which_nothing_is_left_are_left_out_by_name(tmp_path: Path) -> None:
    source = "def check_following(instruction, response):\n    return True\n"
    rows = [
        {
            **rubric_row(f"Question {n}?"),
            "reward_model": {"ground_truth": json.dumps({"checkers": kinds, "functions": code})},
        }
        for n, (kinds, code) in enumerate(
            [(["So. [llm]"], [""]), (["So. [rule]"], [source]), (["And so. [llm]"], [""])]
        )
    ]
    file = str(written(tmp_path / "rows.jsonl", *rows))
    keys = {"reward": "verif", "data": "files", "train_files": [file]}
    for rules, used in (("run", 3), ("skip", 3), ("ignore", 2)):
        made = environment(**keys, rules=rules)
        sets = made.tasks()
        assert len(sets.train) + len(sets.val) == used
    assert "has rules alone" in made.task_notes()[1]
    written(tmp_path / "rows.jsonl", rows[1])
    with pytest.raises(DataError, match="every row has rules alone"):
        environment(**keys, rules="ignore").tasks()


def test_what_the_judge_will_be_asked_is_planned() -> None:
    for keys, calls in (
        ({"reward": "rubric"}, 1),
        ({"reward": "rubric", "criteria_calls": "each"}, 3),
        ({"reward": "verif"}, 1),
        ({"reward": "constraints"}, 0),
        ({"reward": "judge"}, 1),
    ):
        made = environment(**keys)
        assert made.planned_calls(made.tasks().train) == {"executor": 0, "judge": calls}
    keys = {"environment": "instructions", "instructions": {"reward": "judge"}}
    group = {"method": "list", "orders": 4}
    made = make_environment(
        make_config({**keys, "judge": {"group": group}, "grpo": {"group_size": 8}})
    )
    assert made.planned_calls(made.tasks().train)["judge"] == 4 / 8


async def test_answers_to_a_prompt_are_ranked_and_checkers_give_the_gold() -> None:
    class Longer(LongIsGood):
        async def judge(self, query: JudgeQuery) -> Verdict:
            assert query.rival is not None and not query.instruction
            score = float(len(query.answer) > len(query.rival))
            return Verdict(score, score > 0.5, "llm", "ok", "it is longer")

    made = environment(reward="judge")
    task = _known(made.tasks().train[0])
    every = ", ".join(words_of(task)[0])
    section = JudgeSection.model_validate({"group": {"method": "round_robin"}})
    single = JudgedGrader(LongIsGood(), made.config.instructions)
    grader = RankingGrader(GroupJudge(section, Longer(), None), single)
    answers = ("x" * 80, every, f"<think>{'x' * 99}</think>{every}", "?")
    (rollouts,) = await roll_out(grader, [completions(task, *answers)])
    assert values(rollouts) == [1, 1 / 2, 1 / 2, 0]
    assert [rollout.gold_score for rollout in rollouts] == [0, 1, 1, 0]
    metrics = outcome_metrics(rollouts) | instruction_metrics(rollouts)
    assert metrics["judge/agreement_with_gold"] == 0.5, "each right one beats one of two wrong ones"
    (alone,) = (await roll_out(grader, [completions(task, every)]))[0]
    assert (alone.reward.value, alone.failure, alone.gold_score) == (None, None, 1)


@pytest.mark.parametrize("method", ["round_robin", "swiss", "list"])
async def test_the_embedded_judge_ranks_a_group(method: str) -> None:
    config = make_config(
        {
            "environment": "instructions",
            "instructions": {"reward": "judge", "known_rule": SMALL},
            "judge": {"group": {"method": method}},
        }
    )
    made = make_environment(config)
    task = _known(made.tasks().train[0])
    async with made.open([task]):
        (rollouts,) = await made.rollout([completions(task, "forest", "river", "lake", "")])
        assert all(value is not None and 0 <= value <= 1 for value in values(rollouts))
        assert values(rollouts)[-1] == 0
        verdict = rollouts[0].verdict
        assert verdict is not None and verdict.judge == "simulated"
        record = to_record(rollouts[0], made.record(rollouts[0]), 1, 0, 0, None)
        assert record["verdict"]["standing"]["of"] == 4


def test_only_answers_are_ranked() -> None:
    ranked = {"judge": {"group": {"method": "list"}}}
    for keys, problem in (
        ({"environment": "instructions"}, "judge.group.method: list needs environment: workflow"),
        ({"environment": "judging"}, "judge.group.method: list needs environment: workflow"),
        (
            {"grpo": {"group_size": 27}},
            "group_size: 27; judge.group needs at least 2 and at most 26",
        ),
        ({"reward": {"cost_weight": 0.1}}, "reward.cost_weight"),
    ):
        with pytest.raises(ValueError, match=problem):
            make_config({**keys, **ranked})


def test_demonstrations_give_no_choice_away() -> None:
    """They copy words of the prompt, those that pay as often as the one that costs."""
    made = environment()
    sets = made.tasks()
    shown = made.demonstrations(sets.train, 400, 1, 0)
    assert shown == made.demonstrations(sets.train, 400, 1, 0)
    ours = {task.question: words_of(task) for task in map(_known, sets.train)}
    named = left_out = 0
    for one in shown:
        wanted, other = ours[one.messages[0].content]
        said = one.completions[0].removeprefix("Take ").removesuffix(".").split(", ")
        assert said == [word for word in (*wanted, other) if word in said], "in the prompt's order"
        named += sum(word in wanted for word in said)
        left_out += other in said
    assert named / 2 == pytest.approx(left_out, rel=0.15)
    assert left_out == pytest.approx(400 * 4 / 7, rel=0.15)  # in 4 of 7 choices of some of 3 words


def _known(task: object) -> InstructionTask:
    assert isinstance(task, InstructionTask)
    return task


def test_variables_say_what_becomes_of_rules_where_the_section_is_silent() -> None:
    section = config_of(reward="verif").instructions
    assert section.with_rules({}).rules == "run"
    assert section.with_rules({"VERIF_SKIP_RULES": "1"}).rules == "skip"
    assert section.with_rules({"VERIF_IGNORE_RULES": "true"}).rules == "ignore"
    said = config_of(reward="verif", rules="run").instructions
    assert said.with_rules({"VERIF_SKIP_RULES": "1"}).rules == "run"
    with pytest.raises(ConfigError, match="set one of them"):
        section.with_rules({"VERIF_SKIP_RULES": "1", "VERIF_IGNORE_RULES": "1"})
    with pytest.raises(ConfigError, match="VERIF_SKIP_RULES=maybe"):
        section.with_rules({"VERIF_SKIP_RULES": "maybe"})


def test_only_a_model_judges_criteria() -> None:
    for judge in ({"panel": ["a"]}, {"mode": "rules"}, {"samples": 3}):
        with pytest.raises(ValueError, match="judged by one model"):
            make_config({"environment": "instructions", "judge": judge})
    for judge in ({"mode": "rules"}, {"ask": "rubric"}, {"ask": "pairwise"}):
        keys = {"environment": "instructions", "instructions": {"reward": "judge"}}
        with pytest.raises(ValueError, match=r"instructions\.reward: judge"):
            make_config({**keys, "judge": judge})
    config = config_of(reward="constraints")
    assert config.models == frozenset() and config.judge_model is None
    assert config_of().models == {"simulated"}


async def test_the_embedded_judge_reads_criteria_and_brackets() -> None:
    """Of the criteria that quote words it says whether the answer has them; of others the more
    surely the more of their words it has."""
    for reply in ("schema", "brackets"):
        config = config_of(reward="verif", rules="skip", reply=reply)
        judged = config.model_copy(
            update={
                "simulated": config.simulated.model_copy(
                    update={"judge_true_positive": 1.0, "judge_false_positive": 0.0}
                )
            }
        )
        async with open_grader(judged) as opened:
            assert opened.judge is not None
            task = _known(environment(reward="verif").tasks().train[0])
            named, left_out = words_of(task)
            answers = completions(task, " ".join([*named, left_out]), "nothing")
            (rollouts,) = await roll_out(opened.grader, [answers])
            assert values(rollouts) == [1, 0]


def test_no_held_out_prompt_of_the_known_rule_is_a_swap_of_one_that_is_trained_on() -> None:
    for keys in ({"words": 2, "train": 2000, "held_out": 200}, {"words": 1, **SMALL}):
        sets = environment(known_rule=keys).tasks()
        train, held_out = (
            {(frozenset(named), left_out) for named, left_out in map(words_of, map(_known, side))}
            for side in (sets.train, sets.val)
        )
        assert not train & held_out
        assert (len(sets.train), len(sets.val)) == (keys["train"], keys["held_out"])


def test_prompts_of_test_sets_are_not_trained_on(tmp_path: Path) -> None:
    asked = ["Sing of the sea.", "Sing of the sky.", "[Sing] of land."]
    rows = [rubric_row(text, ("It says so.", 1)) for text in (*asked, *map(str, range(5)))]
    train = str(written(tmp_path / "train.jsonl", *rows))
    val = str(written(tmp_path / "val.jsonl", rubric_row("Other?", ("It says so.", 1))))
    keys = {"data": "files", "train_files": [train], "val_files": [val]}
    sealed = tmp_path / "ifeval" / "input_data.jsonl"
    sealed.parent.mkdir()
    written(sealed, {"prompt": " sing OF the\nSEA."}, {"prompt": "[Sing] of land."})
    turns = [{"role": "system", "content": "Any."}, {"role": "user", "content": asked[1]}]
    health = str(written(tmp_path / "health.jsonl", {"prompt": turns}))

    def left(**more: object) -> tuple[int, str]:
        made = environment(**keys, **more)
        return len(made.tasks().train), "\n".join(made.task_notes())

    count, told = left(benchmark_dir=str(tmp_path))
    assert count == 6 and f"train.jsonl:1: its conversation is one of {sealed}" in told
    assert left(sealed=[str(sealed), health])[0] == 5
    count, told = left(sealed=[], benchmark_dir=str(tmp_path))
    assert count == 8 and "compared with no test set" in told
    assert left(benchmark_dir=str(tmp_path / "none"))[0] == 8
    with pytest.raises(DataError, match="no such file"):
        left(sealed=["nowhere.jsonl"])
    written(tmp_path / "health.jsonl", {"prompt": turns}, {"text": "no prompt"})
    with pytest.raises(DataError, match="all of a test set is sealed"):
        left(sealed=[health])
    written(tmp_path / "health.jsonl", *rows)
    with pytest.raises(DataError, match="are prompts of test sets"):
        left(sealed=[health])
