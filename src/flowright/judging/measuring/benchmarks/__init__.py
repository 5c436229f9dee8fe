"""Judges measured on published benchmarks: who judges, what was said, and the figures of each."""
