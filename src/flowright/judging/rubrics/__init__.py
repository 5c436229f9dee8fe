"""Grading of an answer against rubrics, by a judge and by checkers."""
