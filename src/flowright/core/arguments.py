"""Options of command lines by the kind of their value: ``add.count(parser, "--limit", "rows")``."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Parser = argparse._ActionsContainer  # a parser, or a group of its options


def at_least_one(text: str) -> int:
    """A type for argparse: a whole number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def flag(parser: Parser, name: str, help: str | None = None, **more: Any) -> None:
    """Add an option without a value."""
    parser.add_argument(name, action="store_true", help=help, **more)


def text(
    parser: Parser, name: str, help: str | None = None, metavar: str | None = None, **more: Any
) -> None:
    """Add an option of any text, or of the ``type`` in ``more``."""
    parser.add_argument(name, metavar=metavar, help=help, **more)


def path(parser: Parser, name: str, *texts: str, **more: Any) -> None:
    """Add a path; ``texts`` are help and metavar."""
    text(parser, name, *texts, type=Path, **more)


def number(parser: Parser, name: str, *texts: str, **more: Any) -> None:
    """Add a number with a fraction; ``texts`` are help and metavar."""
    text(parser, name, *texts, type=float, **more)


def whole(parser: Parser, name: str, *texts: str, **more: Any) -> None:
    """Add a whole number; ``texts`` are help and metavar."""
    text(parser, name, *texts, type=int, **more)


def each(parser: Parser, name: str, *texts: str, **more: Any) -> None:
    """Add an option that may be repeated; ``texts`` are help and metavar."""
    text(parser, name, *texts, action="append", default=[], **more)


def count(parser: Parser, name: str, help: str | None = None, **more: Any) -> None:
    """Add a whole number from 1 on."""
    text(parser, name, help, "N", type=at_least_one, **more)


def choice(
    parser: Parser, name: str, choices: Sequence[str], help: str | None = None, **more: Any
) -> None:
    """Add an option with one of some values."""
    parser.add_argument(name, choices=choices, help=help, **more)


def overrides(parser: Parser, help: str | None = None) -> None:
    """Add the settings behind a command's options."""
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=help)
