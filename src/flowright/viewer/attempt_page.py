"""The page of one attempt: everything that its record holds, from problem to reward."""

import json
import shlex
from collections.abc import Mapping, Sequence

from flowright.core.blocks import Block, Fact, Program, Text, Timeline
from flowright.core.checkout import here
from flowright.core.formatting import NOTHING, Record, is_number, object_of
from flowright.environments.display import blocks_of
from flowright.viewer.layout import Links, link, opinion, outcome_chip
from flowright.viewer.monitoring.attempt_groups import reward_arithmetic
from flowright.viewer.rendering.markup import Child, Html, el, facts
from flowright.viewer.rollout_records import TOKENS, combination_of
from flowright.viewer.run_list import OpenedRun
from flowright.viewer.search import Attempt
from flowright.viewer.selection import Filter
from flowright.viewer.texts import program, text
from flowright.viewer.timeline import timeline
from flowright.viewer.tokens import tokens_section
from flowright.viewer.verdicts import gold_section, judge_section


def attempt_body(
    record: Record,
    attempt: Attempt,
    run: OpenedRun,
    links: Links,
    chosen: Filter,
    beside: tuple[Attempt | None, Attempt | None] = (None, None),
) -> Html:
    """One attempt, and its way to those beside it in the selection that it was found in."""
    snapshot = run.snapshot()
    task, failure = object_of(record, "task"), object_of(record, "failure")
    own = list(blocks_of(snapshot.display, record))
    traces = [block for block in own if isinstance(block, Timeline)]
    left = [
        _section("Problem", text(task.get("problem") or "")),
        _section("Reference", text(task["reference"], 12)) if task.get("reference") else None,
        [_block(block) for block in own if isinstance(block, Program)],
        _failure(failure),
    ]
    right = [
        _section("Reward", el("p", reward_arithmetic(record)), _parts(record)),
        judge_section(object_of(record, "verdict")),
        gold_section(object_of(record, "gold"), object_of(record, "verdict")),
        _blocks([block for block in own if not isinstance(block, Timeline | Program)]),
        _section("Sample", facts(_sample(record))),
    ]
    return el(
        "div",
        _head(attempt, record, links, chosen, beside),
        el("div", el("div", left), el("div", right), class_="columns"),
        [timeline(block) for block in traces],
        tokens_section(record, object_of(snapshot.config, "grpo")),
        _again(run, attempt) if traces and not links.exported else None,
        _raw(record),
    )


def _head(
    attempt: Attempt,
    record: Record,
    links: Links,
    chosen: Filter,
    beside: tuple[Attempt | None, Attempt | None],
) -> Html:
    query = chosen.query()
    before, after = beside
    task = object_of(record, "task")
    name = str(task.get("id") or "")
    ways = [
        link(links.of_run("attempts", query), "Up to the list", data_up="") if not links.exported
        else None,
        link(links.attempt(before, query), "Previous", rel="prev") if before else None,
        link(links.attempt(after, query), "Next", rel="next") if after else None,
        link(links.of_run(f"group/{attempt.step}/{attempt.group}"), "Its group"),
        link(links.task(name), "This problem over time"),
    ]  # fmt: skip
    counted = combination_of(record)
    said = [
        el("span", word, " ", opinion(told))
        for word, key, told in (("judge", "verdict", counted.judge), ("gold", "gold", counted.gold))
        if record.get(key)
    ]
    return el(
        "div",
        el("h1", f"Attempt {attempt.place} ", outcome_chip(counted.outcome, counted.failure)),
        el("div", [el("span", way) for way in ways if way], class_="bar"),
        el(
            "div",
            el("span", f"{task.get('kind', '')} {task.get('source', '')}"),
            el("span", name, class_="soft"),
            said,
            class_="bar",
        ),
    )


def _failure(failure: Record) -> Html | None:
    if not failure:
        return None
    ours = failure.get("blame") == "infrastructure"
    whose = "ours: the attempt is not scored" if ours else "the policy's"
    line = f", line {failure['line']}" if failure.get("line") else ""
    return _section(
        "Failure",
        el("p", f"{failure.get('reason')} ({whose}{line})"),
        text(failure.get("message") or "", 12),
    )


def _parts(record: Record) -> Html | None:
    """The arithmetic of the reward, part by part."""
    reward = object_of(record, "reward")
    parts = reward.get("parts")
    if not isinstance(parts, Mapping) or not parts:
        return None
    rows = [
        el("tr", el("th", name, scope="row"), el("td", f"{part:+.3f}"))
        for name, part in parts.items()
        if is_number(part)
    ]
    whole, extra = reward.get("value"), reward.get("unpenalised")
    said = f"{whole:+.3f}" if is_number(whole) else NOTHING
    total = el("tr", el("th", "reward", scope="row"), el("td", said))
    told = f"; {extra:+.3f} without the penalties of the training" if is_number(extra) else ""
    caption = el("caption", f"Parts of the reward{told}")
    return el("table", caption, el("tbody", rows, total))


def _sample(record: Record) -> list[tuple[Child, Child]]:
    keys = (
        ("tokens", "Tokens sampled"),
        ("finish_reason", "Finish reason"),
        ("policy_version", "Policy of step"),
        ("advantage", "Advantage"),
    )
    known = [(name, record[key]) for key, name in keys if record.get(key) is not None]
    return [(name, f"{v:+.3f}" if isinstance(v, float) else str(v)) for name, v in known]


def _blocks(blocks: Sequence[Block]) -> list[Html]:
    listed = [block for block in blocks if isinstance(block, Fact)]
    rows: list[tuple[Child, Child]] = [(fact.name, _fact(fact)) for fact in listed]
    found = [facts(rows)] if rows else []
    return [*found, *(_block(block) for block in blocks if not isinstance(block, Fact))]


def _fact(fact: Fact) -> Child:
    alarm = [" ", el("span", fact.alarm, class_="chip alarm")] if fact.alarm else None
    detail = ["\n", el("span", fact.detail, class_="soft")] if fact.detail else None
    return [fact.text, alarm, detail]


def _block(block: Block) -> Html:
    if isinstance(block, Program):
        return _section(block.title, program(block))
    if isinstance(block, Text):
        return _section(block.title, text(block.text, 12 if block.short else None))
    if isinstance(block, Timeline):
        return timeline(block)
    return facts([(block.name, _fact(block))])


def _again(run: OpenedRun, attempt: Attempt) -> Html:
    """How to play it again. The viewer starts nothing: whoever reaches it could have it spend."""
    place = f"{run.part}/{attempt.place}" if run.part else attempt.place
    command = here(shlex.join(["python", "scripts/replay.py", str(run.path), place]))
    return _section(
        "Play again",
        el(
            "p",
            el("code", command),
            " ",
            el("button", "Copy", type="button", data_copy=command),
            " ",
            el("span", "with its own seeds; --edit changes the program", class_="soft"),
        ),
    )


def _raw(record: Record) -> Html:
    """The record as it is, for what no part of the page shows. Numbers of tokens, of which there
    is a line each, would leave no room for that."""
    rest = {key: value for key, value in record.items() if key != TOKENS}
    told = json.dumps(rest, indent=1, ensure_ascii=False)
    title = f"The record as JSON{f', without {TOKENS}' if TOKENS in record else ''}"
    return el("details", el("summary", title), text(told), class_="raw")


def _section(title: str, *content: Child) -> Html:
    return el("section", el("h3", title), content)
