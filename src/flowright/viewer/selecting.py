"""A selection as SQL: what is asked of attempts, in the form that is quickest for this index."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flowright.viewer.facts import NONE, Combination
from flowright.viewer.filters import (
    AGAINST,
    MEASURES,
    NAMED,
    Filter,
    Range,
    several,
    step_ids,
    words_of,
)
from flowright.viewer.reading import Reading

_FEW_TASKS = 40  # problems whose attempts are fetched and sorted
_FEW = 20_000  # attempts that are fetched and sorted rather than looked for in the sort's order
_NEARLY_ALL = 0.8
"""Share of the attempts: of 300,000 a match costs 0.4 microseconds to fetch, and to ask an attempt
whether it matches two words 1.7 milliseconds, which grows with their number."""


@dataclass(frozen=True, slots=True)
class Where:
    """A selection as SQL. ``looked`` are conditions for whoever goes through attempts in an order,
    ``joined`` for whoever counts them, out of ``source``."""

    conditions: tuple[str, ...]
    values: tuple[object, ...]
    looked: tuple[str, ...] = ()
    look_values: tuple[object, ...] = ()
    source: str = "attempts a"
    joined: tuple[str, ...] = ()
    join_values: tuple[object, ...] = ()

    def sql(self, *more: str) -> str:
        told = [*self.conditions, *more]
        return f"WHERE {' AND '.join(told)}" if told else ""


def wheres(index: Reading, chosen: Filter) -> list[Where]:
    """The ways to be in a selection, as SQL: a search finds words in an attempt's own texts or
    in its problem. None where nothing can be in it."""
    plain = _plain(index, chosen.values)
    words = words_of(chosen.values.get("q", ""))
    if plain is None or words is None:
        return [plain] if plain is not None else []
    place = chosen.values.get("in")
    found: list[Where] = []
    if place != "problem":
        found.append(_in_texts(index, plain, f"{place} : ({words})" if place else words))
    if place in (None, "problem"):
        found.append(_in_problems(index, plain, words))
    return found


def _in_texts(index: Reading, plain: Where, words: str) -> Where:
    """All that match are fetched; where nearly all do, each attempt is asked in the order of the
    page instead, which ends soon. Counting goes through the matches."""
    most = max(_FEW, int(_NEARLY_ALL * index.progress(0).attempts))
    some = f"SELECT 1 FROM texts WHERE texts MATCH ? LIMIT {most + 1}"
    ((count,),) = index.rows(f"SELECT count(*) FROM ({some})", (words,)) or [(0,)]
    looked = "a.id IN (SELECT rowid FROM texts WHERE texts MATCH ?)"
    if count > most:
        looked = "EXISTS (SELECT 1 FROM texts WHERE texts MATCH ? AND rowid = a.id)"
    return replace(
        plain,
        looked=(looked,),
        look_values=(words,),
        source="texts CROSS JOIN attempts a ON a.id = texts.rowid",
        joined=("texts MATCH ?",),
        join_values=(words,),
    )


def _in_problems(index: Reading, plain: Where, words: str) -> Where:
    tasks = index.rows("SELECT rowid FROM problems WHERE problems MATCH ?", (words,))
    listed = ", ".join(str(number) for (number,) in tasks)
    condition = f"{'' if len(tasks) <= _FEW_TASKS else '+'}a.task IN ({listed})"
    return replace(plain, looked=(condition,), joined=(condition,))


def _plain(index: Reading, told: Mapping[str, str]) -> Where | None:
    """All of a selection but its search, None where nothing can be in it."""
    conditions: list[str] = []
    values: list[object] = []
    if "step" in told and (steps := Range.read(told["step"])):
        conditions.append("a.id >= ? AND a.id < ?")
        values += step_ids(steps)
    for name in MEASURES:
        if name in told and (wanted := Range.read(told[name])):
            found, limits = wanted.sql(f"+a.{name}")
            conditions += found
            values += limits
    if "task" in told:
        names = several(told["task"])
        marks = ", ".join("?" * len(names))
        conditions.append(f"a.task IN (SELECT id FROM tasks WHERE name IN ({marks}))")
        values += names
    for numbers, column in (
        (_chosen_combinations(index, told), "combination"),
        (_chosen_operators(index, told), "operators"),
    ):
        if numbers is None:
            continue
        if not numbers:
            return None
        few = column == "combination" and _attempts_of(index, numbers) <= _FEW
        listed = ", ".join(map(str, numbers))
        conditions.append(f"{'' if few else '+'}a.{column} IN ({listed})")
    return Where(tuple(conditions), tuple(values))


def _chosen_combinations(index: Reading, told: Mapping[str, str]) -> list[int] | None:
    """The combinations that a selection leaves, None where it asks nothing of them."""
    if not {*NAMED, "against", "repair"} & told.keys():
        return None
    return [n for n, found in index.combinations.items() if is_chosen(found, told)]


def _chosen_operators(index: Reading, told: Mapping[str, str]) -> list[int] | None:
    if "operator" not in told:
        return None
    wanted = {name.strip() for name in told["operator"].split(",")}
    return [n for n, names in index.operators.items() if wanted <= set(names.split(","))]


def _attempts_of(index: Reading, combinations: Sequence[int]) -> int:
    marks = ", ".join("?" * len(combinations))
    query = f"SELECT coalesce(sum(attempts), 0) FROM combinations WHERE id IN ({marks})"
    ((count,),) = index.rows(query, combinations) or [(0,)]
    return int(count)


def is_chosen(found: Combination, told: Mapping[str, str]) -> bool:
    """Whether attempts of this combination are in a selection, as far as that tells."""
    for name, column in NAMED.items():
        if name in told and getattr(found, column) not in several(told[name]):
            return False
    if "against" in told:
        pairs = [pair for name in several(told["against"]) for pair in AGAINST.get(name, ())]
        if (found.judge, found.gold) not in pairs:
            return False
    if "repair" in told:
        names = set() if found.repairs == NONE else set(found.repairs.split(","))
        wanted = {*several(told["repair"])}
        return bool(names & wanted or ("any" if names else "none") in wanted)
    return True
