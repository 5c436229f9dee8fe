"""The words that a judge is asked in: the built-in ones of ``wording.yaml``, or a user's own.

What stands around the words is not here: fences, what is said of them and the form of the reply
are :mod:`flowright.judging.prompts`'s, the same for every wording.
"""

import json
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, get_args

from pydantic import Field, ValidationError

from flowright.config.judge import WORDING, JudgeSection
from flowright.config.loading import explain, load_section
from flowright.config.section import Section
from flowright.core.errors import ConfigError
from flowright.judging.schemas import Value
from flowright.judging.verdict import AnswerType, Criterion, JudgeQuery

Text = Annotated[str, Field(pattern=r"\S")]


class Example(Section):
    """A query with the reply that it should get: ``reason``, then ``says``, the values by key."""

    question: str
    answer: str
    reason: Text
    says: Mapping[str, Value]
    reference: str = ""
    answer_type: AnswerType = "free_text"
    alternatives: tuple[str, ...] = ()
    evidence: str | None = None
    rival: str | None = None
    criteria: tuple[Text, ...] = ()

    @property
    def query(self) -> JudgeQuery:
        given = self.model_dump(exclude={"reason", "says", "criteria"})
        return JudgeQuery(**given, criteria=tuple(Criterion(text, 1) for text in self.criteria))


class Words(Section):
    """For one ``judge.ask``. ``system`` is null for no system message; in the ``instruction``
    ``{criteria}`` and ``{aspects}`` are replaced."""

    system: Text | None
    instruction: Text
    examples: tuple[Example, ...] = ()


class Wording(Section):
    """A whole wording: criteria by what the reference is, and words by ``judge.ask``."""

    criteria: Mapping[AnswerType, Text] = {}
    questions: Mapping[str, Words]

    def words(self, ask: str, source: str) -> Words:
        """Those of one ``judge.ask``. Raises ConfigError, one line for each that is missing."""
        words = self.questions.get(ask)
        if words is None:
            raise ConfigError(f"{source}: questions.{ask}: missing, and judge.ask is {ask}")
        missing = [name for name in get_args(AnswerType) if name not in self.criteria]
        if missing and "{criteria}" in words.instruction:
            raise ConfigError(*(f"{source}: criteria.{name}: missing" for name in missing))
        return words


STANDARD = load_section(Wording, Path(__file__).with_name("wording.yaml"), ())
WORDINGS = WORDING.table({"standard": "flowright.judging.wording:STANDARD"})

WITHOUT_REFERENCE: Mapping[str, str] = {
    "score": (
        "How good is the final answer as a reply to the problem? The score goes from 0, it does "
        "nothing that is asked, to 1, it does all of it and nothing in it is wrong."
    ),
    "pointwise": (
        "What grade does the final answer deserve as a reply to the problem? The score is a whole "
        "number. 4: it does all that is asked, and nothing in it is wrong; 3: nearly; 2: partly; "
        "1: hardly; 0: not at all, or no answer."
    ),
}
"""Instructions by ``judge.ask``, for queries without a reference, which ``STANDARD`` is about."""


def wording_of(section: JudgeSection) -> Wording:
    """The configured wording, read once a process. Raises ConfigError, one line a mistake."""
    choice = section.wording
    if choice.endswith((".yaml", ".yml")):
        return _from_file(Path(choice), Path.cwd())
    try:
        return Wording.model_validate(WORDINGS.load(choice))
    except ValidationError as error:
        lines = (f"{choice}: {explain(Wording, detail)}" for detail in error.errors())
        raise ConfigError(*lines) from None


@cache
def _from_file(path: Path, folder: Path) -> Wording:
    del folder  # that the path may be relative to
    return load_section(Wording, path, ())


def wording_hash(section: JudgeSection) -> str:
    """12 hexadecimal digits that change with every word of the wording. Raises as
    :func:`wording_of`."""
    told = json.dumps(wording_of(section).model_dump(mode="json"), sort_keys=True)
    return sha256(told.encode()).hexdigest()[:12]
