"""Shared prefixes: each token that several texts begin with is computed once."""
