"""Exams and benchmarks of judges."""
