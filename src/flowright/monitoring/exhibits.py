"""Groups of attempts as the report shows them: problem, verdict, reward arithmetic, and the blocks
of their environment.

Everything here was written by a policy, a model, a judge or a data set; it reaches the page through
:func:`~flowright.rendering.markup.el` alone, cut. The whole texts stay in the run's rollouts.
"""

from collections.abc import Sequence

from flowright.environments.display import Display, blocks_of
from flowright.monitoring.selection import Group, reward_of
from flowright.rendering.block_markup import SHORT, blocks_html, document
from flowright.rendering.blocks import Fact
from flowright.rendering.markup import Html, el
from flowright.rendering.page import folded
from flowright.rendering.series import Record, duration, is_number

PROBLEM = 1600  # characters that are shown of one


def exhibits(title: str, lead: str, groups: Sequence[Group], display: Display) -> Html | None:
    """A run of groups under one heading, None without any."""
    shown = [_group(group, display) for group in groups]
    return el("div", el("h3", title), el("p", lead, class_="lead"), shown) if shown else None


def _group(group: Group, display: Display) -> Html:
    """One group: its problem, all its rewards, and its best and worst attempt side by side."""
    task = group.task
    best = group.attempts[0]
    worst = next(a for a in reversed(group.attempts) if reward_of(a) is not None)
    told = "Best attempt" if group.spread else "One of these equal attempts"
    pair = [_attempt(told, best, display)]
    if group.spread:
        pair.append(_attempt("Worst attempt", worst, display))
    return el(
        "article",
        el("h4", _where(best), " ", el("span", task.get("id", ""), class_="soft")),
        el("div", f"mean reward {group.mean:.2f}, spread {group.spread:.2f}", class_="soft"),
        el("div", [_reward_chip(a) for a in group.attempts], class_="attempts"),
        _problem(task),
        el("div", pair, class_="pair"),
        class_="group",
    )


def single_exhibit(rollout: Record, display: Display) -> Html:
    """One attempt by itself."""
    shown = _attempt(_where(rollout), rollout, display)
    return el("article", _problem(rollout.get("task") or {}), shown, class_="group")


def _where(rollout: Record) -> str:
    task = rollout.get("task") or {}
    kind = ", ".join(str(task[key]) for key in ("kind", "source") if task.get(key))
    return f"Step {rollout.get('step')}: {kind or 'problem'}"


def _problem(task: Record) -> Html | None:
    if not task.get("problem"):
        return None
    reference = task.get("reference")
    told = [el("p", "Reference", class_="cap"), document(reference, SHORT)] if reference else None
    title = "Problem and reference" if reference else "Problem"
    return folded(title, document(task["problem"], PROBLEM), told)


def _attempt(title: str, rollout: Record, display: Display) -> Html:
    blocks = [*_common(rollout), *blocks_of(display, rollout)]
    return el("section", el("h4", title, " ", _reward_chip(rollout)), blocks_html(blocks))


def _common(rollout: Record) -> list[Fact]:
    """What every environment's records may have: reward, failure, the judge's verdict and gold's,
    and whether they differ."""
    found = [Fact("Reward", reward_arithmetic(rollout))]
    failure, verdict, gold = (rollout.get(key) or {} for key in ("failure", "verdict", "gold"))
    if failure:
        whose = "ours" if failure.get("blame") == "infrastructure" else "the policy's"
        line = f", line {failure['line']}" if failure.get("line") else ""
        message = failure.get("message") or ""
        found.append(Fact("Failed", f"{failure.get('reason')} ({whose}{line}): {message}"))
    if verdict:
        attempts = verdict.get("attempts")
        how = [str(verdict.get("source"))]
        how.append("1 attempt" if attempts == 1 else f"{attempts} attempts")
        how += [duration(verdict["seconds"])] if verdict.get("seconds") else []
        told = f"{_said(verdict, str(verdict.get('status')))} ({', '.join(how)})"
        found.append(Fact("Judge", told, str(verdict.get("reason") or "")))
    if gold:
        both = (gold.get("correct"), verdict.get("correct"))
        differs = None not in both and both[0] != both[1]
        told = f"{_said(gold, 'no check')} by {gold.get('method')}"
        alarm = "differs from the judge" if differs else ""
        found.append(Fact("Gold", told, str(gold.get("detail") or ""), alarm))
    return found


def _said(opinion: Record, otherwise: str) -> str:
    correct = opinion.get("correct")
    return otherwise if correct is None else "right" if correct else "wrong"


def reward_arithmetic(rollout: Record) -> str:
    """``right 1.00 - cost 0.04 = 0.96``, with the advantage; says so where there is no reward."""
    value = reward_of(rollout)
    if value is None:
        return "no reward: our failure, the attempt left its group's statistics"
    given = (rollout.get("reward") or {}).get("parts") or {}
    parts = [(name, part) for name, part in given.items() if is_number(part)]
    parts = [(name, part) for name, part in parts if part] or parts[:1]  # zeros add nothing
    told = f"{value:.2f}"
    if parts:
        first, *rest = parts
        terms = [f"{first[0]} {first[1]:.2f}"]
        terms += [f"{'-' if part < 0 else '+'} {name} {abs(part):.2f}" for name, part in rest]
        adds_up = abs(sum(part for _, part in parts) - value) < 5e-3
        told = f"{' '.join(terms)} = {told}" if adds_up else f"{told} (of {' '.join(terms)})"
    advantage = rollout.get("advantage")
    return told if advantage is None else f"{told}; advantage {advantage:+.2f}"


def _reward_chip(rollout: Record) -> Html:
    value = reward_of(rollout)
    if value is None:
        return el("span", "unscored", class_="chip warn")
    failed = bool(rollout.get("failure"))
    style = "alarm" if failed else "good" if value > 0.5 else None
    return el("span", f"{value:.2f}", class_=f"chip {style}" if style else "chip")
