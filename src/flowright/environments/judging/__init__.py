"""Judging: the policy is a judge, rewarded by the labels of its data."""
