"""The report's sections drawn from the metrics: curves, mixes, learner, time, settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowright.core.formatting import (
    NOTHING,
    Form,
    Point,
    Record,
    amount,
    duration,
    is_number,
    said,
)
from flowright.core.report import Series
from flowright.core.untrusted import one_line
from flowright.environments.display import Mix
from flowright.viewer.monitoring.snapshot import (
    Snapshot,
    edge,
    first,
    kinds,
    last,
    rollout_seconds,
    stage_seconds,
)
from flowright.viewer.rendering import svg
from flowright.viewer.rendering.charts import before_after, line_chart
from flowright.viewer.rendering.markup import Html, el, grid, section, table


@dataclass(frozen=True, slots=True)
class Chart:
    """Metrics over the steps: name, colour and metric of each curve; ``low`` and ``high`` are the
    least that the axis spans. Without ``zeros``, curves that are 0 throughout are left out."""

    title: str
    curves: Sequence[tuple[str, str, str]]
    high: float | None = None
    low: float = 0.0
    form: Form = svg.short_percent
    smoothed: bool = True
    zeros: bool = True

    def drawn(self, snapshot: Snapshot) -> Html | None:
        """The drawing, None where no metric has a value."""
        series = [
            Series(name, colour, snapshot.series(metric), smoothed=self.smoothed)
            for name, colour, metric in self.curves
        ]
        shown = [s for s in series if self.zeros or any(value for _, value in s.points)]
        return line_chart(self.title, shown, self.form, self.low, self.high)


def single(title: str, metric: str) -> Chart:
    """A chart of one metric."""
    return Chart(title, [(title, "c1", metric)], form=svg.plain)


LEARNER = (
    single("Reward, mean of the step", "reward/mean"),
    single("Reward, standard deviation", "reward/std"),
    single("Groups without spread, share", "reward/zero_variance_frac"),
    single("KL to the base model", "policy/kl"),
    single("Entropy, nats per token", "policy/entropy"),
    single("Clipped tokens, share", "policy/clip_frac"),
    Chart(
        "Clipped by which bound, share",
        [
            ("below", "c1", "policy/clip_low"),
            ("above", "c2", "policy/clip_high"),
            ("dual", "c3", "policy/clip_dual"),
        ],
        form=svg.plain,
    ),
    single("Ratio, standard deviation", "policy/ratio_std"),
    single("Gradient norm", "policy/grad_norm"),
    single("Learning rate", "policy/lr"),
    single("Perplexity of a text not trained on", "eval/perplexity"),
    single("Prompts cut to fit, share", "prompt/truncated"),
    single("Attempts sampled from a scaffold, share", "rollout/scaffolded_frac"),
    single("Of what scaffolds can show, share shown", "rollout/scaffold_share"),
    Chart(
        "Reward with and without a scaffold",
        [("with", "c1", "reward/scaffolded"), ("without", "c2", "reward/bare")],
        form=svg.plain,
    ),
)
SPENT = (
    Chart(
        "Tokens of a completion",
        [
            ("training", "c1", "tokens/completion_mean"),
            ("validation", "c3", "val/tokens_completion_mean"),
        ],
        form=svg.plain,
    ),
    single("GPU memory, GB", "gpu/memory_gb"),
)


def curves(snapshot: Snapshot) -> Html | None:
    """Learning curves: all problems together, then each kind."""
    panels = [_curve(snapshot, "All kinds", "gold/accuracy", "reward/mean", "val/gold")]
    for kind in kinds(snapshot):
        metrics = (f"gold/accuracy/{kind}", f"reward/by_kind/{kind}", f"val/gold/{kind}")
        panels.append(_curve(snapshot, one_line(kind, 30), *metrics))
    if means := snapshot.series("val/reward"):
        course = snapshot.series("reward/mean")
        shown = [
            Series("training, reward", "c2", course, dashed=True, smoothed=True),
            Series("validation, reward", "c3", means, marks=True),
        ]
        panels[0] = line_chart("All kinds", shown, form=svg.plain, low=0.0)
    drawn = grid(panels, "charts two")
    whose = " (the judge's, with its parts)" if snapshot.names("judge/") else ""
    by_gold = f"Share of attempts that are right by gold, beside the mean reward{whose}."
    seen = snapshot.names("gold/") or snapshot.names("val/gold")
    lead = (
        f"{by_gold if seen else 'Mean reward.'} Thin lines are single steps, bold lines moving "
        "means; points are held-out validation problems."
    )
    return section("curves", "Learning curves", lead, drawn) if drawn else None


def _curve(snapshot: Snapshot, title: str, gold: str, reward: str, validation: str) -> Html | None:
    return line_chart(
        title,
        [
            Series("training, gold", "c1", snapshot.series(gold), smoothed=True),
            Series("training, reward", "c2", snapshot.series(reward), dashed=True, smoothed=True),
            Series("validation, gold", "c3", snapshot.series(validation), marks=True),
        ],
        low=0.0,
    )


def mix_section(snapshot: Snapshot, mix: Mix) -> Html | None:
    """A family of means by kind of problem, first steps against last steps."""
    count = edge(len(snapshot.training_rows))
    panels: list[Html | None] = []
    for kind in kinds(snapshot):
        prefix = f"{mix.prefix}/{kind}/"
        rows: list[tuple[str, float, float]] = []
        for name in snapshot.names(prefix):
            points = _means(snapshot, name, prefix)
            before, after = first(points, count), last(points, count)
            if before is not None and after is not None:
                rows.append((one_line(name.removeprefix(prefix), 15), before, after))
        rows.sort(key=lambda row: -row[2])
        panels.append(before_after(one_line(kind, 30), rows))
    drawn = grid(panels)
    steps = "step" if count == 1 else f"{count} steps"
    lead = f"{mix.lead} Hollow: the first {steps}; full: the last {steps}."
    return section(mix.prefix, mix.title, lead, drawn) if drawn else None


def _means(snapshot: Snapshot, name: str, prefix: str) -> list[Point]:
    """One mean of a family, 0 in steps whose attempts of its kind had only others."""
    return [
        (row["step"], value)
        for row in snapshot.training_rows
        if any(key.startswith(prefix) for key in row) and is_number(value := row.get(name, 0.0))
    ]


def learner(snapshot: Snapshot) -> Html | None:
    """What the learner says about its own updates."""
    drawn = grid([chart.drawn(snapshot) for chart in LEARNER])
    return section("learner", "Learner", "", drawn) if drawn else None


def cost(snapshot: Snapshot) -> Html | None:
    """Seconds by stage, tokens and calls."""
    everything = len(snapshot.rows)
    stages = stage_seconds(snapshot, everything)
    steps = snapshot.series("time/step")
    lines = [
        Series(stage, colour, snapshot.series(f"time/{stage}"), False, stage == "evaluate", True)
        for stage, colour in zip(stages, ("c1", "c2", "c3", "c4"), strict=False)
    ]
    lines.append(Series("whole step", "c6", steps, dashed=True, smoothed=True))
    seconds = line_chart("Seconds per step", lines, form=lambda v: f"{v:.3g} s", low=0.0)
    spent = [*(single(curve.title, curve.metric) for curve in snapshot.display.curves), *SPENT]
    drawn = grid([seconds, *(chart.drawn(snapshot) for chart in spent)])
    if drawn is None:
        return None
    told = [f"{len(steps)} steps in {duration(sum(s for _, s in steps))}."] if steps else []
    each = [f"{name} {duration(s)}" for name, s in rollout_seconds(snapshot, everything).items()]
    told += ["Mean seconds of a stage, where a step had it."] if stages else []
    told += [f"One rollout on average: {', '.join(each)}."] if each else []
    return section("cost", "Time and tokens", " ".join(told), _stage_bars(stages), drawn)


def _stage_bars(stages: Mapping[str, float]) -> Html | None:
    longest = max(stages.values(), default=0.0) or 1.0
    bars = [
        [
            el("span", stage),
            el("span", duration(seconds)),
            el(
                "svg",
                el("rect", width=round(100 * seconds / longest, 1), height=10),
                viewBox="0 0 100 10",
                preserveAspectRatio="none",
                aria_hidden="true",
            ),
        ]
        for stage, seconds in stages.items()
    ]
    return el("div", bars, class_="stage") if bars else None


def plan(snapshot: Snapshot) -> Html | None:
    """What the run was planned to take beside what it took, where it is over."""
    planned, compared = snapshot.plan.get("planned") or {}, snapshot.plan.get("compared") or {}
    if not compared:
        return None
    body = []
    for name, each in compared.items():
        form = duration if name.endswith("seconds") else _usd if name == "usd" else amount
        most = "at most " if name in planned.get("bounds", ()) else ""
        ratio = each["measured"] / each["planned"] if each["planned"] else None
        cells = (most + form(each["planned"]), form(each["measured"]), said(ratio, "{:.2f}".format))
        label = one_line(name.replace("_", " "), 60)
        body.append(el("tr", el("th", label), [el("td", cell) for cell in cells]))
    lead = (
        f"Planned before the run: {one_line(planned.get('source', ''), 200)}. Tokens of the policy "
        "are those of training; the rest is the whole run's, without loading and a cold start."
    )
    head = ("", "Planned", "Measured", "Measured / planned")
    return section("plan", "Plan and run", lead, table(head, body))


def _usd(price: float) -> str:
    return f"{price:,.2f}"


def differing(here: Record, there: Record) -> dict[str, tuple[str, str]]:
    """The settings in which two configurations differ, each with its value in both; ``-`` where
    one has no such setting."""
    told, other = dict(settings(here)), dict(settings(there))
    return {
        key: (told.get(key, NOTHING), other.get(key, NOTHING))
        for key in dict.fromkeys([*told, *other])
        if told.get(key) != other.get(key)
    }


def settings(config: Record) -> list[tuple[str, str]]:
    """Nested mappings, such as a configuration, as dotted keys and values."""
    found: list[tuple[str, str]] = []
    for key, value in config.items():
        name = one_line(key, 60)
        if isinstance(value, Mapping) and value:
            found += [(f"{name}.{inner}", told) for inner, told in settings(value)]
        else:
            told = f"{value:.6g}" if isinstance(value, float) else value
            found.append((name, one_line(told, 120)))
    return found
