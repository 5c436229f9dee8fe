"""A package that must not be imported."""

raise RuntimeError("imported, and not configured")
