"""Every function that a model's text goes through, for hostile_text.py, which times them, and
tests/test_hostile_text.py, which fails when one is missing.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

from flowright.config.judge import JudgeSection
from flowright.core import untrusted
from flowright.core.errors import FlowrightError
from flowright.core.report import Fact, Text
from flowright.criteria.constraints import (
    checkers,
    ifbench_counts,
    ifeval_form as lines,
    ifeval_words,
    language as constraint_language,
)
from flowright.criteria.constraints.checkers import InstructedPrompt
from flowright.data.task import Kind, Problem
from flowright.environments import rollout as records
from flowright.environments.canvas import actions
from flowright.environments.judging import frames
from flowright.environments.judging.rows import PointwiseRow
from flowright.environments.presentation.tasks import presented, read_choice, with_answer_line
from flowright.environments.workflow import trials
from flowright.grading import (
    choices,
    compare,
    formulas,
    numbers,
    statements,
    text as answers,
    units,
    votes,
    word_scores,
)
from flowright.judging import (
    contradictions,
    llm_judge,
    parsing,
    payloads,
    prompts,
    rules,
    schemas,
    wrappers,
)
from flowright.judging.reward import calls as arguments
from flowright.judging.rubrics import criteria_judge as brackets, proposals
from flowright.judging.schemas import BETTER, GRADE, TRUTH, Field
from flowright.judging.service import bodies, judge_file, openrlhf
from flowright.judging.verdict import AnswerType, JudgeQuery, RawReply, Verdict
from flowright.llm import context as sizes, control_tokens, loose_json, replies, wire
from flowright.llm.chat import Message
from flowright.llm.context import too_long
from flowright.llm.transport import RequestError
from flowright.policy.sampling import Sample
from flowright.simulation import (
    assessor,
    cues,
    protocol,
    requested_format,
    values,
)
from flowright.simulation.cues import TaskIndex, words
from flowright.simulation.requested_format import Unfillable, filled
from flowright.viewer.rendering import markup, record_blocks, terminal
from flowright.workflows import (
    language,
    operators,
    registry as calls,
    source,
    trace,
)
from flowright.workflows.operators import MAX_SOLUTIONS, OPERATORS

REFUSALS = (
    FlowrightError, wire.MalformedReply, SyntaxError, ValueError, RequestError, schemas.Unread,
    protocol.HTTPException, Unfillable,
)  # fmt: skip
"""How the functions below refuse a text, which is an answer."""

FIELDS = [Field("verdict", TRUTH)]
TAGGED = [Field("score", GRADE, tagged=True)]
RUBRIC = [Field(f"criterion_{n}", TRUTH) for n in range(1, 9)]
BETTERS = [Field("better", BETTER, tagged=True)]
CHOICES = (("A", "a cat"), ("B", "a dog"), ("C", "12"), ("D", "May 12, 1999"))
TASK = Problem(id="t", kind="math", source="s", question="What is 6 * 7, in words?", reference="42")
INDEX = TaskIndex([TASK])
FORM = tuple(
    name
    for name in checkers.IDS
    if name.startswith(("detectable_format:json", "detectable_format:title", "combination:two",
                        "startend:quotation", "punctuation", "custom:csv", "custom:date",
                        "custom:multiples", "custom:mcq", "custom:rev", "custom:eur",
                        "format:parentheses", "format:quote", "format:line", "format:newline",
                        "format:sub", "format:thesis", "words:alph", "words:cons", "words:prime"))
)  # fmt: skip
"""Instructions without arguments that need no package; benchmarks/constraints.py times them all."""
INSTRUCTED = InstructedPrompt("k", "p", FORM, ({},) * len(FORM))
STRING = {"type": "string", "pattern": "^.$", "maxLength": 1}


def _query(answer: str, kind: AnswerType = "number") -> JudgeQuery:
    return JudgeQuery("What is 6 * 7?", answer, "42", kind)


def _verdict(text: str) -> Verdict:
    reply = RawReply(text, "stop", text)
    return Verdict(1.0, True, "llm", "ok", text, replies=(reply,))


def _turns(text: str) -> list[dict[str, object]]:
    parts = [{"type": "text", "text": text}, text]
    return [{"role": "user", "content": parts}, {"role": "assistant", "content": text}]


def _asked(text: str) -> str:
    turns = [{"role": "user", "content": text}]
    return json.dumps({"model": protocol.MODEL, "messages": turns}, ensure_ascii=False)


def _votes(kind: Kind, choices: tuple[tuple[str, str], ...] = ()) -> Callable[[str], object]:
    """As many answers as a vote may have; they differ at their end and share the size."""

    def vote(text: str) -> object:
        share = text[: len(text) // MAX_SOLUTIONS]
        each = [f"{share} {n}" for n in range(MAX_SOLUTIONS)]
        return votes.groups(each, kind, choices)

    return vote


CACHED = (
    statements.extract_answer, answers.normalise, answers.tokens, answers._spans,
    numbers.stated_number,
    language.parse, language.nodes, constraint_language.sentences, constraint_language._detect,
)  # fmt: skip
"""Emptied before each call."""

FUNCTIONS: Mapping[str, Callable[[str], object]] = {
    "flowright.criteria.constraints.ifeval_form:bullets": lines.bullets,
    "flowright.criteria.constraints.ifeval_form:titles": lambda text: list(lines.titles(text)),
    "flowright.criteria.constraints.ifeval_form:bracketed": lambda text: list(
        lines.bracketed(text)
    ),
    "flowright.criteria.constraints.language:without_punctuation": (
        constraint_language.without_punctuation
    ),
    "flowright.criteria.constraints.language:sentences": constraint_language.sentences,
    "flowright.criteria.constraints.language:tokens": constraint_language.tokens,
    "flowright.criteria.constraints.language:syllables": constraint_language.syllables,
    "flowright.criteria.constraints.language:detect": constraint_language.detect,
    "flowright.criteria.constraints.ifbench_counts:trimmed": ifbench_counts.trimmed,
    "flowright.criteria.constraints.ifeval_words:first_word": ifeval_words.first_word,
    "flowright.criteria.constraints.checkers:variants": checkers.variants,
    "flowright.criteria.constraints.checkers:score": lambda text: checkers.score(INSTRUCTED, text),
    "flowright.llm.replies:strip_thinking": replies.strip_thinking,
    "flowright.llm.replies:spoken_answer": replies.spoken_answer,
    "flowright.llm.replies:code_blocks": replies.code_blocks,
    "flowright.llm.replies:extract_code": lambda text: replies.extract_code(text, "f"),
    "flowright.llm.replies:final_answer": replies.final_answer,
    "flowright.llm.replies:boxed": replies.boxed,
    "flowright.llm.control_tokens:fence_for": lambda text: (
        control_tokens.fence_for([text]),
        control_tokens.fence_for([text], "~"),
    ),
    "flowright.llm.control_tokens:fenced": control_tokens.fenced,
    "flowright.llm.control_tokens:without_echoes": control_tokens.without_echoes,
    "flowright.llm.control_tokens:fill": lambda text: control_tokens.fill("{a}{a}", a=text),
    "flowright.llm.control_tokens:sanitise": control_tokens.sanitise,
    "flowright.llm.control_tokens:broken": control_tokens.broken,
    "flowright.llm.control_tokens:OwnTokens": control_tokens.OwnTokens(
        ["<|im_end|>", "[INST]", "((("]
    ).broken,
    "flowright.llm.context:most_tokens": sizes.most_tokens,
    "flowright.llm.context:first_tokens": lambda text: sizes.first_tokens(text, 300),
    "flowright.llm.context:last_tokens": lambda text: sizes.last_tokens(text, 300),
    "flowright.llm.context:too_long": too_long,
    "flowright.llm.wire:decode_reply": lambda text: wire.decode_reply(
        text.encode("utf-8", "replace")
    ),
    "flowright.judging.parsing:parse_reply": lambda text: parsing.parse_reply(text, "text", FIELDS),
    "flowright.judging.parsing:parse_reply json": lambda text: parsing.parse_reply(
        text, "json_object", FIELDS
    ),
    "flowright.judging.parsing:parse_reply tags": lambda text: parsing.parse_reply(
        text, "text", TAGGED
    ),
    "flowright.judging.parsing:parse_reply rubric": lambda text: parsing.parse_reply(
        text, "text", RUBRIC
    ),
    "flowright.judging.parsing:parse_reply pair": lambda text: parsing.parse_reply(
        text, "text", BETTERS
    ),
    "flowright.llm.loose_json:read_object": lambda text: loose_json.read_object(
        "{" + text, 0, True
    ),
    "flowright.judging.schemas:normal": schemas.normal,
    "flowright.judging.schemas:value_of": lambda text: schemas.value_of(FIELDS[0], text),
    "flowright.judging.contradictions:is_closed": contradictions.is_closed,
    "flowright.judging.contradictions:is_introduced": contradictions.is_introduced,
    "flowright.judging.contradictions:is_attributed": contradictions.is_attributed,
    "flowright.judging.contradictions:is_taken_back": contradictions.is_taken_back,
    "flowright.judging.contradictions:is_retracted": contradictions.is_retracted,
    "flowright.judging.contradictions:require_scale": lambda text: contradictions.require_scale(
        TAGGED[0], 1, text
    ),
    "flowright.judging.contradictions:require_unanimous": lambda text: (
        contradictions.require_unanimous(
            FIELDS[0], True, text[-parsing.MAX_READ_CHARS :], [(0, 1)], len(text)
        )
    ),
    "flowright.judging.contradictions:require_agreement": lambda text: (
        contradictions.require_agreement(FIELDS[0], True, text)
    ),
    "flowright.judging.payloads:read_answer_type": payloads.read_answer_type,
    "flowright.judging.wrappers:shortened": lambda text: [
        wrappers.shortened(_query(text, kind)) for kind in ("number", "free_text")
    ],
    "flowright.judging.payloads:request_of": lambda text: payloads.body_of(
        [payloads.encoded(payloads.request_of(_query(text)))]
    ),
    "flowright.judging.payloads:read_responses": lambda text: [
        payloads.read_responses(content.encode("utf-8", "replace"), ["1"], "judge")
        for content in (text, json.dumps({"responses": [{"score": 1, "explanation": text}]}))
    ],
    "flowright.judging.payloads:read_limits": lambda text: payloads.read_limits(
        text.encode("utf-8", "replace")
    ),
    "flowright.judging.rules:gate": lambda text: rules.gate(_query(text)),
    "flowright.judging.rules:bare": rules.bare,
    "flowright.judging.schemas:folded": schemas.folded,
    "flowright.judging.schemas:plain_forms": schemas.plain_forms,
    "flowright.judging.schemas:TRUTH": lambda text: [s.read(text) for s in (TRUTH, GRADE, BETTER)],
    "flowright.judging.prompts:Block": lambda text: prompts.Question(
        (prompts.Block("FINAL ANSWER", text),), tuple(FIELDS)
    ).messages("text"),
    "flowright.judging.rules:decide": lambda text: rules._compared(_query(text), text, True),
    "flowright.grading.statements:extract_answer": statements.extract_answer,
    "flowright.grading.statements:claims": statements.claims,
    "flowright.grading.statements:opening": statements.opening,
    "flowright.grading.statements:without_lead": statements.without_lead,
    "flowright.grading.text:normalise": answers.normalise,
    "flowright.grading.text:normalised": lambda text: answers.normalised("NFC", text),
    "flowright.grading.numbers:stated_number": numbers.stated_number,
    "flowright.grading.numbers:leading_number": numbers.leading_number,
    "flowright.grading.formulas:stated_formula": formulas.stated_formula,
    "flowright.grading.formulas:as_text": formulas.as_text,
    "flowright.grading.formulas:can_be_read": formulas.can_be_read,
    "flowright.grading.text:bare": answers.bare,
    "flowright.grading.text:tokens": answers.tokens,
    "flowright.grading.text:exact_match": lambda text: answers.exact_match(text, f"{text}x"),
    "flowright.grading.word_scores:squad_tokens": word_scores.squad_tokens,
    "flowright.grading.word_scores:final_words": word_scores.final_words,
    "flowright.grading.choices:same_date": lambda text: choices.same_date(text, f"May {text}"),
    "flowright.grading.text:same_spans": lambda text: answers.same_spans(text, f"{text}, x"),
    "flowright.grading.choices:chosen_label": lambda text: [
        choices.chosen_label(answer, CHOICES) for answer in (text, f"A, {text}")
    ],
    "flowright.grading.compare:is_words": compare.is_words,
    "flowright.grading.compare:label_of": lambda text: compare.label_of(text, text, CHOICES),
    "flowright.grading.units:conversion": lambda text: units.conversion(f"3 {text}", "3 km"),
    "flowright.grading.statements:predicate": lambda text: [
        statements.predicate(answer)
        for answer in (text, f"The {text}", f"a{text}, so it is {text}")
    ],
    "flowright.grading.text:same_words": lambda text: answers.same_words(text, f"in {text}"),
    "flowright.grading.statements:closed_answer": lambda text: statements.closed_answer(
        f"Yes, {text}"
    ),
    "flowright.grading.statements:states_no_answer": statements.states_no_answer,
    "flowright.grading.formulas:as_pair": lambda text: formulas.as_pair(f"x = {text}", text),
    "flowright.grading.numbers:with_other_marks": numbers.with_other_marks,
    "flowright.grading.numbers:conclusion": numbers.conclusion,
    "flowright.grading.numbers:spelled": numbers.spelled,
    "flowright.grading.formulas:is_formula": formulas.is_formula,
    "flowright.grading.formulas:as_latex": formulas.as_latex,
    "flowright.grading.numbers:changed": lambda text: numbers.changed(text, text, True),
    "flowright.grading.numbers:is_coefficient": numbers.is_coefficient,
    "flowright.grading.numbers:without_powers": numbers.without_powers,
    "flowright.grading.numbers:without_rate": numbers.without_rate,
    "flowright.grading.numbers:has_function": numbers.has_function,
    "flowright.grading.numbers:offers_both": numbers.offers_both,
    "flowright.grading.numbers:makes_one": numbers.makes_one,
    "flowright.grading.numbers:lone_number": numbers.lone_number,
    "flowright.grading.compare:compare math": lambda text: compare.compare(
        ["42", "x^2"], text, "math"
    ),
    "flowright.grading.compare:compare qa": lambda text: compare.compare(
        ["May 12, 1999"], text, "qa"
    ),
    "flowright.grading.compare:compare choice": lambda text: compare.compare(
        ["A"], text, "qa", CHOICES
    ),
    "flowright.grading.votes:groups math": _votes("math"),
    "flowright.grading.votes:groups qa": _votes("qa"),
    "flowright.grading.votes:groups code": _votes("code"),
    "flowright.grading.votes:groups choice": _votes("qa", CHOICES),
    "flowright.judging.llm_judge:shown_answer": lambda text: llm_judge.shown_answer(
        text, JudgeSection()
    ),
    "flowright.judging.llm_judge:orders": lambda text: llm_judge.orders(
        replace(_query(text), rival=text), JudgeSection(both_orders=False)
    ),
    "flowright.judging.payloads:prompt_text": lambda text: payloads.prompt_text(_turns(text)),
    "flowright.judging.payloads:completion_text": lambda text: payloads.completion_text(
        _turns(text)
    ),
    "flowright.judging.payloads:whole_characters": payloads.whole_characters,
    "flowright.judging.reward.calls:query_of": lambda text: arguments.query_of(
        {"prompt": _turns(text), "completion": text, "answer": [text]}
    ),
    "flowright.judging.service.openrlhf:completion_of": lambda text: openrlhf.completion_of(
        f"a b{text}", "ab"
    ),
    "flowright.judging.service.bodies:raw_replies": lambda text: bodies.raw_replies(_verdict(text)),
    "flowright.judging.service.judge_file:row_hash": lambda text: judge_file.row_hash(
        {"completion": text}
    ),
    "flowright.judging.service.bodies:read_member": lambda text: [
        bodies.read_member({"prompt": "q", "completion": text, name: text}, True)
        for name in ("answer", "request_id", text[:300])
    ],
    "flowright.judging.service.bodies:response_of": lambda text: bodies.response_of(
        _verdict(text), "1", 0.1
    ),
    "flowright.environments.judging.frames:read": lambda text: [
        frames.read(f"{behind}{text}", "pointwise", confidence=True)
        for behind in ("", "<think>", "<think></think><score>", "<think></think><score>3</score>")
    ],
    "flowright.environments.judging.frames:frame": lambda text: frames.frame(
        PointwiseRow((Message("user", text),), text, 0), frames.wording_of("short")
    ),
    "flowright.judging.rubrics.criteria_judge:read_presence": lambda text: [
        brackets.read_presence(said, 9) for said in (text, f"```json\n{text}\n```")
    ],
    "flowright.judging.rubrics.criteria_judge:read_bracketed": lambda text: brackets.read_bracketed(
        f"[[1]]{text}"
    ),
    "flowright.judging.rubrics.criteria_judge:read_verdict": lambda text: brackets.read_verdict(
        text, "text", FIELDS
    ),
    "flowright.judging.rubrics.proposals:read_criteria": lambda text: proposals.read_criteria(
        f'{{"criteria": {text}', "text", FIELDS
    ),
    "flowright.environments.rollout:plain": lambda text: json.dumps(records.plain(_verdict(text))),
    "flowright.workflows.source:extract": source.extract,
    "flowright.workflows.language:parse": lambda text: language.parse(
        text[: source.MAX_SOURCE_CHARS]
    ),
    "flowright.workflows.source:read_workflow": source.read_workflow,
    "flowright.environments.canvas.actions:read_action": actions.read_action,
    "flowright.environments.canvas.actions:read_prompt": actions.read_prompt,
    "flowright.environments.workflow.trials:read_turn": lambda text: trials.read_turn(
        Sample((), (), text, "stop", 0), "a = 1\nb = 2"
    ),
    "flowright.workflows.trace:cut": trace.cut,
    "flowright.workflows.operators:_choice": lambda text: operators._choice(text, 5),
    "flowright.workflows.registry:is_no_value": calls.is_no_value,
    "flowright.workflows.registry:bind": lambda text: calls.bind(
        OPERATORS["generate"], (text,), {}, 60_000
    ),
    "flowright.simulation.cues:words": words,
    "flowright.simulation.values:shape": values.shape,
    "flowright.simulation.protocol:parse": lambda text: [
        protocol.parse(protocol.request_of(content.encode("utf-8", "replace")))
        for content in (_asked(text), text)
    ],
    "flowright.simulation.protocol:formed": lambda text: protocol.formed(
        text, {"type": "json_object"}
    ),
    "flowright.simulation.protocol:choice_of": lambda text: protocol.choice_of(
        text, len(text), [text[-9:]]
    ),
    "flowright.simulation.requested_format:filled": lambda text: filled(
        STRING, lambda key, rule: text
    ),
    "flowright.simulation.cues:read_prompt": lambda text: cues.read_prompt([("user", text)], INDEX),
    "flowright.simulation.cues:finds_fault": cues.finds_fault,
    "flowright.simulation.requested_format:requested_fields": lambda text: [
        requested_format.requested_fields(text, form) for form in (None, {"type": "json_object"})
    ],
    "flowright.environments.presentation.tasks:read_choice": read_choice,
    "flowright.environments.presentation.tasks:presented": lambda text: presented(
        "cite", text, "key"
    ),
    "flowright.environments.presentation.tasks:with_answer_line": with_answer_line,
    "flowright.simulation.assessor:trigger": lambda text: [
        assessor.trigger(bias, text) for bias in assessor.BIASES
    ],
    "flowright.simulation.values:final_answer": values.final_answer,
    "flowright.simulation.values:number": values.number,
    "flowright.simulation.values:normal_text": values.normal_text,
    "flowright.simulation.values:is_number": values.is_number,
    "flowright.simulation.values:is_same": lambda text: values.is_same(text, ["42"]),
    "flowright.simulation.values:ends_in": lambda text: values.ends_in(text, ["42", "a cat"]),
    "flowright.core.untrusted:visible": untrusted.visible,
    "flowright.core.untrusted:one_line": untrusted.one_line,
    "flowright.core.untrusted:cut": lambda text: untrusted.cut(text, 1000),
    "flowright.viewer.rendering.record_blocks:text_block": record_blocks.text_block,
    "flowright.viewer.rendering.record_blocks:code_block": record_blocks.code_block,
    "flowright.viewer.rendering.record_blocks:blocks_html": lambda text: record_blocks.blocks_html(
        [Fact(text[:99], text, text), Text("a", text), Text("a", text, short=True)]
    ),
    "flowright.viewer.rendering.terminal:shortened": lambda text: terminal.shortened(
        untrusted.one_line(text), 80, ""
    ),
    "flowright.viewer.rendering.terminal:wrapped": lambda text: terminal.wrapped(
        untrusted.one_line(text), 80, ""
    ),
    "flowright.viewer.rendering.markup:el": lambda text: markup.el("pre", text, title=text),
}
"""By name: a function, and what follows a space, a way of calling it."""

BOUNDED: Mapping[str, str] = dict.fromkeys(
    (
        "flowright.workflows.language:parse",
        "flowright.workflows.source:extract",
        "flowright.workflows.source:read_workflow",
        "flowright.simulation.values:shape",
    ),
    "CPython's parser, for programs of at most 20,000 characters",
) | {"flowright.viewer.rendering.record_blocks:code_block": "Pygments, for 4,000 characters"}
"""Those that take as long as what they call does, and what bounds them: held to milliseconds."""

THREADED = frozenset(
    {name for name in FUNCTIONS if "groups" in name}
    | {
        "flowright.workflows.language:parse",
        "flowright.workflows.source:read_workflow",
        "flowright.workflows.source:extract",
    }
    | {
        "flowright.viewer.rendering.record_blocks:code_block"
    }  # of reports, which are written when a run has ended
)
"""Those that never run on the loop: votes and the reading of workflows have a thread."""
