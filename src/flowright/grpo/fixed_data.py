"""The batches of a run that learns from its data: conversations and pairs of answers in the tokens
of the chat template, cut where answers begin. Nothing is sampled or rolled out."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, takewhile

from flowright.config.root import Config
from flowright.core.errors import DataError
from flowright.data.mixture import Mixture
from flowright.data.task import Task
from flowright.environments.base import Environment, TrainingConversation
from flowright.grpo.batch import Group, Trained
from flowright.grpo.learner import Learner
from flowright.grpo.pipeline import BatchSource, Enter, StepBatch
from flowright.grpo.step_record import length_metrics
from flowright.llm.chat import Message
from flowright.policy.head import ScalarHead
from flowright.policy.model import Policy
from flowright.policy.model_thread import on_model_thread
from flowright.policy.sampling import (
    Tokenizer,
    completion_ids,
    render,
    template_ids,
    template_text,
    text_ids,
)


class FixedData(BatchSource):
    """Batches that are a function of the tasks, the seed and the step."""

    def __init__(
        self, config: Config, environment: Environment, policy: Policy, tasks: Sequence[Task]
    ) -> None:
        super().__init__(environment, tasks)
        self.aliases = {f"train/{name}": f"policy/{name}" for name in ("loss", "accuracy")}
        self._policy = policy
        self._size = config.grpo.prompts_per_step
        self._mixture = Mixture(tasks, config.seed)

    async def take(self, step: int, learner: Learner, enter: Enter) -> StepBatch:
        tasks = self._mixture.batch(step - 1, self._size)
        groups = self.groups(tasks)
        cut = sum(map(self.environment.was_cut, tasks)) / len(tasks)
        completions = [len(sample.token_ids) for group in groups for sample in group.samples]
        prompts = [len(group.prompt_ids) for group in groups]
        lengths = length_metrics(completions, prompts)
        return StepBatch(groups, lambda: {**lengths, "prompt/truncated": cut})

    def groups(self, tasks: Sequence[Task]) -> list[Group]:
        """Return the groups of some tasks. Raises DataError, with the task's id, for a task that
        cannot be trained on."""
        compared = isinstance(self._policy.output, ScalarHead)
        found: list[Group] = []
        for task in tasks:
            try:
                found += groups_of(self.environment, task, self._policy.tokenizer, compared)
            except DataError as error:
                raise DataError(f"{task.id}: {error}") from error
        return found if compared else merged_groups(found)


@dataclass(frozen=True, slots=True)
class FixedDataValidation:
    """Metrics ``val/*`` on held-out tasks, each with the same weight: the loss, and of pairs the
    share that is scored as people preferred."""

    learner: Learner
    source: FixedData
    tasks: Sequence[Task]

    async def __call__(self, step: int) -> dict[str, float]:
        groups = self.source.groups(self.tasks)
        metrics = await on_model_thread(self.learner.measure, groups)
        return {name.replace("policy/", "val/", 1): value for name, value in metrics.items()}


def groups_of(
    environment: Environment, task: Task, tokenizer: Tokenizer, compared: bool
) -> list[Group]:
    """Return a task's groups: of two conversations that are ``compared``, or of conversations.
    Raises DataError as :func:`pair_group` and :func:`conversation_groups`."""
    conversations = environment.training_conversations(task)
    if compared:
        return [pair_group(conversations, tokenizer)]
    return [group for one in conversations for group in conversation_groups(one, tokenizer)]


def conversation_groups(conversation: TrainingConversation, tokenizer: Tokenizer) -> list[Group]:
    """Return the group of a conversation whose last answer is trained on, token by token, or all
    its answers (``every_turn``). The prompt is the one that a sampler would get.

    A template that renders earlier answers differently from the last one, such as without their
    thoughts, gives a group for each answer. Raises DataError for a conversation without an answer,
    and for one that the template refuses.
    """
    ends = [i + 1 for i, turn in enumerate(conversation.messages) if turn.role == "assistant"]
    if not ends or ends[-1] != len(conversation.messages):
        raise DataError("a conversation that does not end with an answer")
    wanted = ends if conversation.every_turn else ends[-1:]
    parts = _parts(conversation, wanted, tokenizer)
    if parts is None:
        alone = (
            TrainingConversation(conversation.messages[:end], conversation.weight) for end in wanted
        )
        return [group for one in alone for group in conversation_groups(one, tokenizer)]
    prompt, *rest = [text_ids(part, tokenizer) for part in parts]
    ids, learned = list[int](), list[bool]()
    for number, part in enumerate(rest):  # an answer, what follows it, an answer, ...
        ids += part
        count = _answer_length(part, tokenizer) if number % 2 == 0 else 0
        learned += [True] * count + [False] * (len(part) - count)
    if not any(learned):
        raise DataError("a conversation whose answer is empty")
    end = len(learned) - learned[::-1].index(True)
    mask = None if all(learned[:end]) else learned[:end]
    return [Group(prompt, [Trained(ids[:end], (), conversation.weight, mask)])]


def completion_group(
    messages: Sequence[Message],
    completions: Sequence[str],
    tokenizer: Tokenizer,
    max_prompt_tokens: int,
) -> Group:
    """Return a prompt, cut as in a rollout, with completions to train on, each with the token that
    ends a turn. Raises DataError for a tokenizer without one."""
    end = getattr(tokenizer, "eos_token_id", None)
    if not isinstance(end, int):
        raise DataError("strategy_model: its tokenizer has no eos_token, which ends a completion")
    texts = [completion_ids(text, tokenizer) for text in completions]
    prompt = render(messages, tokenizer, max_prompt_tokens).token_ids
    return Group(prompt, [Trained([*ids, end], (), 1.0) for ids in texts])


def merged_groups(groups: Sequence[Group]) -> list[Group]:
    """Merge neighbouring groups with the same prompt, so that it is computed once."""
    return [
        Group(prompt, [sample for group in same for sample in group.samples])
        for prompt, same in groupby(groups, key=lambda group: tuple(group.prompt_ids))
    ]


def _parts(
    conversation: TrainingConversation, wanted: Sequence[int], tokenizer: Tokenizer
) -> list[str] | None:
    """Split into the text before the first wanted answer, that answer, the text up to the next...
    None where the template renders more turns with another beginning than fewer."""
    texts: list[str] = []
    for end in wanted:
        texts.append(template_text(conversation.messages[: end - 1], tokenizer, to_answer=True))
        texts.append(template_text(conversation.messages[:end], tokenizer, to_answer=False))
    if len(wanted) == 1:  # whatever the template does, its last answer begins where they part
        same = takewhile(lambda both: both[0] == both[1], zip(*texts, strict=False))
        texts[0] = texts[0][: sum(1 for _ in same)]
    if any(not after.startswith(text) for text, after in pairwise(texts)):
        return None
    starts = [0, *map(len, texts[:-1])]
    return [text[start:] for text, start in zip(texts, starts, strict=True)]


def _answer_length(ids: Sequence[int], tokenizer: Tokenizer) -> int:
    """Count the tokens of an answer that train: up to the one that ends it, if any, since what the
    template writes after it is never sampled."""
    end = getattr(tokenizer, "eos_token_id", None)
    last = [number for number, token in enumerate(ids, start=1) if token == end]
    return last[-1] if last else len(ids)


def pair_group(pair: Sequence[TrainingConversation], tokenizer: Tokenizer) -> Group:
    """Return the group of two conversations whose last tokens are scored. Raises DataError as
    :func:`scored_group`, and for other than two conversations."""
    if len(pair) != 2:
        raise DataError(f"{len(pair)} conversations where two are compared")
    texts = [
        template_ids(conversation.messages, tokenizer, to_answer=False) for conversation in pair
    ]
    return scored_group(texts, [conversation.weight for conversation in pair])


def scored_group(texts: Sequence[Sequence[int]], weights: Sequence[float] | None = None) -> Group:
    """Return the group of texts whose last tokens are scored; their common beginning is the prompt.

    Each gets one more token, so that a hidden state stands behind its last one. Raises DataError
    for texts of fewer than two tokens, and for texts whose first tokens differ.
    """
    if not all(texts):
        raise DataError("a conversation without a token")
    first, *others = texts
    # At least one token stays: an answer does not end with its prompt.
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
