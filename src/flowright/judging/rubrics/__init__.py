"""Rubrics and VerIF constraints graded with a judge."""
