"""The tokens of an attempt, where its record keeps them, each in the colour of its importance
ratio: the learner's probability before the update over the sampler's. Where the learner's is not
known, as nothing was trained on the attempt, the colour shows how unlikely the token was.

Colours are classes of viewer.css, as a page allows no inline style. A record may hold anything: a
value that is no number is not known.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from flowright.core.blocks import Fact
from flowright.core.formatting import NOTHING, Record, format_value, is_number, object_of, percent
from flowright.core.untrusted import one_line
from flowright.viewer.layout import Column, data_table, number, text_cell
from flowright.viewer.rendering.markup import Html, el, table_row
from flowright.viewer.rendering.record_blocks import WHOLE, blocks_html
from flowright.viewer.rollout_records import TOKENS

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
    """The ratios between which a run's loss does not clip a token; ``low`` of None: no such bound.
    ``to_sampler``: the run bounds the ratio to the sampler."""

    low: float | None
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
        return Bounds(None if loss == "cispo" else 1 - low, 1 + high, to_sampler)

    def exclude(self, ratio: float) -> bool:
        """Return True where a ratio is outside."""
        return ratio > self.high or (self.low is not None and ratio < self.low)


def tokens_section(record: Record, grpo: Record) -> Html | None:
    """The completion token by token. ``grpo``: that section of the run's configuration."""
    tokens = tokens_of(record)
    if not tokens:
        return None
    by_ratio = any(token.ratio is not None for token in tokens)
    scaffolded = bool(object_of(record, "scaffold").get("text"))
    left = len(tokens) - MOST
    more = f"{left:,} more tokens are not shown; the record has them." if left > 0 else None
    return el(
        "section",
        el("h3", "Tokens"),
        blocks_html(_summary(tokens, Bounds.of(grpo), scaffolded), WHOLE),
        _legend(by_ratio),
        el("pre", [_span(token, by_ratio) for token in tokens[:MOST]], class_="tokens", tabindex=0),
        el("p", more, class_="soft") if more else None,
        _table(tokens, by_ratio),
    )


def tokens_of(record: Record) -> list[Token]:
    """Read the tokens of a record; none where it keeps none."""
    kept = object_of(record, TOKENS)
    texts, ids, sampler, learner = (
        value if isinstance(value := kept.get(key), list) else []
        for key in ("texts", "ids", "sampler", "learner")
    )

    def at(values: Sequence[object], place: int) -> object:
        return values[place] if place < len(values) else None

    def text(value: object) -> str:
        return value[:LONGEST] if isinstance(value, str) else ""

    return [
        Token(
            place + 1,
            text(at(texts, place)),
            _id(at(ids, place)),
            _figure(at(sampler, place)),
            _figure(at(learner, place)),
        )
        for place in range(max(map(len, (texts, ids, sampler, learner))))
    ]


def _id(value: object) -> str:
    return str(int(value)) if is_number(value) and 0 <= value < 1 << 32 else NOTHING


def _figure(value: object) -> float | None:
    """A log-probability; None for other values, and those too large for arithmetic."""
    return float(value) if is_number(value) and -_FINITE <= value <= _FINITE else None


def _summary(tokens: Sequence[Token], bounds: Bounds | None, scaffolded: bool) -> list[Fact]:
    means = [
        f"{who} {fmean(known):.4f}"
        for who, values in (
            ("sampler", [token.sampler for token in tokens]),
            ("learner", [token.learner for token in tokens]),
        )
        if (known := [value for value in values if value is not None])
    ]
    found = [
        Fact("Tokens", f"{len(tokens):,}"),
        Fact("Mean log-probability", ", ".join(means) or NOTHING),
    ]
    known = [(token.ratio, token) for token in tokens if token.ratio is not None]
    if not known:
        return [*found, Fact("Ratio", "not known: the attempt took no part in a finished update")]
    largest, token = max(known, key=lambda each: each[0])
    note = "the sampler was shown a scaffold that the learner's prompt lacks" if scaffolded else ""
    found.append(Fact("Largest ratio", f"{largest:.4g}, of token {token.number:,}", note))
    if bounds is not None:
        outside = sum(bounds.exclude(ratio) for ratio, _ in known)
        between = f"{0 if bounds.low is None else bounds.low:g} to {bounds.high:g}"
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
    return el("span", token.shown, class_=_class(token, by_ratio), title=_summary_of(token))


def _summary_of(token: Token) -> str:
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


def _table(tokens: Sequence[Token], by_ratio: bool) -> Html | None:
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
    columns = ["Token", Column("Text", text=True), "Sampler", "Learner", "Ratio"]
    rows = [
        table_row(
            f"{token.number:,}",
            text_cell(_quoted(token), class_="text code"),
            number(token.sampler, 4),
            number(token.learner, 4),
            format_value(token.ratio, "{:.4g}".format),
        )
        for _, token in first
    ]
    return data_table(f"{caption}; log-probabilities in nats", columns, rows)
