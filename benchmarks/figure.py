"""Plots for the documentation: SVG, the same bytes for the same figures, readable on light and on
dark pages. Needs matplotlib, which nothing else here does: ``pip install matplotlib``."""

from pathlib import Path
from typing import Any

GREY = "#808080"


def drawing(name: str) -> Any:
    """matplotlib's pyplot, set up; ``name`` is what the plot's ids are made of."""
    import matplotlib as mpl  # pyright: ignore[reportMissingImports]

    mpl.use("svg")
    from matplotlib import pyplot  # pyright: ignore[reportMissingImports]

    keys = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    mpl.rcParams.update(dict.fromkeys(keys, GREY))
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 9})
    return pyplot


def save(figure: Any, file: Path) -> None:
    figure.tight_layout()
    figure.savefig(file, transparent=True, metadata={"Date": None})
