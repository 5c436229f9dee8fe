"""What a rollout's record keeps of its tokens, where ``run.keep_logprobs`` asks for it: each with
its log-probability by what sampled it and, where it took part in the update, by the learner before
that. Their ratio is the reader's to compute.
"""

import math
from collections.abc import Sequence
from typing import Any

from flowright.policy.sampler import Sample
from flowright.policy.token_texts import TokenTexts

TOKENS = "token_logprobs"
DIGITS = 4


def token_record(sample: Sample, texts: TokenTexts | None) -> dict[str, Any]:
    """The field, without the learner's part; nothing where there are no ``texts``."""
    if texts is None:
        return {}
    return {
        TOKENS: {
            "ids": list(sample.token_ids),
            "texts": texts.of(sample.token_ids, sample.text),
            "sampler": rounded(sample.logprobs),
            "learner": None,
        }
    }


def rounded(logprobs_T: Sequence[float]) -> list[float | None]:
    """As they are kept. What is not finite, after an update that broke the policy, is None."""
    return [round(value, DIGITS) + 0.0 if math.isfinite(value) else None for value in logprobs_T]
