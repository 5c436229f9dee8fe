"""Groups of attempts as the report shows them: program, trace, verdict, reward arithmetic.

Everything here was written by a policy, a model, a judge or a data set; it reaches the page through
:func:`~flowright.rendering.markup.el` alone, cut to the lengths below. The whole texts stay in the
run's rollouts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flowright.monitoring.selection import Group, reward_of
from flowright.rendering.glyphs import duration
from flowright.rendering.highlight import code_block
from flowright.rendering.markup import Child, Html, el
from flowright.rendering.series import Row, is_number
from flowright.rendering.untrusted import cut

PROBLEM, ANSWER, PROMPT, REPLY, VALUE = 1600, 1000, 1200, 1200, 400
CALLS, CHILDREN = 16, 8


def group_exhibit(group: Group) -> Html:
    """One group: its problem, all its rewards, and its best and worst attempt side by side."""
    task = group.task
    best = group.attempts[0]
    worst = next(a for a in reversed(group.attempts) if reward_of(a) is not None)
    where = f"Step {group.step}: {task.get('kind', 'problem')}, {task.get('source', '')}"
    pair = [_attempt("Best attempt" if group.spread else "One of these equal attempts", best)]
    if group.spread:
        pair.append(_attempt("Worst attempt", worst))
    return el(
        "article",
        el("h4", where, " ", el("span", task.get("id", ""), class_="soft")),
        el("div", f"mean reward {group.mean:.2f}, spread {group.spread:.2f}", class_="soft"),
        el("div", [_reward_chip(a) for a in group.attempts], class_="attempts"),
        _problem(task),
        el("div", pair, class_="pair"),
        class_="group",
    )


def single_exhibit(rollout: Row) -> Html:
    """One attempt by itself."""
    task = rollout.get("task") or {}
    title = f"Step {rollout.get('step')}: {task.get('kind', 'problem')}, {task.get('source', '')}"
    return el("article", _problem(task), _attempt(title, rollout), class_="group")


def reward_arithmetic(rollout: Row) -> str:
    """``right 1.00 - cost 0.04 = 0.96``, with the advantage; says so where there is no reward."""
    value = reward_of(rollout)
    if value is None:
        return "no reward: our failure, the attempt left its group's statistics"
    parts = [
        (n, v)
        for n, v in ((rollout.get("reward") or {}).get("parts") or {}).items()
        if is_number(v)
    ]
    parts = [(n, part) for n, part in parts if part] or parts[:1]  # zeros add nothing
    told = f"{value:.2f}"
    if parts:
        first, *rest = parts
        terms = [f"{first[0]} {first[1]:.2f}"]
        terms += [f"{'-' if part < 0 else '+'} {name} {abs(part):.2f}" for name, part in rest]
        adds_up = abs(sum(part for _, part in parts) - value) < 5e-3
        told = f"{' '.join(terms)} = {told}" if adds_up else f"{told} (of {' '.join(terms)})"
    advantage = rollout.get("advantage")
    return told if advantage is None else f"{told}; advantage {advantage:+.2f}"


def _problem(task: Row) -> Html:
    return el(
        "details",
        el("summary", "Problem and reference"),
        _pre(task.get("problem", ""), PROBLEM),
        el("p", "Reference", class_="cap"),
        _pre(task.get("reference", ""), ANSWER),
    )


def _attempt(title: str, rollout: Row) -> Html:
    workflow: Mapping[str, Any] = rollout.get("workflow") or {}
    execution: Mapping[str, Any] = rollout.get("execution") or {}
    failure: Mapping[str, Any] = rollout.get("failure") or {}
    source = workflow.get("source") or rollout.get("completion") or ""
    # A failure names a line of the program; in a completion it would point at another one.
    bad_line = failure.get("line") if workflow or "```" not in source else None
    calls = tuple(map(str, workflow.get("calls") or ()))
    facts: list[tuple[str, Child]] = [("Reward", reward_arithmetic(rollout))]
    if failure:
        facts.append(("Failed", _failure(failure)))
    facts += _opinions(rollout)
    if execution.get("answer") is not None:
        facts.append(("Answer", _answer(execution["answer"])))
    if execution.get("printed"):
        facts.append(("Printed", cut(execution["printed"], VALUE)))
    if workflow.get("repairs"):
        facts.append(("Repaired", ", ".join(map(str, workflow["repairs"]))))
    if execution:
        facts.append(("Spent", _spent(execution)))
    return el(
        "section",
        el("h4", title, " ", _reward_chip(rollout)),
        el("dl", [[el("dt", name), el("dd", value)] for name, value in facts]),
        el("p", "Workflow" if workflow else "Completion (no valid workflow)", class_="cap"),
        code_block(str(source), bad_line, calls),
        _trace(execution),
    )


def _opinions(rollout: Row) -> list[tuple[str, Child]]:
    """The judge's verdict and gold's, and whether they differ."""
    verdict, gold = rollout.get("verdict") or {}, rollout.get("gold") or {}
    found: list[tuple[str, Child]] = []
    if verdict:
        said = _said(verdict, str(verdict.get("status")))
        tries = verdict.get("attempts")
        how = [str(verdict.get("source")), "1 try" if tries == 1 else f"{tries} tries"]
        how += [duration(verdict["seconds"])] if verdict.get("seconds") else []
        reason = cut(verdict.get("reason") or "", REPLY)
        found.append(("Judge", [f"{said} ({', '.join(how)})\n", el("span", reason, class_="soft")]))
    if gold:
        said = _said(gold, "no check")
        differs = None not in (gold.get("correct"), verdict.get("correct")) and (
            gold["correct"] != verdict["correct"]
        )
        mark = el("span", "differs from the judge", class_="chip alarm") if differs else None
        detail = cut(gold.get("detail") or "", VALUE)
        told = [f"{said} by {gold.get('method')} ", mark, "\n", el("span", detail, class_="soft")]
        found.append(("Gold", told))
    return found


def _answer(answer: object) -> str:
    text = cut(answer, ANSWER)
    return el("pre", text, class_="short") if "\n" in text or len(text) > 160 else text


def _said(opinion: Row, otherwise: str) -> str:
    correct = opinion.get("correct")
    return otherwise if correct is None else "right" if correct else "wrong"


def _trace(execution: Mapping[str, Any]) -> Html | None:
    calls = execution.get("trace") or ()
    if not calls:
        return None
    total = max(execution.get("seconds") or 0.0, 1e-6)
    total = max([total, *((c.get("started") or 0) + (c.get("seconds") or 0) for c in calls)])
    return el(
        "div",
        el("p", f"Trace: {len(calls)} operator calls", class_="cap"),
        [_call(call, total) for call in calls[:CALLS]],
        el("p", f"and {len(calls) - CALLS} more", class_="cap") if len(calls) > CALLS else None,
    )


def _call(call: Row, total: float) -> Html:
    """One operator call and what it caused; the lane shows when it ran within the workflow."""
    started, seconds = call.get("started") or 0.0, call.get("seconds") or 0.0
    usage = call.get("usage") or {}
    tokens = usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
    left, width = min(100, 100 * started / total), min(100, 100 * seconds / total)
    lane = el(
        "i",
        class_="error" if call.get("error") else None,
        style=f"left:{left:.1f}%;width:{min(width, 100 - left):.1f}%",
    )
    told = f"{duration(seconds)}, {tokens:,} tokens" if tokens else duration(seconds)
    children = call.get("children") or ()
    return el(
        "details",
        el(
            "summary",
            el("code", call.get("operator", "?")),
            el("span", lane, class_="lane"),
            el("span", told, class_="soft"),
        ),
        _arguments(call.get("arguments") or {}),
        [_exchange(exchange) for exchange in call.get("exchanges") or ()],
        _named("Error", call.get("error"), VALUE),
        _named("Result", call.get("result"), VALUE),
        [_call(child, total) for child in children[:CHILDREN]],
        class_="call",
    )


def _arguments(arguments: Mapping[str, Any]) -> Html | None:
    if not arguments:
        return None
    rows = [[el("dt", name), el("dd", cut(value, VALUE))] for name, value in arguments.items()]
    return el("dl", rows)


def _exchange(exchange: Row) -> Html:
    usage = exchange.get("usage") or {}
    facts = [f"{n:,} {name}" for n, name in _token_counts(usage) if n]
    if exchange.get("seconds"):
        facts.append(duration(exchange["seconds"]))
    if (exchange.get("attempts") or 1) > 1:
        facts.append(f"{exchange['attempts']} tries")
    if exchange.get("finish_reason") not in (None, "stop"):
        facts.append(f"finish reason {exchange['finish_reason']}")
    return el(
        "div",
        el("p", "Prompt", class_="cap"),
        _pre(exchange.get("prompt", ""), PROMPT),
        el("p", " · ".join(["Reply", *facts]), class_="cap"),
        _pre(exchange.get("reply", ""), REPLY),
    )


def _token_counts(usage: Row) -> list[tuple[int, str]]:
    names = (("prompt_tokens", "tokens in"), ("completion_tokens", "tokens out"))
    return [(usage.get(key) or 0, told) for key, told in names]


def _named(title: str, text: object, limit: int) -> Html | None:
    if text in (None, ""):
        return None
    return el("div", el("p", title, class_="cap"), _pre(text, limit))


def _pre(text: object, limit: int) -> Html:
    return el("pre", cut(text, limit))


def _failure(failure: Mapping[str, Any]) -> str:
    whose = "ours" if failure.get("blame") == "infrastructure" else "the policy's"
    line = f", line {failure['line']}" if failure.get("line") else ""
    return f"{failure.get('reason')} ({whose}{line}): {cut(failure.get('message') or '', VALUE)}"


def _spent(execution: Mapping[str, Any]) -> str:
    usage = execution.get("usage") or {}
    tokens = sum(n for n, _ in _token_counts(usage))
    own = execution.get("own_seconds")
    told = f"{usage.get('calls', 0)} LLM calls, {tokens:,} tokens"
    if execution.get("seconds"):
        told += f", {duration(execution['seconds'])}"
    return f"{told} ({1000 * own:.0f} ms its own)" if own else told


def _reward_chip(rollout: Row) -> Html:
    value = reward_of(rollout)
    if value is None:
        return el("span", "unscored", class_="chip warn")
    failed = bool(rollout.get("failure"))
    style = "alarm" if failed else "good" if value > 0.5 else None
    return el("span", f"{value:.2f}", class_=f"chip {style}" if style else "chip")


def exhibits(title: str, lead: str, groups: Sequence[Group]) -> Html | None:
    """A run of groups under one heading, None without any."""
    if not groups:
        return None
    shown = [group_exhibit(group) for group in groups]
    return el("div", el("h3", title), el("p", lead, class_="lead"), shown)
