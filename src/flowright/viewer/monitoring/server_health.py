"""The load of vLLM servers by their own /metrics, read on a thread of its own, so that a server
that does not answer holds up no screen.
"""

import re
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

SECONDS = 2.0  # of one request
PAUSE = 5.0
_MOST_BYTES = 1 << 22
_LINE = re.compile(r"^vllm:([a-z_]+)(?:\{[^\n]*\})? ([-+0-9.eE]+)$", re.MULTILINE | re.ASCII)
_CACHE = ("kv_cache_usage_perc", "gpu_cache_usage_perc")
"""The second is that of vLLM before version 0.11. Both are shares, despite their names."""


@dataclass(frozen=True, slots=True)
class Health:
    """A server's load, summed over its engines: running requests, waiting requests, and the fullest
    key-value cache as a share. ``trouble``: why it could not be read."""

    running: int | None = None
    waiting: int | None = None
    cache: float | None = None
    trouble: str = ""


def ask(url: str) -> Health:
    """Read the health of the server at a base URL, with or without ``/v1``."""
    address = url.rstrip("/").removesuffix("/v1") + "/metrics"
    try:
        with urllib.request.urlopen(address, timeout=SECONDS) as answer:
            return read_metrics_page(answer.read(_MOST_BYTES).decode("utf-8", "replace"))
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        return Health(trouble=str(reason) or type(error).__name__)


def read_metrics_page(text: str) -> Health:
    """Parse a page in Prometheus' text format."""
    found: dict[str, list[float]] = {}
    for name, value in _LINE.findall(text):
        with suppress(ValueError):
            number = float(value)
            found.setdefault(name, []).append(number)
    running, waiting = (found.get(f"num_requests_{what}") for what in ("running", "waiting"))
    cache = next((found[name] for name in _CACHE if name in found), None)
    if running is None and waiting is None and cache is None:
        return Health(trouble="no vLLM metrics there")
    return Health(
        None if running is None else int(sum(running)),
        None if waiting is None else int(sum(waiting)),
        None if cache is None else max(cache),
    )


class Watch(threading.Thread):
    """Polls some servers; ``known`` has the latest by URL."""

    def __init__(self, urls: Sequence[str]) -> None:
        super().__init__(daemon=True, name="server-health")
        self._urls = urls
        self.known: Mapping[str, Health] = {}

    def look(self) -> Mapping[str, Health]:
        """Poll all, once."""
        self.known = {url: ask(url) for url in self._urls}
        return self.known

    def run(self) -> None:
        pause = threading.Event()
        while not pause.wait(PAUSE if self.known else 0):
            self.look()
