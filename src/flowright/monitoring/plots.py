"""Plots as files: accuracy against tokens, for papers and slides. The report draws its own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def accuracy_against_tokens(evaluation: Mapping[str, Any], path: Path) -> Path:
    """Gold accuracy with its interval over tokens per problem (log scale), one mark a row of
    ``evaluation.json``. The suffix of ``path`` chooses the format (svg, png, pdf)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for number, row in enumerate(evaluation["rows"], start=1):
        every = row["kinds"]["all"]
        policy = row["group"] == "policy"
        gold = every["gold"]
        if gold is None:
            continue  # nothing of the row could be scored
        spread = [[gold - every["gold_low"]], [every["gold_high"] - gold]]
        axes.errorbar(
            max(1.0, every["tokens"]),
            gold,
            yerr=spread,
            marker="o" if policy else "s",
            markersize=8 if policy else 4,
            color="tab:red" if policy else "tab:gray",
            alpha=1.0 if policy else 0.7,
            label=f"{number} {row['name'].removeprefix('fixed: ')}",
        )
        axes.annotate(str(number), (max(1.0, every["tokens"]), gold), xytext=(5, 3),
                      textcoords="offset points", fontsize=8)  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel("tokens of the large model per problem")
    axes.set_ylabel(f"gold accuracy, {evaluation['problems']} problems, 95 % intervals")
    if evaluation["simulated"]:
        axes.set_title("simulated server")
    figure.legend(loc="outside right upper", fontsize=7)
    figure.savefig(path)
    pyplot.close(figure)
    return path
