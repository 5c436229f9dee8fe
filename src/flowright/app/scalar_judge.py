"""A judge that scores, from its folder: to be measured (scripts/evaluate_judge.py). It is loaded in
this process and asked one text after the other.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import torch

from flowright.config import PolicySection
from flowright.errors import ConfigError, DataError
from flowright.judge_benchmarks.contenders import Contender, Conversation
from flowright.judge_benchmarks.opening import Named, Opened
from flowright.judge_benchmarks.outcomes import Rating
from flowright.llm.chat import Message
from flowright.policy.model import Policy, load_policy
from flowright.policy.model_thread import on_model_thread
from flowright.policy.prompt import template_ids


class ScalarJudge(Contender):
    """Rates an answer by the score of the whole conversation, in the model's chat template. What
    the template refuses, such as a system message, has no rating."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.name = name
        self._policy = policy
        self._one_by_one = asyncio.Lock()

    async def rate(self, conversation: Conversation, answer: str, key: str) -> Rating:
        turns = [Message(turn.role, turn.content) for turn in conversation]
        try:
            whole = [*turns, Message("assistant", answer)]
            ids = template_ids(whole, self._policy.tokenizer, to_answer=False)
        except DataError as error:
            return Rating(None, "unreadable", str(error))
        async with self._one_by_one:
            return Rating(await on_model_thread(self._score, ids))

    def _score(self, ids: Sequence[int]) -> float:
        with torch.no_grad():
            hidden = self._policy.causal_lm.model(
                input_ids=torch.tensor([ids], device=self._policy.device), use_cache=False
            ).last_hidden_state[0]
            return float(self._policy.scalar.scores(hidden[-1:]))


def _architectures(folder: Path) -> list[str]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--judge {folder}: no model's config.json in it ({error})") from error
    return list(config.get("architectures") or ())


@asynccontextmanager
async def open_scalar_judge(named: Named) -> AsyncIterator[Opened]:
    """From a folder that transformers loads, such as scripts/export_model.py writes. Raises
    ConfigError where it cannot be loaded, and for a model that was not trained to score."""
    folder = Path(named.judge)
    architectures = _architectures(folder)
    if not any(name.endswith("ForSequenceClassification") for name in architectures):
        raise ConfigError(
            f"--judge {folder}: {', '.join(architectures) or 'no model'}, which scores nothing; "
            "export a judge that was trained with policy.head: score, or serve the model and name "
            "it in llm.file"
        )
    policy = load_policy(str(folder), PolicySection(head="score"), seed=0)
    yield Opened(ScalarJudge(folder.name, policy), 1, {"folder": folder.name}, [folder])
