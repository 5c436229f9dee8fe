"""The log of verdicts that a judge did not give, by the logger ``JudgeReward``. Decides nothing."""

import logging
from collections import Counter
from dataclasses import dataclass, field

from flowright.judging.verdict import JudgeQuery, Verdict, Wrapper

LOGGER = logging.getLogger("JudgeReward")


@dataclass(eq=False)
class LogsFallbacks(Wrapper):
    """Warns where the judge failed, with the error: that rules decided, or that there is no reward.

    A dead service fails thousands of times, so of each sort (what happened, and how the judge
    failed) the 1st, 10th, 100th ... is a warning that says how many there were, and each is a
    message of level DEBUG.
    """

    _counts: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)

    async def judge(self, query: JudgeQuery) -> Verdict:
        verdict = await self.inner.judge(query)
        if verdict.status == "ok" and verdict.source != "rule_fallback":
            return verdict
        failed = verdict.members[0] if verdict.status == "ok" else verdict
        outcome = "rules decided" if verdict.status == "ok" else "no reward"
        self._counts[failed.status, outcome] += 1
        count = self._counts[failed.status, outcome]
        is_told = str(count).strip("0") == "1"
        LOGGER.log(
            logging.WARNING if is_told else logging.DEBUG,
            "judge %s failed (%s: %s): %s; %d so far",
            self.name, failed.status, failed.reason, outcome, count,
        )  # fmt: skip
        return verdict
