"""How far off the difference of two policies on the same problems may be, by problems and samples.

    python benchmarks/evaluation_size.py

Each policy is right on a problem with a chance of its own. Between problems the difference of the
two chances has a standard deviation ("moved"), within a problem each attempt is a toss: over N
problems of m attempts the half width at 95 % is 1.96 sqrt((moved^2 + noise/m) / N), where noise is
the mean of p(1-p) of both. With m = 1 that is 1.96 sqrt(discordance / N), but for the square of the
difference. Beside it what the bootstrap over problems finds on attempts that were drawn
(flowright.core.statistics). Half a minute on one core.
"""

import math

import numpy as np

from flowright.core.statistics import DIFFERENCE, bootstrap

TRIALS = 20
GAIN = 0.05
"""Of the trained policy, in the mean."""


def chances(problems: int, moved: float, draw: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Of being right, before and after: most problems are near 0 or 1, a mean of 0.6."""
    before = draw.beta(0.9, 0.6, problems)
    after = np.clip(before + draw.normal(GAIN, moved, problems), 0.0, 1.0)
    return before, after


def half_width(problems: int, samples: int, moved: float) -> tuple[float, float, float]:
    """Discordance of single attempts, the half width by the formula, and by the bootstrap."""
    draw = np.random.default_rng(0)
    before, after = chances(100_000, moved, draw)
    discordance = float((before * (1 - after) + after * (1 - before)).mean())
    noise = float((before * (1 - before) + after * (1 - after)).mean())
    spread = float((after - before).var())
    expected = 1.96 * math.sqrt((spread + noise / samples) / problems)
    widths = []
    for _ in range(TRIALS):
        pair = chances(problems, moved, draw)
        shares = [draw.binomial(samples, each) / samples for each in pair]
        _, low, high = bootstrap([[value] for value in shares[1] - shares[0]], DIFFERENCE)
        assert low is not None and high is not None
        widths.append((high - low) / 2)
    return discordance, expected, float(np.mean(widths))


def main() -> None:
    print("problems  samples  moved  discordance   by the formula   by the bootstrap")
    for problems, samples in ((150, 1), (300, 1), (300, 2), (300, 4), (300, 8), (1200, 1)):
        for moved in (0.1, 0.2, 0.3):
            p, expected, found = half_width(problems, samples, moved)
            print(
                f"{problems:8} {samples:8} {moved:6.1f} {p:12.2f}"
                f" {100 * expected:16.1f} {100 * found:16.1f}"
            )


if __name__ == "__main__":
    main()
