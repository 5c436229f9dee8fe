"""Control tokens of chat templates in text that is only text: what they look like, and which ones a
model's own tokenizer names.

A server turns the text ``<|im_end|>`` of a message into the token that ends it. One space behind
the first character keeps a text readable and is not that token any more. Shapes are known for all
models (:func:`broken`); the words of one model's tokenizer beside them where its files are at hand
(:func:`tokens_of`). No fences and no prompts here.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from flowright.errors import ConfigError
from flowright.llm.replies import THINKING_TAG

# Names that stand in angle brackets, some with the model's prefix: <s>, <tool_call>, <seed:eos>.
_NAME = (
    r"s|bos|eos|pad|unk|mask|cls|sep|sop|eop|eod|eot|eom|role|system|user|assistant|human|bot|model"
    r"|tools?|tool_(?:calls?|responses?|results?|outputs?|sep)|function(?:_calls?|_results?|s)?"
    r"|invoke|parameter|arg_(?:key|value)|observation|channel|message|turn|image|audio|video|box"
    r"|(?:start|begin|end)_of_\w{1,20}|cot_\w{1,30}|fim_\w{1,20}|file_sep|repo_name|no_?think"
    r"|\w{1,20}_(?:start|end|pad|placeholder)|SPECIAL_\d{1,4}"
    r"|(?:unused|reserved|extra|special|loc|image|dummy)[a-z_]{0,20}\d{1,5}"
)
_ANGLE = (
    r"[<＜](?=[|｜]"  # <|im_end|>, <|channel>, <｜User｜>
    r"|/?[\w:.▁-]{1,40}[|｜][>＞]"  # <turn|>
    rf"|/?(?:{THINKING_TAG}|(?:[a-z]{{1,12}}[:_-])?(?:{_NAME}))(?:\s[^<>\n]{{0,200}})?/?[>＞]"
    r"|</?SYS>>)"
)
# In square brackets, as their tokenizers write them: in capitals.
_SQUARE = (
    r"[\[［](?=/?(?-i:INST|THINK|SYS|IMG|REF|ARGS|AUDIO|CLS|SEP|MASK|PAD|UNK|BOS|EOS|MIDDLE|PREFIX"
    r"|SUFFIX|TOOL|(?:BEGIN|END|TOOL|IMG|SYSTEM|USER|ASSISTANT|AVAILABLE|MODEL|CALL)_[A-Z_]{1,20}"
    r"|[gs]MASK|unused\d{1,4}|control_\d{1,4}|TRANSCRIBE)[\]］])"
)
_MINIMAX = r"\](?=~!?[a-z]{1,3}[\[\]]|<\]\w{1,20}\[>\[)|\[(?=[a-z]~\[)"
_SHAPES = re.compile(f"{_ANGLE}|{_SQUARE}|{_MINIMAX}|◁(?=/?think▷)", re.IGNORECASE)


def broken(text: str) -> str:
    """The text with a space in each of its control tokens, whichever model they are of."""
    return _SHAPES.sub(lambda token: token[0] + " ", text)


# The tokens of one model.

_MARKED = re.compile(r"[<>\[\]|｜▷◁]")
_LITERAL = re.compile(r"'([^'\n]{3,60})'|\"([^\"\n]{3,60})\"")
_FILES = ("tokenizer_config.json", "tokenizer.json", "special_tokens_map.json")


class OwnTokens:
    """Breaks the tokens that one model's tokenizer names."""

    def __init__(self, tokens: Collection[str]) -> None:
        longest_first = sorted(map(re.escape, tokens), key=len, reverse=True)
        self._pattern = re.compile("|".join(longest_first)) if tokens else None

    def broken(self, text: str) -> str:
        """The text with a space behind the first character of each token."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda token: f"{token[0][0]} {token[0][1:]}", text)


@lru_cache(maxsize=16)
def tokens_of(folder: Path) -> frozenset[str]:
    """The control tokens that the tokenizer in a folder names, and those that its chat template
    writes; of what is not called special those that hold a bracket or a bar. Empty for a folder
    without a tokenizer's files. Raises ConfigError for files that cannot be read."""
    found: set[str] = set()
    for file in (folder / name for name in _FILES):
        if not file.is_file():
            continue
        try:
            found.update(_named(json.loads(file.read_text(encoding="utf-8"))))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{file}: cannot be read ({error}); copy the model again") from None
    template = folder / "chat_template.jinja"
    if template.is_file():
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
        if key.endswith("_token"):
            content = value.get("content") if isinstance(value, Mapping) else value
            yield from _token(content, True)
        elif key.endswith("special_tokens") and isinstance(value, list):
            for each in value:
                yield from _token(each.get("content") if isinstance(each, Mapping) else each, True)
    template = data.get("chat_template")
    for part in template if isinstance(template, list) else [template]:
        text = part.get("template") if isinstance(part, Mapping) else part
        if isinstance(text, str):
            yield from _written(text)


def _token(content: object, special: bool) -> Iterator[str]:
    """A token, unless it is a word or a space that any text may hold."""
    if not isinstance(content, str) or len(content) < 2 or content.isspace():
        return
    if _MARKED.search(content) or (special and not content.isalnum()):
        yield content


def _written(template: str) -> Iterator[str]:
    """The control tokens among what a chat template writes."""
    for match in _LITERAL.finditer(template):
        for token in re.findall(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{2,30}\]", match[1] or match[2]):
            yield from _token(token, False)
