"""Workflow writing: the policy writes a program, and a judge decides on its answer."""
