"""The viewer over HTTP: pages made from a run's files and its index. It writes nothing but the
index. Loopback is the default; any other address opens the runs to everybody who can reach it.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from flowright.core.errors import UserError
from flowright.core.net import LOOPBACK, allowed_hosts, is_loopback, listen, quiet_server, url_of
from flowright.viewer.attempt_page import attempt_body
from flowright.viewer.attempts_page import attempts_body
from flowright.viewer.exports import inspect_log, jsonl, parquet
from flowright.viewer.group_page import group_body, problem_body
from flowright.viewer.layout import Links, notes_of, policy, viewer_page
from flowright.viewer.rendering.markup import Child, el, join
from flowright.viewer.rollout_records import step_files
from flowright.viewer.run_list import Refresher, RunList, ViewedRun
from flowright.viewer.run_page import run_body
from flowright.viewer.runs_page import Side, compare_body, runs_body
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

    at = "{step}/{group}"
    routes = [
        Route("/", runs),
        Route("/compare", lambda request: _compare(request, run_list)),
        Route("/run/{run}/", _page(run_list, _run)),
        Route("/run/{run}/attempts", _page(run_list, _attempts)),
        Route(f"/run/{{run}}/attempt/{at}/{{index}}", _page(run_list, _attempt)),
        Route(f"/run/{{run}}/group/{at}", _page(run_list, _group)),
        Route("/run/{run}/problem", _page(run_list, _problem)),
        Route("/run/{run}/export.{form}", _exported(run_list)),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
        exception_handlers={HTTPException: _refused, UserError: _refused, Exception: _broken},
    )


Body = tuple[str, str, Child]
"""The name of a page, its title, and its content."""


def _page(
    run_list: RunList, make: Callable[[Request, ViewedRun, Links], Body]
) -> Callable[[Request], Response]:
    """A page of a run as an endpoint; it runs on a thread, not on the loop."""

    def answer(request: Request) -> Response:
        run = run_list.run(request.path_params["run"])
        if run is None:
            raise HTTPException(404, "no run of this name")
        links = Links(run.name, parts=run_list.links(run))
        here, title, body = make(request, run, links)
        return html(viewer_page(f"{title} - {run.name}", body, links, here, notes_of(run)))

    return answer


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


def _place(request: Request, *names: str) -> list[int]:
    """Numbers of an address."""
    texts = [request.path_params[name] for name in names]
    if not all(re.fullmatch(r"[0-9]{1,18}", text) for text in texts):
        raise HTTPException(404, "an attempt is STEP/GROUP/INDEX, such as 30/2/5")
    return [*map(int, texts)]


def _run(request: Request, run: ViewedRun, links: Links) -> Body:
    if run.part:
        return _attempts(request, run, links)
    with run.found() as found:
        return "run", "Run", run_body(found, run.snapshot(), links)


def _attempts(request: Request, run: ViewedRun, links: Links) -> Body:
    chosen = Filter.read(_query(request))
    with run.found() as found:
        return "attempts", "Attempts", attempts_body(found, chosen, links, run.steps())


def _attempt(request: Request, run: ViewedRun, links: Links) -> Body:
    step, group, index = _place(request, "step", "group", "index")
    chosen = Filter.read(_query(request))
    with run.found() as found:
        attempt = found.at(step, group, index)
        if attempt is None:
            raise HTTPException(404, f"no attempt {step}/{group}/{index} in the index (yet)")
        beside = found.beside(chosen, attempt)
    record = run.record(attempt)
    body = attempt_body(record, attempt, run, links, chosen, beside)
    return "attempt", f"Attempt {attempt.place}", body


def _group(request: Request, run: ViewedRun, links: Links) -> Body:
    step, group = _place(request, "step", "group")
    with run.found() as found:
        attempts = found.group(step, group)
        if not attempts:
            raise HTTPException(404, f"no group {step}/{group} in the index (yet)")
        records = [run.record(attempt) for attempt in attempts]
        return "group", f"Group {step}/{group}", group_body(found, attempts, records, links)


def _problem(request: Request, run: ViewedRun, links: Links) -> Body:
    task = request.query_params.get("task", "")
    with run.found() as found:
        body = problem_body(found, task, links, run.record)
    if body is None:
        raise HTTPException(404, f"no attempt at a problem {task[:80]!r} in the index (yet)")
    return "problem", "A problem over time", body


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


FORMS = {
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
    "inspect.json": "application/json",
}


def _exported(run_list: RunList) -> Callable[[Request], Response]:
    """A selection as a file."""

    def answer(request: Request) -> Response:
        run, form = run_list.run(request.path_params["run"]), request.path_params["form"]
        if run is None or form not in FORMS:
            raise HTTPException(404, "no such run or form")
        chosen = Filter.read(_query(request))
        name = f"{''.join(c if c.isalnum() or c in '-_.' else '_' for c in run.name)}.{form}"
        headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{ascii(name)[1:-1]}"'}
        if form == "jsonl":
            return StreamingResponse(_streamed(run, chosen), 200, headers, FORMS[form])
        make = parquet if form == "parquet" else inspect_log
        with run.found() as found:
            return Response(make(run, found, chosen), 200, headers, FORMS[form])

    return answer


def _streamed(run: ViewedRun, chosen: Filter) -> Iterator[bytes]:
    with run.found() as found:
        yield from jsonl(run, found, chosen)


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
