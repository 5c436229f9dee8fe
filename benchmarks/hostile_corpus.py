"""Degenerate texts of any size, as a model may write them, for hostile_text.py and hostile_loop.py.

Repeats of every bracket, fence, tag, number, space and mark, behind what opens a block of code, a
thought or an answer; and what a repeat cannot say: nests that close, runs that grow, numbers that
are all different, alphabets in no order. Nothing is read or timed here.
"""

import random
from collections.abc import Callable, Mapping

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
"""What texts repeat."""

FRAMES = ("", "```python\n", "<think>", "Answer: ")
"""What they repeat it behind."""


def repeated(unit: str) -> Callable[[int], str]:
    return lambda size: unit * (size // len(unit))


def _deep(opening: str, closing: str, core: str = "1") -> Callable[[int], str]:
    """Nested as deep as the size allows, and closed again."""

    def text(size: int) -> str:
        depth = size // (len(opening) + len(closing))
        return opening * depth + core + closing * depth

    return text


def _counted(form: str) -> Callable[[int], str]:
    """The form again and again with another number each time, so that nothing is said twice."""
    return lambda size: "".join(form.format(n) for n in range(size // len(form)))[:size]


def _drawn(letters: str, seed: int = 0) -> Callable[[int], str]:
    """Letters of an alphabet in no order."""
    return lambda size: "".join(random.Random(seed).choices(letters, k=size))


def _framed(before: str, unit: str, after: str) -> Callable[[int], str]:
    return lambda size: before + unit * (size // len(unit)) + after


def _runs(mark: str) -> Callable[[int], str]:
    """Runs of a mark, each longer than the one before: 1, 2, 3 ..."""
    return lambda size: "\n".join(mark * n for n in range(1, int((2 * size) ** 0.5)))


SHAPES: Mapping[str, Callable[[int], str]] = {
    "growing backtick fences": _runs("`"),
    "growing tilde fences": _runs("~"),
    "growing blank runs": lambda size: _runs(" ")(size) + "x",
    "fences of both kinds in turn": repeated("```python\nx\n~~~\n"),
    "fences in quotes and lists": repeated("> - ```\n> - x\n"),
    "a fence for each of many programs": _counted("```python\ndef f{}():\n    pass\n```\n"),
    "fences that no line closes": _counted("```lang{}\n"),
    "thinking that opens and closes wrongly": repeated("</think><think><seed:think></think>"),
    "thinking with long attributes": repeated("<think " + "a" * 199),
    "tags within tags": _deep("<answer>", "</answer>"),
    "tags of many names": _counted("<t{}>"),
    "lines that open tags": _counted("<t{}>\n"),
    "quoted verdicts": _framed("", "The answer says verdict: False\n", "Verdict: True"),
    "verdicts and doubts": _framed("", "Verdict: True\n\nIf so. ", "\nVerdict: True"),
    "an endless tag name": _framed("<", "a", ""),
    "an endless attribute": _framed('<a b="', "c ", ""),
    "channels of all names": repeated("<|channel|>analysis<|message|><|end|><|start|>assistant"),
    "control tokens that nearly close": repeated("<|im_end|<|im_start|"),
    "bars and brackets": _drawn("<|>[]_"),
    "a bare channel without end": _framed("analysis", "assistantfina", ""),
    "digits without an end": _drawn("0123456789"),
    "digits grouped": _framed("1", ",000", ""),
    "digits grouped by every separator": _drawn("1, ._'\u00a0\u2009\u202f"),
    "digits and one letter": _framed("", "1", "x"),
    "digits with marks behind": repeated("1\u0301\u20dd"),
    "digits of many scripts": _drawn("0٣९５𝟗²½Ⅷ㊿"),
    "decimal points": repeated("1.1.1."),
    "signs before a number": _framed("", "-", "1"),
    "huge exponents": repeated("1e999999999 "),
    "a huge exponent": _framed("1e", "9", ""),
    "towers of powers": repeated("10**"),
    "factorials": _framed("9", "!", ""),
    "a tower in braces": _deep("10^{", "}", "10"),
    "fractions within fractions": _deep("\\frac{", "}{2}"),
    "fractions that never end": repeated("\\frac{\\frac"),
    "roots within roots": _deep("\\sqrt{", "}"),
    "left without right": repeated("\\left(\\right"),
    "boxes within boxes": _deep("\\boxed{", "}", "42"),
    "many boxes": _counted("\\boxed{{{}}} "),
    "boxes with a text": repeated("\\boxed{\\text{a} = \\mathrm{b}}"),
    "dollars around": _counted("${}$ "),
    "escapes before a brace": _framed("\\boxed", "\\\\{", "}"),
    "JSON lists": _deep("[", "]"),
    "JSON objects": _deep('{"a":', "}"),
    "JSON of many keys": lambda size: "{" + _counted('"k{}":0,')(size) + '"verdict":true}',
    "JSON of equal keys": _framed("{", '"verdict":true,', '"verdict":false}'),
    "JSON objects side by side": repeated('{"verdict": true} {"verdict": false} '),
    "JSON that breaks at its end": _framed('{"verdict": true, "a": "', "x", ""),
    "JSON of escapes": _framed('{"verdict": "', "\\u0041", '"}'),
    "JSON of broken escapes": _framed('{"verdict": "', "\\ud83d\\", '"}'),
    "JSON of long numbers": _framed('{"verdict": ', "9", "}"),
    "Python dicts": repeated("{'verdict': True}"),
    "brackets of all kinds": _drawn("()[]{}<>"),
    "brackets that never match": repeated("([{<"),
    "short lines": _counted("{}\n"),
    "line ends of all kinds": _drawn("\n\r\x0b\x0c\x1c\x85\u2028 "),
    "lines of one space": repeated(" \n"),
    "tabs and line ends": repeated("\t\r\n"),
    "halves of surrogate pairs": _drawn("\ud800\udfff\udc00"),
    "NULs within words": repeated("a\x00b "),
    "control characters": _drawn("".join(map(chr, range(32))) + "\x7f\x9b"),
    "one long word": _drawn("abcdefghijklmnopqrstuvwxyz"),
    "one long identifier": _framed("_", "a1", ""),
    "letters that grow when folded": _drawn("ﬃßİŉﷺΐև"),
    "marks out of order": _drawn("\u0316\u0301\u0327\u0345\u05b0\u3099"),
    "a letter under many marks": _framed("a", "\u0301\u0316", ""),
    "syllables in parts": repeated("\u1100\u1161\u11a8"),
    "joined people": repeated("👩\u200d👩\u200d👧\u200d👦🏽"),
    "flags": repeated("🇩🇪"),
    "both directions": _drawn("a א\u202e\u202d\u2066\u2069"),
    "tag characters": repeated("\U000e0041\U000e007f"),
    "variation selectors": repeated("x\ufe0f\U000e0100"),
    "all of the first plane": lambda size: "".join(
        map(chr, (0xA0 + n * 7 % 0xD700 for n in range(size)))
    ),
    "anchors": lambda size: "a0: &a0 [x]\n" + _counted("a{0}: &a{0} [*a0,*a0]\n")(size),
    "merge keys": repeated("<<: *a\n"),
    "entities": repeated("&lt;&#x26;&nbsp"),
    "entities of entities": _framed("&", "amp;", ""),
    "a table": repeated("| a | **b** |\n|---|:-:|\n"),
    "emphasis": repeated("**a _b* c__ "),
    "an endless emphasis": _framed("**", "*_", "a"),
    "headings": _counted("### Step {}\n"),
    "links": repeated("[a](b[c](d"),
    "images": repeated("![](((("),
    "base64": _drawn("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"),
    "hexadecimal": _framed("0x", "f", ""),
    "final answers": _counted("The final answer is {}. "),
    "final answers without an end": repeated("the final answer is that the final answer is "),
    "markers in bold": repeated("**Final Answer:** "),
    "markers in quotes": repeated('"answer": "answer: '),
    "verdicts that change": _counted("Verdict: True\nNo, wait {}.\nVerdict: False\n"),
    "verdicts in doubt": repeated("Verdict: True if not false unless true "),
    "a verdict after blanks": _framed("Verdict:", " \n", "True"),
    "criteria": _counted("criterion_{}: True\n"),
    "dates": _counted("May {}, 1999, "),
    "options": _counted("({}) or "),
    "options in a row": repeated("A or B, C and D; "),
    "a list of one letter": repeated("a, "),
    "conjunctions": repeated("and or and "),
    "number words": repeated("two hundred and thirty-four thousand "),
    "ordinals": repeated("twenty-first third "),
    "units and rates": repeated("5 km per hour per $1 "),
    "percentages": repeated("5% \\% percent "),
    "an equation of many sides": repeated("x = "),
    "inequalities": repeated("1 < x <= "),
    "variables side by side": repeated("xy"),
    "sums": _framed("1", " + 1", ""),
    "lambdas": _framed("", "lambda: ", "0"),
    "decorators": _framed("", "@a\n", "def f(): pass"),
    "blocks within blocks": lambda size: "".join(
        " " * n + "if x:\n" for n in range(int((2 * size) ** 0.5) - 3)
    ),
    "strings within f-strings": _deep("f'{", "}'"),
    "strings that never end": _counted("'''a{}\n"),
    "a chain of attributes": _framed("a", ".a", ""),
    "a chain of calls": _framed("f", "()", ""),
    "a chain of comparisons": _framed("a", "<a", ""),
    "assignments in a row": _framed("", "a=", "1"),
    "backslashes at line ends": repeated("\\\n"),
    "comments": repeated("# noqa\n"),
    "a chain of comparisons and prose": lambda size: (
        f"async def workflow(problem):\n    return a{'<a' * (size // 2 - 300)}\n"
        + "So it is.\n\n" * 50
    ),
    "fences and tags that no other closes": _counted("```l{0}\n<tag_{0}></\n"),
    "many workflows": _counted("async def workflow{}(problem):\n    return 'a'\n"),
    "awaits": _framed("async def workflow(problem):\n    return ", "await ", "x"),
    "formats": repeated("{0!r:>{1}}%s%(a)s"),
    "placeholders": repeated("{a}{question}{{answer}}"),
    "patterns": repeated("(a+)+$(?:.*)*"),
    "escape sequences": repeated("\x1b[31m\x1b]8;;"),
    "dots": repeated("... "),
    "questions": repeated("Is it? "),
    "quotes of all kinds": _drawn("\"'`“”‘’«»„"),
    "words in turn": _drawn("ab \n"),
    "anything": _drawn("".join(map(chr, range(32, 127))) + "\n\n\n"),
}  # fmt: skip
"""Texts that are more than a repeat, by what they are; of about so many characters."""


TEXTS: Mapping[str, Callable[[int], str]] = {
    **{
        repr(prefix + unit): _framed(prefix, unit, "x" * ("Answer" in prefix))
        for prefix in FRAMES
        for unit in UNITS
    },
    **SHAPES,
}
