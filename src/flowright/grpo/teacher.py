"""The teacher of on-policy distillation: log-probabilities of the policy's samples under a larger
model, loaded beside the policy or behind vLLM servers. Its term of the loss is the learner's."""

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import compress
from typing import Protocol

from flowright.config.grpo import GrpoSection, TeacherSection
from flowright.config.policy import LoraSection
from flowright.config.root import Config
from flowright.core.batch_calls import all_of
from flowright.core.errors import ConfigError, RunError, RunPaused, UserError
from flowright.grpo.batch import Group, Logprobs, Trained, score
from flowright.grpo.selfcheck import check_sharing
from flowright.llm.counters import Counters
from flowright.llm.transport import CONNECT_SECONDS, RequestError
from flowright.policy.model import Policy, load_policy
from flowright.policy.model_folders import load_tokenizer
from flowright.policy.model_thread import on_model_thread
from flowright.policy.sampling import Tokenizer
from flowright.policy.vllm.fleet import Fleet
from flowright.policy.vllm.proof import QUESTIONS
from flowright.policy.vllm.requests import Requests

KEY = "grpo.teacher"
PROBE = "\n".join(
    (*QUESTIONS, "def f(x):\n\treturn x ** 2 + 1234567890", "na\u00efve \u6570\u5b66 \U0001f642")
)
"""A text by which tokenizers are compared."""
LEAST = -100.0
"""Log-probability of a token that a server's model holds impossible."""


class Teacher(Protocol):
    """Scores samples at temperature 1. ``counters``: of its requests to servers."""

    counters: Sequence[Counters]

    async def score(self, groups: Sequence[Group]) -> list[Logprobs | str]:
        """Return the log-probabilities of each sample's tokens, or the reason of a failure."""
        ...


class LocalTeacher:
    """A teacher in the trainer's process, frozen, without its adapter."""

    counters: Sequence[Counters] = ()

    def __init__(self, model: Policy, section: GrpoSection) -> None:
        self._model, self._section = model, section

    async def score(self, groups: Sequence[Group]) -> list[Logprobs | str]:
        return await on_model_thread(self._score, groups)

    def _score(self, groups: Sequence[Group]) -> list[Logprobs | str]:
        with self._model.reference():
            found = score(self._model, groups, self._section, temperature=1.0)
        return [_finite(logprobs_T.tolist()) for logprobs_T in found]


def _finite(logprobs: list[float]) -> Logprobs | str:
    if all(map(math.isfinite, logprobs)):
        return logprobs
    return f"{KEY}: a log-probability is not finite"


class ServedTeacher:
    """A teacher behind vLLM servers, which get each sample as token ids: one request a sample, for
    one event loop."""

    def __init__(self, section: TeacherSection) -> None:
        assert section.model is not None
        self._name = section.model
        servers = {url: Requests(url, section, section=KEY) for url in section.base_urls}
        remedy = f"start it with: vllm serve {self._name}"
        self._fleet = Fleet(servers, section, "teacher", KEY, remedy)
        self.counters: Sequence[Counters] = (self._fleet.counters,)

    async def aclose(self) -> None:
        await self._fleet.aclose()

    async def score(self, groups: Sequence[Group]) -> list[Logprobs | str]:
        return await all_of(
            self._one(group.prompt_ids, sample) for group in groups for sample in group.samples
        )

    async def _one(self, prompt: Sequence[int], sample: Trained) -> Logprobs | str:
        ids = [*prompt, *sample.token_ids]
        try:
            found = await self._fleet.ask(str(ids), lambda s: s.score(self._name, ids, LEAST))
        except (RunError, RunPaused) as error:
            return "; ".join(error.problems)
        self._fleet.counters.role("teacher").replied(len(ids), 0)
        scores = found[len(prompt) - 1 :].tolist()
        return scores if sample.learned is None else [*compress(scores, sample.learned)]

    async def check(self, tokenizer: Tokenizer | None, longest: int) -> None:
        """Raise UserError with a line for each server that does not score samples of ``longest``
        tokens with their prompt, or has other token ids than the tokenizer, if there is one."""
        servers = self._fleet.servers.items()
        found = await all_of(self._check(url, s, tokenizer, longest) for url, s in servers)
        if any(found):
            raise UserError(*(f"{KEY}: {problem}" for problem in found if problem))

    async def _check(
        self, url: str, server: Requests, tokenizer: Tokenizer | None, longest: int
    ) -> str | None:
        """Return the server's problem."""
        try:
            cards = await server.models(CONNECT_SECONDS)
            card = cards.get(self._name)
            if card is None:
                return f"{url} serves {', '.join(cards) or 'nothing'}, not {self._name}"
            if card.max_tokens is not None and card.max_tokens <= longest:
                return (
                    f"{url}: --max-model-len is {card.max_tokens}, and a prompt with its sample "
                    f"may have {longest} tokens; raise it above that"
                )
            theirs = await server.token_ids(self._name, PROBE)
            await server.score(self._name, theirs, LEAST)
            if tokenizer is None:
                return None
            probe = PROBE + "".join(t.content for t in tokenizer.added_tokens_decoder.values())
            ours = tokenizer.encode(probe, add_special_tokens=False)
            different = _difference(ours, await server.token_ids(self._name, probe))
            return different and f"{url}: {different}"
        except RequestError as error:
            return error.message


def _difference(ours: Sequence[int], theirs: Sequence[int]) -> str | None:
    if list(ours) == list(theirs):
        return None
    place = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
    return (
        f"its tokenizer is another: token {place} of a text is {theirs[place : place + 1]}, and "
        f"{ours[place : place + 1]} by the policy's; take a teacher of the policy's family"
    )


def check_vocabulary(policy: Tokenizer, teacher: Tokenizer) -> None:
    """Raise ConfigError unless all of the policy's tokens have the same ids for the teacher."""
    theirs = teacher.get_vocab()
    other = [(token, n) for token, n in policy.get_vocab().items() if theirs.get(token) != n]
    if other:
        token, number = min(other, key=lambda one: one[1])
        raise ConfigError(
            f"{KEY}.model: its tokenizer is another: {token!r} is {theirs.get(token)}, and "
            f"{number} by the policy's; {len(other)} tokens differ; take a teacher of the policy's "
            "family"
        )


@asynccontextmanager
async def open_teacher(
    config: Config, policy: Policy, ranks: int = 1
) -> AsyncIterator[Teacher | None]:
    """Open the teacher of one of a run's ``ranks``; None without one. Raises UserError for one that
    cannot be used."""
    if not config.grpo.has_teacher:
        yield None
    elif config.grpo.teacher.base_urls:
        teacher = ServedTeacher(config.grpo.teacher.shared_by(ranks))
        try:
            await teacher.check(policy.tokenizer, config.policy.sequence_tokens)
            yield teacher
        finally:
            await teacher.aclose()
    else:
        yield LocalTeacher(await on_model_thread(_load, config, policy), config.grpo)


def _load(config: Config, policy: Policy) -> Policy:
    """Load the teacher as a policy whose adapter changes nothing."""
    name, lora = config.grpo.teacher.model, config.policy.lora
    assert name is not None
    lora = LoraSection(rank=1, alpha=1, target_modules=lora.target_modules)
    changes = {
        "train": "lora",
        "lora": lora,
        "gradient_checkpointing": False,
        "head_dtype": "float32",
    }
    section = config.policy.model_copy(update=changes | {"chat_template": None})
    model = load_policy(name, section, 0, policy.device, f"{KEY}.model")
    check_vocabulary(policy.tokenizer, model.tokenizer)
    rows, needed = (one.causal_lm.config.vocab_size for one in (model, policy))
    if rows < needed:
        raise ConfigError(
            f"{KEY}.model: it has {rows} token ids, and the policy {needed}; take one with as many"
        )
    check_sharing(model, config.grpo)
    return model


async def check_teacher(config: Config, tokenizer: Tokenizer | None) -> str:
    """Check the teacher for a dry run, and return a line on it. Raises UserError."""
    section = config.grpo.teacher
    assert section.model is not None
    form = f"weight {section.weight:g}"
    form += f", reward {section.reward_weight:g}" if config.grpo.needs_rewards else ", no reward"
    if section.base_urls:
        teacher = ServedTeacher(section)
        try:
            await teacher.check(tokenizer, config.policy.sequence_tokens)
        finally:
            await teacher.aclose()
        return f"{section.model} at {', '.join(section.base_urls)}, {form}"
    try:
        theirs = load_tokenizer(section.model, None, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{KEY}.model: {section.model} is not at hand: {error}") from error
    if tokenizer is not None:
        check_vocabulary(tokenizer, theirs)
    return f"{section.model}, loaded beside the policy (not in the memory above), {form}"
