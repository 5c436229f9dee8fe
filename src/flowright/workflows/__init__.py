"""Workflows: the language that the policy writes, its operators, and how a program is run."""
