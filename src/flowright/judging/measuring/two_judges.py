"""Two judges on the same pairs: McNemar's test on the pairs that only one of them has right."""

from typing import Any

from flowright.core.errors import UserError
from flowright.core.formatting import Record
from flowright.core.report import FactList, ReportSection, estimate_ends
from flowright.core.statistics import DIFFERENCE, Resampler, mean, sign_test
from flowright.judging.measuring.benchmark_rows import RESAMPLES


def compare_judges(first: Record, second: Record) -> dict[str, Any]:
    """Compare the records of two judges: counts of rows by who has them right, the difference of
    the shares with its interval (bootstrap over prompts), and McNemar's exact p-value, which takes
    rows for independent. Rows that one of them left unscored are only counted. Raises UserError for
    records of different rows, or of rows without labels."""
    if first["about"]["sha256"] != second["about"]["sha256"]:
        raise UserError("--against: the two records are of different rows")
    if not any("right" in row for record in (first, second) for row in record["rows"]):
        raise UserError(
            "--against: no row has a label and both verdicts; compare on labelled pairs"
        )
    both = [
        (mine["prompt"], bool(mine["right"]), bool(other["right"]))
        for mine, other in zip(first["rows"], second["rows"], strict=True)
        if "right" in mine and "right" in other
    ]
    outcomes = [(mine, other) for _, mine, other in both]
    only, only_other = outcomes.count((True, False)), outcomes.count((False, True))
    prompts = [prompt for prompt, *_ in both]
    found = Resampler(prompts, RESAMPLES, first["about"]["seed"]).estimate(
        prompts, [(mine - other, 1.0) for mine, other in outcomes], mean, DIFFERENCE
    )
    return {
        "judge": second["about"]["judge"],
        "simulated": second["about"]["simulated"],
        "both_right": outcomes.count((True, True)),
        "only_first": only,
        "only_second": only_other,
        "neither": outcomes.count((False, False)),
        "unscored": len(first["rows"]) - len(both),
        "difference": {"value": found.value, "low": found.low, "high": found.high},
        "p": sign_test(only, only_other),
    }


def two_judges_section(record: Record) -> ReportSection | None:
    """Build the section of a record that has a comparison."""
    against = record.get("against")
    if against is None:
        return None
    names = record["about"]["judge"], against["judge"]
    value, low, high = (
        None if end is None else f"{100 * end:+.1f}" for end in estimate_ends(against["difference"])
    )
    interval = "" if low is None else f" ({low} to {high})"
    counts = (
        ("both right", "both_right"),
        (f"only {names[0]}", "only_first"),
        (f"only {names[1]}", "only_second"),
        ("neither", "neither"),
        ("unscored by one of them", "unscored"),
    )
    facts = [(name, f"{against[key]:,}") for name, key in counts]
    facts.append(("difference, points", f"{value or '-'}{interval}"))
    facts.append(("exact p (McNemar)", f"{against['p']:.3g}"))
    lead = (
        f"{names[0]} minus {names[1]}{' (simulated)' if against['simulated'] else ''}. Right: the "
        "verdict of both orders is the label, in RewardBench 2 the whole row. The interval is at "
        "95 %, from a bootstrap over prompts; p takes the rows for independent."
    )
    return ReportSection("against", "Two judges", [FactList(facts)], lead)
