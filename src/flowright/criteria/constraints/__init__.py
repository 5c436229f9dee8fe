"""Checkers of IFEval (Zhou et al. 2023, arXiv 2311.07911) and IFBench (Pyatkin et al. 2025, arXiv
2507.02833): instructions that a program can check."""
