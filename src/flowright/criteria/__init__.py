"""Criteria for an answer: IFEval and IFBench checkers, rubrics."""
