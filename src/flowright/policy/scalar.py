"""A score for a text: one row that is trained beside the adapter, read off the hidden state of the
text's last token. What scores are compared for is the objective's.

The model is transformers' AutoModelForSequenceClassification with one label, so that what is saved
loads there, in peft and in servers that know such models.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from flowright.core.errors import ConfigError

NAME = "score"
"""Of the row among the model's modules."""


@dataclass(frozen=True, slots=True)
class ScalarHead:
    """The trained row, in float32 whatever the model is in."""

    row: nn.Module

    def scores(self, hidden_S: Tensor) -> Tensor:
        """Float32 [S], of hidden states [S, hidden_size]."""
        return self.row(hidden_S.float())[:, 0]


def prepare_scalar(base: Any, tokenizer: PreTrainedTokenizerBase, fresh: bool) -> None:
    """Make a model's row ready for training. A ``fresh`` one is zero: untrained, every text has the
    same score, and no chance decides what is learned. Raises ConfigError for a model without one.
    """
    row = getattr(base, NAME, None)
    if not isinstance(row, nn.Linear) or row.out_features != 1:
        raise ConfigError(
            f"policy.head: {type(base).__name__} has no module `{NAME}` with one output; choose "
            "another strategy_model, such as Qwen or Llama"
        )
    row.float()
    if fresh:
        with torch.no_grad():
            row.weight.zero_()
    if base.config.pad_token_id is None:  # by which transformers finds a text's last token
        pad = tokenizer.pad_token_id
        base.config.pad_token_id = tokenizer.eos_token_id if pad is None else pad
