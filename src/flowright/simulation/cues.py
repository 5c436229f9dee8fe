"""Recognise a prompt: its task, the way of asking, the texts that it contains.

The task is found by rare word shingles of its question, which a prompt may quote anywhere, cut or
without its context; a paraphrase is an unknown question. The way is read from the prompt's own
words, without the problem's text and everything between fences: the first fitting cue of
:data:`CUES` decides. They fit the prompts of ``flowright.workflows.operators`` and are meant to fit
any others.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from flowright.data.task import Problem
from flowright.simulation.rubric_writer import ASKS_FOR_RUBRIC, RubricPrompt
from flowright.simulation.table import Way

_SHINGLE = 4  # words
_CONTEXT_SHINGLES = 48  # of a task's context and choices, evenly spaced: they only break ties
_MIN_SHARE = 0.5  # of the question's shingles, weighted by rarity, that must be found
_COMMON = 16  # a shingle of more questions is boilerplate of a source
_EDGE = "\"'`.,;:!?*_~#<>|()[]{}"


def words(text: str) -> list[str]:
    """Split into lower-case words without their punctuation; a bare operator is a word."""
    return [word.strip(_EDGE) or word for word in text.lower().split()]


class TaskIndex:
    """Finds the task that a prompt quotes, in time linear in the prompt."""

    def __init__(self, tasks: Sequence[Problem]) -> None:
        self.tasks = tuple(tasks)
        self._owners: dict[tuple[str, ...], list[int]] = {}
        self._context_owners: dict[tuple[str, ...], list[int]] = {}
        self._short: dict[tuple[str, ...], list[int]] = {}
        own: list[set[tuple[str, ...]]] = []
        for number, task in enumerate(self.tasks):
            tokens = words(task.question)
            own.append(_shingles(tokens))
            if not own[number]:
                self._short.setdefault(tuple(tokens), []).append(number)
            for shingle in own[number]:
                self._owners.setdefault(shingle, []).append(number)
            context = sorted(_shingles(words(_context(task))) - own[number])
            step = max(1, len(context) // _CONTEXT_SHINGLES)
            for shingle in context[::step][:_CONTEXT_SHINGLES]:
                self._context_owners.setdefault(shingle, []).append(number)
        self._weight = {s: 1.0 / len(o) for s, o in self._owners.items() if len(o) <= _COMMON}
        for shingles in own:  # a question that many tasks ask, each of another context
            if not any(shingle in self._weight for shingle in shingles):
                self._weight.update((s, 1.0 / len(self._owners[s])) for s in shingles)
        self._total = [sum(self._weight.get(s, 0.0) for s in shingles) for shingles in own]

    def find(self, prompt: str) -> Problem | None:
        """Find the task of which at least half the question is in the prompt; None without one."""
        tokens = words(prompt)
        shingles = _shingles(tokens)
        scores: dict[int, float] = {}
        for shingle in self._weight.keys() & shingles:
            weight = self._weight[shingle]
            for number in self._owners[shingle]:
                scores[number] = scores.get(number, 0.0) + weight / self._total[number]
        likely = {number: score for number, score in scores.items() if score > _MIN_SHARE - 1e-6}
        if not likely and self._short:
            likely = dict.fromkeys(self._find_short(tokens), 1.0)
        if not likely:
            return None
        if len(likely) > 1:
            verbatim = {n: s for n, s in likely.items() if self.tasks[n].problem in prompt}
            likely = verbatim or likely
            for shingle in self._context_owners.keys() & shingles:
                for number in self._context_owners[shingle]:
                    if number in likely:
                        likely[number] += 1.0 / _CONTEXT_SHINGLES
        # Rounded: the order in which a set is summed differs from process to process.
        best = max(likely, key=lambda number: (round(likely[number], 6), self.tasks[number].id))
        return self.tasks[best]

    def _find_short(self, tokens: Sequence[str]) -> list[int]:
        for length in range(_SHINGLE - 1, 0, -1):
            for window in zip(*(tokens[i:] for i in range(length)), strict=False):
                if window in self._short:
                    return self._short[window]
        return []


def _context(task: Problem) -> str:
    """Return the text that distinguishes tasks with the same question."""
    return "\n".join([*(f"{label}. {text}" for label, text in task.choices), task.context or ""])


def _shingles(tokens: Sequence[str]) -> set[tuple[str, ...]]:
    return set(zip(*(tokens[i:] for i in range(_SHINGLE)), strict=False))


def without(prompt: str, task: Problem) -> str:
    """Remove the problem's own text from a prompt, so that its words are no cues."""
    for part in _quotable(task):
        if len(part) > 3:
            prompt = prompt.replace(part, " … ")
    return prompt


def _quotable(task: Problem) -> Iterable[str]:
    yield task.problem
    yield task.question
    if task.context:
        yield task.context
    for label, text in task.choices:
        yield f"{label}. {text}"
    # A question that was re-wrapped or cut: line by line.
    yield from (line for line in task.question.splitlines() if len(line) > 30)


_Enclosed = tuple[re.Pattern[str], re.Pattern[str]]  # opening and closing, of the same ``mark``

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
_RANK = re.compile(r"\brank (?:all |the )*(?:answers|responses|solutions)\b", re.I)
_JUDGES = re.compile(
    "|".join(pattern.pattern for pattern in (_VERDICT, _COMPARE, _RANK)), re.I | re.S
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
"""Ways of asking in the order of trial: way, pattern, needs a candidate. Without a match it is
DIRECT; a request for the bare answer rules STEPS out."""


Style = Literal["free", "boxed", "tagged", "marked"]
"""The requested form of the final answer."""


@dataclass(frozen=True, slots=True)
class TaskPrompt:
    """A prompt to the model. ``candidates`` are the solutions in it, ``feedback`` the text about
    them."""

    way: Way
    task: Problem | None
    candidates: tuple[str, ...] = ()
    feedback: str = ""
    style: Style = "free"


@dataclass(frozen=True, slots=True)
class JudgePrompt:
    """A request for a verdict on one answer, for the better of two (``rival``), or for a ranking
    (``listed``, in the order shown). ``criteria`` by key, such as ``criterion_1``;
    ``instruction`` is the prompt without its fenced texts; ``evidence_on`` is evidence on single
    answers, by their text. With a ``judgement`` it is that which is to be graded, by a meta
    judge."""

    question: str
    answer: str
    references: tuple[str, ...]
    task: Problem | None
    evidence: str = ""
    rival: str | None = None
    criteria: Mapping[str, str] = field(default_factory=dict)
    instruction: str = ""
    judgement: str = ""
    listed: tuple[str, ...] = ()
    evidence_on: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Labelled:
    label: str
    text: str


def read_prompt(
    messages: Sequence[tuple[str, str]], index: TaskIndex
) -> TaskPrompt | JudgePrompt | RubricPrompt:
    """Recognise a conversation of (role, content) pairs."""
    prompt = "\n\n".join(content for _, content in messages)
    task = index.find(prompt)
    parts, instruction = _parts(prompt, task)
    if ASKS_FOR_RUBRIC.search(instruction):
        return RubricPrompt.of_parts([(part.label, part.text) for part in parts])
    if _JUDGES.search(instruction):
        judgement = _judgement(prompt, parts, instruction, task)
        if judgement is not None:
            return judgement
    earlier = [content for role, content in messages if role == "assistant"]
    return _ask(task, parts, instruction, earlier)


def _parts(prompt: str, task: Problem | None) -> tuple[list[_Labelled], str]:
    """Split a prompt into its labelled parts and the rest without them and the problem."""
    parts: list[_Labelled] = []

    def take(text: str, opening: re.Match[str], body: str) -> None:
        info = opening["info"].strip()
        near = text[max(0, opening.start() - _LABEL_CHARS) : opening.start()]
        before = near.rstrip().rpartition("\n")[2].strip("*_# \t")
        heading = before if before.endswith((":", "：")) else ""
        label = heading if info.lower() in _LANGUAGES else info
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
    if _JUDGES.search(instruction):
        # A labelled answer is judged whole, with the blocks inside it.
        whole = prompt if task is None else without(prompt, task)
        return _labelled_lines(whole)[0], instruction
    return [*parts, *unfenced], instruction


def _taken(enclosed: _Enclosed, text: str, take: Callable[[str, re.Match[str], str], None]) -> str:
    """Call ``take`` with each part between an opening and the next closing of the same mark, and
    replace it by a line break. Takes linear time, even with openings that are never closed."""
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
    """Split into the parts that begin with ``Label:`` on a line, and the text before them."""
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
    if body and _REQUEST.match(last):  # the request may be at the very end
        parts[-1] = _Labelled(parts[-1].label, body.strip())
        before = f"{before}\n{last}"
    return parts, before


def _quotes(body: str, task: Problem) -> bool:
    """Return whether a part is the problem or a piece of it."""
    start = task.question.strip()[:60]
    return start in body or body.strip()[:60] in task.problem


def _ask(
    task: Problem | None, parts: list[_Labelled], instruction: str, earlier: list[str]
) -> TaskPrompt:
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
    return TaskPrompt(way, task, tuple(candidates), feedback, _style(instruction))


def _shows_failed_test(feedback: str, task: Problem) -> bool:
    """Return whether feedback shows how the function of a code task failed. A mere claim that tests
    failed is worth no more than a review."""
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


def finds_fault(feedback: str) -> bool:
    """Return whether feedback objects."""
    return _OBJECTS.search(feedback) is not None


def _judgement(
    prompt: str, parts: list[_Labelled], instruction: str, task: Problem | None
) -> JudgePrompt | None:
    """Read a judge's prompt: a reference, or the problem of a known task, and one answer or two."""
    references = [p.text for p in parts if _REFERENCE.search(p.label)]
    evidence = "\n".join(p.text for p in parts if _EVIDENCE.search(p.label))
    shown = [p for p in parts if _CANDIDATE.search(p.label) and not _GIVEN.search(p.label)]
    if not shown:
        return None
    answers = [p.text for p in shown]
    judgement = next((p.text for p in parts if p.label.strip() == "JUDGEMENT"), "")
    on_answers = {p.label.split(",")[0]: p.text for p in parts if _EVIDENCE.search(p.label)}
    evidence_on = {
        p.text: on_answers[label]
        for p in shown
        if (label := f"EVIDENCE ON {p.label}") in on_answers
    }
    ranked = len(answers) >= 2 and _RANK.search(instruction) is not None
    compares = ranked or judgement or _COMPARE.search(instruction) is not None
    pairwise = len(answers) >= 2 and bool(compares)
    criteria = {
        p.label.strip().casefold().replace(" ", "_"): p.text
        for p in parts
        if _CRITERION.fullmatch(p.label.strip())
    }
    if not references and not pairwise and not criteria and not judgement:
        return None
    if not references and task is not None:
        references = [task.reference, *task.alternatives]
    question = task.question if task is not None else prompt[:2000]
    rest = _taken(_BLOCKS, prompt, lambda *_: None)
    answer, rival = answers[:2] if pairwise else (answers[-1], None)
    criteria = {} if pairwise else criteria
    listed = tuple(answers) if ranked else ()
    return JudgePrompt(
        question,
        answer,
        tuple(references),
        task,
        evidence,
        rival,
        criteria,
        rest,
        judgement,
        listed,
        evidence_on,
    )
