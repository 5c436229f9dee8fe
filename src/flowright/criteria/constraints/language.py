"""Sentences, words, parts of speech and the language of a text, by the benchmarks' own packages.

They are optional (requirements-constraints.txt); nothing is downloaded.
"""

import importlib
import importlib.util
import string
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType
from typing import Any

from flowright.core.errors import DataError

INSTALL = "pip install --no-deps -r requirements-constraints.txt"
_DATA_IN = ("llama-index-core", "llama_index/core/_static/nltk_cache")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_KEPT = 64  # texts; several checkers ask about those of one answer
_CERTAIN = 0.9999


class NoTagger(DataError):
    """NLTK's tagger is not there. No package has it, so the other checkers do without."""


MARKS = string.punctuation
"""ASCII's 32 punctuation marks."""


def without_punctuation(text: str) -> str:
    """Less every mark of ASCII, those within words included."""
    return text.translate(_PUNCTUATION)


@lru_cache(maxsize=_KEPT)
def sentences(text: str) -> tuple[str, ...]:
    """Split by Punkt's English model (Kiss and Strunk 2006), as ``nltk.sent_tokenize``."""
    return tuple(_punkt().tokenize(text))


def tokens(text: str) -> list[str]:
    """Split each sentence as ``nltk.word_tokenize``: words, and marks apart from them."""
    tokenizer = _word_tokenizer()
    return [token for sentence in sentences(text) for token in tokenizer.tokenize(sentence)]


def word_tokens(text: str) -> list[str]:
    """:func:`tokens` that have a letter or digit in them."""
    return [token for token in tokens(text) if any(map(str.isalnum, token))]


@dataclass(frozen=True, slots=True)
class Detected:
    """Code of a text's language, None for a text without letters; ``certain`` if another seed would
    hardly find another."""

    language: str | None
    certain: bool


def detect(text: str, seed: int = 0) -> Detected:
    """Detect the language as ``langdetect.detect`` (S. Nakatani 2010) with a seed.

    Upstream draws without one, so that the same text may be English now and German then. A draw
    matters for a text that is short, or all in capitals, which the language profiles hardly know.
    Where seed 0 is certain, no other is tried.
    """
    first = _detect(text, 0)
    return first if seed == 0 or first.certain else _detect(text, seed)


@lru_cache(maxsize=4 * _KEPT)
def _detect(text: str, seed: int) -> Detected:
    detector = _detector_factory().create()
    detector.seed = seed
    detector.append(text)
    try:
        found = detector.get_probabilities()
    except optional_package("langdetect.lang_detect_exception").LangDetectException:
        return Detected(None, True)  # no letters
    if not found:
        return Detected("unknown", False)
    return Detected(found[0].lang, found[0].prob > _CERTAIN)


@cache
def _detector_factory() -> Any:
    """Load the language profiles in the order of their names; the package takes the disk's."""
    package = optional_package("langdetect.detector_factory")
    factory = package.DetectorFactory()
    folder = Path(package.PROFILES_DIRECTORY)
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    factory.load_json_profile([(folder / name).read_text(encoding="utf-8") for name in names])
    return factory


def part_of_speech(words: Iterable[str]) -> str:
    """The Penn Treebank tag of the first word, as ``nltk.pos_tag``. Later words have a say by the
    next two, no more. Raises NoTagger."""
    try:
        _data("taggers/averaged_perceptron_tagger_eng")
    except DataError:
        raise NoTagger(
            "NLTK's tagger is missing: python -m nltk.downloader averaged_perceptron_tagger_eng"
        ) from None
    seen = list(words)[:3]
    return optional_package("nltk").pos_tag(seen)[0][1] if seen else ""


@cache
def stop_words() -> frozenset[str]:
    """NLTK's English list."""
    return frozenset(_data("corpora/stopwords/english").read_text(encoding="utf-8").split())


def is_emoji(character: str) -> bool:
    return optional_package("emoji").is_emoji(character)


def syllables(word: str) -> int:
    return optional_package("syllapy").count(word)


def missing() -> list[str]:
    """List the packages and data to install before every checker can be made."""
    lacking = [name for name in ("nltk", "langdetect", "emoji", "syllapy") if not _installed(name)]
    for what in ("tokenizers/punkt_tab/english", "corpora/stopwords/english"):
        try:
            _data(what)
        except DataError:
            lacking.append(f"NLTK's {what}")
    return lacking


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def optional_package(name: str) -> ModuleType:
    """Raises DataError where it is not installed."""
    if not _installed(name.partition(".")[0]):
        raise DataError(f"the package {name.partition('.')[0]} is missing: {INSTALL}")
    return importlib.import_module(name)


@cache
def _data(name: str) -> Path:
    """NLTK's data, out of where it is installed: in NLTK's own folders, or in a package that has
    it. Raises DataError."""
    folders = (
        [Path(folder) for folder in optional_package("nltk.data").path]
        if _installed("nltk")
        else []
    )
    package, within = _DATA_IN
    with suppress(PackageNotFoundError):
        folders.append(Path(str(distribution(package).locate_file(within))))
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    kind = name.split("/")[1]
    raise DataError(f"NLTK's {name} is missing: {INSTALL}, or python -m nltk.downloader {kind}")


@cache
def _punkt() -> Any:
    """Read here, and not by NLTK, which opens what lies in its own folders alone."""
    punkt = optional_package("nltk.tokenize.punkt")
    folder = _data("tokenizers/punkt_tab/english")

    def lines(name: str) -> list[str]:
        return [s for line in (folder / name).read_text("utf-8").split("\n") if (s := line.strip())]

    tokenizer = punkt.PunktSentenceTokenizer()
    model = punkt.PunktParameters()
    model.abbrev_types = set(lines("abbrev_types.txt"))
    model.sent_starters = set(lines("sent_starters.txt"))
    model.collocations = {tuple(line.split("\t")) for line in lines("collocations.tab")}
    for line in lines("ortho_context.tab"):
        word, _, context = line.rpartition("\t")
        model.ortho_context[word] = int(context)
    tokenizer._params = model
    return tokenizer


@cache
def _word_tokenizer() -> Any:
    return optional_package("nltk.tokenize.destructive").NLTKWordTokenizer()
