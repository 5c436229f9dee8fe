"""What a prompt asks for: the task it is about, the way of asking, and what it hands over.

The way is read from the prompt's own words: the problem's text and everything between fences is
taken out first. The cues are listed in :data:`CUES`, the first that fits decides; they fit the
prompts of ``flowright.workflows.operators`` and are meant to fit anybody's.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flowright.data.task import Problem
from flowright.simulation.index import TaskIndex, without
from flowright.simulation.phrasing import Style
from flowright.simulation.table import Way

_Enclosed = tuple[re.Pattern[str], re.Pattern[str]]
"""What opens and what closes; both name ``mark``, which is the same for both."""

_BLOCKS: _Enclosed = (
    re.compile(
        r"^[ \t]*(?P<mark>`{3,}(?!`)|~{3,}(?!~))[ \t]*(?P<info>(?:[^ \t\n`][^\n`]*)?)\n", re.M
    ),
    re.compile(r"^[ \t]*(?P<mark>`{3,}|~{3,})[ \t]*$", re.M),
)
_TAGS: _Enclosed = (
    re.compile(r"<(?P<info>(?P<mark>[a-z][a-z_]{2,30}\d*))>", re.I),
    re.compile(r"</(?P<mark>[a-z][a-z_]{2,30}\d*)>", re.I),
)
_LINE_LABEL = re.compile(
    r"^[ \t*#]*((?:[a-z'’]+[ \t]+){0,3}(?:solution|answer|response|candidate|option|program|code"
    r"|draft|attempt|reference|feedback|review|critique|evidence)[ \t]*#?\(?(?:\d{1,2}|[A-H])?\)?)"
    r"[ \t*]*[:：][ \t*]*",
    re.IGNORECASE | re.MULTILINE,
)
_LABEL_CHARS = 400  # before a part, among which its label stands
_LANGUAGES = frozenset({"", "python", "python3", "py", "json", "text", "markdown", "output"})

_NUMBERED = re.compile(
    r"\b(?:candidate|solution|answer|option|response)s?\s*#?\(?(\d{1,2}|[A-H])\b", re.I
)
_CANDIDATE = re.compile(
    r"solution|answer|candidate|draft|program|code\b|response|attempt|version|tried|option|result",
    re.I,
)
_FEEDBACK = re.compile(r"feedback|review|critique|comment|failed|error|traceback|went wrong", re.I)
_HANDED = re.compile(f"{_CANDIDATE.pattern}|{_FEEDBACK.pattern}|reference|accepted", re.I)
_REFERENCE = re.compile(
    r"reference|gold|ground truth|(?:correct|expected) answer|also accepted|accepted answer", re.I
)
_CRITERION = re.compile(r"criterion \d{1,3}", re.I)
_EVIDENCE = re.compile(r"evidence|test (?:run|result|report)|observed", re.I)
_GIVEN = re.compile(f"{_REFERENCE.pattern}|{_EVIDENCE.pattern}", re.I)

_REQUEST = re.compile(
    r"\W*(?:is|are|does|which|please|now|reply|respond|return|give|say|tell|decide|grade|judge|check"
    r"|review|verify|choose|select|pick|find|revise|improve|fix|correct|rewrite|reformat|extract"
    r"|think|explain|solve|write|implement)\b",
    re.I,
)
_VERDICT = re.compile(
    r"\bverdict\b|\btrue\b.{0,20}\bfalse\b|\bgrade[rd]?\b|\bis (?:the|this) .{0,30}correct\b"
    r"|\bcorrect or incorrect\b|\byes or no\b",
    re.I | re.S,
)
_COMPARE = re.compile(
    r"\bwhich (?:of the (?:two )?)?(?:answer|response|solution|assistant)s?\b.{0,40}"
    r"\b(?:better|best|prefer)|\bcompare the (?:two|answers|responses)",
    re.I | re.S,
)
_BARE = re.compile(
    r"without (?:any )?explanation|(?:result|answer|number|word|label) only|only the (?:final )?"
    r"(?:answer|result|number|label)|no (?:explanation|reasoning)|just the (?:answer|result)",
    re.I,
)
_FAILURE = re.compile(
    r"\bfail|\bassert\b|AssertionError|Traceback|\w+Error\b|\bexpected\b|\breturned\b|\bgot\b", re.I
)
_OBJECTS = re.compile(
    r"\bincorrect|\bwrong\b|\bmistake|\berror|\bfail|\bnot correct|\bproblem with|\bbug\b|\bmissing"
    r"|\bshould (?:be|have)\b",
    re.I,
)

CUES: Sequence[tuple[Way, re.Pattern[str], bool]] = tuple(
    (way, re.compile(pattern, re.I | re.S), needs_candidate)
    for way, pattern, needs_candidate in (
        (Way.FORMAT, r"\breformat|\bextract\b.{0,40}\banswer|\bbring\b.{0,40}\bform\b", True),
        (Way.CHOOSE, r"\bchoose\b|\bselect\b|\bpick\b|\bbest\b|\bmost (?:likely|consistent)", True),
        (Way.FIX_PROGRAM, r"program.{0,200}\b(?:failed|error|crashed|raised|corrected)\b", True),
        (Way.REVISE, r"\brevis|\brefine|\brewrite|\bdebug|(?<!how to )\b(?:mend|fix|improve)\b"
         r"|\bcorrect the (?:solution|answer|code|mistake|error)", True),
        (Way.REVIEW, r"\breview|\bcritique|\bcheck\b|\bfind\b.{0,20}\b(?:mistake|error|bug)"
         r"|\bverify\b|\bevaluate\b|\bis (?:it|this|the) .{0,30}correct", True),
        (Way.CODE, r"\bimplement|\b(?:write|complete)\b.{0,40}\bfunction\b", False),
        (Way.PROGRAM, r"\b(?:program|script)\b.{0,80}\b(?:print|output|comput|run|execut)|"
         r"\bwrite (?:python )?code\b|\bpython (?:program|script|code)\b", False),
        (Way.STEPS, r"step[- ]by[- ]step|\bthink\b|\breason|\bexplain|\bshow your work|\bcarefully"
         r"|\bwork (?:it )?(?:through|out)|chain of thought|\bbreak\b.{0,20}\bdown\b", False),
    )
)  # fmt: skip
"""Ways of asking, in the order in which they are tried: way, pattern, needs a candidate. What fits
none of them is DIRECT; a request for the bare answer rules STEPS out."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt, understood. ``candidates`` are solutions that it hands over; ``feedback`` what it
    says of them."""

    way: Way
    task: Problem | None
    candidates: tuple[str, ...] = ()
    feedback: str = ""
    style: Style = "free"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A request for a verdict on one answer, or (``rival``) for the better of two. ``criteria`` by
    key, such as ``criterion_1``; ``said`` is the prompt without the texts between its fences."""

    question: str
    answer: str
    references: tuple[str, ...]
    task: Problem | None
    evidence: str = ""
    rival: str | None = None
    criteria: Mapping[str, str] = field(default_factory=dict)
    said: str = ""


@dataclass(frozen=True, slots=True)
class _Labelled:
    label: str
    text: str


def read_prompt(messages: Sequence[tuple[str, str]], index: TaskIndex) -> Ask | Judgement:
    """Understand a conversation of (role, content) pairs."""
    prompt = "\n\n".join(content for _, content in messages)
    task = index.find(prompt)
    parts, instruction = _parts(prompt, task)
    if _VERDICT.search(instruction) or _COMPARE.search(instruction):
        judgement = _judgement(prompt, parts, instruction, task)
        if judgement is not None:
            return judgement
    earlier = [content for role, content in messages if role == "assistant"]
    return _ask(task, parts, instruction, earlier)


def _parts(prompt: str, task: Problem | None) -> tuple[list[_Labelled], str]:
    """The labelled parts of a prompt, and the prompt without them and without the problem."""
    parts: list[_Labelled] = []

    def take(text: str, opening: re.Match[str], body: str) -> None:
        info = opening["info"].strip()
        near = text[max(0, opening.start() - _LABEL_CHARS) : opening.start()]
        before = near.rstrip().rpartition("\n")[2].strip("*_# \t")
        said_before = before if before.endswith((":", "：")) else ""
        label = said_before if info.lower() in _LANGUAGES else info
        body = body.strip("\n")
        if task is not None and not _HANDED.search(label) and _quotes(body, task):
            parts.extend(_labelled_lines(without(body, task))[0])
        else:
            parts.append(_Labelled(label, body))

    rest = _taken(_BLOCKS, prompt, take)
    if "</" in rest:
        rest = _taken(_TAGS, rest, take)
    if task is not None:
        rest = without(rest, task)
    if any(_HANDED.search(part.label) for part in parts):
        return parts, rest
    unfenced, instruction = _labelled_lines(rest)
    if _VERDICT.search(instruction) or _COMPARE.search(instruction):
        # A judge that is handed an answer under a label sees it whole, with the blocks inside it.
        whole = prompt if task is None else without(prompt, task)
        return _labelled_lines(whole)[0], instruction
    return [*parts, *unfenced], instruction


def _taken(enclosed: _Enclosed, text: str, take: Callable[[str, re.Match[str], str], None]) -> str:
    """The text with a line break in place of each part between an opening and the next closing of
    the same mark, which ``take`` is told of. In linear time, whatever is opened and never closed.
    """
    opens, closes = enclosed
    closings: dict[str, list[re.Match[str]]] = {}
    for closing in closes.finditer(text):
        closings.setdefault(closing["mark"].lower(), []).append(closing)
    kept: list[str] = []
    end = 0
    for opening in opens.finditer(text):
        if opening.start() < end:
            continue
        of_mark = closings.get(opening["mark"].lower(), [])
        first = bisect_left(of_mark, opening.end(), key=re.Match.start)
        if first < len(of_mark):
            take(text, opening, text[opening.end() : of_mark[first].start()])
            kept.append(text[end : opening.start()])
            end = of_mark[first].end()
    return "\n".join([*kept, text[end:]])


def _labelled_lines(text: str) -> tuple[list[_Labelled], str]:
    """Parts that begin with ``Label:`` on a line, each up to the next, and what stands before."""
    found = list(_LINE_LABEL.finditer(text))
    if not found:
        return [], text
    ends = [match.start() for match in found[1:]] + [len(text)]
    parts = [
        _Labelled(match[1], text[match.end() : end].strip())
        for match, end in zip(found, ends, strict=True)
    ]
    before = text[: found[0].start()]
    body, _, last = parts[-1].text.rpartition("\n")
    if body and _REQUEST.match(last):  # what is asked may stand at the very end
        parts[-1] = _Labelled(parts[-1].label, body.strip())
        before = f"{before}\n{last}"
    return parts, before


def _quotes(body: str, task: Problem) -> bool:
    """Whether a part is the problem or a piece of it."""
    start = task.question.strip()[:60]
    return start in body or body.strip()[:60] in task.problem


def _ask(task: Problem | None, parts: list[_Labelled], instruction: str, earlier: list[str]) -> Ask:
    feedback = "\n".join(p.text for p in parts if _FEEDBACK.search(p.label))
    bodies = [p for p in parts if p.text.strip("… \n") and not _FEEDBACK.search(p.label)]
    numbered = [p.text for p in bodies if _NUMBERED.search(p.label)]
    candidates = numbered or [p.text for p in bodies if _CANDIDATE.search(p.label)] or earlier[-1:]
    way = Way.DIRECT
    for cue, pattern, needs_candidate in CUES:
        if needs_candidate and not (candidates or feedback):
            continue
        if cue is Way.CHOOSE and len(candidates) < 2:
            continue
        if cue is Way.STEPS and _BARE.search(instruction):
            continue
        if pattern.search(instruction):
            way = cue
            break
    if way is Way.REVISE and task is not None and _shows_failed_test(feedback, task):
        way = Way.FIX_CODE
    return Ask(way, task, tuple(candidates), feedback, _style(instruction))


def _shows_failed_test(feedback: str, task: Problem) -> bool:
    """Whether feedback shows how the function that a code task asks for failed. A mere claim that
    tests failed tells a model nothing that a review could not."""
    if task.kind != "code" or not _FAILURE.search(feedback):
        return False
    if any(test.strip() and test.strip() in feedback for test in task.public_tests):
        return True
    return task.entry_point is not None and f"{task.entry_point}(" in feedback


def _style(instruction: str) -> Style:
    if "\\boxed" in instruction:
        return "boxed"
    if "<answer>" in instruction:
        return "tagged"
    return "marked" if "answer:" in instruction.lower() else "free"


def objects(feedback: str) -> bool:
    """Whether feedback finds fault."""
    return _OBJECTS.search(feedback) is not None


def _judgement(
    prompt: str, parts: list[_Labelled], instruction: str, task: Problem | None
) -> Judgement | None:
    """A judge's prompt has a reference (or the problem of a known task) and one answer or two."""
    references = [p.text for p in parts if _REFERENCE.search(p.label)]
    evidence = "\n".join(p.text for p in parts if _EVIDENCE.search(p.label))
    answers = [p.text for p in parts if _CANDIDATE.search(p.label) and not _GIVEN.search(p.label)]
    if not answers:
        return None
    pairwise = len(answers) >= 2 and _COMPARE.search(instruction) is not None
    criteria = {
        p.label.strip().casefold().replace(" ", "_"): p.text
        for p in parts
        if _CRITERION.fullmatch(p.label.strip())
    }
    if not references and not pairwise and not criteria:
        return None
    if not references and task is not None:
        references = [task.reference, *task.alternatives]
    question = task.question if task is not None else prompt[:2000]
    said = _taken(_BLOCKS, prompt, lambda *_: None)
    answer, rival = answers[:2] if pairwise else (answers[-1], None)
    criteria = {} if pairwise else criteria
    return Judgement(question, answer, tuple(references), task, evidence, rival, criteria, said)
