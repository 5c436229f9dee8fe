"""Environments: tasks, prompts, and the rewards of completions."""
