"""The embedded judge in this process: the rule of :mod:`flowright.simulation.assessor` over an
answer's text, with its faults and as many tries as a served judge has, without any waiting."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flowright.config.llm import SIMULATED, SimulatedSection
from flowright.config.root import Config
from flowright.data.task import Task
from flowright.environments.presentation.config import PresentationSection
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
