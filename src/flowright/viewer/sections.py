"""Sections of a run's report made from its metrics: headline numbers, curves, mixes, learner, time,
plan, settings.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from flowright.core.formatting import (
    NOTHING,
    Form,
    Point,
    Record,
    amount,
    duration,
    flatten,
    format_value,
    is_number,
    percent,
    plain,
    points,
    short_percent,
)
from flowright.core.report import (
    BarList,
    ChangeChart,
    LineChart,
    ReportBlock,
    ReportSection,
    ReportTable,
    Series,
    Tile,
)
from flowright.core.untrusted import one_line
from flowright.environments.display import Mix
from flowright.runs.alarm import DRIFT
from flowright.viewer.snapshot import (
    ACCURACY,
    CUT,
    SAMPLED,
    HeldOut,
    Snapshot,
    all_held_out,
    edge,
    first,
    kinds,
    last,
    mean_seconds,
    some_steps,
    trend,
)
from flowright.viewer.turns import STOPS

COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")
Address = Callable[[int], str | None]
"""Maps a step to the address that a click on it opens."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Metrics over the steps: name, colour and metric of each curve; ``low`` and ``high`` are
    always within the axis. Without ``zeros``, curves that are 0 throughout are left out. A chart
    with a ``label`` is a line of the terminal screen, too, its value formatted by ``value``."""

    title: str
    curves: Sequence[tuple[str, str, str]]
    high: float | None = None
    low: float = 0.0
    form: Form = short_percent
    smoothed: bool = True
    zeros: bool = True
    label: str = ""
    value: Form = plain

    def of(self, snapshot: Snapshot) -> LineChart:
        """Fill in a run's metrics."""
        series = [
            Series(name, colour, snapshot.series(metric), smoothed=self.smoothed)
            for name, colour, metric in self.curves
        ]
        shown = [s for s in series if self.zeros or any(value for _, value in s.points)]
        return LineChart(self.title, shown, self.form, self.low, self.high)


def single(title: str, metric: str, label: str = "", value: Form = plain) -> Chart:
    """A chart of one metric."""
    return Chart(title, [(title, "c1", metric)], form=plain, label=label, value=value)


LEARNER = (
    single("Reward, mean of the step", "reward/mean"),
    single("Reward, standard deviation", "reward/std"),
    single("Groups without spread, share", "reward/zero_variance_frac"),
    single("KL to the base model", "policy/kl", "KL", "{:.4f}".format),
    single("Entropy, nats per token", "policy/entropy", "entropy", "{:.3f}".format),
    single("Clipped tokens, share", "policy/clip_frac", "clipped", percent),
    Chart(
        "Clipped by which bound, share",
        [
            ("below", "c1", "policy/clip_low"),
            ("above", "c2", "policy/clip_high"),
            ("dual", "c3", "policy/clip_dual"),
        ],
        form=plain,
    ),
    single("Ratio, standard deviation", "policy/ratio_std"),
    single("Gradient norm", "policy/grad_norm", "grad norm", "{:.2f}".format),
    single("Learning rate", "policy/lr"),
    single("Perplexity of a text not trained on", "eval/perplexity"),
    Chart("Prompts cut to fit, share", [("cut", "c1", CUT)], form=plain, zeros=False),
    single("Attempts sampled from a scaffold, share", "rollout/scaffolded_frac"),
    single("Of what scaffolds can show, share shown", "rollout/scaffold_share"),
    Chart(
        "Reward with and without a scaffold",
        [("with", "c1", "reward/scaffolded"), ("without", "c2", "reward/bare")],
        form=plain,
    ),
)
TURNS = (
    single("Turns of an attempt, mean", "turns/mean", "turns", "{:.2f}".format),
    Chart(
        "Ends of attempts, share",
        [
            (stop.replace("_", " "), colour, f"turns/stop/{stop}")
            for stop, colour in zip(STOPS, COLOURS, strict=False)
        ],
        high=1.0,
        zeros=False,
    ),
    single("Turns that could not be parsed, share", "turns/unparsed"),
    single(
        "Tokens of an answer, mean", "tokens/observation_mean", "answers", "{:,.0f} tokens".format
    ),
    single("Trained tokens that are the sampled ones, share", SAMPLED, "as sampled", percent),
    Chart(
        f"Gap between sampler and learner, nats per token, turns 1 to {len(COLOURS)}",
        [
            (f"turn {turn}", colour, f"policy/logprob_gap/turn_{turn}")
            for turn, colour in enumerate(COLOURS, start=1)
        ],
        form=plain,
    ),
)
"""Curves of attempts of several turns."""
FIXED_DATA = (
    Chart(
        "Loss",
        [("training", "c1", "train/loss"), ("validation", "c3", "val/loss")],
        form=plain,
    ),
    Chart(
        "Accuracy, share of pairs in the order that people gave them",
        [("training", "c1", "train/accuracy"), ("validation", "c3", "val/accuracy")],
        high=1.0,
    ),
)
"""Curves of a run on fixed data, which has no rewards."""
SPENT = (
    Chart(
        "Tokens of a completion",
        [
            ("training", "c1", "tokens/completion_mean"),
            ("validation", "c3", "val/tokens_completion_mean"),
        ],
        form=plain,
    ),
    single("GPU memory, GB", "gpu/memory_gb"),
)


def some(section: ReportSection) -> ReportSection | None:
    """The section, None where none of its blocks has anything to show."""

    def holds(block: ReportBlock) -> bool:
        if isinstance(block, LineChart):
            return any(series.points for series in block.series)
        return bool(block.rows) if isinstance(block, ReportTable | ChangeChart | BarList) else False

    return section if any(map(holds, section.blocks)) else None


# --- headline numbers -----------------------------------------------------------------------------


def tiles(snapshot: Snapshot) -> list[Tile]:
    """The first screen."""
    shown = [
        *map(_held_out_tile, all_held_out(snapshot)),
        _drift(snapshot),
        _change(snapshot, "Training loss", "train/loss", "{:.3f}".format),
        _change(snapshot, "Training accuracy", "train/accuracy", percent),
        _change(snapshot, "Reward", "reward/mean", "{:.2f}".format),
        _change(snapshot, f"Valid {snapshot.display.completion}s", "rollout/valid_frac", percent),
        _unscored(snapshot),
        _cut(snapshot),
        _time(snapshot),
    ]
    return [found for found in shown if found is not None]


def _held_out_tile(found: HeldOut) -> Tile:
    if found.before is None:
        return Tile(found.measured.title, found.text(), found.where)
    change = found.after - found.before
    verdict = {True: "; intervals do not overlap", False: "; intervals overlap", None: ""}
    certain = verdict[found.apart]
    if found.paired is not None:
        form = points if found.measured is ACCURACY else found.measured.change
        certain = f" (95 %: {form(found.paired[0])} to {form(found.paired[1])})"
    note = f"{found.measured.change(change)}{certain}; {found.where}"
    style = "good" if found.apart and change > 0 else ""
    return Tile(found.measured.title, found.text(), note, style)


def _drift(snapshot: Snapshot) -> Tile | None:
    """Judge minus gold over the last steps; None where nothing is judged."""
    recent, title = snapshot.recent_drift, "Judge drift from gold"
    if not snapshot.names("judge/"):
        return None
    if recent is None:
        return Tile(title, "unknown", "no step has both verdicts and gold checks", "warn")
    alarm, course = snapshot.drift is not None, snapshot.series(DRIFT)
    count = min(snapshot.drift_alarm.steps, len(course))
    notes = [f"last {some_steps(count)}", f"at first {points(first(course, count) or 0.0)}"]
    for label, metric in (
        ("agreement", "judge/agreement_with_gold"),
        ("false right", "judge/false_positive_rate"),
        ("false wrong", "judge/false_negative_rate"),
    ):
        value = last(snapshot.series(metric), count)
        if value is not None:
            notes.append(f"{label} {percent(value)}")
    note = f"{'rewards may be wrong; ' if alarm else ''}{', '.join(notes)}"
    return Tile(title, f"{points(recent)} points", note, "alarm" if alarm else "good")


def _change(snapshot: Snapshot, title: str, metric: str, form: Form) -> Tile | None:
    ends = trend(snapshot.series(metric))
    return ends and Tile(title, ends.text(form), f"first and last {some_steps(ends.steps)}")


def _unscored(snapshot: Snapshot) -> Tile | None:
    course = snapshot.series("rollout/unscored")
    share = last(course, len(course))
    if share is None:
        return None
    note = "of all samples, through faults of ours; they train nothing"
    return Tile("Unscored", f"{100 * share:.2f} %", note, "warn" if share > 0.01 else "")


def _cut(snapshot: Snapshot) -> Tile | None:
    """The share of prompts that were cut to fit, where any was."""
    if not (share := snapshot.cut):
        return None
    shown = "; an attempt's page shows what was seen" if snapshot.training_rows else ""
    note = f"of all prompts, to fit policy.max_prompt_tokens{shown}"
    return Tile("Prompts cut", percent(share), note, "warn")


def _time(snapshot: Snapshot) -> Tile | None:
    phases = snapshot.seconds
    if not phases:
        return None
    note = ", ".join(f"{phase} {duration(seconds)}" for phase, seconds in phases.items())
    return Tile("Time without loading", duration(sum(phases.values())), note)


# --- sections -------------------------------------------------------------------------------------


def curves(snapshot: Snapshot, address: Address | None = None) -> ReportSection | None:
    """Learning curves: all problems together, then each kind."""
    chart = partial(_curves, snapshot, address)
    if snapshot.series("val/reward"):
        whole = chart("All kinds", validation="val/reward", rewards="reward/mean", form=plain)
    else:
        whole = chart(
            "All kinds", "gold/accuracy", "reward/mean", "val/gold", judged="reward/right_frac"
        )
    by_kind = [
        chart(
            one_line(kind, 30),
            f"gold/accuracy/{kind}",
            f"reward/by_kind/{kind}",
            f"val/gold/{kind}",
        )
        for kind in kinds(snapshot)
    ]
    terms = [
        chart(f"Term {name.rpartition('/')[2]}", rewards=name, form=plain)
        for name in snapshot.names("reward/terms/")
    ]
    data = [chart.of(snapshot) for chart in FIXED_DATA]
    if any(series.points for chart in data for series in chart.series):
        lead = "Of the data: bold lines are moving means, points are held-out rows."
        return ReportSection("curves", "Learning curves", data, lead)
    whose = " (the judge's, with its parts)" if snapshot.names("judge/") else ""
    by_gold = f"Share of attempts that are right by gold, beside the mean reward{whose}."
    seen = snapshot.names("gold/") or snapshot.names("val/gold")
    lead = (
        f"{by_gold if seen else 'Mean reward.'} Thin lines are single steps, bold lines moving "
        "means; points are held-out validation problems."
    )
    lead += " A click on a step opens its attempts." if address else ""
    return some(ReportSection("curves", "Learning curves", [whole, *by_kind, *terms], lead))


def _curves(
    snapshot: Snapshot,
    address: Address | None,
    title: str,
    gold: str = "",
    rewards: str = "",
    validation: str = "",
    judged: str = "",
    form: Form = short_percent,
) -> LineChart:
    what = "gold" if gold else "reward"
    series = [
        Series("training, gold", "c1", snapshot.series(gold), smoothed=True),
        Series("training, judge", "c4", snapshot.series(judged), smoothed=True),
        Series("training, reward", "c2", snapshot.series(rewards), dashed=True, smoothed=True),
        Series(f"validation, {what}", "c3", snapshot.series(validation), marks=True),
    ]
    return LineChart(title, series, form, 0.0, address=address)


def mix_section(snapshot: Snapshot, mix: Mix) -> ReportSection | None:
    """A family of means by kind of problem, first steps against last steps."""
    count = edge(len(snapshot.training_rows))
    charts: list[ChangeChart] = []
    for kind in kinds(snapshot):
        prefix = f"{mix.prefix}/{kind}/"
        rows: list[tuple[str, float, float]] = []
        for name in snapshot.names(prefix):
            course = _means(snapshot, name, prefix)
            before, after = first(course, count), last(course, count)
            if before is not None and after is not None:
                rows.append((one_line(name.removeprefix(prefix), 15), before, after))
        charts.append(ChangeChart(one_line(kind, 30), sorted(rows, key=lambda row: -row[2])))
    steps = some_steps(count)
    lead = f"{mix.lead} Hollow: the first {steps}; full: the last {steps}."
    return some(ReportSection(mix.prefix, mix.title, charts, lead))


def _means(snapshot: Snapshot, name: str, prefix: str) -> list[Point]:
    """One mean of a family, 0 in steps whose attempts of its kind had only others."""
    return [
        (row["step"], value)
        for row in snapshot.training_rows
        if any(key.startswith(prefix) for key in row) and is_number(value := row.get(name, 0.0))
    ]


def learner(snapshot: Snapshot) -> ReportSection | None:
    """The learner's metrics of its own updates."""
    return some(ReportSection("learner", "Learner", [chart.of(snapshot) for chart in LEARNER]))


def turns(snapshot: Snapshot) -> ReportSection | None:
    """Turns, ends and answers of attempts; None for runs whose attempts have a single turn."""
    if not snapshot.series("turns/mean"):
        return None
    return some(ReportSection("turns", "Turns", [chart.of(snapshot) for chart in TURNS]))


def cost(snapshot: Snapshot) -> ReportSection | None:
    """Seconds by stage, tokens and calls."""
    stages = mean_seconds(snapshot, count=len(snapshot.rows))
    steps = snapshot.series("time/step")
    phases = [f"{phase} {duration(seconds)}" for phase, seconds in snapshot.seconds.items()]
    whole = duration(sum(snapshot.seconds.values()))
    lines = [
        Series(stage, colour, snapshot.series(f"time/{stage}"), False, stage == "evaluate", True)
        for stage, colour in zip(stages, COLOURS, strict=False)
    ]
    lines.append(Series("whole step", "c6", steps, dashed=True, smoothed=True))
    spent = [*(single(curve.title, curve.metric) for curve in snapshot.display.curves), *SPENT]
    each = mean_seconds(snapshot, snapshot.display.seconds, len(snapshot.rows))
    parts = ", ".join(f"{name} {duration(seconds)}" for name, seconds in each.items())
    lead = [
        f"{whole} without loading: {', '.join(phases)}." if phases else "",
        "Mean seconds of a stage, where a step had it." if stages else "",
        f"One rollout on average: {parts}." if parts else "",
    ]
    blocks: list[ReportBlock] = [
        BarList([(stage, duration(seconds), seconds) for stage, seconds in stages.items()]),
        LineChart("Seconds per step", lines, lambda v: f"{v:.3g} s", 0.0),
        *(chart.of(snapshot) for chart in spent),
    ]
    return some(ReportSection("cost", "Time and tokens", blocks, " ".join(filter(None, lead))))


def plan(snapshot: Snapshot) -> ReportSection | None:
    """The run's plan beside its measured cost, once it is over."""
    planned, compared = snapshot.plan.get("planned") or {}, snapshot.plan.get("compared") or {}
    rows: list[tuple[str, ...]] = []
    for name, each in compared.items():
        form = (
            duration if name.endswith("seconds") else "{:,.2f}".format if name == "usd" else amount
        )
        most = "at most " if name in planned.get("bounds", ()) else ""
        ratio = each["measured"] / each["planned"] if each["planned"] else None
        cells = (most + form(each["planned"]), form(each["measured"]))
        label = one_line(name.replace("_", " "), 60)
        rows.append((label, *cells, format_value(ratio, "{:.2f}".format)))
    lead = (
        f"Planned before the run: {one_line(planned.get('source', ''), 200)}. Tokens of the policy "
        "are those of training; the rest is the whole run's, without loading and a cold start."
    )
    table = ReportTable(("", "Planned", "Measured", "Measured / planned"), rows)
    return some(ReportSection("plan", "Plan and run", [table], lead))


# --- settings -------------------------------------------------------------------------------------


def settings(config: Record) -> list[tuple[str, str]]:
    """Nested mappings, such as a configuration, as dotted keys and values."""
    known = [(k, f"{v:.6g}" if isinstance(v, float) else v) for k, v in flatten(config)]
    return [(one_line(key, 200), one_line(value, 120)) for key, value in known]


def differing(here: Record, there: Record) -> dict[str, tuple[str, str]]:
    """The settings in which two configurations differ, each with its value in both; ``-`` where
    one has no such setting."""
    own, other = dict(settings(here)), dict(settings(there))
    keys: Iterable[str] = dict.fromkeys([*own, *other])
    pairs = {key: (own.get(key, NOTHING), other.get(key, NOTHING)) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
