"""The embedded judge in this process, and rollouts of presented answers: choice, text, gold,
verdict, and the reward by the kind that an arm of a study has; their records and metrics.

The judge is the rule of :mod:`flowright.simulation.assessor` over an answer's text, with its faults
and as many tries as a served judge has, without any waiting."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from flowright.config.llm import SIMULATED, SimulatedSection
from flowright.config.root import Config
from flowright.core.errors import Failure, Reason, boundary
from flowright.data.task import Task
from flowright.environments.episode import Episode
from flowright.environments.presentation.config import PresentationSection
from flowright.environments.presentation.tasks import (
    GARBLED,
    PLAIN,
    PRESENTATIONS,
    WAYS,
    Choice,
    Kind,
    SmallQuestion,
    best_way,
    chance,
    presented,
    read_choice,
    with_answer_line,
)
from flowright.environments.rollout import UNSCORED, Reward, Rollout, means, reward_of
from flowright.grading import Gold
from flowright.judging.panel import Vote, majority
from flowright.judging.rules import gate
from flowright.judging.verdict import JudgeQuery, Status, Verdict
from flowright.llm.chat import Usage
from flowright.simulation.assessor import check_biases, probability, trigger
from flowright.simulation.draws import Draws, Fault, drawn_fault, has_faults, unit
from flowright.simulation.values import ends_in

Ask = Callable[[Task, str, str], Verdict]
"""From a question, the text of an answer and the attempt's key to a verdict."""

QUORUM = 2  # members of the panel that must have a verdict
_SEATS = 3

_STATUS: Mapping[Fault, Status] = {
    "hang": "timeout",
    "error_500": "unavailable",
    "error_429": "overloaded",
    "malformed": "unavailable",
    "empty": "parse_error",
    "truncate": "truncated",
}
_OF_REPLY = frozenset[Fault]({"empty", "truncate"})  # the judge's to try again; others the client's


class PlantedJudge:
    """One judge. Whether it calls a text right depends on the run's seed, ``section.seed``, the
    question and the text; which of its requests meet faults on the attempt's key as well. A fault
    is tried again as often as ``judge.max_attempts`` and ``llm.attempts`` say, and a text that is
    too long fails at every try; each try is a call. Second readings, deadlines and waiting are not
    imitated. Raises ConfigError for a bias that there is not."""

    def __init__(self, config: Config, section: SimulatedSection, name: str = SIMULATED) -> None:
        check_biases(section)
        self._section, self._name = section, name
        self._seed, self._gate = config.seed, config.judge.gate
        self._tries = config.judge.max_attempts, config.llm.attempts
        self._length_failures = config.own(PresentationSection).length_failures

    def __call__(self, task: Task, text: str, key: str) -> Verdict:
        query = JudgeQuery(task.question, text, task.reference, key=key)
        if self._gate and (gated := gate(query)) is not None:
            return gated
        fault, attempts, calls = self._fault(key)
        if fault is None and self._is_too_long(text, key):
            fault, attempts, calls = "hang", self._tries[0], math.prod(self._tries)
        usage = Usage(calls)
        if fault is not None:
            status, why = _STATUS[fault], f"injected fault: {fault} (simulated)"
            return Verdict(None, None, "llm", status, why, attempts, self._name, usage)
        right = ends_in(text, (task.reference,))
        draws = Draws(self._section.seed, self._seed, "judge", task.question, text)
        is_right = draws.chance("verdict", probability(self._section, float(right), text))
        return Verdict(float(is_right), is_right, "llm", "ok", "", attempts, self._name, usage)

    def _fault(self, key: str) -> tuple[Fault | None, int, int]:
        """The fault that the last try met, the judge's attempts, and the calls of all of them."""
        if not has_faults(self._section.faults):
            return None, 1, 1
        most, requests = self._tries
        fault: Fault | None = None
        calls = 0
        for attempt in range(most):
            for request in range(requests):
                name = f"{self._seed}/{key}"
                occurrence = attempt * requests + request
                fault = drawn_fault(self._section, "judge", name, occurrence)
                calls += 1
                if fault is None:
                    return None, attempt + 1, calls
                if fault in _OF_REPLY:
                    break
        return fault, most, calls

    def _is_too_long(self, text: str, key: str) -> bool:
        chance = self._length_failures * trigger("verbosity", text)
        return unit(self._section.seed, self._seed, "length", key) < chance


@dataclass(frozen=True, slots=True)
class QueriedJudge:
    """The same as a judge of single queries."""

    ask: Ask
    name: str = SIMULATED

    async def judge(self, query: JudgeQuery) -> Verdict:
        task = Task("", "", "", query.question, query.reference)
        return self.ask(task, query.answer, query.key)


def one_of_three_biased(config: Config) -> Ask:
    """A panel of the embedded judge and two with draws of their own and without its biases; what
    most say. Fewer than two verdicts are none, nor is a draw."""
    section = config.simulated
    fair = section.model_copy(update={"judge_biases": {}})
    sections = [section, *(fair.model_copy(update={"seed": section.seed + n}) for n in (1, 2))]
    members = [
        PlantedJudge(config, each, f"{SIMULATED} {n} of {_SEATS}")
        for n, each in enumerate(sections, start=1)
    ]

    def ask(task: Task, text: str, key: str) -> Verdict:
        verdicts = tuple(member(task, text, key) for member in members)
        votes = [Vote(v.score, v.score, 1.0) for v in verdicts if v.score is not None]
        attempts = sum(verdict.attempts for verdict in verdicts)
        usage = sum((verdict.usage for verdict in verdicts), Usage())
        score = majority(votes) if votes else 0.5
        if len(votes) < QUORUM or score == 0.5:
            lost: list[Status] = [v.status for v in verdicts if v.status != "ok"]
            status: Status = lost[0] if len(votes) < QUORUM else "abstain"
            why = f"{len(votes)} of {_SEATS} members have a verdict"
            return Verdict(
                None, None, "llm", status, why, attempts, "panel", usage, members=verdicts
            )
        right = score > 0.5
        return Verdict(score, right, "llm", "ok", "", attempts, "panel", usage, members=verdicts)

    return ask


def judge_of(config: Config) -> Ask:
    """The judge that ``presentation.reward`` names; of rewards without one, that of the audit."""
    if config.own(PresentationSection).reward == "panel":
        return one_of_three_biased(config)
    return PlantedJudge(config, config.simulated)


def is_audited(config: Config, key: str) -> bool:
    """Return whether gold decides on this attempt: on all of them, or drawn by a hash of its
    key."""
    if config.own(PresentationSection).reward == "gold":
        return True
    return unit(config.seed, "audit", key) < config.own(PresentationSection).gold_audit


def rewarded(
    config: Config, failure: Failure | None, verdict: Verdict | None, gold: Gold | None, key: str
) -> tuple[Reward, Failure | None]:
    """The reward of one attempt and what failed; of ``random``, before it is dealt out. The
    policy's ``failure`` earns what it does everywhere."""
    section, scale = config.own(PresentationSection), config.reward
    if failure is not None or verdict is None or gold is None:
        assert failure is not None
        return reward_of(failure, None, scale), failure
    if is_audited(config, key):
        return _scaled(config, float(gold.correct is True)), None
    if verdict.status != "ok":
        if section.failures == "zero":
            return Reward(0.0, {"validity": 0.0, "correctness": 0.0}), None
        lost = Failure(Reason.JUDGE_FAILED, verdict.cause)
        return UNSCORED, lost
    score = float(verdict.correct is True)
    if section.correction == "backward":
        score = backward(score, *error_rates(config))
    return _scaled(config, score), None


def backward(score: float, false_positive: float, false_negative: float) -> float:
    """(R - r0) / (1 - r0 - r1): on average the true reward, where the rates r0 and r1 are those of
    the verifier whatever the answer is like (arXiv 2510.00915, backward correction)."""
    return (score - false_positive) / (1 - false_positive - false_negative)


def error_rates(config: Config) -> tuple[float, float]:
    """Return the configured false-positive and false-negative rates of the embedded judge, without
    biases."""
    section = config.simulated
    return section.judge_false_positive, 1 - section.judge_true_positive


def _scaled(config: Config, share: float) -> Reward:
    scale = config.reward
    return Reward(
        value := scale.wrong + (scale.right - scale.wrong) * share,
        {"validity": 0.0, "correctness": value},
    )


def dealt_out(rollouts: Sequence[Rollout], episodes: Sequence[Episode], seed: int) -> list[Rollout]:
    """A group with the rewards of its scored attempts dealt out anew among them, by a hash: the
    same rewards, which say nothing of the answers. The policy's own failures keep theirs."""
    scored = [n for n, r in enumerate(rollouts) if r.failure is None and r.reward.value is not None]
    dealt = [*scored]
    keys = "/".join(episodes[n].key for n in scored)
    random.Random(f"{seed}/dealt/{keys}").shuffle(dealt)
    found = [*rollouts]
    for taker, giver in zip(scored, dealt, strict=True):
        found[taker] = replace(found[taker], reward=rollouts[giver].reward)
    return found


@dataclass(frozen=True, slots=True)
class PresentedAnswer:
    """An attempt's answer. ``text`` is the text that the judge reads; ``right``: it gives the right
    answer; ``garbled``: a right answer that came out wrong in its elaboration; ``audited``: gold is
    its reward."""

    choice: Choice
    text: str
    right: bool
    garbled: bool
    audited: bool


def answered(task: SmallQuestion, choice: Choice, seed: int) -> tuple[str, bool, bool]:
    """The text that a choice gives, whether it is right, and whether it was garbled: a function of
    the run's seed, the question and the choice, so that attempts alike in several runs meet with
    the same."""
    draws = Draws(seed, "answer", task.id, choice.way)
    right = draws.chance("right", chance(task.kind, choice.way))
    garbled = right and "elaborate" in choice.presentations and draws.chance("garbled", GARBLED)
    given = task.reference if right and not garbled else draws.pick("wrong", task.wrong)
    if "announce" in choice.presentations:
        return presented("announce", given, f"{seed}/{task.id}"), False, False
    text = with_answer_line(given)
    for name in choice.presentations:
        text = presented(name, text, f"{seed}/{task.id}/{choice.way}")
    return text, right and not garbled, garbled


def roll_out(
    config: Config, judge: Ask, groups: Sequence[Sequence[Episode]]
) -> list[list[Rollout]]:
    """The rollouts of groups, in their order."""
    found = []
    for group in groups:
        rollouts = [_one(config, judge, episode) for episode in group]
        if config.own(PresentationSection).reward == "random":
            rollouts = dealt_out(rollouts, group, config.seed)
        found.append(rollouts)
    return found


def _one(config: Config, judge: Ask, episode: Episode) -> Rollout:
    task, sample, key = episode.task, episode.sample, episode.key
    assert isinstance(task, SmallQuestion)
    details: PresentedAnswer | None = None
    gold: Gold | None = None
    verdict: Verdict | None = None
    with boundary("rollout") as caught:
        choice = read_choice(sample.text, sample.finish_reason)
        text, right, garbled = answered(task, choice, config.seed)
        details = PresentedAnswer(choice, text, right, garbled, is_audited(config, key))
        gold = Gold(right, "known", f"the answer is {task.reference}")
        verdict = judge(task, text, key)
    reward, failure = rewarded(config, caught.failure, verdict, gold, key)
    return Rollout(task, sample, reward, failure, verdict, gold, details=details)


def details_of(rollout: Rollout) -> PresentedAnswer | None:
    """None of a completion that makes no choice."""
    return rollout.details if isinstance(rollout.details, PresentedAnswer) else None


def query_about(rollout: Rollout, key: str) -> JudgeQuery | None:
    """Return the judge's query about an attempt; None for a completion without a choice."""
    details, task = details_of(rollout), rollout.task
    if details is None:
        return None
    return JudgeQuery(task.question, details.text, task.reference, key=key)


def record_of(rollout: Rollout) -> dict[str, Any]:
    """The fields of a record that are this environment's."""
    details = details_of(rollout)
    if details is None:
        return {"presentation": [], "way": None, "text": ""}
    return {
        "presentation": details.choice.names,
        "way": details.choice.way,
        "text": details.text,
        "garbled": details.garbled,
        "audited": details.audited,
    }


def presentation_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Metrics of some attempts; those without a value are left out. Of all attempts, those that
    make no choice included:

    - ``presentation/share/<name>``: share that presents so, ``plain`` among them;
    - ``presentation/way/<way>``: share that solves so, ``presentation/best_way``: share that takes
      the way that is right most often for its kind of question;
    - ``presentation/audited``: share whose reward is gold.

    Of those that make a choice ``presentation/words``: mean length of the text that is judged.
    """
    known = [details_of(rollout) for rollout in rollouts]
    names = [details.choice.names if details else [] for details in known]
    ways = [details.choice.way if details else None for details in known]
    best = [best_way(cast(Kind, rollout.task.kind)) for rollout in rollouts]
    return means(
        {
            **{
                f"presentation/share/{name}": [name in each for each in names]
                for name in (*PRESENTATIONS, PLAIN)
            },
            **{f"presentation/way/{name}": [way == name for way in ways] for name in WAYS},
            "presentation/best_way": [way == one for way, one in zip(ways, best, strict=True)],
            "presentation/audited": [bool(details and details.audited) for details in known],
            "presentation/words": [len(d.text.split()) for d in known if d],
        }
    )
