"""Entry point of the isolated side's interpreter; see zygote.py. Standard library only."""

import os


def _start() -> None:
    """Import all that follows without its hooks for forks.

    What the standard library does in every new child (a fresh seed, fresh locks) is for programs
    with threads and takes 0.7 ms; the zygote has one thread and seeds its children itself.
    """
    os.register_at_fork = lambda **hooks: None
    import zygote  # type: ignore[import-not-found]

    zygote.main()


_start()
