"""The simulated writer of rubrics: criteria that name words of the request's own texts.

It has no taste: a word of most better answers and of few worse ones becomes a criterion, without
answers a word of the request.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowright.simulation.requested_format import asks_for_json
from flowright.simulation.table import CRITERION_LETTERS

ASKS_FOR_RUBRIC = re.compile(r"\bwrite (?:the|a) rubric\b", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+")
_MOST = 5  # criteria of a reply


@dataclass(frozen=True, slots=True)
class RubricPrompt:
    """A request for criteria: labelled answers, if there are any, and the other texts."""

    better: tuple[str, ...]
    worse: tuple[str, ...]
    texts: tuple[str, ...]

    @classmethod
    def of_parts(cls, parts: Sequence[tuple[str, str]]) -> "RubricPrompt":
        """Sort the fenced texts of a prompt by their labels."""
        sides: dict[str, list[str]] = {"better": [], "worse": [], "": []}
        for label, text in parts:
            sides[next(side for side in sides if side in label.casefold())].append(text)
        return cls(*map(tuple, sides.values()))


def write_rubric(prompt: RubricPrompt, response_format: Mapping[str, Any] | None) -> str:
    """Return the reply, in JSON if it was requested."""
    counts = Counter[str]()
    for texts, sign in ((prompt.better or prompt.texts, 1), (prompt.worse, -1)):
        for text in texts:
            words = dict.fromkeys(_WORD.findall(text.casefold()))
            counts.update({word: sign for word in words if len(word) >= CRITERION_LETTERS})
    common = [word for word, count in counts.most_common() if count > 0][:_MOST]
    criteria = [
        {"criterion": f'The answer has the word "{word}".', "points": min(5, counts[word])}
        for word in common
    ]
    reason = "Words of the request's own texts. (simulated writer)"
    if asks_for_json(response_format):
        return json.dumps({"reason": reason, "criteria": criteria})
    return f"{reason}\nCriteria: {json.dumps(criteria)}"
