"""Sampling from vLLM servers that serve each step's adapter, with proof."""
