"""Untrusted text in prompts: control tokens of chat templates, fences that it cannot close.

Untrusted is all that this package did not write: problems, answers, replies of models. A server
turns the text ``<|im_end|>`` of a message into the token that ends it. One space behind the first
character keeps a text readable and breaks the token. :func:`broken` knows the shapes of all models,
:func:`tokens_of` reads those of one model's tokenizer.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from flowright.core.errors import ConfigError
from flowright.core.files import read_json
from flowright.llm.replies import THINKING_TAG

# What looks like a control token in angle brackets: a name that no element of HTML and no type has,
# of words joined by an underscore, hyphen or colon, in capitals, a byte, or with a value; and plain
# words that some tokenizer uses: <s>, <tool_use>, <seed:eos>, <row_1_col_1>, <0x0A>, <function=f>.
_WORDS = (
    r"s|bos|eos|pad|unk|mask|cls|sep|sop|eop|eod|eot|eom|role|system|user|assistant|human|bot|model"
    r"|tools?|toolcall|functions?|invoke|parameter|observation|channel|message|turn|image|audio|video"
    r"|box|escape|eo(?:h|a|sys)|nothink|reponame"
    r"|(?:unused|reserved|extra|special|loc|image|dummy|ctrl|sentinel)\d{1,5}"
)
_JOINED = (
    r"[a-z\d]{1,30}(?:[_-][a-z\d]{1,30}|:[a-z\d]{1,30}){1,8}(?:\s[^<>\n]{0,200}=[^<>\n]{0,200})?"
)
_ANGLE = (
    r"[<＜](?=[|｜]"  # <|im_end|>, <|channel>, <｜User｜>
    r"|/?[\w:.▁-]{1,40}[|｜][>＞]"  # <turn|>
    rf"|/?(?:{THINKING_TAG}|{_WORDS})(?:\s[^<>\n]{{0,200}})?/?[>＞]"
    rf"|/?(?:{_JOINED}|(?-i:[A-Z]{{3,30}}\d{{0,5}})|0x[\da-f]{{2}}|img|ref|quad"
    r"|[a-z]\w{0,30}=[^<>\n]{1,200})/?[>＞]"
    r"|</?SYS>>|\[[\w▁-]{6,60}\]>)"
)
# In square brackets, as their tokenizers write them: in capitals, or between bars.
_SQUARE = (
    r"[\[［](?=[|｜]\w{3,20}[|｜][\]］]|/?(?-i:INST|THINK|SYS|IMG|REF|ARGS|AUDIO|CLS|SEP|MASK|PAD"
    r"|UNK|BOS|EOS|MIDDLE|PREFIX|SUFFIX|TOOL|(?:BEGIN|END|TOOL|IMG|SYSTEM|USER|ASSISTANT|AVAILABLE"
    r"|MODEL|CALL|STREAMING)_[A-Z_]{1,20}|[gs]MASK|PAD\d{1,6}|UNUSED_TOKEN_\d{1,4}|unused\d{1,4}|control_\d{1,4}|TRANSCRIBE)[\]］])"
)
_MINIMAX = r"\](?=[~!]{1,2}[a-z]{1,3}~?[\[\]]|<\]\w{1,20}\[>\[)|\[(?=[a-z]~\[)"
# Words that turn a model's thinking on or off wherever its template finds them in a message.
_SWITCH = r"/(?=(?:[a-z]{1,12}_)?no_?think)|(?<![\w.<])/(?=think\b(?!>))"
_SHAPES = re.compile(f"{_ANGLE}|{_SQUARE}|{_MINIMAX}|{_SWITCH}|◁(?=/?think▷)", re.IGNORECASE)


def broken(text: str) -> str:
    """Return the text with a space in each control token of any model."""
    return _SHAPES.sub(lambda token: token[0] + " ", text)


# The tokens of one model.

MARKED = re.compile(r"[<>\[\]|｜▷◁]")
_LITERAL = re.compile(r"'([^'\n]{3,60})'|\"([^\"\n]{3,60})\"")
_FILES = (
    "tokenizer_config.json",
    "tokenizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "tekken.json",
)


class OwnTokens:
    """Breaks the control tokens of one model's tokenizer."""

    def __init__(self, tokens: Collection[str]) -> None:
        self._tokens = frozenset(tokens)
        self._lengths = sorted({len(token) for token in tokens})
        self._first = re.compile(
            f"[{re.escape(''.join({t[0] for t in tokens}))}]" if tokens else "(?!)"
        )

    def broken(self, text: str, mark: str = " ") -> str:
        """Return the text with a mark behind the first character of each token."""
        return self._first.sub(lambda at: at[0] + mark * self._begins(text, at.start()), text)

    def _begins(self, text: str, at: int) -> bool:
        return any(text[at : at + length] in self._tokens for length in self._lengths)


def tokenizer_folder(model: str, cache: Path | None = None) -> Path:
    """Return the folder of a model's tokenizer: ``model`` itself, or the copy in the hub's cache on
    this machine (``cache``, default the user's) of a model named ``owner/name``."""
    folder = Path(model)
    if folder.is_dir() or model.count("/") != 1:
        return folder
    from huggingface_hub import try_to_load_from_cache

    with suppress(ValueError):  # a name that no model of the hub can have
        for name in _FILES[:2]:
            found = try_to_load_from_cache(model, name, cache)
            if isinstance(found, str):
                return Path(found).parent
    return folder


@lru_cache(maxsize=16)
def tokens_of(folder: Path) -> frozenset[str]:
    """Return the control tokens of the tokenizer in a folder and of its chat template: special
    tokens, and others that hold a bracket or a bar. Empty for a folder without tokenizer files.
    Raises ConfigError for unreadable files."""
    found: set[str] = set()
    for file in (folder / name for name in _FILES):
        if not file.is_file():
            continue
        try:
            found.update(_named(read_json(file)))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file}: cannot be read ({error}); copy the model again") from None
    for template in (*folder.glob("*.jinja"), *folder.glob("additional_chat_templates/*.jinja")):
        found.update(_written(template.read_text(encoding="utf-8", errors="replace")))
    return frozenset(found)


def _named(data: Any) -> Iterator[str]:
    if not isinstance(data, Mapping):
        return
    decoder = data.get("added_tokens_decoder")
    rows = [
        *(decoder.values() if isinstance(decoder, Mapping) else ()),
        *(added if isinstance(added := data.get("added_tokens"), list) else ()),
    ]
    for row in rows:
        if isinstance(row, Mapping):
            yield from _token(row.get("content"), bool(row.get("special")))
    for key, value in data.items():
        if isinstance(value, int):  # added_tokens.json: a token and its number
            yield from _token(key, False)
        elif key.endswith("_token"):
            content = value.get("content") if isinstance(value, Mapping) else value
            yield from _token(content, True)
        elif key.endswith("special_tokens") and isinstance(value, list):
            for each in value:
                named = isinstance(each, Mapping)
                content = each.get("content", each.get("token_str")) if named else each
                yield from _token(content, True)
    template = data.get("chat_template")
    for part in template if isinstance(template, list) else [template]:
        text = part.get("template") if isinstance(part, Mapping) else part
        if isinstance(text, str):
            yield from _written(text)


def _token(content: object, special: bool) -> Iterator[str]:
    """Yield a token, unless it is a word or a space that any text may hold."""
    if not isinstance(content, str) or len(content) < 2 or content.isspace():
        return
    if MARKED.search(content) or (special and not content.isalnum()):
        yield content


def _written(template: str) -> Iterator[str]:
    """Yield the control tokens in the string literals of a chat template."""
    for match in _LITERAL.finditer(template):
        for token in re.findall(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{2,30}\]", match[1] or match[2]):
            yield from _token(token, False)


Mark = Literal["`", "~"]
"""The character of a fence: backticks as in Markdown, or tildes, which hardly any text holds."""

LEAST: dict[Mark, int] = {"`": 3, "~": 5}
"""The shortest fence."""

_LOOKALIKES = "～∼〜˜⁓∽〰"  # full-width tilde, tilde operator, wave dash, small tilde, swung dash
# What takes no room of its own, so that a run with it inside looks like the run without it:
# combining marks, variation selectors, zero-width characters.
_HIDDEN = (
    "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f"
    "\U000e0100-\U000e01ef\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u206f"
    "\u3164\ufff9-\ufffb"
)
_MARKS: dict[Mark, str] = {"`": "`｀", "~": f"~{_LOOKALIKES}"}
_RUNS = {m: re.compile(f"[{any_}](?:[{_HIDDEN}]*[{any_}])*") for m, any_ in _MARKS.items()}
_HIDDEN_ONE = re.compile(f"[{_HIDDEN}]")
_MAX_RUN = 32


def fence_for(texts: Iterable[str], mark: Mark = "`") -> str:
    """Return a fence longer than any run of its mark, or of lookalikes, in the texts."""
    found = (run[0] for text in texts for run in _RUNS[mark].finditer(text))
    longest = max((len(_HIDDEN_ONE.sub("", run)) for run in found), default=0)
    return mark * max(LEAST[mark], longest + 1)


def fenced(text: str, info: str = "", fence: str | None = None) -> str:
    """Return ``text`` between two lines of a fence that it cannot close; ``info`` (a language, a
    title) follows the first."""
    fence = fence or fence_for([text])
    return f"{fence}{info}\n{text}\n{fence}"


def without_echoes(text: str, mark: Mark = "~") -> str:
    """Return the lines outside fences, with a rule in the place of each block, so that its lead-in
    does not run on into the next text. An unclosed fence is dropped to the end."""
    kept: list[str] = []
    open_fence = 0
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        run = len(bare) - len(bare.lstrip(mark))
        if open_fence:
            if run >= open_fence and run == len(bare):
                open_fence = 0
                kept.append("---\n" if kept else "")
        elif run >= LEAST[mark]:
            open_fence = run
        else:
            kept.append(line)
    return "".join(kept)


_FIELD = re.compile(r"\{([a-z_]+)\}")


def fill(template: str, **values: str) -> str:
    """Fill the ``{name}`` fields in one pass; fields inside values are not expanded.

    Raises KeyError for a field without a value.
    """
    return _FIELD.sub(lambda match: values[match[1]], template)


_LINE_BREAKS = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
# Controls, bidirectional overrides and the invisible tag characters that can smuggle ASCII.
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")


def sanitise(text: str) -> str:
    """Return untrusted text that cannot act as markup, control token or fence.

    Line breaks become ``\\n``; unseen characters go; lone surrogates, which no request can carry,
    become U+FFFD; a space after its first character breaks a control token such as ``<|im_end|>``,
    which a server would otherwise read as the end of the message; runs of tildes end at 32, and
    what is hidden in them goes, so that no fence grows without bound.
    """
    text = _UNSEEN.sub("", _LINE_BREAKS.sub("\n", text))
    text = broken(_SURROGATE.sub("\ufffd", text))
    return _RUNS["~"].sub(lambda run: _HIDDEN_ONE.sub("", run[0])[:_MAX_RUN], text)
