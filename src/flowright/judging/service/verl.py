"""The functions of :mod:`flowright.judging.reward.verl`, for configurations of verl that name them by
this module."""

from flowright.judging.reward.verl import (
    compute_score as compute_score,
    compute_score_async as compute_score_async,
    compute_score_batch as compute_score_batch,
)
