"""The policy: the small model that writes workflows, and how completions are sampled from it."""
