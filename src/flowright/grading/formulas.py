"""Formulas as text: distinguishing them from prose, and typed notation as LaTeX.

Formulas are parsed and evaluated by math-verify alone, in the sandbox.
"""

import re

from flowright.grading.numbers import has_function

_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox|operatorname)\b")
_SIGN = re.compile(
    r"[\\^=+*/√∛π±∓×÷·⋅<>≤≥≠|(){}\[\]_∞∪∩²³⁰¹⁴-⁹½⅓⅔¼¾⅛]|\d[A-Za-z]\b|\w\s?[-−]\s?\w|\d!|\d\s?[xX]\s?\d"
)
_MOST_WORDS = 2

_SIGNS = {
    "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "±": r"\pm ", "∓": r"\mp ", "−": "-", "–": "-",
    "°": r"^\circ ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ",
    "θ": r"\theta ",
    "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}", "⅛": r"\frac{1}{8}",
}  # fmt: skip
_SIGN_TABLE = str.maketrans(_SIGNS)
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
_RAISED_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]{1,20}")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_LOWERED_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉]{1,20}")
_ROOT = re.compile(r"√\s?(?:\(([^()]{1,100})\)|\{([^{}]{1,100})\}|([0-9.]{1,20}|[A-Za-z]))")
_NAME = re.compile(
    r"(?<![\\A-Za-z])(arcsin|arccos|arctan|sin|cos|tan|log|ln|exp|pi|theta)(?![A-Za-z])"
)
_PAST_READING = re.compile(r"//|\\\\|\\\d")
_NO_LEFT_SIDE = re.compile(r"\s*(?:[<>≤≥≠]|\\(?:[lg]eq?|[lg]t|neq?)(?![A-Za-z]))")
_WRITTEN = (
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
_ASSIGNED = re.compile(r"\s*\$?\s*([A-Za-z](?:_\w)?)\s*=([^=]{1,200})")
_JOINED = re.compile(r",|\\text\s?\{[\s,]*and\s*\}|\band\b|\$")


def is_formula(text: str) -> bool:
    """Return whether a text is a formula rather than prose, which has words, or bare
    punctuation."""
    words = [word for word in _WORD.findall(_TEXT.sub(" ", text)) if not has_function(word)]
    if len(words) > _MOST_WORDS or not any(map(str.isalnum, text)):
        return False
    return _SIGN.search(text) is not None or has_function(text)


def as_latex(text: str) -> str | None:
    """A formula with its signs and names in LaTeX: ``√9``, ``x²``, ``3½``, ``log 3``. None for what
    the reader of LaTeX would cut off and so take for another: ``3//4``, ``\\ge 3``."""
    text = _one_line(text)
    if _NO_LEFT_SIDE.match(text) or ("\\begin" not in text and _PAST_READING.search(text)):
        return None
    text = _RAISED_RUN.sub(lambda run: f"^{{{run[0].translate(_RAISED)}}}", text)
    text = _LOWERED_RUN.sub(lambda run: f"_{{{run[0].translate(_LOWERED)}}}", text)
    text = _ROOT.sub(lambda root: rf"\sqrt{{{root[1] or root[2] or root[3]}}}", text)
    text = re.sub(r"(?<=\d)\s?[xX]\s?(?=\d)", r" \\times ", text)
    for pattern, replacement in _WRITTEN:
        text = pattern.sub(replacement, text)
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
    one, other = (as_latex(_as_tuple(text)) for text in texts)
    return None if one is None or other is None else (one, other)


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
