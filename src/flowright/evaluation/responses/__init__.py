"""Answers to a file's prompts: asked of a model in this process or at servers, kept as they come,
and scored. A missing answer is missing: no text stands for it, and no score.
"""
