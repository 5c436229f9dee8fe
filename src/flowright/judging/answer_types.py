"""The names of answer types as callers write them. What a type means is not known here."""

from collections.abc import Mapping
from typing import get_args

from flowright.core.plugins import suggest
from flowright.judging.verdict import AnswerType

TYPES: tuple[AnswerType, ...] = get_args(AnswerType)

_ALIASES: Mapping[str, AnswerType] = {
    "numeric": "number", "integer": "number", "int": "number", "float": "number",
    "math": "math_expression", "expression": "math_expression", "latex": "math_expression",
    "formula": "math_expression", "choice": "multiple_choice", "mcq": "multiple_choice",
    "text": "free_text", "string": "free_text", "free_form": "free_text", "any": "free_text",
    "boolean": "free_text", "bool": "free_text", "ocr_text": "free_text", "ocrtext": "free_text",
    "python": "code", "general_code": "code", "html_code": "code", "svg_code": "code",
}  # fmt: skip


def read_answer_type(given: object) -> AnswerType:
    """The type that a caller means: in any case, in the plural (``MATH_EXPRESSIONS``), with ``-``
    or a space for ``_``, by another usual name. None and "" are ``free_text``. Raises ValueError
    that lists the known ones."""
    if given is None or given == "":
        return "free_text"
    name = str(given).strip().lower().replace("-", "_").replace(" ", "_")
    for word in (name, name.removesuffix("s")):
        for known in TYPES:
            if word == known:
                return known
        if word in _ALIASES:
            return _ALIASES[word]
    shown = f"answer_type {repr(given)[:60]}{suggest(name[:60], TYPES)}"
    raise ValueError(f"{shown}; known are {', '.join(TYPES)}")


def shown_answer_type(known: AnswerType) -> str:
    """As judges behind HTTP and judge models of one's own get it, such as ``MATH_EXPRESSIONS``."""
    return "MATH_EXPRESSIONS" if known == "math_expression" else known.upper()
