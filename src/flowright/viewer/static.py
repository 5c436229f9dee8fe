"""A folder of pages that can be opened and sent around without a server: the runs, each run, a
selection of its attempts, and the pages of these attempts and their groups.
"""

from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl

from flowright.core.errors import RunError
from flowright.runs import check_writable, write_text
from flowright.viewer.attempt_page import attempt_body
from flowright.viewer.attempts_page import attempts_table
from flowright.viewer.facts import safe
from flowright.viewer.filters import Filter, joined
from flowright.viewer.finding import Attempt
from flowright.viewer.group_page import group_body
from flowright.viewer.notes import notes_of
from flowright.viewer.opened import OpenedRun, Shelf, group_of
from flowright.viewer.rendering.markup import el
from flowright.viewer.run_page import run_body
from flowright.viewer.runs_page import runs_body
from flowright.viewer.shell import Links, document, page_file


def export_pages(root: Path, folder: Path, select: str, most: int) -> int:
    """Write the pages of the runs below ``root``, with at most so many attempts of each, chosen by
    the query of an address; returns how many pages there are. Raises RunError where the folder
    holds something already, where there is no run, and for a query that cannot be read."""
    shelf, chosen = Shelf(root), Filter.read(joined(parse_qsl(select, keep_blank_values=True)))
    if chosen.problems:
        raise RunError(*chosen.problems)
    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder}: not empty; name another folder")
    runs = shelf.runs()
    if not runs:
        raise RunError(f"{shelf.root}: no run here")
    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"index.html": ""}
    held = frozenset(page_file(run.name, "") for run in runs)
    for run in runs:
        parts = shelf.parts(run)
        for one in parts:
            one.update()
        shown = frozenset(page_file(one.name, "attempts") for one in parts)
        links = Links(exported=True, held=shown | {page_file(run.name, "")}, parts=shelf.links(run))
        for one in parts:
            made = _run_pages(one, chosen, most, links)
            if both := sorted(pages.keys() & made.keys()):
                raise RunError(f"{both[0]}: two runs have a page of this name; rename {one.path}")
            pages |= made
    body = runs_body(runs, Links(exported=True, held=held))
    pages["index.html"] = document("Runs", body, Links(exported=True, held=held), "runs")
    for name, page in pages.items():
        write_text(folder / name, safe(page))
    return len(pages)


def _run_pages(run: OpenedRun, chosen: Filter, most: int, shared: Links) -> dict[str, str]:
    """Those of a run, or of a part of it, which has no first page of its own."""
    with run.found() as found:
        attempts = list(found.each(chosen, most))
        groups = {(a.step, a.group): group_of(found, a.step, a.group) for a in attempts}
        every = {a.id: a for members in groups.values() for a in members}
        names = [f"group/{step}/{group}" for step, group in groups]
        names += [f"attempt/{attempt.place}" for attempt in every.values()]
        held = shared.held | {page_file(run.name, name) for name in names}
        links = replace(shared, run=run.name, held=held)
        notes = notes_of(run)
        snapshot = run.snapshot()

        def page(name: str, title: str, body: object, here: str) -> None:
            assert isinstance(body, str)
            shown = document(f"{title} - {run.name}", body, links, here, notes)
            pages[page_file(run.name, name)] = shown

        pages: dict[str, str] = {}
        if not run.part:
            page("", "Run", run_body(found, snapshot, links), "run")
        count, more = found.count(chosen)
        told = f"{len(attempts):,} of {count:,}{' or more' if more else ''} attempts"
        table = attempts_table(found, attempts, links, chosen, told)
        page("attempts", "Attempts", el("div", el("h1", "Attempts"), table), "attempts")
        records = {a.id: run.record(a) for a in every.values()}
        for attempt in every.values():
            beside = _beside(attempts, attempt)
            body = attempt_body(records[attempt.id], attempt, run, links, chosen, beside)
            page(f"attempt/{attempt.place}", f"Attempt {attempt.place}", body, "attempt")
        for (step, group), members in groups.items():
            body = group_body(found, members, [records[a.id] for a in members], links)
            page(f"group/{step}/{group}", f"Group {step}/{group}", body, "group")
        return pages


def _beside(order: list[Attempt], attempt: Attempt) -> tuple[Attempt | None, Attempt | None]:
    places = [n for n, other in enumerate(order) if other.id == attempt.id]
    if not places:
        return None, None
    at = places[0]
    return (order[at - 1] if at else None), (order[at + 1] if at + 1 < len(order) else None)
