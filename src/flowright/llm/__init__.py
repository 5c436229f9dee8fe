"""Talking to large models: the types, the one HTTP client, texts that go in and come out."""
