"""Subcommands of flowright, called in this process."""

from collections.abc import Callable, Sequence

from flowright.cli.commands import main


def command(name: str) -> Callable[[Sequence[str]], int]:
    """A function from the arguments of a subcommand, such as ``data mix``, to its exit status."""
    return lambda arguments: main([*name.split(), *arguments])
