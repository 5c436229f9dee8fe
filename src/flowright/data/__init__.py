"""Tasks: types, sources, mixtures, splits, contamination."""
