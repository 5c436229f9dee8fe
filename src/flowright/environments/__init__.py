"""What a completion means: the environments that turn completions into rewards."""
