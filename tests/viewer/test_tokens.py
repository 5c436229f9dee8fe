"""The tokens of an attempt on its page: coloured by what is known of them, whatever that is."""

import math
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from html_page import Document
from starlette.testclient import TestClient
from viewer_run import records_of, write_run

from flowright.core.files import write_json
from flowright.runs.run_files import read_rollouts, write_rollouts
from flowright.viewer.attempt_page import MOST, tokens_section
from flowright.viewer.run_list import RunList
from flowright.viewer.selection import Filter
from flowright.viewer.server import create_app, export_pages

HOSTILE = (
    "</pre></span><script>alert(1)</script><img src=x onerror=alert(2)>\" onmouseover=alert(3) x='"
    "\x1b[31m\u202e\u2066\x00&lt;\u2028"
)
GRPO = {"loss": "grpo", "clip_low": 0.2, "clip_high": 0.28, "off_policy": "ratio"}


def record(sampler: Any, learner: Any = None, texts: Any = None, **more: Any) -> dict[str, Any]:
    ids = list(range(len(sampler)))
    texts = [f"t{n} " for n in ids] if texts is None else texts
    told = {"ids": ids, "texts": texts, "sampler": sampler, "learner": learner, **more}
    return {"token_logprobs": told}


def shown(record: dict[str, Any], **grpo: Any) -> Document:
    section = tokens_section(record, GRPO | grpo)
    assert section is not None
    return Document(section)


def spans(document: Document) -> list[tuple[str, str]]:
    """Class and title of each token."""
    found = [attrs for tag, attrs in document.tags if tag == "span" and "title" in attrs]
    return [(attrs.get("class") or "", attrs["title"] or "") for attrs in found]


def test_the_colour_is_the_ratio() -> None:
    ratios = [1.0, 1.04, 1.12, 1.4, 9.0, 0.9, 0.7, 0.1]
    page = shown(record([-3.0] * 8, [-3.0 + math.log(ratio) for ratio in ratios]))
    assert [name for name, _ in spans(page)] == [
        *("", "", "up1", "up3", "up4", "down1", "down4", "down4")
    ]
    assert spans(page)[4][1] == "token 5, id 4, t4␣; sampler -3.0000; learner -0.8028; ratio 9"
    assert "Largest ratio" in page.text and "9, of token 5" in page.text
    assert "50.0 %, 4 of 8 (0.8 to 1.28)" in page.text
    cells = re.findall(r"furthest from 1", page.text)
    assert len(cells) == 1 and page.count("table") == 1
    style = (files("flowright.viewer") / "viewer.css").read_text()
    assert all(f".{name}{n} " in style for name in ("up", "down", "low") for n in (1, 2, 3, 4))


def test_without_the_learner_the_colour_is_the_probability() -> None:
    likely = [0.99, 0.5, 0.2, 0.05, 0.001]
    page = shown(record([math.log(p) for p in likely]))
    assert [name for name, _ in spans(page)] == ["", "low1", "low2", "low3", "low4"]
    assert "took no part in a finished update" in page.text and "Least likely tokens" in page.text
    assert "clip range" not in page.text and "ratio" not in spans(page)[0][1]


@pytest.mark.parametrize(
    ("grpo", "told"),
    [
        ({"loss": "cispo"}, "33.3 %, 1 of 3 (0 to 1.28)"),
        ({"off_policy": "truncated"}, "this run bounds the ratio to the learner's own start"),
        ({"loss": "gspo"}, None),
        ({"clip_low": None}, None),
        ({"clip_high": "a lot"}, None),
        ({"clip_high": math.nan}, None),
    ],
)
def test_the_clip_range_is_told_where_it_is_one_of_tokens(
    grpo: dict[str, Any], told: str | None
) -> None:
    page = shown(record([-3.0] * 3, [-3.0, -1.0, -9.0]), **grpo)
    assert (told in page.text) if told else ("clip range" not in page.text)


def test_ends_of_lines_and_tokens_without_a_text_can_be_seen() -> None:
    page = shown(record([-1.0, -1.0, -1.0], texts=["a\n", "", "b"]))
    assert "a↵\n" in page.texts["span"] and "[1]" in page.texts["span"]
    assert "no text of its own" in spans(page)[1][1]


def test_of_many_tokens_the_first_are_shown_and_all_are_counted() -> None:
    page = shown(record([-1.0] * (MOST + 5), [-1.0] * (MOST + 4) + [0.0]))
    assert len(spans(page)) == MOST
    assert "5 more tokens are not shown" in page.text
    assert f"of token {MOST + 5:,}" in page.text


def test_a_scaffold_is_told() -> None:
    told = record([-1.0], [-2.0]) | {"scaffold": {"text": "use tools"}}
    assert "was shown a scaffold" in shown(told).text


@pytest.mark.parametrize("value", [None, [], 7, "x", {}, {"sampler": "x"}, {"ids": {}}])
def test_where_nothing_is_kept_there_is_no_section(value: object) -> None:
    assert tokens_section({"token_logprobs": value}, {}) is None
    assert tokens_section({}, GRPO) is None


GARBAGE: list[Any] = [
    *(None, True, "x", [], {}, math.nan, math.inf, -math.inf, 10**400, -(10**400), 1e308, -1e9),
    *(9999, -9999.0, HOSTILE, {"a": [HOSTILE]}, -1.0),
]


def test_any_value_may_stand_anywhere(tmp_path: Path) -> None:
    """The whole page, served and exported: nothing of it runs, and the tokens are there."""
    run = write_run(tmp_path / "one", 1)
    more = [*GARBAGE[3:], *GARBAGE[:3]]
    fields = [
        {"ids": GARBAGE, "texts": more, "sampler": GARBAGE, "learner": more},
        {"ids": more, "texts": [HOSTILE] * 30, "sampler": [9999.0, -9999.0], "learner": [-9999.0]},
        {"ids": None, "texts": [HOSTILE * 500], "sampler": [-1.0] * 3, "learner": HOSTILE},
        *({"texts": value, "sampler": value, "learner": value} for value in GARBAGE),
        *GARBAGE,
    ]
    base = records_of(1)[0]
    places = [{"step": 2, "group": n, "index": 0} for n in range(len(fields))]
    finite = [scrubbed(field) for field in fields]
    write_rollouts(
        run,
        2,
        [base | p | {"token_logprobs": f} for p, f in zip(places, finite, strict=True)],
    )
    write_json(run / "config.json", {"grpo": {"clip_low": HOSTILE, "clip_high": [1], "loss": 3}})
    shelf = RunList(tmp_path)
    for each in shelf.runs():
        each.update()
    with TestClient(create_app(shelf), "http://localhost") as client:
        for n in range(len(fields)):
            answer = client.get(f"/run/one/attempt/2/{n}/0")
            assert answer.status_code == 200, n
            assert n >= 3 or "<h3>Tokens</h3>" in answer.text
            assert_only_quoted(answer.text)
    for field in fields:  # what no file of ours holds, but another's may
        section = tokens_section({"token_logprobs": field}, {"clip_low": HOSTILE})
        assert section is None or Document(section).tags
    assert export_pages(tmp_path, tmp_path / "pages", "step=2", 3)


def assert_only_quoted(page: str) -> None:
    tags = Document(page).tags
    assert [tag for tag, _ in tags].count("script") == 1 and "img" not in {tag for tag, _ in tags}
    names = {name for _, attributes in tags for name in attributes}
    assert not [name for name in names if name.startswith("on") or name == "style"]
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e\u2066\u2028]", page)


def scrubbed(value: Any) -> Any:
    """As it can stand in a file: numbers finite and not without end."""
    if isinstance(value, dict):
        return {key: scrubbed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [scrubbed(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return None if isinstance(value, int) and abs(value) > 1 << 60 else value


def test_texts_of_tokens_are_not_searched(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one", 1)
    first, *others = read_rollouts(run, 1)
    write_rollouts(run, 1, [first | record([-1.0], texts=["zyxwv"]), *others])
    opened = RunList(tmp_path).runs()[0]
    opened.update()
    with opened.found() as found:
        assert found.count(Filter.read({"q": "zyxwv"}))[0] == 0
        assert found.count(Filter.read({"q": "note1"}))[0] > 0
