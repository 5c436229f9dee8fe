"""Instructions whose following a program can check: the checkers of IFEval (Zhou et al. 2023, arXiv
2311.07911) and IFBench (Pyatkin et al. 2025, arXiv 2507.02833), and the scores made of them. No
model is asked here.
"""
