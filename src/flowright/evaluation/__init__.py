"""Measuring policies and baselines on the same problems: rows, comparisons."""
