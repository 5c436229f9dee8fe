"""The language of a text, as langdetect tells it (S. Nakatani 2010), with a seed.

Upstream draws without one, so that the same text may be English now and German then. A draw matters
where a text is short, or all in capitals, which the language profiles hardly know.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from flowright.constraints.language import optional_package

_CERTAIN = 0.9999
_KEPT = 256


@dataclass(frozen=True, slots=True)
class Detected:
    """A language's code, None where the text has no letters to tell it by; and whether another
    seed may say another."""

    language: str | None
    certain: bool


def detect(text: str, seed: int = 0) -> Detected:
    """As ``langdetect.detect`` after ``DetectorFactory.seed = seed``; where seed 0 is certain, no
    other is asked."""
    first = _detect(text, 0)
    return first if seed == 0 or first.certain else _detect(text, seed)


@lru_cache(maxsize=_KEPT)
def _detect(text: str, seed: int) -> Detected:
    factory, failure = _factory()
    detector = factory.create()
    detector.seed = seed
    detector.append(text)
    try:
        found = detector.get_probabilities()
    except failure:
        return Detected(None, True)
    if not found:
        return Detected("unknown", False)
    return Detected(found[0].lang, found[0].prob > _CERTAIN)


@cache
def _factory() -> tuple[Any, type[Exception]]:
    module = optional_package("langdetect.detector_factory")
    folder = Path(module.PROFILES_DIRECTORY)
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    factory = module.DetectorFactory()
    factory.load_json_profile([(folder / n).read_text(encoding="utf-8") for n in names])
    return factory, optional_package("langdetect.lang_detect_exception").LangDetectException
