"""Responses of models to the prompts of files: generated, kept as they come, and scored."""
