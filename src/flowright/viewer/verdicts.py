"""What the judge said of an attempt, reply by reply, and what gold says."""

from collections.abc import Mapping

from flowright.core.formatting import Record, duration, is_number
from flowright.viewer.rendering.markup import Child, Html, el, facts
from flowright.viewer.texts import text


def judge_section(verdict: Record) -> Html | None:
    """The verdict with its reason, what it was made of, and every reply."""
    if not verdict:
        return None
    return el("section", el("h3", "Judge"), _verdict(verdict))


def _verdict(verdict: Record) -> list[Child]:
    attempts = verdict.get("attempts") or 0
    rows: list[tuple[Child, Child]] = [
        ("Says", _said(verdict)),
        ("By", f"{verdict.get('judge') or ''} ({verdict.get('source')})"),
        ("Asked", "once" if attempts == 1 else f"{attempts} times"),
    ]
    if is_number(verdict.get("seconds")):
        rows.append(("Took", f"{duration(verdict['seconds'])}{_tokens(verdict)}"))
    if verdict.get("reason"):
        rows.append(("Reason", text(verdict["reason"], 12)))
    parts = verdict.get("parts")
    if isinstance(parts, Mapping):
        rows += [(str(name), f"{part:.2f}") for name, part in parts.items() if is_number(part)]
    replies = verdict.get("replies")
    members = verdict.get("members")
    listed = [_reply(n, r) for n, r in enumerate(replies, 1)] if isinstance(replies, list) else []
    made_of = [
        el("details", el("summary", f"Made of: {m.get('judge') or m.get('source')}"), _verdict(m))
        for m in (members if isinstance(members, list) else [])
        if isinstance(m, Mapping)
    ]
    return [facts(rows), listed, made_of]


def _said(verdict: Record) -> str:
    if verdict.get("status") != "ok":
        return f"nothing: {verdict.get('status')}"
    correct, score = verdict.get("correct"), verdict.get("score")
    told = "a tie" if correct is None else "right" if correct else "wrong"
    return f"{told}, score {score:g}" if is_number(score) else told


def _tokens(verdict: Record) -> str:
    usage = verdict.get("usage")
    if not isinstance(usage, Mapping):
        return ""
    told = [usage.get(key) for key in ("prompt_tokens", "completion_tokens")]
    counts = [count if isinstance(count, int) else 0 for count in told]
    return f", {counts[0]:,} tokens in, {counts[1]:,} out" if any(counts) else ""


def _reply(number: int, reply: object) -> Html:
    told: Record = reply if isinstance(reply, dict) else {}
    reasoning, prompt = told.get("reasoning"), told.get("prompt")
    return el(
        "div",
        el("p", f"Reply {number}, finish reason {told.get('finish_reason')}", class_="who"),
        el("details", el("summary", "What it was asked"), text(prompt)) if prompt else None,
        el("details", el("summary", "Reasoning"), text(reasoning)) if reasoning else None,
        text(told.get("text") or "", 12),
        el("p", f"Read as {told['read']}", class_="who") if told.get("read") else None,
        class_="exchange",
    )


def gold_section(gold: Record, verdict: Record) -> Html | None:
    """What the gold check says, and whether the judge says otherwise."""
    if not gold:
        return None
    correct, judged = gold.get("correct"), verdict.get("correct")
    said = "could not be checked" if correct is None else "right" if correct else "wrong"
    differs = None not in (correct, judged) and correct != judged
    alarm = el("span", "differs from the judge", class_="chip alarm") if differs else None
    rows: list[tuple[Child, Child]] = [
        ("Says", [said, " ", alarm]),
        ("By", str(gold.get("method"))),
    ]
    rows += [
        (name, text(gold[key], 12))
        for name, key in (("Saw", "detail"), ("Told the judge", "evidence"))
        if gold.get(key)
    ]
    return el("section", el("h3", "Gold"), facts(rows))
