"""The page of one attempt: everything that its record holds, from problem to reward.

Tokens, where the record keeps them, have the colour of their importance ratio: the learner's
probability before the update over the sampler's. Where the learner's is not known, as nothing was
trained on the attempt, the colour shows how unlikely the token was. Colours are classes of
viewer.css, as a page allows no inline style.
"""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean

from flowright.core.checkout import here
from flowright.core.formatting import NOTHING, Record, format_value, is_number, object_of, percent
from flowright.core.report import (
    Block,
    Fact,
    Program,
    ReportCell,
    ReportColumn,
    ReportTable,
    Text,
    Timeline,
)
from flowright.core.untrusted import one_line
from flowright.environments.display import blocks_of
from flowright.viewer.layout import (
    Links,
    link,
    number,
    opinion_mark,
    outcome_chip,
)
from flowright.viewer.rendering.markup import Child, Html, el, folded
from flowright.viewer.rendering.record_blocks import WHOLE, blocks_html, text_block
from flowright.viewer.rendering.report import table_html
from flowright.viewer.rollout_records import (
    TOKENS,
    Attempt,
    problem_blocks,
    record_facts,
    verdict_fact,
)
from flowright.viewer.run_list import ViewedRun
from flowright.viewer.selection import Filter
from flowright.viewer.turns import by_turn, turn_facts, turns_html

SEEN = "Each turn saw the prompt and the turns above it."
SAMPLE = (
    ("baseline", "Baseline"),
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
    asked: list[Block] = [*problem_blocks(record)]
    if task.get("reference"):
        asked.append(Text("Reference", str(task["reference"]), short=True))
    sample = turn_facts(record) + [
        Fact(name, f"{value:+.3f}" if isinstance(value, float) else str(value))
        for key, name in SAMPLE
        if (value := record.get(key)) is not None
    ]
    left = blocks_html([*asked, *programs], WHOLE)
    right = [
        _section("Outcome", blocks_html(record_facts(record), WHOLE)),
        _replies(verdict),
        blocks_html(rest, WHOLE),
        _section("Sample", blocks_html(sample, WHOLE)),
    ]
    turns = turns_html(record, WHOLE)
    return el(
        "div",
        _head(attempt, record, links, chosen, beside),
        el("div", el("div", left), el("div", right), class_="columns"),
        _section("Turns", el("p", SEEN, class_="lead"), turns) if turns else None,
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
        *(
            el("a", word, href=address, rel=rel)
            for each, word, rel in ((before, "Previous", "prev"), (after, "Next", "next"))
            if each and (address := links.attempt(each, query))
        ),
        link(links.of_run(f"group/{attempt.step}/{attempt.group}"), "Its group"),
        link(links.task(name), "This problem over time"),
    ]
    opinions = [
        el("span", word, " ", opinion_mark(opinion))
        for word, key, opinion in (
            ("judge", "verdict", attempt.judge),
            ("gold", "gold", attempt.gold),
        )
        if record.get(key)
    ]
    return el(
        "div",
        el("h1", f"Attempt {attempt.place} ", outcome_chip(attempt)),
        el("div", [el("span", way) for way in ways if way], class_="bar"),
        el(
            "div",
            el("span", f"{task.get('kind', '')} {task.get('source', '')}"),
            el("span", name, class_="soft"),
            opinions,
            class_="bar",
        ),
    )


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


# --- tokens ---------------------------------------------------------------------------------------

MOST = 2_000
"""Tokens that are shown; the figures are of all."""
LONGEST = 200
"""Characters of a token."""
FURTHEST = 8
"""Tokens in the table."""
SATURATED = 1.5
"""The factor, and 1 over it, from which on the colour is the strongest."""
UNLIKELY = (0.8, 0.4, 0.1, 0.01)
"""Probabilities below which a token has each colour of the likely to the unlikely."""
LEVELS = len(UNLIKELY)
_FINITE = 1e4
_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True, slots=True)
class Token:
    """A token by its number from 1, with its text, id and log-probabilities."""

    number: int
    text: str
    id: str
    sampler: float | None
    learner: float | None

    @property
    def ratio(self) -> float | None:
        """None where one of both is not known."""
        if self.sampler is None or self.learner is None:
            return None
        drift = self.learner - self.sampler
        return math.exp(max(-_LARGEST_EXPONENT, min(_LARGEST_EXPONENT, drift)))

    @property
    def shown(self) -> str:
        """The text with visible line ends, or the id where there is none."""
        return self.text.replace("\n", "↵\n") if self.text else f"[{self.id}]"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The ratios between which a run's loss does not clip a token. ``to_sampler``: the run bounds
    the ratio to the sampler."""

    low: float
    high: float
    to_sampler: bool

    @staticmethod
    def of(grpo: Record) -> "Bounds | None":
        """Read the configuration; None where it has none, and where a sample's ratio is bounded."""
        loss, low, high = (grpo.get(key) for key in ("loss", "clip_low", "clip_high"))
        if loss == "gspo" or not (is_number(low) and is_number(high)):
            return None
        if not (0 <= low <= 1 and 0 <= high <= _FINITE):
            return None
        to_sampler = grpo.get("off_policy") in (None, "ratio")
        return Bounds(0 if loss == "cispo" else 1 - low, 1 + high, to_sampler)


def tokens_section(record: Record, grpo: Record) -> Html | None:
    """The completion token by token. ``grpo``: that section of the run's configuration."""
    tokens = tokens_of(record)
    if not tokens:
        return None
    by_ratio = any(token.ratio is not None for token in tokens)
    scaffolded = bool(object_of(record, "scaffold").get("text"))
    left = len(tokens) - MOST
    more = f"{left:,} more tokens are not shown; the record has them." if left > 0 else None
    parts = by_turn(object_of(record, TOKENS).get("turns"), tokens)
    shown: list[Child] = []
    for turn, part in enumerate(parts, start=1):
        if part and part[0].number <= MOST:
            title = f"Turn {turn}: {len(part):,} tokens, mean log-probability {_means(part)}"
            spans = [_span(token, by_ratio) for token in part if token.number <= MOST]
            shown += [el("p", title, class_="who")] if len(parts) > 1 else []
            shown.append(el("pre", spans, class_="tokens", tabindex=0))
    return el(
        "section",
        el("h3", "Tokens"),
        blocks_html(_token_facts(tokens, Bounds.of(grpo), scaffolded), WHOLE),
        _legend(by_ratio),
        shown,
        el("p", more, class_="soft") if more else None,
        _tokens_table(tokens, by_ratio),
    )


def tokens_of(record: Record) -> list[Token]:
    """Read the tokens of a record; none where it keeps none."""
    kept = object_of(record, TOKENS)
    columns = (
        value if isinstance(value := kept.get(key), list) else []
        for key in ("texts", "ids", "sampler", "learner")
    )
    return [
        Token(
            number,
            text[:LONGEST] if isinstance(text, str) else "",
            _id(id),
            _figure(sampler),
            _figure(learner),
        )
        for number, (text, id, sampler, learner) in enumerate(zip_longest(*columns), start=1)
    ]


def _id(value: object) -> str:
    return str(int(value)) if is_number(value) and 0 <= value < 1 << 32 else NOTHING


def _figure(value: object) -> float | None:
    """A log-probability; None for other values, and those too large for arithmetic."""
    return float(value) if is_number(value) and -_FINITE <= value <= _FINITE else None


def _means(tokens: Sequence[Token]) -> str:
    tokens = [token for token in tokens if token.ratio is not None] or tokens
    means = [
        f"{who} {fmean(known):.4f}"
        for who, values in (
            ("sampler", [token.sampler for token in tokens]),
            ("learner", [token.learner for token in tokens]),
        )
        if (known := [value for value in values if value is not None])
    ]
    return ", ".join(means) or NOTHING


def _token_facts(tokens: Sequence[Token], bounds: Bounds | None, scaffolded: bool) -> list[Fact]:
    found = [
        Fact("Tokens", f"{len(tokens):,}"),
        Fact("Mean log-probability", _means(tokens)),
    ]
    known = [(token.ratio, token) for token in tokens if token.ratio is not None]
    if not known:
        return [*found, Fact("Ratio", "not known: the attempt took no part in a finished update")]
    largest, token = max(known, key=lambda each: each[0])
    note = "the sampler was shown a scaffold that the learner's prompt lacks" if scaffolded else ""
    found.append(Fact("Largest ratio", f"{largest:.4g}, of token {token.number:,}", note))
    if bounds is not None:
        outside = sum(not bounds.low <= ratio <= bounds.high for ratio, _ in known)
        between = f"{bounds.low:g} to {bounds.high:g}"
        share = f"{percent(outside / len(known))}, {outside:,} of {len(known):,} ({between})"
        note = "this run bounds the ratio to the learner's own start instead"
        found.append(Fact("Outside the clip range", share, "" if bounds.to_sampler else note))
    return found


def _legend(by_ratio: bool) -> Html:
    """The meaning of the colours, from one end to the other."""
    if by_ratio:
        top = range(LEVELS, 0, -1)
        marks = [*((f"down{n}", f"{_edge(-n):.2f}") for n in top), ("", "1")]
        marks += [(f"up{n}", f"{_edge(n):.2f}") for n in reversed(top)]
        marks[0] = (marks[0][0], f"{marks[0][1]} or less")
        marks[-1] = (marks[-1][0], f"{marks[-1][1]} or more")
        title = "Learner's probability over the sampler's"
    else:
        marks = [("", "likely")]
        marks += [(f"low{n}", f"below {p:g}") for n, p in enumerate(UNLIKELY, 1)]
        title = "Sampler's probability"
    swatches = [el("li", el("span", text, class_=f"token {name}".strip())) for name, text in marks]
    return el("div", el("span", title, class_="soft"), el("ul", swatches, class_="key"))


def _edge(level: int) -> float:
    """The ratio of a colour."""
    return SATURATED ** (level / LEVELS)


def _class(token: Token, by_ratio: bool) -> str | None:
    if by_ratio:
        if token.ratio is None:
            return None
        level = round(LEVELS * math.log(token.ratio) / math.log(SATURATED))
        level = max(-LEVELS, min(LEVELS, level))
        return f"up{level}" if level > 0 else f"down{-level}" if level else None
    if token.sampler is None:
        return None
    level = sum(token.sampler < math.log(least) for least in UNLIKELY)
    return f"low{level}" if level else None


def _span(token: Token, by_ratio: bool) -> Html:
    return el("span", token.shown, class_=_class(token, by_ratio), title=_describe(token))


def _describe(token: Token) -> str:
    """Describe a token in a line."""
    parts = [f"token {token.number:,}, id {token.id}, {_quoted(token)}"]
    parts += [
        f"{who} {value:.4f}"
        for who, value in (("sampler", token.sampler), ("learner", token.learner))
        if value is not None
    ]
    if token.ratio is not None:
        parts.append(f"ratio {token.ratio:.4g}")
    return "; ".join(parts)


def _quoted(token: Token) -> str:
    """On a line of its own: spaces and ends of lines count."""
    text = token.text.replace("\n", "↵").replace("\t", "⇥").replace(" ", "␣")
    return one_line(text, 40) if text else "no text of its own"


def _tokens_table(tokens: Sequence[Token], by_ratio: bool) -> Html | None:
    """The tokens that stand out, for readers who do not see colours."""
    if by_ratio:
        known = [(abs(math.log(r)), token) for token in tokens if (r := token.ratio) is not None]
        caption = "Tokens whose ratio is furthest from 1"
    else:
        known = [(-token.sampler, token) for token in tokens if token.sampler is not None]
        caption = "Least likely tokens"
    if not known:
        return None
    first = sorted(known, key=lambda each: (-each[0], each[1].number))[:FURTHEST]
    columns = ["Token", ReportColumn("Text", is_text=True), "Sampler", "Learner", "Ratio"]
    rows = [
        (
            f"{token.number:,}",
            ReportCell(_quoted(token), style="text code"),
            number(token.sampler, 4),
            number(token.learner, 4),
            format_value(token.ratio, "{:.4g}".format),
        )
        for _, token in first
    ]
    return table_html(ReportTable(columns, rows, f"{caption}; log-probabilities in nats"))
