"""Talking to large models: the types, the one HTTP client, and the embedded server."""
