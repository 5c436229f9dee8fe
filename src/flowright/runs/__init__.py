"""The run directory: what a run writes and everybody else reads."""
