"""Suites: the problems that a paper trains and measures on, ``suites.yaml``."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from flowright.data.build import Counts, Mixed, build_mixture
from flowright.data.sources.dataset import SPLITS, Mode, Source
from flowright.data.sources.registry import AFLOW, load_dataset


@dataclass(frozen=True, slots=True)
class Suite:
    """The most problems of each dataset in each split, from the splits of ``mode``."""

    mode: Mode
    counts: Counts

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for part in self.counts.values() for name in part))

    @property
    def sources(self) -> list[Source]:
        """Sources to download."""
        return [AFLOW] if self.mode == "aflow" else [load_dataset(name) for name in self.names]


SUITES: Mapping[str, Suite] = {
    name: Suite(entry["mode"], {split: entry.get(split, {}) for split in SPLITS})
    for name, entry in yaml.safe_load(
        Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    ).items()
}


def build_suite(name: str, folder: Path, seed: int) -> tuple[Mixed, list[str]]:
    """Mix a suite from the upstream files in ``folder``, and name what it lacks, a line each.
    Raises DataError as :func:`~flowright.data.build.build_mixture` does."""
    suite = SUITES[name]
    shares = dict.fromkeys(suite.names, 1.0)
    mixed, warnings = build_mixture(folder, suite.mode, {}, seed, shares, suite.counts)
    for split, wanted in suite.counts.items():
        found = Counter(problem.source for problem in getattr(mixed.splits, split))
        warnings += [
            f"{name}: {found[source]} of {count} {split} problems of {source}"
            for source, count in wanted.items()
            if found[source] < count
        ]
    return Mixed(mixed.splits, {**mixed.facts, "shares": None, "suite": name}), warnings
