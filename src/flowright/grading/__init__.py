"""Gold checks: whether an answer is right by the task's own standard, without asking a judge."""

from flowright.grading.gold import Gold, gold_check, trusted_setup
from flowright.grading.text import exact_match, extract_answer, token_f1

__all__ = ["Gold", "exact_match", "extract_answer", "gold_check", "token_f1", "trusted_setup"]
