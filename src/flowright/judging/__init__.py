"""Judges: anything that turns (question, reference, answer) into a verdict."""
