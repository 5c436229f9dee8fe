"""On how many examples a property is tried."""

from hypothesis import settings


def up_to(count: int) -> settings:
    """``count`` examples with ``--all``, else those of the default profile where they are fewer."""
    default = settings().max_examples
    return settings(max_examples=count if default >= 100 else min(count, default))
