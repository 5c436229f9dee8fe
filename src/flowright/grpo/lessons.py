"""What the data gives, as groups that a learner trains on: conversations in the tokens of the chat
template, cut where their answers begin. Where they come from is the environment's.
"""

from collections.abc import Sequence
from itertools import groupby, pairwise, takewhile

from flowright.core.errors import DataError
from flowright.environments.environment import Given
from flowright.grpo.batch import Group, Trained
from flowright.llm.chat import Message
from flowright.policy.prompt import Tokenizer, render, template_ids, template_text


def lesson_groups(given: Given, tokenizer: Tokenizer) -> list[Group]:
    """A conversation whose answer is learned behind what comes before, token by token, or whose
    answers are (``every_turn``). A prompt is what a sampler would be asked.

    One group; but a template that writes earlier answers in another way than the last one, such as
    without their thoughts, gives a group for each answer. Raises DataError for a conversation
    without an answer, and for one that the template refuses.
    """
    ends = [i + 1 for i, turn in enumerate(given.messages) if turn.role == "assistant"]
    if not ends or ends[-1] != len(given.messages):
        raise DataError("a conversation that does not end with an answer")
    wanted = ends if given.every_turn else ends[-1:]
    pieces = _pieces(given, wanted, tokenizer)
    if pieces is None:
        alone = (Given(given.messages[:end], given.weight) for end in wanted)
        return [group for one in alone for group in lesson_groups(one, tokenizer)]
    prompt, *rest = [tokenizer.encode(piece, add_special_tokens=False) for piece in pieces]
    ids, learned = list[int](), list[bool]()
    for number, piece in enumerate(rest):  # an answer, what is said to it, an answer, ...
        ids += piece
        count = _answered(piece, tokenizer) if number % 2 == 0 else 0
        learned += [True] * count + [False] * (len(piece) - count)
    if not any(learned):
        raise DataError("a conversation whose answer is empty")
    end = len(learned) - learned[::-1].index(True)
    mask = None if all(learned[:end]) else learned[:end]
    return [Group(prompt, [Trained(ids[:end], (), given.weight, mask)])]


def completion_group(
    messages: Sequence[Message],
    completions: Sequence[str],
    tokenizer: Tokenizer,
    max_prompt_tokens: int,
) -> Group:
    """What a policy is asked, cut as it is in a rollout, with completions to learn behind it, each
    with the token that ends a turn. Raises DataError for a tokenizer without one."""
    end = getattr(tokenizer, "eos_token_id", None)
    if not isinstance(end, int):
        raise DataError("strategy_model: its tokenizer has no eos_token, which ends a completion")
    texts = [tokenizer.encode(text, add_special_tokens=False) for text in completions]
    prompt = render(messages, tokenizer, max_prompt_tokens).token_ids
    return Group(prompt, [Trained([*ids, end], (), 1.0) for ids in texts])


def joined(groups: Sequence[Group]) -> list[Group]:
    """Groups that follow each other with the same prompt as one, so that it is computed once."""
    return [
        Group(prompt, [sample for group in same for sample in group.samples])
        for prompt, same in groupby(groups, key=lambda group: tuple(group.prompt_ids))
    ]


def _pieces(given: Given, wanted: Sequence[int], tokenizer: Tokenizer) -> list[str] | None:
    """What comes before the first wanted answer, that answer, what comes between, the next; None
    where a text with more turns does not begin as one with fewer."""
    texts: list[str] = []
    for end in wanted:
        texts.append(template_text(given.messages[: end - 1], tokenizer, to_answer=True))
        texts.append(template_text(given.messages[:end], tokenizer, to_answer=False))
    if len(wanted) == 1:  # whatever the template does, its last answer begins where they part
        same = takewhile(lambda both: both[0] == both[1], zip(*texts, strict=False))
        texts[0] = texts[0][: sum(1 for _ in same)]
    if any(not after.startswith(text) for text, after in pairwise(texts)):
        return None
    starts = [0, *map(len, texts[:-1])]
    return [text[start:] for text, start in zip(texts, starts, strict=True)]


def _answered(ids: Sequence[int], tokenizer: Tokenizer) -> int:
    """How many of an answer's tokens are learned: up to the one that ends it, where there is one;
    what the template writes behind that is never sampled."""
    end = getattr(tokenizer, "eos_token_id", None)
    last = [number for number, token in enumerate(ids, start=1) if token == end]
    return last[-1] if last else len(ids)


def pair_group(pair: Sequence[Given], tokenizer: Tokenizer) -> Group:
    """Two conversations whose last tokens are scored, as whole texts in the template; what they
    begin with alike is the prompt. Raises DataError as :func:`lesson_groups`, and for other than
    two."""
    if len(pair) != 2:
        raise DataError(f"{len(pair)} conversations where two are compared")
    texts = [template_ids(given.messages, tokenizer, to_answer=False) for given in pair]
    return scored_group(texts, [given.weight for given in pair])


def scored_group(texts: Sequence[Sequence[int]], weights: Sequence[float] | None = None) -> Group:
    """Texts whose last tokens are scored, as token ids; what they begin with alike is the prompt.
    Each has one more token, which only stands behind its last. Raises DataError for a text without
    a token, or of one alone, and for texts whose first tokens differ."""
    if not all(texts):
        raise DataError("a conversation without a token")
    first, *others = texts
    # At least one token stays: where a prompt ends, no answer does.
    start = min(map(len, texts)) - 1
    for other in others:
        alike = (n for n, (a, b) in enumerate(zip(first, other, strict=False)) if a != b)
        start = min(start, next(alike, start))
    if start < 1:
        raise DataError("two conversations of which not even the first token is the same")
    samples = [
        Trained([*ids[start:], ids[-1]], (), weight)
        for ids, weight in zip(texts, weights or [1.0] * len(texts), strict=True)
    ]
    return Group(first[:start], samples)
