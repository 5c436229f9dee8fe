"""A planted world in which the presentation of an answer can exploit a biased judge."""
