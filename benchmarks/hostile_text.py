"""How long every function takes that a model's text goes through, over degenerate texts.

Repeats of every bracket, fence, tag, number, space and mark, from 1 kB to 1 MB (``--quick``: to
100 kB). For each function the worst text, its seconds at 20 kB and at the largest size, how the
time grows with the size (the exponent of size over those that take 2 ms; 1 is linear), and the
worst milliseconds at the size up to which it runs on the event loop (off_loop.py).

    python benchmarks/hostile_text.py [--quick] [--only PART_OF_A_NAME]

The last line says how many functions keep to the limits: exponent at most 1.2, at most 50 ms per
20 kB, at most 5 ms on the loop. ``tests/test_hostile_text.py`` holds the list of functions
complete.
"""

import argparse
import importlib
import inspect
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import ModuleType

from flowright.data.task import Kind, Problem
from flowright.errors import FlowrightError
from flowright.grading import compare, numbers, text as answers
from flowright.judge import gate, parsing, prompts, rules, schemas
from flowright.judge.schemas import BETTER, GRADE, TRUTH, Field
from flowright.judge.verdict import JudgeQuery
from flowright.llm import control_tokens, fences, replies, wire
from flowright.off_loop import MOST_CHARS
from flowright.rendering import block_markup
from flowright.simulation import assessor, cues, requested_format, values
from flowright.simulation.index import TaskIndex
from flowright.workflows import extraction, language, operators, source, trace

EXPONENT, PER_20_KB, ON_LOOP = 1.2, 0.050, 0.005

UNITS = (
    "(", ")", "[", "]", "{", "}", "<", ">", "((", "{{", "[[", "`", "```", "``` ", '```\n', "~",
    '~~~~~\n', '~\u200b', "<think>", "</think>", "<think", "<think ", "<s>", "<|", "<|im_end|>",
    "<|channel|>", "<|channel|>final<|message|>", "[THINK]", "[INST]", "<answer>", "</answer>",
    "<answer></answer>", "<score>", "<score>4", "<a>", "<a></a>", "\\", "\\\\", "\\boxed{",
    "\\boxed{}", "\\frac{1}{", "\\frac{1}{2}", "\\text{", "\\text{a}", "0", "1", "12 ", "1,",
    "1,000", "1,000,", "1.", "1/", "1/2 ", "-1 ", "+", "-", "*", "**", "_", "=", "^", "%", "$",
    "$$", "e", "1e", "#", "####", "#### ", "## ", " ", '\t', '\n', '\r\n', '\r', ' \n',
    '\u2028', '\u200b', "́", "á", "ﷺ", "１", "é", "İ", "解", "👍", '\ud800', "a", "A", "a ",
    "the ", "a,", "and ", "a and ", "May 12, 1999 ", "12 May ", "answer", "answer is ",
    "Answer: ", "Answer:", 'answer:\n', 'the answer is a.\n', "Verdict: ", 'Verdict: True\n',
    "verdict is ", 'criterion_1: True\n', "\"verdict\"", "{\"", "{\"a\":",
    "{\"verdict\": true}", "{\"verdict\": ", "[\"", "\"", "'", "\"\"\"", "\\\"", "'''",
    "option A ", "(A) ", "A. ", "(A", 'Solution:\n', 'Solution: a\n', "candidate 1: ",
    'def f():\n', 'def f():\n\tpass\n', 'class Workflow:\n', 'async def workflow(problem):\n',
    'async def workflow(problem): pass\n', 'if x:\n ', 'x = 1\n', "x.", "f(", "lambda: ",
    "not ", "- ", "1. ", "| a ", "|", "||", "analysis", "assistantfinal", "analysisA",
    "is the ", "it is ", "says ", ". ", "! ", ", ", ": ", ":", ";", "/", "//", "&", "&amp;",
    "@", 'import x\n', '\x00', "passed 1 of ", "program ", "true or ", "which answer ",
    "is this ", "choose ", "</", "<answer", "Sorry, ",
)  # fmt: skip
"""What the texts repeat."""

FRAMES: tuple[Callable[[str], str], ...] = (
    lambda body: body,
    lambda body: f"```python\n{body}",
    lambda body: f"<think>{body}",
    lambda body: f"Answer: {body}x",
)

FIELDS = [Field("verdict", TRUTH)]
TAGGED = [Field("score", GRADE, tagged=True)]
RUBRIC = [Field(f"criterion_{n}", TRUTH) for n in range(1, 9)]
BETTERS = [Field("better", BETTER, tagged=True)]
CHOICES = (("A", "a cat"), ("B", "a dog"), ("C", "12"), ("D", "May 12, 1999"))
TASK = Problem(id="t", kind="math", source="s", question="What is 6 * 7, in words?", reference="42")
INDEX = TaskIndex([TASK])


def _query(answer: str) -> JudgeQuery:
    return JudgeQuery("What is 6 * 7?", answer, "42", "number")


def _votes(kind: Kind, choices: tuple[tuple[str, str], ...] = ()) -> Callable[[str], object]:
    """As many answers as a vote may have; they differ at their end and share the size."""

    def vote(text: str) -> object:
        share = text[: len(text) // operators.MAX_SOLUTIONS]
        each = [f"{share} {n}" for n in range(operators.MAX_SOLUTIONS)]
        return compare.groups(each, kind, choices)

    return vote


CACHED = (
    answers.extract_answer, answers.tokens, answers._spans, numbers.lone_number,
    numbers._quantities, language.parse, language.nodes,
)  # fmt: skip
"""Emptied before each call."""

Registry = Mapping[str, Callable[[str], object]]

FUNCTIONS: Registry = {
    "llm.replies:strip_thinking": replies.strip_thinking,
    "llm.replies:spoken_answer": replies.spoken_answer,
    "llm.replies:code_blocks": replies.code_blocks,
    "llm.replies:extract_code": lambda text: replies.extract_code(text, "f"),
    "llm.replies:final_answer": replies.final_answer,
    "llm.replies:boxed": replies.boxed,
    "llm.fences:fence_for": lambda text: (fences.fence_for([text]), fences.fence_for([text], "~")),
    "llm.fences:fenced": fences.fenced,
    "llm.fences:without_echoes": fences.without_echoes,
    "llm.fences:fill": lambda text: fences.fill("{a}{a}", a=text),
    "llm.fences:sanitise": fences.sanitise,
    "llm.control_tokens:broken": control_tokens.broken,
    "llm.control_tokens:OwnTokens": control_tokens.OwnTokens(
        ["<|im_end|>", "[INST]", "((("]
    ).broken,
    "llm.wire:decode_reply": lambda text: wire.decode_reply(text.encode("utf-8", "replace")),
    "judge.parsing:parse_reply": lambda text: parsing.parse_reply(text, "text", FIELDS),
    "judge.parsing:parse_reply json": lambda text: parsing.parse_reply(text, "json_object", FIELDS),
    "judge.parsing:parse_reply tags": lambda text: parsing.parse_reply(text, "text", TAGGED),
    "judge.parsing:parse_reply rubric": lambda text: parsing.parse_reply(text, "text", RUBRIC),
    "judge.parsing:parse_reply pair": lambda text: parsing.parse_reply(text, "text", BETTERS),
    "judge.gate:gate": lambda text: gate.gate(_query(text)),
    "judge.gate:bare": gate.bare,
    "judge.schemas:folded": schemas.folded,
    "judge.schemas:plain_forms": schemas.plain_forms,
    "judge.schemas:read": lambda text: [s.read(text) for s in (TRUTH, GRADE, BETTER)],
    "judge.prompts:Block": lambda text: prompts.Question(
        (prompts.Block("FINAL ANSWER", text),), tuple(FIELDS)
    ).messages("text"),
    "judge.rules:decide": lambda text: rules.decide(_query(text)),
    "grading.text:extract_answer": answers.extract_answer,
    "grading.text:tokens": answers.tokens,
    "grading.text:exact_match": lambda text: answers.exact_match(text, f"{text}x"),
    "grading.text:token_f1": lambda text: answers.token_f1(text, f"{text} x"),
    "grading.text:same_date": lambda text: answers.same_date(text, f"May {text}"),
    "grading.text:same_spans": lambda text: answers.same_spans(text, f"{text}, x"),
    "grading.text:chosen_label": lambda text: answers.chosen_label(text, CHOICES),
    "grading.numbers:quantities": numbers.quantities,
    "grading.numbers:lone_number": numbers.lone_number,
    "grading.compare:compare math": lambda text: compare.compare(["42", "x^2"], text, "math"),
    "grading.compare:compare qa": lambda text: compare.compare(["May 12, 1999"], text, "qa"),
    "grading.compare:compare choice": lambda text: compare.compare(["A"], text, "qa", CHOICES),
    "grading.compare:groups math": _votes("math"),
    "grading.compare:groups qa": _votes("qa"),
    "grading.compare:groups code": _votes("code"),
    "grading.compare:groups choice": _votes("qa", CHOICES),
    "workflows.extraction:extract": extraction.extract,
    "workflows.language:parse": language.parse,
    "workflows.source:read_workflow": source.read_workflow,
    "workflows.trace:cut": trace.cut,
    "workflows.operators:_choice": lambda text: operators._choice(text, 5),
    "simulation.cues:read_prompt": lambda text: cues.read_prompt([("user", text)], INDEX),
    "simulation.cues:objects": cues.objects,
    "simulation.requested_format:requested_fields": lambda text: [
        requested_format.requested_fields(text, form) for form in (None, {"type": "json_object"})
    ],
    "simulation.assessor:trigger": lambda text: [
        assessor.trigger(bias, text) for bias in assessor.BIASES
    ],
    "simulation.values:final_answer": values.final_answer,
    "simulation.values:number": values.number,
    "simulation.values:normal_text": values.normal_text,
    "simulation.values:is_number": values.is_number,
    "simulation.values:same": lambda text: values.same(text, ["42"]),
    "simulation.values:says": lambda text: values.says(text, ["42", "a cat"]),
    "rendering.block_markup:document": block_markup.document,
}
"""By name: a function, and what follows a space, a way of calling it."""

ELSEWHERE: Mapping[str, str] = {
    "llm.control_tokens:tokens_of": "reads the files of a model",
    "workflows.source:source_line": "takes a line number",
    "workflows.language:nodes": "part of read_workflow",
    "workflows.language:top": "part of read_workflow",
    "workflows.language:bound_name": "part of read_workflow",
    "workflows.language:binds": "part of read_workflow",
    "workflows.language:is_here": "part of read_workflow",
    "workflows.language:check_language": "part of read_workflow",
    "workflows.trace:as_text": "takes what cut has cut",
    "simulation.assessor:pull": "calls trigger",
    "simulation.assessor:is_master_key": "called by trigger",
    "simulation.assessor:check_biases": "takes the configuration",
    "simulation.requested_format:asks_for_json": "takes the form of a request",
    "simulation.requested_format:schema_properties": "takes the form of a request",
    "simulation.requested_format:chosen": "takes the form of a request",
    "simulation.requested_format:worded": "writes a reply",
    "simulation.values:right_value": "takes a task",
    "simulation.values:wrong_values": "takes a task",
    "llm.wire:encode_request": "writes a request",
}
"""Public functions of the same modules that no text of a model reaches by themselves, and why."""

MODULES: tuple[ModuleType, ...] = tuple(
    importlib.import_module(f"flowright.{name}")
    for name in sorted({key.partition(":")[0] for key in FUNCTIONS})
    if not name.startswith(("judge.prompts", "rendering", "workflows.operators"))
)


def public_functions(module: ModuleType) -> list[str]:
    """The module's own public functions, as ``FUNCTIONS`` names them."""
    own = module.__name__.removeprefix("flowright.")
    return [
        f"{own}:{name}"
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and not inspect.isclass(value)
        and getattr(value, "__module__", "") == module.__name__
    ]


def seconds(function: Callable[[str], object], text: str) -> float:
    """CPU seconds of one call; a refusal is an answer."""
    for cached in CACHED:
        cached.cache_clear()
    began = time.thread_time()
    with suppress(FlowrightError, wire.MalformedReply, SyntaxError):
        function(text)
    return time.thread_time() - began


def filled(frame: Callable[[str], str], unit: str, size: int) -> str:
    return frame(unit * (size // len(unit)))


def measure(
    function: Callable[[str], object], sizes: tuple[int, ...], size_on_loop: int
) -> dict[str, object]:
    """The worst over all texts, first at 5 kB and then, of the four slowest, at each size."""
    texts = [(frame, unit) for frame in FRAMES for unit in UNITS]
    seen = {text: seconds(function, filled(*text, 5_000)) for text in texts}
    slowest = sorted(texts, key=lambda text: seen[text], reverse=True)[:4]
    worst, on_loop = (0.0, 0.0, ""), 0.0
    for text in slowest:
        times: list[float] = []
        for size in sizes:
            times.append(min(seconds(function, filled(*text, size)) for _ in range(3)))
            if times[-1] > 5:
                break
        # Below two milliseconds it is the clock that is measured.
        known = [(size, t) for size, t in zip(sizes, times, strict=False) if t > 0.002]
        grows = 0.0
        if len(known) > 1:
            (small, before), (large, after) = known[0], known[-1]
            grows = math.log(after / before) / math.log(large / small)
        worst = max(worst, (grows, times[-1], repr(text[1])))
        short = min(seconds(function, filled(*text, size_on_loop)) for _ in range(3))
        on_loop = max(on_loop, short)
    least = min(seconds(function, filled(*slowest[0], 20_000)) for _ in range(3))
    return {
        "20 kB": least,
        "exponent": worst[0],
        "largest": worst[1],
        "text": repr(slowest[0][1]),
        "loop": on_loop,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="up to 100 kB")
    parser.add_argument("--only", default="", metavar="PART", help="functions named so")
    args = parser.parse_args()
    sizes = (10_000, 31_600, 100_000) if args.quick else (10_000, 100_000, 1_000_000)
    print(f"{'function':45} {'20 kB ms':>9} {'largest s':>9} {'exponent':>8} {'loop ms':>8}  text")
    kept = 0
    chosen = {name: f for name, f in FUNCTIONS.items() if args.only in name}
    for name, function in chosen.items():
        # A vote reads each answer once for each.
        share = operators.MAX_SOLUTIONS if "groups" in name else 1
        found = measure(function, sizes, MOST_CHARS // share)
        at_20, grows, loop = (float(str(found[key])) for key in ("20 kB", "exponent", "loop"))
        good = grows <= EXPONENT and at_20 <= PER_20_KB and loop <= ON_LOOP
        kept += good
        print(
            f"{name:45} {at_20 * 1e3:9.2f} {found['largest']:9.3f} {grows:8.2f} {loop * 1e3:8.2f}"
            f"  {found['text']}{'' if good else '  <-- over a limit'}",
            flush=True,
        )
    print(f"{kept} of {len(chosen)} functions keep to the limits")


if __name__ == "__main__":
    main()
