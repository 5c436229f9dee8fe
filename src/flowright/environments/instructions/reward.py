"""Graders of answers, one for each kind of reward, and the rollouts, records and metrics of their
grades."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from flowright.core.errors import Failure, Reason, boundary
from flowright.core.off_loop import off_loop
from flowright.criteria.constraints.checkers import InstructedPrompt, verdicts
from flowright.criteria.rubrics.rows import RubricRow, VerifRow
from flowright.data.task import Problem
from flowright.environments.episode import Episode
from flowright.environments.instructions.config import InstructionsSection, Rules
from flowright.environments.instructions.tasks import InstructionTask, PromptRow, Row
from flowright.environments.rollout import UNSCORED, Reward, Rollout, means
from flowright.grading import Gold
from flowright.grading.numbers import lone_number
from flowright.judging.group_judge import GroupJudge
from flowright.judging.rubrics.rewards import RubricGrade, RubricReward, VerifGrade, VerifReward
from flowright.judging.terms import TermSample
from flowright.judging.verdict import Judge, JudgeQuery, Status, Verdict, task_query
from flowright.llm.chat import Usage
from flowright.llm.replies import spoken_answer

By = Literal["judge", "rule"]


@dataclass(frozen=True, slots=True)
class Part:
    """One criterion of an answer: who decided, and whether it is met; None if it was not graded.
    ``points`` are its worth, if the data has some."""

    text: str
    by: By
    met: bool | None
    points: float | None = None

    @property
    def is_penalty(self) -> bool:
        """True if an answer had better not meet it."""
        return self.points is not None and self.points < 0


@dataclass(frozen=True, slots=True)
class InstructionGrade:
    """The grade of one answer.

    ``value`` is its reward in [0, 1], or None, with ``failure``, which is ours. ``verdict`` stands
    for the verdicts of judge and rules; None with checkers alone. ``gold`` is of checkers: whether
    all are followed. ``floored``: the answer is empty or kept the judge from judging it, and earns
    the least. ``faults`` name rules that failed by themselves.
    """

    value: float | None
    parts: tuple[Part, ...]
    failure: Failure | None = None
    verdict: Verdict | None = None
    gold: Gold | None = None
    floored: bool = False
    faults: tuple[str, ...] = ()
    reason: str = ""
    words: int = 0

    @property
    def ungraded(self) -> float:
        """Share of the parts that were not graded; 0 for a floored answer, which is graded as a
        whole."""
        if self.floored or not self.parts:
            return 0.0
        return sum(part.met is None for part in self.parts) / len(self.parts)

    @property
    def unmet(self) -> list[int]:
        """Numbers of the parts that are not met, or met where that is penalised."""
        return [number for number, part in enumerate(self.parts) if part.met is part.is_penalty]

    @property
    def meets_all(self) -> bool:
        """True if nothing is left to do better."""
        return not (self.unmet or self.floored)

    @property
    def outcome(self) -> dict[str, Any]:
        """The criteria that are met, without penalties and ungraded ones, as plain JSON."""
        graded = [part.met for part in self.parts if part.met is not None and not part.is_penalty]
        return {"met": graded, "all": self.meets_all}


class Grader(Protocol):
    """Grades the answers to the tasks of one kind of reward."""

    async def grade(self, task: InstructionTask, episode: Episode) -> InstructionGrade: ...


class ConstraintGrader:
    """Grades by the checkers of IFEval and IFBench, in this process."""

    def __init__(self, section: InstructionsSection) -> None:
        self._section = section

    async def grade(self, task: InstructionTask, episode: Episode) -> InstructionGrade:
        return (await self.read(task, episode))[1]

    async def read(self, task: InstructionTask, episode: Episode) -> tuple[str, InstructionGrade]:
        """Return the completion without its thinking, and its grade."""
        section, row = self._section, task.row
        assert isinstance(row, InstructedPrompt)
        text = episode.sample.text

        def checked() -> tuple[str, tuple[bool, ...]]:
            spoken = spoken_answer(text)
            strict, loose = verdicts(row, spoken, section.checkers)
            return spoken, strict if section.reading == "strict" else loose

        spoken, followed = await off_loop(checked, text)
        share = sum(followed) / len(followed)
        value = share if section.constraints_score == "share" else float(all(followed))
        parts = tuple(
            Part(_described(name, values), "rule", met)
            for name, values, met in zip(row.ids, row.arguments, followed, strict=True)
        )
        gold = Gold(all(followed), f"{section.checkers}, {section.reading}")
        return spoken, InstructionGrade(
            value, parts, gold=gold, floored=not spoken.strip(), words=len(spoken.split())
        )


class TermsGrader:
    """Leaves the whole reward to ``reward.terms``."""

    async def grade(self, task: InstructionTask, episode: Episode) -> InstructionGrade:
        return InstructionGrade(0.0, (), words=await _words(episode.sample.text))


def term_sample(episode: Episode, rollout: Rollout) -> TermSample:
    """Return an answer for ``reward.terms``, with the row's fields as columns."""
    task, text = episode.task, episode.sample.text
    assert isinstance(task, InstructionTask)
    own = task.row.columns if isinstance(task.row, PromptRow) else {}
    reference = task.row.reference if isinstance(task.row, PromptRow) else ""
    messages = [{"role": turn.role, "content": turn.content} for turn in task.conversation]
    is_text = isinstance(task.row, InstructedPrompt) or isinstance(own.get("prompt"), str)
    query = JudgeQuery(task.question, text, reference, key=episode.key)
    if reference:
        kind = "qa" if lone_number(reference) is None else "math"
        problem = Problem(task.id, kind, task.source, task.question, reference)
        query = task_query(problem, text, episode.key)
    ids = {"completion_ids": list(episode.sample.token_ids)}
    columns = {"id": task.id, "source": task.source, **own, **ids}
    columns.pop("prompt", None)
    return TermSample(query, task.question if is_text else messages, columns)


class JudgedGrader:
    """Grades by the judge's score of the answer. The judge is shown the prompt, and neither
    criteria nor a reference; the checkers give the gold.

    ``instruction`` replaces the wording's; empty: the wording's.
    """

    def __init__(self, judge: Judge, section: InstructionsSection, instruction: str = "") -> None:
        self._judge, self._instruction = judge, instruction
        self._checkers = ConstraintGrader(section)

    async def grade(self, task: InstructionTask, episode: Episode) -> InstructionGrade:
        query, checked = await self.query(task, episode)
        return with_verdict(checked, await self._judge.judge(query))

    async def query(
        self, task: InstructionTask, episode: Episode
    ) -> tuple[JudgeQuery, InstructionGrade]:
        """Return the query to the judge, and the grade by the checkers."""
        spoken, checked = await self._checkers.read(task, episode)
        query = JudgeQuery(
            task.question, spoken, "", instruction=self._instruction, key=episode.key
        )
        return query, checked


def with_verdict(checked: InstructionGrade, verdict: Verdict) -> InstructionGrade:
    """Return a grade by the checkers with the judge's score as its value."""
    lost = verdict.cause
    return replace(
        checked,
        value=verdict.score,
        verdict=verdict,
        failure=None if verdict.score is not None else Failure(Reason.JUDGE_FAILED, lost),
        floored=checked.floored or verdict.source == "floor",
        reason=verdict.reason,
    )


class RankingGrader:
    """Grades by the rank of an answer in its group (``judge.group``); the checkers give the
    gold."""

    def __init__(self, ranking: GroupJudge, single: JudgedGrader) -> None:
        self._ranking, self._single = ranking, single

    async def grade(self, task: InstructionTask, episode: Episode) -> InstructionGrade:
        """Grade an answer without a group, which has no reward."""
        return (await self.grade_group([(task, episode)]))[0]

    async def grade_group(
        self, group: Sequence[tuple[InstructionTask, Episode]]
    ) -> list[InstructionGrade]:
        both = await asyncio.gather(*(self._single.query(*each) for each in group))
        verdicts = await self._ranking.rank([query for query, _ in both])
        return [
            with_verdict(checked, verdict) if verdict is not None else replace(checked, value=None)
            for (_, checked), verdict in zip(both, verdicts, strict=True)
        ]


def _described(name: str, values: object) -> str:
    given = {k: v for k, v in values.items() if v is not None} if isinstance(values, dict) else {}
    return " ".join([name, *(f"{key}={value!r}" for key, value in given.items())])


class RubricGrader:
    """By the points of a rubric's criteria."""

    def __init__(self, reward: RubricReward, right: float) -> None:
        self._reward, self._right = reward, right

    async def grade(self, task: InstructionTask, episode: Episode) -> InstructionGrade:
        row = task.row
        assert isinstance(row, RubricRow)
        grade = await self._reward.grade(row, episode.sample.text, episode.key)
        parts = tuple(
            Part(item.criterion, "judge" if item.rule is None else "rule", met, item.points)
            for item, met in zip(row.items, grade.met, strict=True)
        )
        return InstructionGrade(
            grade.value,
            parts,
            grade.failure,
            _one_verdict(grade, self._right),
            floored=grade.floored,
            reason=grade.reason,
            words=await _words(episode.sample.text),
        )


class VerifGrader:
    """By VerIF: the share of the rules, times one verdict on all soft constraints."""

    def __init__(self, reward: VerifReward, rules: Rules, right: float) -> None:
        self._reward, self._rules, self._right = reward, rules, right

    async def grade(self, task: InstructionTask, episode: Episode) -> InstructionGrade:
        row = task.row
        assert isinstance(row, VerifRow)
        grade = await self._reward.grade(row, episode.sample.text, episode.key)
        return InstructionGrade(
            grade.value,
            self._parts(row, grade),
            grade.failure,
            _one_verdict(grade, self._right),
            floored=grade.floored,
            faults=grade.faults,
            reason=grade.reason,
            words=await _words(episode.sample.text),
        )

    def _parts(self, row: VerifRow, grade: VerifGrade) -> tuple[Part, ...]:
        """The rules that were run, and all that the judge was asked about as one."""
        kinds = ("soft", "rule") if self._rules == "skip" else ("soft",)
        soft = "\n".join(c.text for c in row.constraints if c.kind in kinds)
        run = [c for c in row.constraints if c.kind == "rule"] if self._rules == "run" else []
        results = grade.rules or (None,) * len(run)
        ruled = [
            Part(constraint.text, "rule", result.followed if result is not None else None)
            for constraint, result in zip(run, results, strict=True)
        ]
        return (*ruled, *([Part(soft, "judge", grade.soft)] if soft else []))


async def _words(text: str) -> int:
    return await off_loop(lambda: len(spoken_answer(text).split()), text)


def _one_verdict(grade: RubricGrade | VerifGrade, right: float) -> Verdict | None:
    """Return the judge's verdicts on one answer as one, whose score is the answer's reward, rules
    included; of an answer without a reward, the status of the first that failed. Without any call
    it is the verdict of the rules, or of an empty answer."""
    verdicts, value = grade.verdicts, grade.value
    if not verdicts and value is None:
        return None
    failed: list[Status] = [verdict.status for verdict in verdicts if verdict.status != "ok"]
    return Verdict(
        score=value,
        correct=None if value is None else value >= right,
        source="floor" if grade.floored else "llm" if verdicts else "rule",
        status="ok" if value is not None else failed[0] if failed else "abstain",
        reason=grade.reason or (grade.failure.message if grade.failure else ""),
        attempts=sum(verdict.attempts for verdict in verdicts),
        judge=verdicts[0].judge if verdicts else "",
        usage=sum((verdict.usage for verdict in verdicts), Usage()),
        seconds=sum(verdict.seconds for verdict in verdicts),
        members=verdicts,
    )


def judge_calls(row: Row, section: InstructionsSection) -> int:
    """Return the calls of the judge about an answer to the row, without failures."""
    if isinstance(row, RubricRow):
        asked = sum(item.rule is None for item in row.items)
        return asked if section.criteria_calls == "each" else min(1, asked)
    if isinstance(row, VerifRow):
        soft = any(constraint.kind == "soft" for constraint in row.constraints)
        return int(soft or section.rules == "skip")
    return int(section.reward == "judge")


def grade_of(rollout: Rollout) -> InstructionGrade | None:
    """None where the grading itself failed."""
    return rollout.details if isinstance(rollout.details, InstructionGrade) else None


def instruction_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Metrics of some attempts; those without a value are left out.

    - ``reward/by_source/<source>``: mean reward of the scored answers to prompts of a dataset;
    - ``instructions/met``, ``instructions/met_by_rule``, ``instructions/met_by_judge``: share of
      what was graded that holds; of criteria with points above 0 where a rubric has points;
    - ``instructions/penalties_met``: the same of criteria with points below 0;
    - ``instructions/ungraded``: share of the parts that were not graded;
    - ``instructions/rule_faults``: rules that failed by themselves, as a mean per answer;
    - ``instructions/floored``: share of the answers that are empty or keep the judge from judging;
    - ``instructions/words``: mean length of an answer, ``instructions/cut``: share that hit
      ``policy.max_new_tokens``;
    - with several turns ``instructions/all_met``: share of the last answers that meet all criteria;
      ``instructions/first_turn_all_met``, ``instructions/first_turn_met``: the same of the first
      ones, and their criteria; ``instructions/first_turn_tokens``: their mean length;
      ``instructions/second_turn``: share of the attempts with a second answer.
    """
    grades = [grade for rollout in rollouts if (grade := grade_of(rollout))]
    parts = [part for grade in grades for part in grade.parts if part.met is not None]
    wanted = [part for part in parts if not part.is_penalty]
    by_rule, by_judge = (
        [bool(part.met) for part in wanted if part.by == who] for who in ("rule", "judge")
    )
    by_source: dict[str, list[float]] = {}
    for rollout in rollouts:
        if (value := rollout.reward.value) is not None:
            by_source.setdefault(f"reward/by_source/{rollout.task.source}", []).append(value)
    return means(
        {
            **by_source,
            "instructions/met": [*by_rule, *by_judge],
            "instructions/met_by_rule": by_rule,
            "instructions/met_by_judge": by_judge,
            "instructions/penalties_met": [bool(part.met) for part in parts if part.is_penalty],
            "instructions/ungraded": [grade.ungraded for grade in grades],
            "instructions/rule_faults": [len(grade.faults) for grade in grades],
            "instructions/floored": [grade.floored for grade in grades],
            "instructions/words": [grade.words for grade in grades],
            "instructions/cut": [r.sample.finish_reason == "length" for r in rollouts],
            **_by_turn(rollouts),
        }
    )


def first_outcome(rollout: Rollout) -> Mapping[str, Any] | None:
    """Return the :attr:`InstructionGrade.outcome` of the first of several possible answers."""
    grade = grade_of(rollout)
    if grade is None or not rollout.turns:
        return None
    answered = rollout.turns[0].observation
    return grade.outcome if answered is None else answered.memory


def _by_turn(rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
    pairs = [(r, first) for r in rollouts if (first := first_outcome(r))]
    return {
        "instructions/all_met": [bool((g := grade_of(r)) and g.meets_all) for r, _ in pairs],
        "instructions/first_turn_all_met": [first["all"] for _, first in pairs],
        "instructions/first_turn_met": [met for _, first in pairs for met in first["met"]],
        "instructions/first_turn_tokens": [len(r.turns[0].sample.token_ids) for r, _ in pairs],
        "instructions/second_turn": [len(r.turns) > 1 for r, _ in pairs],
    }


_KEPT_CHARS = 2_000  # of a criterion in a record
Known = dict[str, InstructionGrade]


async def roll_out(
    grader: Grader, groups: Sequence[Sequence[Episode]], known: Known | None = None
) -> list[list[Rollout]]:
    """The rollouts of groups, in their order. ``known``: grades of last answers by the key of their
    episode, which are used up."""
    known = {} if known is None else known
    return [*await asyncio.gather(*(_graded(grader, group, known) for group in groups))]


async def _graded(grader: Grader, group: Sequence[Episode], known: Known) -> list[Rollout]:
    if not isinstance(grader, RankingGrader):
        return [*await asyncio.gather(*(_graded_one(grader, one, known) for one in group))]
    grades: Sequence[InstructionGrade | None] = [None] * len(group)
    with boundary("grading") as caught:
        grades = await grader.grade_group([(_task(each), each) for each in group])
    pairs = zip(group, grades, strict=True)
    return [_rollout(episode, grade, caught.failure) for episode, grade in pairs]


async def _graded_one(grader: Grader, episode: Episode, known: Known) -> Rollout:
    grade = known.pop(episode.key, None)
    with boundary("grading") as caught:
        if grade is None:
            grade = await grader.grade(_task(episode), episode)
    return _rollout(episode, grade, caught.failure)


def _task(episode: Episode) -> InstructionTask:
    assert isinstance(episode.task, InstructionTask)
    return episode.task


def _rollout(episode: Episode, grade: InstructionGrade | None, failure: Failure | None) -> Rollout:
    task, sample = episode.task, episode.sample
    if grade is None:
        return Rollout(task, sample, UNSCORED, failure)
    value = grade.value
    reward = UNSCORED if value is None else Reward(value, {"correctness": value})
    return Rollout(task, sample, reward, grade.failure, grade.verdict, grade.gold, details=grade)


def record_of(rollout: Rollout) -> dict[str, Any]:
    """The fields of a record that are an answer's."""
    grade = grade_of(rollout)
    if grade is None:
        return {}
    parts = [
        {"text": part.text[:_KEPT_CHARS], "by": part.by, "met": part.met, "points": part.points}
        for part in grade.parts
    ]
    outcome = {"floored": grade.floored, "faults": [*grade.faults], "reason": grade.reason}
    outcome |= {"first_turn": first} if (first := first_outcome(rollout)) else {}
    return {"instructions": {"parts": parts, "words": grade.words, **outcome}}
