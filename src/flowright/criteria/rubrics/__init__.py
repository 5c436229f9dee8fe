"""Criteria of rubrics and of VerIF: their files, points, and the scaffolding that shows some of
them to the policy. docs/instructions.md has the formulas and the file formats."""
