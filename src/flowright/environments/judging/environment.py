"""Judging as an environment: the policy writes a thought and a verdict, and is rewarded by the
label. No large model is asked."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from flowright.config.root import Config as RunConfig
from flowright.core.errors import ConfigError, DataError, Failure, Reason
from flowright.data.contamination import TrainedOn
from flowright.data.task import Pair, Preferred, Task
from flowright.environments.base import (
    Baseline,
    Demonstration,
    TaskSets,
    TokenCount,
    TrainingConversation,
)
from flowright.environments.episode import Episode
from flowright.environments.judging.config import GIVEN, JudgingSection
from flowright.environments.judging.display import DISPLAY
from flowright.environments.judging.frames import (
    LETTERS,
    Reading,
    Unread,
    frame,
    read,
    reply_text,
    wording_of,
)
from flowright.environments.judging.reward import (
    JudgingDetails,
    consistency,
    judged,
    judging_metrics,
    of_preference,
    of_score,
    unread,
)
from flowright.environments.judging.rows import JudgedRow, SftRow
from flowright.environments.judging.synthetic import SOURCE as KNOWN_RULE, question_about, reasons
from flowright.environments.judging.tasks import (
    ConversationTask,
    JudgingTask,
    conversation_task,
    cut_row,
    load_conversations,
    load_rows,
    other_order,
    read_held_out,
    task_of,
    trained_on,
)
from flowright.environments.judging.transcripts import transcript
from flowright.environments.rollout import Reward, Rollout, outcome_metrics
from flowright.environments.row_tasks import RowEnvironment
from flowright.grading import Gold
from flowright.llm.chat import Message

RowTask = JudgingTask | ConversationTask


class JudgingEnvironment(RowEnvironment[JudgingSection]):
    """The environment of ``environment: judging``; its keys are those of ``judging``."""

    Config = JudgingSection
    display = DISPLAY
    aliases: ClassVar[Mapping[str, str]] = {
        "train/kl_divergence": "policy/kl",
        "train/policy_loss": "policy/pg_loss",
    }

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._section = config.own(JudgingSection)
        self._words = wording_of(self._section.wording)

    def tasks(self) -> TaskSets:
        section, seed = self._section, self.config.seed
        if section.method == "sft" and section.data == "files":
            self._sets = found = load_conversations(section, seed)
            sides = ([*map(conversation_task, side)] for side in (found.train, found.held_out))
            return TaskSets(*sides)
        self._sets = rows = load_rows(section, seed)
        return TaskSets([*map(task_of, rows.train)], [*map(task_of, rows.held_out)])

    @property
    def rolls_out(self) -> bool:
        return self._section.method != "sft" or self._section.data == "known_rule"

    def read_tasks(self, name: str) -> Sequence[Task]:
        rows = read_held_out(self._section, Path(name), self.config.seed)
        return [*map(task_of, rows)]

    def fitted(self, tasks: TaskSets, tokens: TokenCount, limit: int) -> TaskSets:
        """Return the tasks of at most ``limit`` tokens, with the answer if that is given; the
        others are dropped or cut by ``judging.overlong``. Raises DataError."""

        def count(row: JudgedRow | SftRow) -> int:
            return self._tokens(row, tokens)

        def shorten(task: RowTask, many: int) -> tuple[RowTask, int] | None:
            if isinstance(task, ConversationTask):
                cut = cut_row(task.row, many, count, limit)
                return cut and (conversation_task(cut[0]), cut[1])
            cut = cut_row(task.row, many, count, limit)
            return cut and (task_of(cut[0]), cut[1])

        return self._fitted(tasks, lambda task: count(task.row), limit, shorten)

    def was_cut(self, task: Task) -> bool:
        # By the row: a pair in the other order has an id of its own.
        return isinstance(task, JudgingTask | ConversationTask) and task.row.id in self._cut

    def _tokens(self, row: JudgedRow | SftRow, tokens: TokenCount) -> int:
        """Return the tokens of the longer order or answer: tokens may join differently."""
        if isinstance(row, SftRow) or self._section.method in GIVEN:
            return max(tokens(given.messages) for given in self._conversations(row))
        orders = [row, row.swapped()] if isinstance(row, Pair) else [row]
        return max(tokens(self._frame(each)) for each in orders)

    def training_conversations(self, task: Task) -> Sequence[TrainingConversation]:
        """A conversation as it is; the two of a pair, of which the better one weighs its strength
        (1 where the data has none) and the other nothing; or, of the known rule, a judgement with
        the rule's steps and the row's label."""
        return self._conversations(
            task.row if isinstance(task, ConversationTask) else _judging(task).row
        )

    def _conversations(self, row: JudgedRow | SftRow) -> Sequence[TrainingConversation]:
        if isinstance(row, SftRow):
            return [TrainingConversation(self._messages(row.messages), every_turn=True)]
        if self._section.method == "sft":
            return self._conversations(transcript(row, reasons(row, row.label), self._words))
        if not isinstance(row, Pair):
            raise DataError("a single answer, where two are compared")
        strength = abs(row.strength or 1.0)
        better = {"first": (strength, 0.0), "second": (0.0, strength), "tie": (0.0, 0.0)}
        return [
            TrainingConversation(
                self._messages((*row.conversation, Message("assistant", answer))), weight
            )
            for answer, weight in zip((row.first, row.second), better[row.label], strict=True)
        ]

    def _messages(self, turns: Sequence[Message]) -> list[Message]:
        messages = [*turns]
        if not self._section.merge_system or messages[0].role != "system":
            return messages
        system, first, *rest = messages
        whole = f"{system.content}\n\n{first.content}" if system.content else first.content
        return [Message(first.role, whole), *rest]

    def forms(self, task: Task) -> Sequence[Task]:
        """The tasks among which a group's attempts are shared: both orders of a pair, which so
        have one baseline (arXiv 2505.13346)."""
        if isinstance(task, JudgingTask) and task.kind == "pairwise" and self._section.both_orders:
            return (task, other_order(task))
        return (task,)

    def messages(self, task: Task) -> list[Message]:
        return self._frame(_judging(task).row)

    def _frame(self, row: JudgedRow) -> list[Message]:
        return frame(row, self._words, self._section.states_confidence)

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        return [self._group(group) for group in groups]

    def _group(self, group: Sequence[Episode]) -> list[Rollout]:
        tasks = [_judging(episode.task) for episode in group]
        readings: list[Reading | Unread] = [
            read(
                episode.sample.text,
                task.kind,
                self._section.states_confidence,
                self._section.opened_thought,
            )
            for task, episode in zip(tasks, group, strict=True)
        ]
        right = [
            isinstance(reading, Reading) and reading.verdict == task.row.label
            for task, reading in zip(tasks, readings, strict=True)
        ]
        compares = self._section.reward == "consistency"
        paired = _paired(tasks, right) if compares else {}
        rollouts = []
        for i, (episode, task, reading) in enumerate(zip(group, tasks, readings, strict=True)):
            details = JudgingDetails(reading, right[i], i in paired if compares else None)
            reward = self._reward(task, details, paired.get(i))
            failure = None if isinstance(reading, Reading) else _unreadable(episode, reading)
            gold = None if failure else Gold(right[i], "label", f"label {task.reference}")
            rollouts.append(
                Rollout(task, episode.sample, reward, failure, gold=gold, details=details)
            )
        return rollouts

    def _reward(
        self, task: JudgingTask, details: JudgingDetails, consistent: float | None
    ) -> Reward:
        """``consistent`` is the reward of both orders, None where that is not asked for or there is
        no attempt at the other order: the verdict earns its own then."""
        reading, section, row = details.reading, self._section, task.row
        if not isinstance(reading, Reading):
            return unread(section.unreadable)
        if isinstance(row, Pair):
            verdict = reading.verdict
            assert isinstance(verdict, str)
            earned = of_preference(verdict, row.label, row.strength, section.full_strength)
        else:
            assert isinstance(reading.verdict, int)
            earned = of_score(reading.verdict, row.label)
        if consistent is not None:
            earned *= consistent
        return judged(earned, reading.confidence, details.correct, section.confidence_weight)

    def summarise(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        return outcome_metrics(rollouts) | judging_metrics(rollouts)

    def mix(self, rollouts: Sequence[Rollout]) -> dict[str, dict[str, float]]:
        """Return further figures of a judge of pairs; with ``both_orders`` it plays both."""
        names = {"position bias": "judge/position_bias", "consistency": "judge/consistency"}
        measured = judging_metrics(rollouts)
        found = {name: measured[metric] for name, metric in names.items() if metric in measured}
        return {"pairwise": found} if found else {}

    def record(self, rollout: Rollout) -> Mapping[str, Any]:
        details, task = rollout.details, _judging(rollout.task)
        assert isinstance(details, JudgingDetails)
        reading = details.reading
        read_it = isinstance(reading, Reading)
        shown = LETTERS.get(reading.verdict, str(reading.verdict)) if read_it else None
        return {
            "judging": {
                "verdict": shown,
                "confidence": reading.confidence if read_it else None,
                "unread": None if read_it else reading,
                "label": task.reference,
                "order": "swapped" if task.swapped else None,
            }
        }

    def baselines(self) -> Sequence[Baseline]:
        """The same verdict for everything; for a judge of both kinds none fits."""
        sure = 0.5 if self._section.states_confidence else None
        if self._section.method in ("pairwise", *GIVEN):
            return [
                Baseline("always A", reply_text("", "first", sure), shown=True),
                Baseline("always B", reply_text("", "second", sure)),
                Baseline("always tie", reply_text("", "tie", sure)),
            ]
        if self._section.method == "pointwise":
            return [
                Baseline(f"always {score}", reply_text("", score, sure), shown=score == 2)
                for score in range(5)
            ]
        return ()

    def demonstrations(
        self, tasks: Sequence[Task], count: int, completions: int, seed: int
    ) -> list[Demonstration]:
        """Return the form of a judgement with verdicts drawn at random, so that none is revealed.
        The thought notes the words that the known rule counts and a taste that leads to the
        verdict; it is empty for rows of files. A judge that scores reads no request: it is shown
        how a question about an answer is answered."""
        if any(isinstance(task, ConversationTask) for task in tasks):
            raise ConfigError(
                "strategy_model: tiny begins with judgements of labelled rows, and a file of "
                "conversations has no labels; name another model"
            )
        rng = random.Random(seed)
        drawn = []
        for _ in range(count):
            task = _judging(rng.choice(tasks))
            if task.source == KNOWN_RULE and self._section.method == "bradley_terry":
                conversation, reply = question_about(task.row, rng)
                drawn.append(Demonstration(self._messages(conversation), [reply]))
                continue
            if task.kind == "pairwise" and rng.random() < 0.5:
                task = other_order(task)
            replies = [self._drawn_reply(task, rng) for _ in range(completions)]
            drawn.append(Demonstration(self.messages(task), replies))
        return drawn

    def _drawn_reply(self, task: JudgingTask, rng: random.Random) -> str:
        ties = self._section.ties == "keep"
        verdict: int | Preferred = (
            rng.choice(("first", "second", "tie") if ties else ("first", "second"))
            if task.kind == "pairwise"
            else rng.randrange(5)
        )
        known = task.source == KNOWN_RULE
        thought = reasons(task.row, verdict) if known else ""
        sure = round(rng.random(), 2) if self._section.states_confidence else None
        reply = reply_text(thought, verdict, sure)
        return reply.removeprefix("<think>") if self._section.opened_thought else reply

    def planned_calls(self, train: Sequence[Task]) -> Mapping[str, float]:
        """No server is asked."""
        return {"executor": 0.0, "judge": 0.0}

    def trained_on(self) -> TrainedOn | None:
        return trained_on(self._sets, self._section) if self._sets else None


def _judging(task: Task) -> JudgingTask:
    assert isinstance(task, JudgingTask)
    return task


def _unreadable(episode: Episode, why: str) -> Failure:
    """The policy's failure; its reason is that of what ended it, its message the reading's."""
    cut = episode.sample.finish_reason == "length"
    return Failure(Reason.TRUNCATED if cut else Reason.NO_ANSWER, f"no verdict to read: {why}")


def _paired(tasks: Sequence[JudgingTask], right: Sequence[bool]) -> Mapping[int, float]:
    """By place in the group the consistency reward of the attempts at pairs that were played in
    both orders."""
    found: dict[int, float] = {}
    for id in dict.fromkeys(task.row.id for task in tasks if task.kind == "pairwise"):
        orders = [
            [i for i, task in enumerate(tasks) if task.row.id == id and task.swapped is swapped]
            for swapped in (False, True)
        ]
        rewards = consistency(*([right[i] for i in order] for order in orders))
        if rewards is not None:
            for order, earned in zip(orders, rewards, strict=True):
                found |= zip(order, earned, strict=True)
    return found
