"""Flowright: train a small language model to write the workflow that a large one should run."""

__version__ = "0.1.0"
