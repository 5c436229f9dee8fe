"""Formulas as text: telling them from prose, and writing what people type as LaTeX.

Nothing is parsed into a formula and nothing is evaluated: that is math-verify's, in the sandbox.
"""

import re

from flowright.grading.around import has_function

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


def is_formula(text: str) -> bool:
    """Whether a text is a formula rather than prose, which has words, or bare punctuation."""
    words = [word for word in _WORD.findall(_TEXT.sub(" ", text)) if not has_function(word)]
    if len(words) > _MOST_WORDS or not any(map(str.isalnum, text)):
        return False
    return _SIGN.search(text) is not None or has_function(text)


def as_latex(text: str) -> str | None:
    """A formula with its signs and names in LaTeX: ``√9``, ``x²``, ``3½``, ``log 3``. None for what
    the reader of LaTeX would cut off in the middle and so take for another: ``3//4``."""
    if "\\begin" not in text and _PAST_READING.search(text):
        return None
    text = _RAISED_RUN.sub(lambda run: f"^{{{run[0].translate(_RAISED)}}}", text)
    text = _LOWERED_RUN.sub(lambda run: f"_{{{run[0].translate(_LOWERED)}}}", text)
    text = _ROOT.sub(lambda root: rf"\sqrt{{{root[1] or root[2] or root[3]}}}", text)
    text = re.sub(r"(?<=\d)\s?[xX]\s?(?=\d)", r" \\times ", text)
    return _NAME.sub(r"\\\1", text.translate(_SIGN_TABLE))
