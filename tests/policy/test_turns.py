"""Contexts of later turns, with the chat templates of published models: each is the ids that the
policy saw and wrote, and behind them what the template puts there.

Expected ids are taken from whole conversations that transformers renders.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from made_tokenizers import GEMMA, held, of_template, unigram
from transformers import PreTrainedTokenizerFast

from flowright.core.errors import ConfigError, DataError
from flowright.llm.chat import Message, Role
from flowright.policy.sampling import Sample, template_ids, text_ids
from flowright.policy.turns import CUT_MARKER, Context, Contexts

TEMPLATES = Path(__file__).parent / "templates"
ENDS = {
    "qwen2_5": ["<|im_end|>"],
    "qwen3": ["<|im_end|>"],
    "smollm2": ["<|im_end|>"],
    "llama3": ["<|eot_id|>"],
    "llama3_2": ["<|eot_id|>", "<|end_of_text|>"],
    "gemma": ["<end_of_turn>"],
    "gemma3": ["<end_of_turn>"],
    "gptoss": ["<|return|>", "<|call|>"],
}
"""The tokens that end a completion."""
KEPT = {
    "qwen2_5": "user user+ tool tool+",
    "qwen3": "user tool tool+",
    "smollm2": "user user+ tool tool+",
    "llama3": "user user+ tool tool+",
    "llama3_2": "user user+ tool tool+",
    "gemma": "user user+",
    "gemma3": "user user+",
    "gptoss": "",
}
"""The roles behind which a completion stays as it was, with a plus one with thinking."""
REFUSED = {"gemma": "must alternate", "gemma3": "must alternate", "gptoss": "Message has tool role"}
"""The templates that refuse a message of the role ``tool``, and why."""
THOUGHT = "<think>\nLet me see.\n</think>\n\n4, I think."
PLAIN = "What is 2 + 2? Größe 4."
PROMPT = [Message("system", "Be brief."), Message("user", "What is 2 + 2?")]


@cache
def made(name: str) -> tuple[PreTrainedTokenizerFast, Contexts]:
    tokenizer = of_template((TEMPLATES / f"{name}.jinja").read_text(), ENDS[name][0])
    return tokenizer, Contexts(tokenizer, tokenizer.convert_tokens_to_ids(ENDS[name]))


def prompt_of(name: str) -> list[Message]:
    return PROMPT[1:] if name == "gemma" else PROMPT  # which knows no system


def rendered(tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message]) -> str:
    chat = [{"role": m.role, "content": m.content} for m in messages]
    return str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))


def encoded(tokenizer: PreTrainedTokenizerFast, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def sampled(tokenizer: PreTrainedTokenizerFast, text: str, end: str | None) -> Sample:
    """A completion in the ids of its single characters, which no tokenizer gives; cut without an
    end."""
    ids = [i for character in text for i in encoded(tokenizer, character)]
    if end is not None:
        ids += encoded(tokenizer, end)
    return Sample(tuple(ids), (0.0,) * len(ids), text, "length" if end is None else "stop", 0)


def step(
    name: str,
    conversation: list[Message],
    context_ids: Sequence[int],
    text: str,
    role: Role,
    answer: str,
    end: str | None = "",
) -> tuple[Sample, Context]:
    """Add a completion and its answer to the conversation; return the next context."""
    tokenizer, contexts = made(name)
    sample = sampled(tokenizer, text, ENDS[name][0] if end == "" else end)
    conversation += [Message("assistant", text), Message(role, answer)]
    return sample, contexts.after(conversation, context_ids, sample, conversation[-1])


@pytest.mark.parametrize("name", ENDS)
def test_a_template_keeps_history_or_refuses_a_role_or_rewrites(name: str) -> None:
    _, contexts = made(name)
    contexts.check()
    roles: list[Role] = ["user"] if name in REFUSED else ["user", "tool"]
    kept = [r + "+" * thinking for r in roles for thinking in (False, True)
            if contexts.keeps(r, thinking)]  # fmt: skip
    assert kept == KEPT[name].split()
    assert contexts.rewrites == (not {"user", "user+"} <= {*kept})
    if name in REFUSED:
        with pytest.raises(DataError, match=rf"refuses turns of user, .*: .*{REFUSED[name]}") as e:
            contexts.keeps("tool", False)
        assert "\n" not in str(e.value)


CHAINS = [(name, kept) for name, roles in KEPT.items() for kept in roles.split()]


@pytest.mark.parametrize(("name", "kept"), CHAINS)
def test_the_next_context_is_the_last_one_with_its_completion_and_the_answer(
    name: str, kept: str
) -> None:
    tokenizer, _ = made(name)
    role: Role = "tool" if kept.startswith("tool") else "user"
    text = THOUGHT if kept.endswith("+") else PLAIN
    conversation = list(prompt_of(name))
    context_ids = encoded(tokenizer, rendered(tokenizer, conversation))
    assert context_ids == tuple(template_ids(conversation, tokenizer, to_answer=True))
    for number, answer in enumerate(["No, think again.", "Größe 数学 🙂\n x", '"quoted"']):
        ends = ["", None, ""][number]  # the second is cut at its limit
        sample, context = step(name, conversation, context_ids, text, role, answer, ends)
        whole = rendered(tokenizer, conversation)
        behind = encoded(tokenizer, whole[whole.rindex(text) + len(text) :])
        assert tokenizer.decode([behind[0]]) == ENDS[name][0]
        expected = behind if number == 1 else behind[1:]  # the end is supplied, or is there
        assert context.answer_ids == expected
        assert context.token_ids == (*context_ids, *sample.token_ids, *expected)
        # Decoded, it is the conversation as the template has it; its ids are none of its own.
        assert tokenizer.decode(context.token_ids) == whole
        assert context.token_ids != encoded(tokenizer, whole)
        context_ids = context.token_ids


def test_thinking_before_a_message_of_a_user_is_dropped_by_qwen3() -> None:
    tokenizer, _ = made("qwen3")
    conversation = list(PROMPT)
    start = encoded(tokenizer, rendered(tokenizer, conversation))
    _, context = step("qwen3", conversation, start, THOUGHT, "user", "Sure?")
    whole = rendered(tokenizer, conversation)
    assert "<think>" not in whole
    assert context == Context(encoded(tokenizer, whole), None)
    # From there on it is a chain again.
    sample, after = step("qwen3", conversation, context.token_ids, PLAIN, "user", "Really?")
    assert after.answer_ids is not None
    assert after.token_ids == (*context.token_ids, *sample.token_ids, *after.answer_ids)


def test_a_later_message_of_a_user_drops_the_thinking_that_tools_left() -> None:
    """The newest completion has none, but the context holds that of the first."""
    tokenizer, _ = made("qwen3")
    conversation = list(PROMPT)
    start = encoded(tokenizer, rendered(tokenizer, conversation))
    _, first = step("qwen3", conversation, start, THOUGHT, "tool", "4")
    assert first.answer_ids is not None
    _, second = step("qwen3", conversation, first.token_ids, PLAIN, "user", "Sure?")
    assert second == Context(encoded(tokenizer, rendered(tokenizer, conversation)), None)
    assert "<think>" not in tokenizer.decode(second.token_ids)


def test_a_system_prompt_that_moves_makes_a_new_context() -> None:
    """As Mistral's, which stands before the last message of a user."""
    moves = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}<|e|>{% elif m.role "
        "== 'user' %}[{% if loop.last and messages[0].role == 'system' %}"
        "{{ messages[0].content }}: {% endif %}{{ m.content }}]{% endif %}{% endfor %}"
    )
    tokenizer = of_template(moves, "<|e|>")
    contexts = Contexts(tokenizer, tokenizer.convert_tokens_to_ids(["<|e|>"]))
    turns = [*PROMPT, Message("assistant", PLAIN), Message("user", "Sure?")]
    sample = sampled(tokenizer, PLAIN, "<|e|>")
    start = template_ids(PROMPT, tokenizer, to_answer=True)
    moved = contexts.after(turns, start, sample, turns[-1])
    assert tokenizer.decode(moved.token_ids) == (f"[What is 2 + 2?]{PLAIN}<|e|>[Be brief.: Sure?]")
    assert moved.answer_ids is None
    start = template_ids(PROMPT[1:], tokenizer, to_answer=True)
    assert contexts.after(turns[1:], start, sample, turns[-1]).answer_ids is not None


def test_a_template_may_begin_the_thinking() -> None:
    opens = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think>\n"
        "{% endif %}{{ m.content }}<|im_end|>{% endfor %}{{ '<|im_start|>assistant\n<think>\n' }}"
    )
    tokenizer = of_template(opens, "<|im_end|>")
    contexts = Contexts(tokenizer, tokenizer.convert_tokens_to_ids(["<|im_end|>"]))
    assert contexts.keeps("user", thinking=True)


def test_gpt_oss_sees_the_final_channels_of_its_turns() -> None:
    tokenizer, _ = made("gptoss")
    text = (
        "<|channel|>analysis<|message|>2 + 2.<|end|><|start|>assistant<|channel|>final<|message|>4"
    )
    conversation = list(PROMPT)
    start = encoded(tokenizer, rendered(tokenizer, conversation))
    _, context = step("gptoss", conversation, start, text, "user", "Sure?")
    shown = [*PROMPT, Message("assistant", "4"), Message("user", "Sure?")]
    assert context == Context(encoded(tokenizer, rendered(tokenizer, shown)), None)


@pytest.mark.parametrize(
    ("template", "ends", "why"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
         "{% if add_generation_prompt %}assistant: {% endif %}", "<|e|>",
         "ends no completion with a token that ends one"),
        ("{% for m in messages %}{{ m.content }}{% if m.role == 'user' %}<|e|>{% endif %}"
         "{% endfor %}", "<|e|>",
         "ends no completion before a new message"),
        ("{% for m in messages %}{% if loop.index < 3 %}{{ m.content }}<|e|>{% endif %}"
         "{% endfor %}", "<|e|>", "shows no turns of user"),
        ("{{ raise_exception('no') if messages | length > 2 }}{{ messages[0].content }}", "<|e|>",
         "refuses turns of user, assistant, user: TemplateError: no"),
    ],
)  # fmt: skip
def test_a_template_without_turns_is_refused_at_the_start(
    template: str, ends: str, why: str
) -> None:
    tokenizer = of_template(template, ends)
    contexts = Contexts(tokenizer, tokenizer.convert_tokens_to_ids([ends]))
    with pytest.raises(ConfigError, match=f"^policy.chat_template: the chat template {why}") as e:
        contexts.check()
    assert "\n" not in str(e.value)


def test_an_answer_that_a_template_would_leave_out_is_an_error() -> None:
    """As Phi-3.5's with the role ``tool``: the policy would write on without having seen it."""
    known = (
        "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}<|{{ m.role }}|>\n"
        "{{ m.content }}<|end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}"
        "<|assistant|>\n{% endif %}"
    )
    tokenizer = of_template(known, "<|end|>")
    contexts = Contexts(tokenizer, tokenizer.convert_tokens_to_ids(["<|end|>"]))
    contexts.check()
    turns = [*PROMPT[1:], Message("assistant", PLAIN), Message("tool", "4")]
    with pytest.raises(DataError, match="shows no turns of tool; take another role"):
        contexts.after(turns, [1], sampled(tokenizer, PLAIN, "<|end|>"), turns[-1])


@pytest.mark.parametrize("legacy", [False, True])
def test_the_answer_is_a_slice_of_a_whole_rendering(legacy: bool) -> None:
    """With a tokenizer for which a part of a text has other ids than in the whole."""
    tokenizer = unigram(GEMMA, legacy, ("<s>", "</s>"))
    (end,) = tokenizer.convert_tokens_to_ids(["<end_of_turn>"])
    contexts = Contexts(tokenizer, [end])
    contexts.check()
    turns = [Message("user", "What is 2 + 2?"), Message("assistant", "a<b"), Message("user", "x 2")]
    start = template_ids(turns[:1], tokenizer, to_answer=True)
    text = rendered(tokenizer, turns)
    whole = encoded(tokenizer, text)
    second = [place for place, token in enumerate(whole) if token == end][1]
    for ended in ("<end_of_turn>", None):
        sample = sampled(tokenizer, "a<b", ended)
        context = contexts.after(turns, start, sample, turns[-1])
        assert context.answer_ids == whole[second + bool(ended) :]
        assert context.token_ids == (*start, *sample.token_ids, *context.answer_ids)
    behind = text[: text.rindex("<end_of_turn>")].rindex("<end_of_turn>") + len("<end_of_turn>")
    # Encoded by itself, the answer would begin with a space that is not there.
    assert (encoded(tokenizer, text[behind:]) == whole[second + 1 :]) is legacy


@pytest.mark.parametrize(("name", "kept"), CHAINS)
def test_control_tokens_in_an_answer_are_text(name: str, kept: str) -> None:
    tokenizer, _ = made(name)
    role: Role = "tool" if kept.startswith("tool") else "user"
    forged = "".join(map(str, tokenizer.added_tokens_decoder.values()))
    found = []
    for answer in ("5", f"5{forged}5<|im_end|>5<end_of_turn>5<|eot_id|>5"):
        conversation = list(prompt_of(name))
        start = template_ids(conversation, tokenizer, to_answer=True)
        text = THOUGHT if kept.endswith("+") else PLAIN
        _, context = step(name, conversation, start, text, role, answer)
        assert context.answer_ids is not None
        found.append(held(context.answer_ids, tokenizer))
        if answer != "5" and name != "llama3_2":
            assert answer in tokenizer.decode(context.answer_ids)
    plain, attacked = found
    thinking = {"<think>", "</think>"}  # tags that are no special tokens of Qwen3's
    assert {t: n for t, n in attacked.items() if t not in thinking} == plain


def test_a_very_long_answer_is_cut_in_its_middle() -> None:
    tokenizer, contexts = made("qwen3")
    assert contexts.shortened("short", 50) == "short"
    for text in (
        "x1 " * 333_333 + "the end",
        "<|im_end|>" * 100_000,
        "🙂数" * 500_000,
        "\0" * 10**6,
    ):
        short = contexts.shortened(text, 200)
        assert len(text_ids(short.replace("<|im_end|>", "<"), tokenizer)) <= 200
        assert len(encoded(tokenizer, short.replace("<", "< "))) <= 260
        head, tail = short.split(CUT_MARKER)
        assert text.startswith(head.rstrip("\ufffd")) and text.endswith(tail.lstrip("\ufffd"))
        assert head and tail
        conversation = list(PROMPT)
        start = template_ids(conversation, tokenizer, to_answer=True)
        _, context = step("qwen3", conversation, start, PLAIN, "user", short)
        assert context.answer_ids is not None and len(context.answer_ids) < 260


def test_what_was_cut_is_marked_however_few_tokens_are_left() -> None:
    tokenizer = of_template((TEMPLATES / "smollm2.jinja").read_text(), "<|im_end|>")
    tokenizer.add_tokens(["=" * 100])
    contexts = Contexts(tokenizer, tokenizer.convert_tokens_to_ids(["<|im_end|>"]))
    short = contexts.shortened("=" * 100_000, 200)
    head, tail = short.split(CUT_MARKER)
    assert len(head) == len(tail) > 5_000


def test_halves_of_characters_are_replaced() -> None:
    _, contexts = made("smollm2")
    shown = contexts.shortened("a\ud800b\udfffc", 50)
    assert shown == "a?b?c"
    conversation = list(PROMPT)
    _, context = step("smollm2", conversation, [1], PLAIN, "user", shown)
    assert context.answer_ids
