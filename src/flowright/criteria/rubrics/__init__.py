"""Rewards by criteria: rubrics, VerIF's rules and soft constraints, and the scaffolding that shows
some of the criteria to the policy.

The judge of :mod:`flowright.judging` says which criteria an answer meets, the sandbox runs what is
code; what they come to is computed here. docs/instructions.md has the formulas and the files.
"""
