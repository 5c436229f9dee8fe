"""Judges: from a question, a reference and an answer to a verdict."""
