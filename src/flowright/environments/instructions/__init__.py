"""Following instructions, trained: prompts whose answers are rewarded by criteria, as the
environment ``instructions``. What an answer earns by them is :mod:`flowright.criteria.rubrics`'s and
:mod:`flowright.criteria.constraints`'s.
"""
