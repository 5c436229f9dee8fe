"""Gold checks of answers by the task's own standard, without a judge."""

from flowright.grading.gold import Gold, gold_check
from flowright.grading.statements import extract_answer
from flowright.grading.text import exact_match

__all__ = ["Gold", "exact_match", "extract_answer", "gold_check"]
