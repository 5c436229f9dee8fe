"""Perplexity of a text that a policy does not train on, read without a chat template in independent
windows. Two such scores are compared in :mod:`flowright.evaluation.comparison`.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from flowright.config.grpo import GrpoSection
from flowright.config.loading import find_config
from flowright.config.root import Config
from flowright.core.errors import DataError
from flowright.data.row_files import Documents, read_documents
from flowright.grpo.batch import Group, Trained, score
from flowright.grpo.ranks import ONE, Ranks, interleaved
from flowright.policy.model import Policy
from flowright.policy.model_thread import on_model_thread

METRIC = "eval/perplexity"


@dataclass(frozen=True, slots=True)
class TokenWindow:
    """At least two token ids of the document with this number. The first is not predicted."""

    document: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TextScore:
    """``perplexity``: exp of the mean negative log-likelihood of a predicted token. Window by
    window: the negative log-likelihood in ``nats`` of its predicted ``tokens``, and its document's
    number."""

    perplexity: float
    nats: tuple[float, ...]
    tokens: tuple[int, ...]
    documents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HeldOutText:
    """A text's windows and the policy that reads them. ``notes``: lines on the part that is
    read."""

    policy: Policy
    section: GrpoSection
    windows: Sequence[TokenWindow]
    notes: Sequence[str]
    ranks: Ranks = ONE

    async def score(self, trained: bool = True) -> TextScore | None:
        """Score the text by the policy, or by its state before training. Called by all ranks, which
        share the windows. None where a weight is not finite."""
        shares = await self.ranks.all_gather(await on_model_thread(self._nats, trained))
        nats = interleaved(shares)
        counts = tuple(len(window.token_ids) - 1 for window in self.windows)
        mean = math.fsum(nats) / sum(counts)
        if not mean < math.log(1e300):
            return None
        documents = tuple(window.document for window in self.windows)
        return TextScore(math.exp(mean), tuple(nats), counts, documents)

    def _nats(self, trained: bool) -> list[float]:
        groups = [
            Group(window.token_ids[:1], [Trained(window.token_ids[1:], (), 0.0)])
            for window in self.ranks.mine(self.windows)
        ]
        if not trained:
            with self.policy.reference():
                found = score(self.policy, groups, self.section, temperature=1.0)
        else:
            found = score(self.policy, groups, self.section, temperature=1.0)
        return [-float(logprobs.double().sum()) for logprobs in found]


def open_text(config: Config, policy: Policy, ranks: Ranks = ONE) -> HeldOutText | None:
    """Read the text of the configuration, if it names one. Raises DataError.

    A window is at most as long as a prompt with its completion, and as the model's positions.
    """
    section = config.evaluation
    if section.text is None:
        return None
    positions = getattr(policy.causal_lm.config, "max_position_embeddings", None)
    longest = config.policy.max_prompt_tokens + config.policy.max_new_tokens
    longest = min(longest, positions or longest)
    documents = read_documents(find_config(section.text))
    windows, cut = windows_of(documents.texts, policy.tokenizer, longest, section.text_tokens)
    if not windows:
        raise DataError(f"evaluation.text: {section.text} has no two tokens in a row")
    notes = _notes(documents, windows, longest, section.text_tokens if cut else None)
    return HeldOutText(policy, config.grpo, windows, notes, ranks)


def windows_of(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, longest: int, most: int
) -> tuple[list[TokenWindow], bool]:
    """Cut the first ``most`` tokens of the texts into windows of at most ``longest``; return
    whether there are more, too. Each begins with the tokenizer's BOS token, where it has one."""
    marks = tokenizer.encode("")
    begin = tuple(i for i in marks[:1] if i == tokenizer.bos_token_id)
    size, left = longest - len(begin), most
    windows: list[TokenWindow] = []
    for number, text in enumerate(texts):
        if not left:
            return windows, True
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False, verbose=False)
        for start in range(0, min(len(ids), left), size):
            part = (*begin, *ids[start : min(start + size, left)])
            if len(part) > 1:
                windows.append(TokenWindow(number, part))
        if len(ids) > left:
            return windows, True
        left -= len(ids)
    return windows, False


def _notes(
    documents: Documents, windows: Sequence[TokenWindow], longest: int, most: int | None
) -> list[str]:
    predicted = sum(len(window.token_ids) - 1 for window in windows)
    read = len({window.document for window in windows})
    of = documents.counted if read == len(documents.texts) else f"{read:,} of {documents.counted}"
    cut = "" if most is None else f", cut after {most:,} tokens (evaluation.text_tokens)"
    line = (
        f"text      {documents.path}: {of}, {predicted:,} predicted tokens in {len(windows):,} "
        f"windows of at most {longest:,}{cut}"
    )
    return [line, *documents.left_out]


async def before_and_after(
    text: HeldOutText | None,
) -> tuple[TextScore | None, TextScore | None]:
    """Score the text by the policy before training, and by the policy now. Called by all ranks."""
    if text is None:
        return None, None
    return await text.score(trained=False), await text.score()


@dataclass(frozen=True, slots=True)
class TextValidation:
    """The metrics of ``validate`` and the perplexity of a text."""

    validate: Callable[[int], Awaitable[dict[str, float]]]
    text: HeldOutText

    async def __call__(self, step: int) -> dict[str, float]:
        metrics, found = await self.validate(step), await self.text.score()
        return metrics | ({} if found is None else {METRIC: found.perplexity})


def text_score_of(known: Mapping[str, Any]) -> TextScore:
    """Restore a score from the mapping that ``asdict`` made of it."""
    lists = {key: tuple(known[key]) for key in ("nats", "tokens", "documents")}
    return TextScore(known["perplexity"], **lists)
