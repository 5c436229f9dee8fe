"""The state of a run as its files have it at one moment, and the sums that every screen shows.

Keys may be absent: a run that has just started has few, one of another version has others. An
absent value is None or an empty list, and the screens leave it out.
"""

import math
import shlex
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import zstandard
from pydantic import ValidationError

from flowright.config.judge import AlarmSection
from flowright.core.checkout import here
from flowright.core.errors import Blame, Reason
from flowright.core.files import is_held
from flowright.core.formatting import (
    Form,
    Point,
    Record,
    is_number,
    object_of,
    objects_in,
    percent,
    points,
)
from flowright.core.untrusted import one_line
from flowright.environments.display import Display, display_of
from flowright.runs.alarm import DRIFT, drifting
from flowright.runs.run_files import (
    read_calibration,
    read_config,
    read_evaluation,
    read_metrics,
    read_plan,
    read_rollouts,
    read_state,
)
from flowright.runs.totals import seconds_by_phase

_OURS = frozenset(r.value for r in Reason if r.blame is Blame.INFRASTRUCTURE)
FAILED = "rollout/failed/"
CUT = "prompt/truncated"
SAMPLED = "tokens/trained_as_sampled"
AGREEMENT = "judge/agreement_with_gold"
LIMITS: Mapping[str, tuple[float, float]] = {
    AGREEMENT: (0.8, math.inf),
    "rollout/valid_frac": (0.9, math.inf),
    "rollout/unscored": (-math.inf, 0.01),
    CUT: (-math.inf, 0.0),
    SAMPLED: (1.0, math.inf),
}
"""The lowest and the highest value that need no remark; ``judge.min_agreement`` replaces that of
agreement."""
STAGES = ("sample", "rollout", "update", "evaluate")
QUIET_SECONDS = 120.0  # without news of a running run before the screens remark on it
RECENT = 10  # steps that "recent" means


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a run. ``rows`` are the metrics, one row a step, ascending; ``alive``: a trainer
    owns the directory of a run whose state is "running", None where that cannot be seen from here
    (another host, a copy)."""

    run: Path
    state: Record = field(default_factory=dict)
    rows: Sequence[Record] = ()
    evaluation: Record | None = None
    config: Record = field(default_factory=dict)
    plan: Record = field(default_factory=dict)
    calibration: Record = field(default_factory=dict)
    alive: bool | None = None
    quiet_seconds: float = 0.0

    @property
    def died(self) -> bool:
        return self.state.get("status") == "running" and self.alive is False

    @property
    def status(self) -> str:
        if self.died:
            return "died"
        # An evaluation on its own has no state, and its table once it is measured.
        unknown = "starting" if self.evaluation is None else "finished"
        return str(self.state.get("status", unknown))

    @property
    def running(self) -> bool:
        return self.status == "running"

    @property
    def step(self) -> float | None:
        """The step in progress; of a run that has ended, its last recorded one."""
        if not self.running and self.rows and is_number(self.state.get("step")):
            return max(0, self.rows[-1]["step"])
        step = self.state.get("step")
        return step if is_number(step) else None

    @property
    def simulated(self) -> bool:
        """A number comes from the embedded server, by the first file that has it."""
        models = (self.config.get("aflow_executor_model"), self.setting("judge", "model"))
        marks = (self.state.get("simulated"), (self.evaluation or {}).get("simulated"))
        known = [mark for mark in marks if mark is not None]
        return any(known) if known else "simulated" in models

    @property
    def training_rows(self) -> list[Record]:
        """Rows of steps that were trained on rollouts; an evaluation's row (step 0) has none."""
        return [row for row in self.rows if any(n.startswith("rollout/") for n in row)]

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase; their sum is the run's time."""
        return seconds_by_phase(self.rows, self.evaluation)

    @property
    def display(self) -> Display:
        return display_of(self.config)

    @property
    def compared(self) -> list[Record]:
        """The rows of the evaluation, of policies and baselines."""
        cells = [
            {**row, **{key: cells_of(row, key) for key in ("kinds", "sources")}}
            for row in objects_in((self.evaluation or {}).get("rows"))
        ]
        return [row for row in cells if row["kinds"] and row.get("name")]

    @property
    def warnings(self) -> list[str]:
        """Reservations about the run's numbers, from its state."""
        found = self.state.get("warnings")
        return [one_line(text, 300) for text in found] if isinstance(found, list) else []

    @property
    def resume_command(self) -> str:
        config = shlex.quote(f"{self.run}/config.json")
        return here(f"python train.py --config {config} --resume")

    def series(self, name: str) -> list[Point]:
        """``(step, value)`` wherever the metric has a value."""
        return [(row["step"], row[name]) for row in self.rows if is_number(row.get(name))]

    def names(self, prefix: str) -> list[str]:
        """Metrics that begin with ``prefix``, in the order in which they first appear."""
        return list(dict.fromkeys(n for row in self.rows for n in row if n.startswith(prefix)))

    def latest(self, name: str) -> float | None:
        points = self.series(name)
        return points[-1][1] if points else None

    @property
    def drift_alarm(self) -> AlarmSection:
        """The run's ``judge.alarm``, or the default where its configuration has none that can be
        read."""
        try:
            return AlarmSection.model_validate(self.setting("judge", "alarm") or {})
        except ValidationError:
            return AlarmSection()

    def out_of_range(self, metric: str) -> float | None:
        """The metric's mean over the recent steps where it is beyond its limit, else None."""
        low, high = LIMITS.get(metric, (-math.inf, math.inf))
        floor = self.setting("judge", "min_agreement")
        if metric == AGREEMENT and is_number(floor) and floor:
            low = floor
        mean = last(self.series(metric), RECENT)
        return None if mean is None or low <= mean <= high else mean

    @property
    def cut(self) -> float | None:
        """The share of all prompts that were cut to fit; None where it is not known."""
        course = self.series(CUT)
        return last(course, len(course))

    @property
    def recent_drift(self) -> float | None:
        """The mean drift of the judge from gold over as many last steps as the alarm takes."""
        return last(self.series(DRIFT), self.drift_alarm.steps)

    @property
    def drift(self) -> float | None:
        """The judge's recent drift from gold where it is large enough for the alarm, else None;
        positive where the judge is generous."""
        return drifting(self.series(DRIFT), self.drift_alarm)

    def setting(self, section: str, key: str) -> Any:
        """A value of the run's configuration, or None."""
        found = self.config.get(section)
        return found.get(key) if isinstance(found, dict) else None


def cells_of(row: Record, key: str) -> dict[str, Record]:
    """The cells of a row of an evaluation, by kind or data set, and of these the numbers."""
    return {
        name: {
            measure: value for measure, value in cell.items() if value is None or is_number(value)
        }
        for name, cell in object_of(row, key).items()
        if isinstance(cell, dict)
    }


def first(points: Sequence[Point], count: int) -> float | None:
    """Mean of the first values, None without any."""
    return fmean(value for _, value in points[:count]) if points else None


def last(points: Sequence[Point], count: int) -> float | None:
    """Mean of the last values, None without any."""
    return fmean(value for _, value in points[-count:]) if points else None


def edge(count: int) -> int:
    """The number of steps that "the first" and "the last" mean: a tenth, at least 1 and at most
    10."""
    return max(1, min(10, count // 10 or 1))


@dataclass(frozen=True, slots=True)
class Trend:
    """Means of the first and of the last ``steps`` steps."""

    first: float
    last: float
    steps: int

    def text(self, form: Form) -> str:
        return f"{form(self.first)} → {form(self.last)}"


def trend(points: Sequence[Point]) -> Trend | None:
    """Compare the ends of a series; None for an empty one."""
    count = edge(len(points))
    early, late = first(points, count), last(points, count)
    return None if early is None or late is None else Trend(early, late, count)


def some_steps(count: int) -> str:
    """``step`` or ``4 steps``, as behind "the first"."""
    return "step" if count == 1 else f"{count} steps"


def failures(rows: Iterable[Record]) -> dict[str, float]:
    """Mean share of a step's rollouts that failed, by reason, largest first."""
    rows = list(rows)
    totals: dict[str, float] = {}
    for row in rows:
        for name, value in row.items():
            if name.startswith(FAILED) and is_number(value) and value > 0:
                reason = name.removeprefix(FAILED)
                totals[reason] = totals.get(reason, 0.0) + value / len(rows)
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def is_ours(reason: str) -> bool:
    """Tell a failure of the infrastructure (law 1) by its name; unknown names are none."""
    return reason in _OURS


def kinds(snapshot: Snapshot) -> list[str]:
    """The kinds of problem in the run's metrics, in their usual order."""
    usual = snapshot.display.kinds
    prefixes = ["gold/accuracy/", "val/gold/", "reward/by_kind/"]
    prefixes += [f"{mix.prefix}/" for mix in snapshot.display.mixes]
    names = [n.removeprefix(p) for p in prefixes for n in snapshot.names(p)]
    found = {name.split("/")[0] for name in names}
    return [k for k in usual if k in found] + sorted(found - set(usual))


def mean_seconds(
    snapshot: Snapshot, names: Sequence[str] = STAGES, count: int = RECENT
) -> dict[str, float]:
    """Mean seconds over the last steps that had it, of each stage, which may overlap; or of each
    part of a rollout, such as its verdict: many are under way at once, so these do not add up to a
    stage."""
    means = {name: last(snapshot.series(f"time/{name}"), count) for name in names}
    return {name: value for name, value in means.items() if value is not None}


def eta_seconds(snapshot: Snapshot) -> float | None:
    """Seconds until the last step at the present pace, None where that is unknown."""
    step, steps = snapshot.step, snapshot.state.get("steps")
    pace = last(snapshot.series("time/step"), 10)
    if not snapshot.running or pace is None or not is_number(step) or not is_number(steps):
        return None
    return max(0.0, (steps - step) * pace)


class Watcher:
    """Takes snapshots of one run again and again, reading only what changed."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._rows: list[Record] = []
        self._rows_stamp: tuple[int, int] | None = None
        self._rollouts: list[Record] = []
        self._rollouts_step: int | None = None
        self._dead_since: object = None

    def look(self) -> Snapshot:
        """Raises RunError when a file of the run is damaged."""
        state = read_state(self.run)
        stamp = file_stamp(self.run / "metrics.jsonl")
        if stamp != self._rows_stamp:
            self._rows, self._rows_stamp = merge_steps(read_metrics(self.run)), stamp
        updated = state.get("updated")
        return Snapshot(
            run=self.run,
            state=state,
            rows=self._rows,
            evaluation=read_evaluation(self.run),
            config=read_config(self.run),
            plan=read_plan(self.run),
            calibration=read_calibration(self.run),
            alive=self._alive(state),
            quiet_seconds=max(0.0, time.time() - updated) if is_number(updated) else 0.0,
        )

    def rollouts(self, step: int) -> list[Record]:
        """The rollouts of a step, kept until another step is asked for."""
        if step != self._rollouts_step:
            self._rollouts = load_rollouts(self.run, step)
            self._rollouts_step = step if self._rollouts else None
        return self._rollouts

    def _alive(self, state: Record) -> bool | None:
        # The lock, not the process id: ids are reused, and containers number on their own. A dead
        # run is asked about once, so that a trainer resuming it never meets our hand on the lock.
        if state.get("status") != "running":
            return None
        identity = (state.get("pid"), state.get("updated"))
        if self._dead_since == identity:
            return False
        if state.get("host") not in (None, socket.gethostname()):
            return None
        held = is_held(self.run)
        if held is False:
            self._dead_since = identity
        return held


def take_snapshot(run: Path) -> Snapshot:
    """Read a run once. Raises RunError when a file of it is damaged."""
    return Watcher(run).look()


def load_rollouts(run: Path, step: int) -> list[Record]:
    """A step's rollouts; none when they were pruned meanwhile or cannot be read any more."""
    try:
        return list(read_rollouts(run, step))
    except (OSError, ValueError, zstandard.ZstdError):
        return []


def merge_steps(rows: Iterable[Record]) -> list[Record]:
    """One row a step, ascending: rows of the same step, such as an evaluation's, are joined."""
    merged: dict[int, dict[str, Any]] = {}
    for row in rows:
        merged.setdefault(row.get("step", 0), {}).update(row)
    return [{"step": step, **row} for step, row in sorted(merged.items())]


def file_stamp(path: Path) -> tuple[int, int] | None:
    """Time of change and size of a file; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@dataclass(frozen=True, slots=True)
class Measured:
    """``key`` of a cell of ``evaluation.json``, of ``val/<key>``, and of the ends of its interval
    (``<key>_low``, ``<key>_high``); ``name`` as in "by gold"; ``change`` of a difference;
    ``label`` of the terminal screen."""

    key: str
    title: str
    name: str
    form: Form
    change: Form
    label: str = "validation"

    @property
    def ends(self) -> tuple[str, str]:
        return f"{self.key}_low", f"{self.key}_high"


def _points(change: float) -> str:
    return f"{points(change)} points"


ACCURACY = Measured("gold", "Held-out accuracy, by gold", "accuracy by gold", percent, _points)
MEAN_REWARD = Measured(
    "reward", "Held-out mean reward", "mean reward", "{:.2f}".format, "{:+.2f}".format
)
OF_DATA = (
    Measured("accuracy", "Validation accuracy", "accuracy", percent, _points, "val acc."),
    Measured("loss", "Validation loss", "loss", "{:.3f}".format, "{:+.3f}".format, "val loss"),
)
"""Measured while a run trains on fixed data: ``val/accuracy`` of pairs, and ``val/loss``."""


def measured_of(snapshot: Snapshot) -> Measured:
    """Choose by a run's evaluation or, before there is one, by its validation."""
    if has_rewards(snapshot.compared) or snapshot.series("val/reward"):
        return MEAN_REWARD
    if snapshot.compared or snapshot.series("val/gold"):
        return ACCURACY
    return next((m for m in OF_DATA if snapshot.series(f"val/{m.key}")), ACCURACY)


def has_rewards(rows: Iterable[Record]) -> bool:
    """Find mean rewards in the rows of an evaluation."""
    return any("reward" in (row["kinds"].get("all") or {}) for row in rows)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A measure on held-out problems before and after training; ``before`` is None where it was
    measured once. ``where`` names the measurement; ``apart``: the paired 95 % interval of the
    change (``paired``) leaves out 0, or in runs without one the two intervals do not overlap; None
    where there are none."""

    measured: Measured
    before: float | None
    after: float
    where: str
    apart: bool | None = None
    paired: tuple[float, float] | None = None

    def text(self) -> str:
        form = self.measured.form
        return form(self.after) if self.before is None else (
            f"{form(self.before)} → {form(self.after)}"
        )  # fmt: skip


def held_out(snapshot: Snapshot) -> HeldOut | None:
    """Return the figure that every screen shows: of the before/after table once it is measured,
    until then of the first and the last validation."""
    measured = measured_of(snapshot)
    before, after = _policy_cells(snapshot, measured.key)
    if before and after:
        count = (snapshot.evaluation or {}).get("problems")
        many = "" if count == 1 else "s"
        where = f"evaluation of {count:,} problem{many}" if is_number(count) else "evaluation"
        paired = _paired(snapshot)
        apart = _do_intervals_differ(before, after, measured)
        apart = apart if paired is None else not paired[0] <= 0 <= paired[1]
        return HeldOut(measured, before[measured.key], after[measured.key], where, apart, paired)
    return validated(snapshot, measured)


def all_held_out(snapshot: Snapshot) -> list[HeldOut]:
    """Return that figure and, of a run on fixed data, its validation."""
    found = held_out(snapshot)
    if found is None:
        return []
    others = (validated(snapshot, each) for each in OF_DATA if each is not found.measured)
    return [found, *filter(None, others)]


def validated(snapshot: Snapshot, measured: Measured) -> HeldOut | None:
    """Return the first and the last validation."""
    course = snapshot.series(f"val/{measured.key}")
    if not course:
        return None
    (first_step, before), (step, now) = course[0], course[-1]
    if len(course) == 1:
        return HeldOut(measured, None, now, f"validation, step {step:.0f}")
    return HeldOut(measured, before, now, f"validation, steps {first_step:.0f} and {step:.0f}")


def _policy_cells(snapshot: Snapshot, key: str) -> tuple[Record | None, Record | None]:
    """The "all" cells of the untrained and of the trained policy."""
    cells: dict[str, Record] = {}
    for row in snapshot.compared:
        cell = row["kinds"].get("all") or {}
        if row.get("group") == "policy" and is_number(cell.get(key)):
            cells[str(row["name"]).split()[0]] = cell
    return cells.get("untrained"), cells.get("trained")


TRAINED, UNTRAINED = "trained policy", "untrained policy"
"""Names of rows in ``evaluation.json``."""


def paired_differences(evaluation: Record) -> dict[str, dict[str, Record]]:
    """Return the paired differences in ``evaluation.json``: of each policy, by what it is compared
    with. Runs of earlier versions have none."""
    found: dict[str, dict[str, Record]] = {}
    for one in objects_in(evaluation.get("differences")):
        found.setdefault(str(one.get("policy")), {})[str(one.get("against"))] = one
    return found


def _paired(snapshot: Snapshot) -> tuple[float, float] | None:
    """The paired interval of what training changed."""
    known = paired_differences(snapshot.evaluation or {})
    found = known.get(TRAINED, {}).get(UNTRAINED, {})
    low, high = found.get("low"), found.get("high")
    return (low, high) if is_number(low) and is_number(high) else None


def _do_intervals_differ(before: Record, after: Record, measured: Measured) -> bool | None:
    """Compare two intervals; None where one is missing."""
    ends = [cell.get(key) for cell in (before, after) for key in measured.ends]
    numbers = [end for end in ends if is_number(end)]
    return None if len(numbers) < 4 else numbers[1] < numbers[2] or numbers[3] < numbers[0]
