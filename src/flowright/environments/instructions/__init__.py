"""Instruction following: the policy answers prompts and is rewarded by criteria."""
