"""Sampling from vLLM servers that serve each step's adapter, and prove that they do."""
