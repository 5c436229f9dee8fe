"""The page of one attempt: everything that its record holds, from problem to reward."""

import json
import shlex
from collections.abc import Mapping

from flowright.core.blocks import Block, Fact, Program, Text, Timeline
from flowright.core.checkout import here
from flowright.core.formatting import NOTHING, Record, format_value, is_number, object_of
from flowright.environments.display import blocks_of
from flowright.viewer.layout import Links, link, opinion_mark, outcome_chip
from flowright.viewer.monitoring.attempt_groups import record_facts, verdict_fact
from flowright.viewer.rendering.markup import Child, Html, el, folded, table, table_row
from flowright.viewer.rendering.record_blocks import WHOLE, blocks_html, text_block
from flowright.viewer.rollout_records import TOKENS, combination_of
from flowright.viewer.run_list import ViewedRun
from flowright.viewer.search import Attempt
from flowright.viewer.selection import Filter
from flowright.viewer.tokens import tokens_section

SAMPLE = (
    ("tokens", "Tokens sampled"),
    ("finish_reason", "Finish reason"),
    ("policy_version", "Policy of step"),
    ("advantage", "Advantage"),
)


def attempt_body(
    record: Record,
    attempt: Attempt,
    run: ViewedRun,
    links: Links,
    chosen: Filter,
    beside: tuple[Attempt | None, Attempt | None] = (None, None),
) -> Html:
    """One attempt, with links to its neighbours in the selection that it was found in."""
    snapshot = run.snapshot()
    task, verdict = object_of(record, "task"), object_of(record, "verdict")
    own = list(blocks_of(snapshot.display, record))
    traces = [block for block in own if isinstance(block, Timeline)]
    programs = [block for block in own if isinstance(block, Program)]
    rest = [block for block in own if not isinstance(block, Timeline | Program)]
    asked: list[Block] = [Text("Problem", str(task.get("problem") or ""))]
    if task.get("reference"):
        asked.append(Text("Reference", str(task["reference"]), short=True))
    sample = [
        Fact(name, f"{value:+.3f}" if isinstance(value, float) else str(value))
        for key, name in SAMPLE
        if (value := record.get(key)) is not None
    ]
    left = blocks_html([*asked, *programs], WHOLE)
    right = [
        _section("Outcome", blocks_html(record_facts(record), WHOLE), _parts(record)),
        _replies(verdict),
        blocks_html(rest, WHOLE),
        _section("Sample", blocks_html(sample, WHOLE)),
    ]
    return el(
        "div",
        _head(attempt, record, links, chosen, beside),
        el("div", el("div", left), el("div", right), class_="columns"),
        blocks_html(traces, WHOLE),
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
    query, task = chosen.query(), object_of(record, "task")
    before, after = beside
    name = str(task.get("id") or "")
    to_list = None if links.exported else links.of_run("attempts", query)
    ways = [
        link(to_list, "Up to the list", data_up="") if to_list else None,
        link(links.attempt(before, query), "Previous", rel="prev") if before else None,
        link(links.attempt(after, query), "Next", rel="next") if after else None,
        link(links.of_run(f"group/{attempt.step}/{attempt.group}"), "Its group"),
        link(links.task(name), "This problem over time"),
    ]
    counted = combination_of(record)
    opinions = [
        el("span", word, " ", opinion_mark(opinion))
        for word, key, opinion in (
            ("judge", "verdict", counted.judge),
            ("gold", "gold", counted.gold),
        )
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
            opinions,
            class_="bar",
        ),
    )


def _parts(record: Record) -> Html | None:
    """The arithmetic of the reward, part by part."""
    reward = object_of(record, "reward")
    parts = object_of(reward, "parts")
    if not parts:
        return None
    rows = [table_row(name, f"{part:+.3f}") for name, part in parts.items() if is_number(part)] + [
        table_row("reward", format_value(reward.get("value"), "{:+.3f}".format))
    ]
    extra = format_value(reward.get("unpenalised"), "{:+.3f}".format)
    without = f"; {extra} without the penalties of the training" if extra != NOTHING else ""
    return table((), rows, f"Parts of the reward{without}")


def _replies(verdict: Record) -> Html | None:
    """The judge's replies, and those of a panel's members."""
    replies, members = (
        value if isinstance(value := verdict.get(key), list) else []
        for key in ("replies", "members")
    )
    shown: list[Child] = [_reply(number, reply) for number, reply in enumerate(replies, 1)]
    for member in members:
        if isinstance(member, Mapping):
            fact = verdict_fact("Verdict", member)
            title = f"Made of: {member.get('judge') or member.get('source')}"
            shown.append(folded(title, blocks_html([fact], WHOLE), _replies(member)))
    return _section("Judge's replies", shown) if shown else None


def _reply(number: int, reply: object) -> Html:
    known: Record = reply if isinstance(reply, dict) else {}
    hidden = [
        folded(title, text_block(known[key]))
        for title, key in (("Prompt", "prompt"), ("Reasoning", "reasoning"))
        if known.get(key)
    ]
    return el(
        "div",
        el("p", f"Reply {number}, finish reason {known.get('finish_reason')}", class_="who"),
        hidden,
        text_block(known.get("text") or "", short=True),
        el("p", f"Read as {known['read']}", class_="who") if known.get("read") else None,
        class_="exchange",
    )


def _again(run: ViewedRun, attempt: Attempt) -> Html:
    """The command to replay it. The viewer starts nothing: any visitor could have it spend."""
    place = f"{run.part}/{attempt.place}" if run.part else attempt.place
    command = here(shlex.join(["python", "scripts/replay.py", str(run.path), place]))
    copy = el("button", "Copy", type="button", data_copy=command)
    note = el("span", "with its own seeds; --edit changes the program", class_="soft")
    return _section("Play again", el("p", el("code", command), " ", copy, " ", note))


def _raw(record: Record) -> Html:
    """The record as JSON, for what no part of the page shows. Log-probabilities of tokens, one a
    line, would leave no room for the rest."""
    rest = {key: value for key, value in record.items() if key != TOKENS}
    title = f"The record as JSON{f', without {TOKENS}' if TOKENS in record else ''}"
    return folded(title, text_block(json.dumps(rest, indent=1, ensure_ascii=False)))


def _section(title: str, *content: Child) -> Html:
    return el("section", el("h3", title), content)
