"""Pairs whose worse answer is a good one to another question: a judge that goes by how an answer
reads, and not by what was asked, is wrong about half of them. OffsetBias (arXiv 2407.06551) trains
judges on such pairs; there a model writes the other question, here it is one of the rows'.
"""

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from heapq import nlargest

from flowright.data.contamination import conversation_key, folded
from flowright.data.preferences import Pair, Rated

SOURCE = ", off topic"
"""Suffix of the source of such a pair."""

_NEAREST = 8  # questions, of which one is drawn
_SAME = 0.6  # of the words of both: the same answer may do for two such questions
_READ = 2000  # characters of a question
_COMMON = 0.05  # of the questions, at most
_MOST_COMMON = 500  # questions: a commoner word is little help, and costs most
_WORD = re.compile(r"\w+")

Row = Pair | Rated


def off_topic_pairs(rows: Sequence[Row], times: float, seed: int) -> list[Pair]:
    """Make pairs of rows with a better answer: that answer, and the better answer to one of the
    questions nearest to theirs by shared words. Each row makes ``times`` pairs, with different
    answers as far as there are some; 0.5 is every second row, drawn. In every second pair the worse
    answer is the longer one if such a question has one, so that length does not give it away. A row
    that shares no word with another makes none."""
    pairs = [_better_first(row) for row in rows if isinstance(row, Pair) and row.label != "tie"]
    if not times:
        return []
    known = [conversation_key(pair.conversation) for pair in pairs]
    asked = dict(zip(known, pairs, strict=True))
    nearest = _Nearest({key: pair.question for key, pair in asked.items()})
    rng = random.Random(f"{seed}/off topic")
    whole = int(times)
    once_more = {*rng.sample(range(len(pairs)), round((times - whole) * len(pairs)))}
    made = list[Pair]()
    for place, (key, pair) in enumerate(zip(known, pairs, strict=True)):
        wanted = whole + (place in once_more)
        near = nearest.of(key) if wanted else []
        answers = [asked[other].first for other in near if asked[other].first != pair.first]
        for number in range(1, min(wanted, len(answers)) + 1):
            longer = len(made) % 2 == 0
            fitting = [one for one in answers if (len(one) > len(pair.first)) == longer]
            answer = rng.choice(fitting or answers)
            answers.remove(answer)
            made.append(_off_topic(pair, answer, number))
    return made


def _better_first(pair: Pair) -> Pair:
    return pair.swapped() if pair.label == "second" else pair


def _off_topic(pair: Pair, answer: str, number: int) -> Pair:
    return replace(
        pair,
        id=f"{pair.id}{SOURCE} {number}",
        source=f"{pair.source}{SOURCE}",
        second=answer,
        strength=None,
        votes=(),
    )


class _Nearest:
    """Questions by shared words, each word weighed by its rarity."""

    def __init__(self, questions: dict[str, str]) -> None:
        self._words = {key: _words(text) for key, text in questions.items()}
        counted = Counter(word for words in self._words.values() for word in words)
        most = min(max(2, _COMMON * len(questions)), _MOST_COMMON)
        self._weight = {
            word: math.log(len(questions) / number)
            for word, number in counted.items()
            if 1 < number <= most
        }
        self._having = defaultdict[str, list[str]](list)
        for key, words in self._words.items():
            for word in words & self._weight.keys():
                self._having[word].append(key)

    def of(self, key: str) -> list[str]:
        """The keys of up to eight questions nearest to this one, those left out that are nearly the
        same; the nearest first."""
        shared = defaultdict[str, float](float)
        for word in sorted(self._words[key] & self._weight.keys()):
            for other in self._having[word]:
                shared[other] += self._weight[word]
        shared.pop(key, None)
        own = self._words[key]
        apart = [
            other
            for other in nlargest(4 * _NEAREST, shared, key=shared.__getitem__)
            if len(own & self._words[other]) < _SAME * len(own | self._words[other])
        ]
        return apart[:_NEAREST]


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(folded(text[:_READ])))
