"""The judge's exam: labelled answers, perturbed answers, and what the verdicts on them show."""
