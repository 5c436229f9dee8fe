"""The viewer over HTTP, and its pages in a folder: made from a run's files and its index. It writes
nothing but the index. Loopback is the default; any other address opens the runs to everybody who
can reach it.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from flowright.core.errors import RunError, UserError
from flowright.core.files import check_writable, write_text
from flowright.core.net import LOOPBACK, allowed_hosts, is_loopback, listen, quiet_server, url_of
from flowright.viewer.attempt_page import attempt_body
from flowright.viewer.attempts_page import (
    attempts_body,
    attempts_table,
    group_body,
    problem_body,
)
from flowright.viewer.exports import inspect_log, jsonl, parquet
from flowright.viewer.layout import Links, notes_of, page_file, policy, viewer_page
from flowright.viewer.rendering.markup import Child, el, join
from flowright.viewer.rollout_records import escape_surrogates, step_files
from flowright.viewer.run_list import Refresher, RunList, ViewedRun
from flowright.viewer.runs_page import Side, compare_body, run_body, runs_body
from flowright.viewer.selection import Filter, Range, merge_query

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def create_app(run_list: RunList, hosts: Sequence[str] = LOOPBACK) -> Starlette:
    """Build the viewer of some runs. ``hosts``: accepted host names, so that no page of another
    site can read it by a name of its own."""

    def runs(request: Request) -> Response:
        body = runs_body(run_list.runs(), Links(), request.query_params.get("against", ""))
        return html(viewer_page("Runs", body, Links(), "runs"))

    routes = [
        Route("/", runs),
        Route("/compare", lambda request: _compare(request, run_list)),
        Route("/run/{run}/export.{form}", lambda request: _exported(request, run_list)),
        Route("/run/{run}/{page:path}", lambda request: _page(request, run_list)),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
        exception_handlers={HTTPException: _refused, UserError: _refused, Exception: _broken},
    )


def _page(request: Request, run_list: RunList) -> Response:
    """A page of a run."""
    run = run_list.run(request.path_params["run"])
    if run is None:
        raise HTTPException(404, "no run of this name")
    links = Links(run.name, parts=run_list.links(run))
    return html(run_page(run, links, request.path_params["page"], _query(request)))


def run_page(run: ViewedRun, links: Links, page: str, query: Mapping[str, str]) -> str:
    """Render a page of a run by its address (:meth:`Links.of_run`). Raises HTTPException where
    there is none."""
    name, *numbers = page.split("/")
    if name not in NUMBERS or len(numbers) != NUMBERS[name]:
        raise HTTPException(404)
    if not all(re.fullmatch(r"[0-9]{1,18}", text) for text in numbers):
        raise HTTPException(404, "an attempt is STEP/GROUP/INDEX, such as 30/2/5")
    place, chosen = [*map(int, numbers)], Filter.read(query)
    name = "attempts" if run.part and not name else name
    title = f"{name.capitalize()} {'/'.join(map(str, place))}".strip()
    missing = page.replace("/", " ", 1)
    body: Child = None
    with run.found() as found:
        match name:
            case "":
                title, body = "Run", run_body(found, run.snapshot(), links)
            case "attempts":
                body = attempts_body(found, chosen, links, run.steps())
            case "attempt":
                if attempt := found.at(*place):
                    beside = found.beside(chosen, attempt)
                    body = attempt_body(run.record(attempt), attempt, run, links, chosen, beside)
            case "group":
                if attempts := found.group(*place):
                    body = group_body(attempts, [run.record(each) for each in attempts], links)
            case "problem":
                task = query.get("task", "")
                title, missing = "A problem over time", f"attempt at a problem {task[:80]!r}"
                body = problem_body(found, task, links, run.record)
    if body is None:
        raise HTTPException(404, f"no {missing} in the index (yet)")
    return viewer_page(f"{title} - {run.name}", body, links, name or "run", notes_of(run))


NUMBERS = {"": 0, "attempts": 0, "problem": 0, "group": 2, "attempt": 3}
"""Pages of a run, and the numbers in their addresses."""


def html(page: str, status: int = 200) -> HTMLResponse:
    """A page with the headers that fence it in."""
    headers = {**HEADERS, "Content-Security-Policy": policy()}
    return HTMLResponse(page.encode("utf-8", "replace"), status, headers)


def _refused(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    message = error.detail if isinstance(error, HTTPException) else str(error)
    return _message("Not found" if status == 404 else "Not possible", message, status)


def _broken(_: Request, error: Exception) -> Response:
    message = (
        "A file of this run holds something that this page does not expect "
        f"({type(error).__name__}); the terminal has the place. Other pages are not concerned."
    )
    return _message("Not shown", message, 500)


def _message(title: str, message: str, status: int) -> Response:
    body = el("div", el("h1", title), el("p", message))
    return html(viewer_page(title, body, Links()), status)


def _query(request: Request) -> Mapping[str, str]:
    return merge_query(request.query_params.multi_items())


def _compare(request: Request, run_list: RunList) -> Response:
    """Two runs or more; of a single one its first against its last steps."""
    names = list(dict.fromkeys(request.query_params.getlist("run")))
    runs = [run for name in names if (run := run_list.run(name)) is not None]
    if not runs or len(runs) < len(names):
        raise HTTPException(404, "mark two or more runs to compare them")
    steps = [request.query_params.get(f"steps{n}", "").strip() for n in (1, 2)]
    problems = [
        f"steps: {text[:60]!r} is no range" for text in steps if text and not Range.read(text)
    ]
    steps = [text if text and Range.read(text) else "" for text in steps]
    if len(runs) == 1:
        runs *= 2
        if not any(steps):
            steps = list(halves(runs[0]))
    chosen = [*steps, *[""] * (len(runs) - 2)]
    sides = [Side(run, run.snapshot(), steps) for run, steps in zip(runs, chosen, strict=True)]
    notes = join(dict.fromkeys(strip for run in runs for strip in notes_of(run)))
    return html(viewer_page("Compared", compare_body(sides, problems), Links(), "runs", notes))


def halves(run: ViewedRun) -> tuple[str, str]:
    """The first and the second half of a run's steps, as ranges."""
    steps = [file.step for file in step_files(run.folder)]
    if len(steps) < 2:
        return "", ""
    middle = len(steps) // 2
    return f"{steps[0]}..{steps[middle - 1]}", f"{steps[middle]}..{steps[-1]}"


FORMS: Mapping[str, tuple[str, Callable[[ViewedRun, Filter], bytes | Iterator[bytes]]]] = {
    "jsonl": ("application/x-ndjson", jsonl),
    "parquet": ("application/vnd.apache.parquet", parquet),
    "inspect.json": ("application/json", inspect_log),
}


def _exported(request: Request, run_list: RunList) -> Response:
    """A selection as a file."""
    run, form = run_list.run(request.path_params["run"]), request.path_params["form"]
    if run is None or form not in FORMS:
        raise HTTPException(404, "no such run or form")
    name = f"{''.join(c if c.isalnum() or c in '-_.' else '_' for c in run.name)}.{form}"
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{ascii(name)[1:-1]}"'}
    media_type, make = FORMS[form]
    content = make(run, Filter.read(_query(request)))
    if isinstance(content, bytes):
        return Response(content, 200, headers, media_type)
    return StreamingResponse(content, 200, headers, media_type)


def export_pages(root: Path, folder: Path, select: str, most: int) -> int:
    """Write the pages of the runs below ``root`` into a folder that needs no server: the runs, each
    run, at most ``most`` of its attempts as chosen by the query of an address, and their groups.

    Returns the number of pages. Raises RunError where the folder holds something already, where
    there is no run, and for a query that cannot be read."""
    run_list, query = RunList(root), merge_query(parse_qsl(select, keep_blank_values=True))
    if problems := Filter.read(query).problems:
        raise RunError(*problems)
    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder}: not empty; name another folder")
    runs = run_list.runs()
    if not runs:
        raise RunError(f"{root}: no run here")
    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"index.html": ""}
    for run in runs:
        parts = run_list.parts(run)
        for one in parts:
            one.update()
        names = [page_file(run.name, ""), *(page_file(one.name, "attempts") for one in parts)]
        links = Links(exported=True, held=frozenset(names), parts=run_list.links(run))
        for one in parts:
            made = _run_pages(one, query, most, links)
            if both := sorted(pages.keys() & made.keys()):
                raise RunError(f"{both[0]}: two runs have a page of this name; rename {one.path}")
            pages |= made
    links = Links(exported=True, held=frozenset(page_file(run.name, "") for run in runs))
    pages["index.html"] = viewer_page("Runs", runs_body(runs, links), links, "runs")
    for name, page in pages.items():
        write_text(folder / name, escape_surrogates(page))
    return len(pages)


def _run_pages(
    run: ViewedRun, query: Mapping[str, str], most: int, shared: Links
) -> dict[str, str]:
    """The pages of a run, or of a part of it, which has no first page of its own."""
    chosen = Filter.read(query)
    with run.found() as found:
        attempts = list(found.each(chosen, most))
        groups = dict.fromkeys((attempt.step, attempt.group) for attempt in attempts)
        members = [attempt for group in groups for attempt in found.group(*group)]
        count, more = found.count(chosen)
    names = ["", *(f"group/{step}/{group}" for step, group in groups)]
    names += [f"attempt/{attempt.place}" for attempt in members]
    held = shared.held | {page_file(run.name, name) for name in names}
    links = replace(shared, run=run.name, held=held)
    caption = f"{len(attempts):,} of {count:,}{' or more' if more else ''} attempts"
    table = attempts_table(attempts, links, chosen, caption)
    body, title = el("div", el("h1", "Attempts"), table), f"Attempts - {run.name}"
    pages = {"attempts": viewer_page(title, body, links, "attempts", notes_of(run))}
    pages |= {name: run_page(run, links, name, query) for name in names if name or not run.part}
    return {page_file(run.name, name): page for name, page in pages.items()}


def serve(root: Path, host: str, port: int, say: Callable[[str], None]) -> int:
    """Serve until Ctrl-C or SIGTERM; returns the exit status. Raises UserError where the port is
    taken."""
    run_list, listener = RunList(root), listen(host, port)
    refresher = Refresher(run_list)
    with contextlib.closing(listener):
        say(f"{url_of(host, listener.getsockname()[1])}/  (Ctrl-C ends it)")
        if not is_loopback(host):
            say("anybody who can reach this address can read these runs; there is no key")
        refresher.start()
        try:
            app = create_app(run_list, allowed_hosts(host))
            uvicorn.Server(quiet_server(app)).run(sockets=[listener])
        finally:
            refresher.stop()
    return 0
