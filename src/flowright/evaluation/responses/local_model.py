"""A model in this process that answers prompts: the weights of a folder, nothing trained.

Prompts of similar length are decoded in one batch, and the samples of a prompt share it; finished
samples are replaced by the next.
"""

import asyncio
import random
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowright.config.policy import SMOLLM2, TINY, LoraSection, PolicySection, TinySection
from flowright.core.errors import ConfigError
from flowright.evaluation.responses.response_models import (
    Answer,
    DrawSettings,
    MissingAnswer,
    ReportSample,
    ResponseQuestion,
)
from flowright.policy.base_models import model_id, smollm2
from flowright.policy.local import LocalSampler
from flowright.policy.model import Policy, load_policy
from flowright.policy.model_thread import on_model_thread
from flowright.policy.packed import packed
from flowright.policy.sampling import Sample, Sampling, prompt_ids, template_ids

_PROBED = 24  # tokens of a prompt that both ways of decoding are compared on
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.5}  # nats; bfloat16 rounds each product


class LocalModel:
    """A loaded model. ``prompts`` are decoded at once, each with all its samples.

    A prompt without room for ``max_tokens`` within ``max_model_len`` (default: the model's own) has
    no answer: a truncated one would measure the limit instead.
    """

    def __init__(
        self,
        policy: Policy,
        settings: DrawSettings,
        prompts: int = 8,
        max_model_len: int | None = None,
        chat_template: bool = True,
    ) -> None:
        self._policy = policy
        self._settings = settings
        own = getattr(policy.causal_lm.config, "max_position_embeddings", None)
        self._window: int | None = max_model_len or own
        self._chat_template = chat_template
        rows = prompts * settings.samples
        self._sampler = LocalSampler(policy, rows, trained=False, sharing=can_share(policy))
        self.name = policy.name

    @property
    def about(self) -> Mapping[str, Any]:
        return {
            "model": self.name,
            "weights": model_id(self.name),
            "dtype": str(next(self._policy.model.parameters()).dtype).removeprefix("torch."),
            "chat_template": self._chat_template,
            "max_model_len": self._window,
        }

    async def ask(
        self, wanted: Mapping[ResponseQuestion, Sequence[int]], report: ReportSample
    ) -> None:
        """All samples of a question are drawn together; only the wanted ones are reported."""
        asked: list[tuple[ResponseQuestion, list[int]]] = []
        for question in wanted:
            ids = self._token_ids(question)
            if (why := self._no_room(len(ids))) is None:
                asked.append((question, ids))
            else:
                for number in wanted[question]:
                    report(question, number, MissingAnswer(why))
        asked.sort(key=lambda one: len(one[1]))
        await self._draw(asked, wanted, report)

    async def _draw(
        self,
        asked: Sequence[tuple[ResponseQuestion, list[int]]],
        wanted: Mapping[ResponseQuestion, Sequence[int]],
        report: ReportSample,
    ) -> None:
        settings = self._settings
        sampling = Sampling(
            settings.temperature, settings.top_p, settings.max_tokens, settings.seed, settings.top_k
        )

        def ended(place: int, number: int, sample: Sample) -> None:
            question = asked[place][0]
            if number in wanted[question]:
                answer = Answer(sample.text, sample.finish_reason, len(sample.token_ids))
                report(question, number, answer)

        cancelled = threading.Event()
        prompts = [ids for _, ids in asked]
        places = [question.place for question, _ in asked]
        drawing = asyncio.ensure_future(
            on_model_thread(
                self._sampler.draw, prompts, settings.samples, sampling, places, cancelled, ended
            )
        )
        try:
            await asyncio.shield(drawing)
        except asyncio.CancelledError:  # finished samples were reported
            cancelled.set()
            await asyncio.wait([drawing])
            raise

    def _token_ids(self, question: ResponseQuestion) -> list[int]:
        tokenizer = self._policy.tokenizer
        if self._chat_template:
            return template_ids(question.messages, tokenizer, to_answer=True)
        text = "\n\n".join(message.content for message in question.messages)
        return prompt_ids(text, tokenizer)

    def _no_room(self, tokens: int) -> str | None:
        if self._window is None or tokens + self._settings.max_tokens <= self._window:
            return None
        return (
            f"prompt too long: with --max-tokens {self._settings.max_tokens} it is above "
            f"--max-model-len {self._window}"
        )


def can_share(policy: Policy) -> bool:
    """Return True if decoding with shared prefixes is right for this model: all of its attention is
    full, and some tokens get the log-probabilities of the model's own attention. Otherwise answers
    are the same and take longer."""
    config = policy.causal_lm.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None):
        return False
    draw = random.Random(0)
    ids = [draw.randrange(config.vocab_size) for _ in range(_PROBED)]
    prompts = [[*ids, token] for token in ids[:2]]
    ours, its = (
        LocalSampler(policy, len(prompts), trained=False, sharing=sharing).draw(
            prompts, 1, Sampling(0.0, 1.0, 3, seed=0)
        )
        for sharing in (True, False)
    )
    tolerance = _TOLERANCE[str(policy.causal_lm.dtype).removeprefix("torch.")]
    for (one,), (other,) in zip(ours, its, strict=True):
        tokens = zip(one.token_ids, other.token_ids, one.logprobs, other.logprobs, strict=False)
        for token, its_token, logprob, its_logprob in tokens:
            if not abs(logprob - its_logprob) <= tolerance:
                return False
            if token != its_token:  # equally likely tokens; later ones cannot be compared
                break
    return True


def open_local(model: str, dtype: str | None) -> Policy:
    """Load the model of a folder, of the hub, or ``smollm2-135m``, to decode alone: on a CPU its
    weights are in blocks (:mod:`flowright.policy.packed`). ``dtype`` None is as for training.
    Raises UserError."""
    if model == TINY:
        raise ConfigError(
            f"--model {TINY}: the embedded policy writes workflows and is made by a run; give a "
            "folder, a name of the hub, or smollm2-135m"
        )
    if (Path(model) / "adapter_config.json").exists():
        raise ConfigError(
            f"--model {model}: an adapter; python scripts/export_model.py {model} --out FOLDER "
            "makes a whole model of it"
        )
    path = smollm2(TinySection().cache_dir) if model == SMOLLM2 else model
    # The adapter stays off, so its rank is nothing but memory.
    section = PolicySection.model_validate({"dtype": dtype, "lora": LoraSection(rank=1, alpha=1)})
    try:
        return packed(load_policy(path, section, seed=0))
    except ConfigError as error:
        problems = [problem.replace("strategy_model:", "--model:") for problem in error.problems]
        raise ConfigError(*problems) from error
