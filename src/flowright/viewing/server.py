"""The viewer over HTTP: pages made from a run's files and its index. It only reads, but for the
index. Loopback is the default; whoever serves it elsewhere serves the runs to all who reach it.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from flowright.errors import UserError
from flowright.rendering.markup import Child, el
from flowright.simulation.process import listen, quiet_server
from flowright.viewing.attempt_page import attempt_body
from flowright.viewing.attempts_page import attempts_body
from flowright.viewing.filters import Filter
from flowright.viewing.opened import OpenedRun, Refresher, Shelf, attempt_at
from flowright.viewing.shell import Links, document, policy

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def create_app(shelf: Shelf, hosts: Sequence[str] = LOOPBACK) -> Starlette:
    """The viewer of some runs. ``hosts``: names that it answers to, so that no page of another site
    can read it by a name of its own."""
    routes = [
        Route("/run/{run}/attempts", _page(shelf, _attempts)),
        Route("/run/{run}/attempt/{step:int}/{group:int}/{index:int}", _page(shelf, _attempt)),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
        exception_handlers={HTTPException: _refused, UserError: _refused},
    )


Body = tuple[str, str, Child]
"""Which page it is, its title, and what is on it."""


def _page(
    shelf: Shelf, make: Callable[[Request, OpenedRun, Links], Body]
) -> Callable[[Request], Response]:
    """A page of a run as an endpoint; it runs on a thread, not on the loop."""

    def answer(request: Request) -> Response:
        run = shelf.run(request.path_params["run"])
        if run is None:
            raise HTTPException(404, "no run of this name")
        links = Links(run.name)
        here, title, body = make(request, run, links)
        return html(document(f"{title} - {run.name}", body, links, here, notes_of(run)))

    return answer


def notes_of(run: OpenedRun) -> Child:
    """What must be known before a number is believed."""
    snapshot = run.snapshot()
    told = ["SIMULATED: numbers of the embedded server"] if snapshot.simulated else []
    told += snapshot.warnings
    if snapshot.display.note:
        told.append(snapshot.display.note)
    if run.trouble:
        told.append(run.trouble)
    return el("div", el("div", "; ".join(told)), class_="strip") if told else None


def html(page: str, status: int = 200) -> HTMLResponse:
    """A page with the headers that fence it in."""
    headers = {**HEADERS, "Content-Security-Policy": policy()}
    return HTMLResponse(page.encode("utf-8", "replace"), status, headers)


def _refused(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    told = error.detail if isinstance(error, HTTPException) else str(error)
    body = el("div", el("h1", "Not found" if status == 404 else "Not possible"), el("p", told))
    return html(document("Not found", body, Links()), status)


def _query(request: Request) -> Mapping[str, str]:
    return dict(request.query_params)


def _attempts(request: Request, run: OpenedRun, links: Links) -> Body:
    chosen = Filter.read(_query(request))
    with run.found() as found:
        return "attempts", "Attempts", attempts_body(found, chosen, links, run.steps())


def _attempt(request: Request, run: OpenedRun, links: Links) -> Body:
    step, group, index = (int(request.path_params[name]) for name in ("step", "group", "index"))
    chosen = Filter.read(_query(request))
    with run.found() as found:
        attempt = attempt_at(found, step, group, index)
        if attempt is None:
            raise HTTPException(404, f"no attempt {step}/{group}/{index} in the index (yet)")
        beside = found.beside(chosen, attempt)
    record = run.record(attempt)
    body = attempt_body(record, attempt, run.snapshot().display, links, chosen, beside)
    return "attempt", f"Attempt {attempt.place}", body


def serve(root: Path, host: str, port: int, say: Callable[[str], None]) -> int:
    """Serve until Ctrl-C or SIGTERM; returns the exit status. Raises UserError where the port is
    taken."""
    listener = listen(host, port)
    shelf = Shelf(root)
    refresher = Refresher(shelf)
    with contextlib.closing(listener):
        loopback = host in ("127.0.0.1", "::1", "localhost")
        app = create_app(shelf, LOOPBACK if loopback else ("*",))
        shown = f"[{host}]" if ":" in host else host
        say(f"http://{shown}:{listener.getsockname()[1]}/  (Ctrl-C ends it)")
        if not loopback:
            say("whoever reaches this address can read these runs; there is no key")
        refresher.start()
        try:
            uvicorn.Server(quiet_server(app)).run(sockets=[listener])
        finally:
            refresher.stop()
    return 0
