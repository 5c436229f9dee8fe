"""A control for ``grpo.advantage_scale``: every advantage goes to a random one of those that were
compared, so that its size is right and its attempt or turn is not."""

import random
from collections.abc import Sequence

from flowright.grpo.advantages import by_group


def shuffled(rewards: Sequence[Sequence[float]]) -> list[list[float]]:
    rng = random.Random(str(rewards))
    return [rng.sample(values, len(values)) for values in by_group(rewards)]
