"""A Python program as highlighted HTML, with the line that failed marked. Nothing is parsed for
meaning: a policy's text need not be Python."""

from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, String, Token

from flowright.rendering.markup import Html, el
from flowright.rendering.untrusted import cut, visible

LONGEST = 8000  # characters of one program

_CLASSES = (
    (Comment, "tc"),
    (Keyword, "tk"),
    (String, "ts"),
    (Number, "tn"),
    (Name.Function, "tf"),
    (Name.Class, "tf"),
    (Name.Builtin, "tf"),
)


def code_block(source: str, bad_line: int | None = None, operators: tuple[str, ...] = ()) -> Html:
    """``source`` with line numbers; names in ``operators`` stand out like functions."""
    rows: list[list[Html | str]] = [[]]
    text = visible(cut(source, LONGEST)).rstrip("\n")
    bad_line = bad_line if len(source) <= LONGEST else None  # a cut moves the lines
    for kind, value in PythonLexer(stripnl=False, ensurenl=False).get_tokens(text):
        style = next((name for token, name in _CLASSES if kind in token), None)
        if kind in Token.Name and value in operators:
            style = "tf"
        for number, piece in enumerate(value.split("\n")):
            if number:
                rows.append([])
            if piece:
                rows[-1].append(el("span", piece, class_=style) if style else piece)
    lines = [
        el("span", row, class_="bad" if number == bad_line else None)
        for number, row in enumerate(rows, start=1)
    ]
    return el("pre", lines, class_="code")
