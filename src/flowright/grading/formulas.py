"""Formulas as text: distinguishing them from prose, and typed notation as LaTeX.

Formulas are parsed and evaluated by math-verify alone, in the sandbox.
"""

import re

from flowright.grading.numbers import has_function
from flowright.grading.statements import DOUBT, LEAD_IN
from flowright.grading.units import is_unit

_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox|operatorname)\s?\{([^{}]{0,200})\}")
_SIGN = re.compile(
    r"[\\^=+*/√∛π±∓×÷·⋅<>≤≥≠|(){}\[\]_∞∪∩]|\d[A-Za-z]\b|\w\s?-\s?\w|\d!|\d\s?[xX]\s?\d"
)
_COMMANDS = """
frac dfrac tfrac cfrac sqrt cdot times div pi infty pm mp le leq ge geq lt gt ne neq cup cap in
setminus emptyset varnothing mathbb binom dbinom tbinom circ degree overline left right lfloor
rfloor lceil rceil langle rangle lvert rvert vert begin end quad qquad displaystyle big Big ln log
exp sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh min max gcd lcm det alpha beta gamma
delta epsilon varepsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau phi varphi chi psi
omega Gamma Delta Theta Lambda Sigma Phi Psi Omega colon vec hat bar mathbf mathrm text textbf mbox
operatorname imath
"""
_KNOWN = frozenset(_COMMANDS.split())
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_NAME_OF = re.compile(r"(?<!\\)(?<![A-Za-z])[A-Za-z]{2,}")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s?\{[a-z]{0,10}matrix\}|\\mathbb\s?\{[A-Z]\}")
_WRITTEN_WITH = re.compile(r"[\w\s\\^+*/√∛±∓×÷·⋅<>≤≥≠|(){}\[\]∞∪∩∈∅°.,=:!'%$&~-]*")
_LOOSE = re.compile(r"[-+*/^=<>:\\]\s*$|^\s*[*/^=,)\]!]|\.\.|\\mid|(?<!\\)\^\s*\^")
_PROSE_WORDS = """
if is of to by at as on be so no for the not mod odd any all but are was iff
"""
_PROSE = frozenset(_PROSE_WORDS.split())
_JOINING_WORDS = "and or square cubic units unit sq per real reals numbers"
_JOINING = frozenset(_JOINING_WORDS.split())

_SIGNS = {
    "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "±": r"\pm ", "∓": r"\mp ",
    "°": r"^\circ ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ",
    "θ": r"\theta ",
}  # fmt: skip
_SIGN_TABLE = str.maketrans(_SIGNS)
_ROOT = re.compile(r"√\s?(?:\(([^()]{1,100})\)|\{([^{}]{1,100})\}|([0-9.]{1,20}|[A-Za-z]))")
_NAME = re.compile(
    r"(?<![\\A-Za-z])(arcsin|arccos|arctan|sin|cos|tan|log|ln|exp|pi|theta)(?![A-Za-z])"
)
_PAST_READING = re.compile(r"//|\\\\|\\\d")
_NO_LEFT_SIDE = re.compile(r"\s*(?:[<>≤≥≠]|\\(?:[lg]eq?|[lg]t|neq?)(?![A-Za-z]))")
_POWER = re.compile(r"\^\s?(?:\((-?[\w./]{1,20})\)|(-\s?\w+|\d{2,}|\d+\.\d+))")
_WRITTEN = (
    (
        re.compile(r"\\([cdt]?frac)\s*(\d|(?<=\s)[A-Za-z])\s*(\d|[A-Za-z])(?![A-Za-z])"),
        r"\\\1{\2}{\3}",
    ),
    (
        re.compile(r"\*\*\s?(?:\(([^()]{1,100})\)|(-?[0-9.]{1,20}|[A-Za-z]))"),
        lambda power: f"^{{{power[1] or power[2]}}}",
    ),  # Python's
    (re.compile(r"\\sqrt\[(\w{1,9})\]\s?(\w)"), r"\\sqrt[\1]{\2}"),
    (re.compile(r"(?<![\\A-Za-z])n?C\(\s?(\w{1,9})\s?,\s?(\w{1,9})\s?\)"), r"\\binom{\1}{\2}"),
    (re.compile(r"\\(?:mathrm|text)\s?\{\s?([ie])\s?\}"), r"\1"),
    (re.compile(r"\\langle\b"), "("),
    (re.compile(r"\\rangle\b"), ")"),
    (re.compile(r"\\varnothing\b"), r"\\emptyset "),
    (re.compile(r"(?<=\d)\s?(?:\\colon\b|(?:\\text\s?\{)?\s?\bto\b\s?\}?)\s?(?=\d)"), ":"),
    (re.compile(r"^\s*\$?\s*[fgh]\s?\(\s?x\s?\)\s?="), "y ="),
    (re.compile(r"^\s*all\s+real(?:s|\s+numbers)\s*$", re.IGNORECASE), r"\\mathbb{R}"),
)
_DEGREES = re.compile(r"\s*(?:\^\s?\{?\s?\\circ\s?\}?|°|(?:\\text\{)?\s?degrees?\}?)\s*\$?\s*$")
_PI = re.compile(r"\\pi\b|π|\bpi\b")
_ASSIGNED = re.compile(r"\s*\$?\s*([A-Za-z](?:_\w)?(?:\(\w\))?)\s*=([^=]{1,200})")
_RELATES = re.compile(r"[=<>≤≥≠∈]|\\(?:in|[lg]eq?|[lg]t|neq?)(?![A-Za-z])")
_IS_ONE_VALUE = re.compile(r"(?!.*\\(?:infty|mathbb|emptyset))[^=<>≤≥≠∈,(\[∞∅]*")
_JOINED = re.compile(r",|\\text\s?\{[\s,]*and\s*\}|\band\b|\$")


def is_formula(text: str) -> bool:
    """Return whether all of a text is a formula that can be read: signs, numbers, variables, known
    functions and units, and no word beside them."""
    if not any(map(str.isalnum, text)) or not (_SIGN.search(text) or has_function(text)):
        return False
    if not _WRITTEN_WITH.fullmatch(text) or _LOOSE.search(text) or text.count("|") % 2:
        return False
    if "&" in text and "\\begin" not in text:
        return False
    text = _ENVIRONMENT.sub(" ", text)
    if any(command not in _KNOWN for command in _COMMAND.findall(text)):
        return False
    words = _NAME_OF.findall(_COMMAND.sub(" ", _TEXT.sub(r" \1 ", text)))
    return all(
        word.lower() not in _PROSE
        and (
            len(word) < 4
            or word in _KNOWN
            or word.lower() in _JOINING
            or is_unit(word)
            or has_function(word)
        )
        for word in words
    )


_SPAN = re.compile(r"\$\$?([^$]{1,300})\$\$?|\\\((.{1,300}?)\\\)")
_UNIT_TAIL = re.compile(r"[\s.!*_]*(?:[A-Za-z]{1,12}[\s.!*_]*){0,3}")
_STATED = re.compile(r"\b(?:is|are|equals|be|gives|get|obtain)\b|:")


def stated_formula(text: str) -> str | None:
    """The formula that a text is, or that a plain sentence ends on; None if there is none that can
    be read whole."""
    if is_formula(text):
        return text
    if len(text) > 2_000 or DOUBT.search(text):
        return None
    lead = LEAD_IN.match(text)
    spans = list(_SPAN.finditer(text))
    if spans and _UNIT_TAIL.fullmatch(text, spans[-1].end()):
        inner = spans[-1][1] or spans[-1][2]
        return inner if can_be_read(inner) else None
    ends = [lead.end()] if lead else []
    ends += [found.end() for found in _STATED.finditer(text)][-1:]
    tails = (text[end:].strip(" .*_$") for end in ends)
    return next((tail for tail in tails if tail != text and is_formula(tail)), None)


_ALIKE = (
    (re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox)\s?\{([^{}]{0,500})\}"), r"\1"),
    (re.compile(r"\\(?:left|right|displaystyle|quad|qquad)(?![A-Za-z])|\\[,;:! ]|[$\s~]"), ""),
    (re.compile(r"\\[dtc]frac"), r"\\frac"),
    (re.compile(r"\\(?:ldots|dots|cdots|dotsc)(?![A-Za-z])"), "..."),
    (re.compile(r"\((?:\\?mod|\\bmod)\{?(\w+)\}?\)|\\[bp]?mod\{?(\w+)\}?"), r"(mod\1\2)"),
    (re.compile(r"≡"), r"\\equiv"),
    (re.compile(r"→|\\rightarrow|\\longrightarrow"), r"\\to"),
    (re.compile(r"↦"), r"\\mapsto"),
    (re.compile(r"⇒|\\Rightarrow|\\Longrightarrow"), r"\\implies"),
    (re.compile(r"≤|\\leq(?![A-Za-z])"), r"\\le"),
    (re.compile(r"≥|\\geq(?![A-Za-z])"), r"\\ge"),
    (re.compile(r"·|⋅|\*"), r"\\cdot"),
    (re.compile(r"([\^_])\{(\w)\}"), r"\1\2"),
)


def as_text(text: str) -> str:
    """A formula as it is compared where it cannot be read: unspaced, signs in one spelling."""
    for pattern, replacement in _ALIKE:
        text = pattern.sub(replacement, text[:2_000])
    return text.strip(".")


_OUTER = re.compile(
    r"(?:\\left)?\s?(\\?[\[({]|\\langle).*,.*?(?:\\right)?\s?(\\?[\])}]|\\rangle)", re.DOTALL
)
_NAMED_ALIKE = {"\\{": "{", "\\}": "}", "\\langle": "(", "\\rangle": ")"}


def same_brackets(one: str, other: str) -> bool:
    """Return whether two lists are of one kind: not the set ``{1, 2}`` and the pair ``(1, 2)``. A
    list without brackets is of any kind."""
    found = [_OUTER.fullmatch(text.strip(" $")) for text in (one, other)]
    kinds = [
        tuple(_NAMED_ALIKE.get(sign, sign) for sign in outer.groups()) for outer in found if outer
    ]
    return len(kinds) < 2 or kinds[0] == kinds[1]


def as_latex(text: str) -> str | None:
    """A formula with its signs and names in LaTeX: ``√9``, ``x^10``, ``log 3``. None for what
    the reader of LaTeX would cut off and so take for another: ``3//4``, ``\\ge 3``."""
    text = _one_line(text)
    if _NO_LEFT_SIDE.match(text) or ("\\begin" not in text and _PAST_READING.search(text)):
        return None
    text = _ROOT.sub(lambda root: rf"\sqrt{{{root[1] or root[2] or root[3]}}}", text)
    text = re.sub(r"(?<=\d)\s?[xX]\s?(?=\d)", r" \\times ", text)
    for pattern, replacement in _WRITTEN:
        text = pattern.sub(replacement, text)
    text = _POWER.sub(lambda power: f"^{{{power[1] or power[2]}}}", text)
    return _NAME.sub(r"\\\1", text.translate(_SIGN_TABLE))


def as_pair(reference: str, answer: str) -> tuple[str, str] | None:
    """Two formulas in LaTeX that may be compared: an angle in degrees beside one in radians is
    turned into radians, ``x = 1, y = 2`` into a pair in the order of the names, and ``x = 3``
    beside a bare value into its right-hand side. None where one of both cannot be read."""
    texts = [_one_line(reference), _one_line(answer)]
    for mine, its in ((0, 1), (1, 0)):
        angle = _DEGREES.search(texts[mine])
        if angle and _PI.search(texts[its]) and not _PI.search(texts[mine]):
            bare = texts[mine][: angle.start()].strip("$ ")
            texts[mine] = rf"({bare}) \cdot \frac{{\pi}}{{180}}"
        elif "=" in texts[mine] and not re.search(r"[=<>≤≥]|\\[lg]eq?\b", texts[its]):
            assigned = _ASSIGNED.fullmatch(texts[mine])
            is_list = assigned is None or _JOINED.search(assigned[2].strip(" $"))
            texts[mine] = texts[mine] if assigned is None or is_list else assigned[2].strip(" $")
    if not all(map(can_be_read, texts)) or not same_brackets(*texts):
        return None
    bare = [text for text in texts if not _RELATES.search(text)]
    if len(bare) == 1 and _IS_ONE_VALUE.fullmatch(bare[0]):
        return None  # 3, beside several conditions of which one is y = 3
    texts = [_without_unit(text) for text in texts]
    one, other = (as_latex(_as_tuple(text)) for text in texts)
    return None if one is None or other is None else (one, other)


def can_be_read(text: str) -> bool:
    """Return whether math-verify reads all of a text: a formula, a number or a variable."""
    return is_formula(text) or is_formula(f"({text})")


_UNIT = re.compile(
    r"(?<=[\d})πi\]\s])\s{0,5}(?:\\(?:text|mathrm|mbox)\s?\{[\s~]{0,5}([A-Za-z][A-Za-z\s./]{0,30})\}"
    r"|(?<=\s)([A-Za-z]{2,16}))(?:\^\{?[23]\}?)?\s{0,5}$"
)


def _without_unit(text: str) -> str:
    """Without a known unit at the end: ``12\\pi`` for ``12\\pi\\text{ cm}``."""
    unit = _UNIT.search(text)
    words = re.findall(r"[A-Za-z]+", unit[1] or unit[2]) if unit else []
    known = words and all(
        is_unit(word) or word in ("square", "cubic", "sq", "per", "units", "unit") for word in words
    )
    return text[: unit.start()] if unit and known else text


def _one_line(text: str) -> str:
    """With one space in the place of each run of them, which means as much in a formula: patterns
    that may begin anywhere in a run would take its length squared."""
    return " ".join(text.split())


def _as_tuple(text: str) -> str:
    """``(1, 2)`` for ``y = 2, x = 1``; the text itself where it is no list of named values."""
    parts = [part for part in _JOINED.split(text[:_LONGEST_LIST]) if part.strip()]
    named = [_ASSIGNED.fullmatch(part) for part in parts]
    values = {name[1]: name[2].strip() for name in named if name}
    if len(text) > _LONGEST_LIST or not 1 < len(values) == len(parts):
        return text
    return f"({', '.join(values[name] for name in sorted(values))})"


_LONGEST_LIST = 500  # characters
