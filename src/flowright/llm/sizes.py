"""How many tokens a text can have at most, whatever the tokenizer, and cuts that keep to it.

For limits that hold before any server is asked; counts nothing exactly.

A byte-level tokenizer (that of GPT, GPT-OSS, Llama 3, Qwen, DeepSeek) makes at most one token of a
byte of UTF-8, one with byte fallback (Llama 2, Mistral, Gemma) at most one more in all. An estimate
by characters is none: ``"𓀀"`` is one character and four tokens.
"""


def most_tokens(text: str) -> int:
    """The bytes of a text in UTF-8: it has no more tokens."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def first_tokens(text: str, most: int) -> str:
    """The longest beginning of whole characters with at most ``most`` tokens."""
    if most_tokens(text) <= most:
        return text
    return text[:most].encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def last_tokens(text: str, most: int) -> str:
    """The longest end of whole characters with at most ``most`` tokens."""
    if most_tokens(text) <= most:
        return text
    return text[-most:].encode("utf-8", "replace")[-most:].decode("utf-8", "ignore")
