"""The words of rubrics: those of ``wording.yaml``, or of a user's own YAML file."""

from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from flowright.config.loading import load_section
from flowright.config.section import Section

Text = Annotated[str, Field(pattern=r"\S")]


class ScaffoldWords(Section):
    """The parts of the system message that shows criteria, in their order. ``include`` and
    ``avoid`` hold ``{include}`` and ``{avoid}``, in the place of which the criteria stand."""

    opening: Text
    include: Annotated[str, Field(pattern=r"\{include\}")]
    avoid: Annotated[str, Field(pattern=r"\{avoid\}")]
    closing: Text


class RubricWording(Section):
    """``rubric`` and ``verif`` are the instructions of the judge, ``scaffold`` is the policy's."""

    rubric: Text
    verif: Text
    scaffold: ScaffoldWords


@cache
def standard_wording() -> RubricWording:
    """That of ``wording.yaml``."""
    return wording_from(Path(__file__).with_name("wording.yaml"))


def wording_from(path: Path) -> RubricWording:
    """A user's own. Raises ConfigError, one line a mistake."""
    return load_section(RubricWording, path, ())
