"""Control tokens of chat templates inside ordinary text.

A server turns the text ``<|im_end|>`` of a message into the token that ends it. One space behind
the first character keeps a text readable and breaks the token. :func:`broken` knows the shapes of
all models, :func:`tokens_of` reads those of one model's tokenizer.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

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
